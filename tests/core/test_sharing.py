"""Limits are shared fairly and ranges are cut evenly, whatever their size, without holding them in memory."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core import Slice, Split, SplitEnumerator
from connectors.core.planning import even_ranges, fair_shares, split_count

BACKLOGS = st.dictionaries(st.text(max_size=4), st.integers(0, 10**6), max_size=12)
LONGS = st.integers(-(2**63), 2**63 - 1)


@given(BACKLOGS, st.integers(0, 10**7))
def test_shares_use_the_whole_limit_and_never_more(backlog: dict[str, int], limit: int) -> None:
    shares = fair_shares(limit, backlog)
    assert shares.keys() == backlog.keys()
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= shares[name] <= backlog[name] for name in backlog)


@given(BACKLOGS, st.integers(0, 10**7))
def test_nobody_gets_less_than_another_one_while_it_still_waits(backlog: dict[str, int], limit: int) -> None:
    shares = fair_shares(limit, backlog)
    hungry = [shares[name] for name in backlog if shares[name] < backlog[name]]
    if hungry:
        assert max(shares.values()) - min(hungry) <= 1


@given(BACKLOGS, st.integers(0, 10**7))
def test_nobody_starves_when_the_limit_has_room_for_all(backlog: dict[str, int], limit: int) -> None:
    waiting = [name for name in backlog if backlog[name]]
    if limit >= len(waiting):
        assert all(fair_shares(limit, backlog)[name] for name in waiting)


@given(BACKLOGS, st.integers(0, 10**7), st.randoms())
def test_shares_do_not_depend_on_the_order_of_partitions(backlog: dict[str, int], limit: int, chance: object) -> None:
    items = list(backlog.items())
    chance.shuffle(items)  # type: ignore[attr-defined]
    assert fair_shares(limit, dict(items)) == fair_shares(limit, backlog)


def test_no_limit_is_everything() -> None:
    assert fair_shares(None, {"a": 5, "b": 0}) == {"a": 5, "b": 0}


def test_small_backlogs_are_taken_whole() -> None:
    assert fair_shares(100, {"big": 1000, "small": 10, "other": 1000}) == {"big": 45, "other": 45, "small": 10}


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_long_backlog_does_not_starve_beside_short_ones_that_fill_again(limit: int) -> None:
    backlog = {"busy": 50, "a": 0, "b": 0, "c": 0, "d": 0}
    for _ in range(300):
        for name in ("a", "b", "c")[:limit]:  # as much comes in as the limit lets out
            backlog[name] += 1
        for name, share in fair_shares(limit, backlog).items():
            backlog[name] -= share
    assert backlog["busy"] < 50


@given(LONGS, LONGS, st.integers(1, 50))
def test_ranges_cover_everything_without_overlap(a: int, b: int, count: int) -> None:
    first, last = min(a, b), max(a, b)
    ranges = list(even_ranges(first, last, count))
    assert ranges[0][0] == first
    assert ranges[-1][1] == last
    assert all(right[0] == left[1] + 1 for left, right in pairwise(ranges))
    sizes = [end - begin + 1 for begin, end in ranges]
    assert max(sizes) - min(sizes) <= 1
    assert len(ranges) == min(count, last - first + 1)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_whole_range_of_longs_is_cut(count: int) -> None:
    ranges = list(even_ranges(-(2**63), 2**63 - 1, count))
    assert sum(end - begin + 1 for begin, end in ranges) == 2**64
    assert all(-(2**63) <= begin <= end <= 2**63 - 1 for begin, end in ranges)


@pytest.mark.parametrize(("first", "last"), [(5, 4), (5, -5)])
def test_an_empty_range_has_no_parts(first: int, last: int) -> None:
    assert list(even_ranges(first, last, 4)) == []


def test_ten_gigabytes_at_64_megabytes_are_160_splits() -> None:
    assert split_count(10 << 30, 64 << 20, 10 << 20) == 160


def test_there_is_at_least_one_split_and_none_below_the_smallest() -> None:
    assert split_count(0, 64 << 20, 10 << 20) == 1
    assert split_count(100 << 20, 1, 10 << 20) == 10


@dataclass(frozen=True)
class Ranged(Split):
    first: int
    last: int


class Table(SplitEnumerator[Ranged]):
    """``rows`` rows, cut into ``count`` splits, that knows how many of its splits are alive."""

    def __init__(self, rows: int, count: int) -> None:
        self.rows, self.count = rows, count
        self.total, self.most = 0, 0
        self.alive: weakref.WeakSet[Split] = weakref.WeakSet()

    def start(self) -> dict[str, int]:
        return {"rows": 0}

    def head(self) -> int:
        return self.rows

    def advance(self, at: object, head: int, limit: object) -> dict[str, int]:
        return {"rows": head}

    def splits(self, start: object, end: object, parallelism: int) -> Iterator[Ranged]:
        for first, last in even_ranges(0, self.rows - 1, self.count):
            split = Ranged(first, last)
            self.total += 1
            if self.count < 1000:
                self.alive.add(split)
                self.most = max(self.most, len(self.alive))
            yield split
            del split


def test_of_160_splits_never_more_than_16_are_held() -> None:
    table = Table(10 << 30, split_count(10 << 30, 64 << 20, 10 << 20))
    gc.collect()
    for part in table.slices(table.start(), {"rows": table.rows}, 4):
        for split in table.splits_of(part):
            del split
    assert table.total >= 160
    assert table.most <= 16


def test_many_splits_take_constant_memory() -> None:
    def peak(count: int) -> int:
        table = Table(1 << 50, count)
        tracemalloc.start()
        parts = table.slices(table.start(), {"rows": table.rows}, 1)
        assert sum(1 for _ in islice(table.splits_of(parts[0]), None)) == count
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(300_000) < 1 << 20, "the splits themselves would be some 30 MB; other threads allocate a little too"


def test_slices_share_the_splits_out_without_loss() -> None:
    table = Table(1000, 37)
    parts = table.slices({"rows": 0}, {"rows": 1000}, 5)
    splits = [split for part in parts for split in table.splits_of(part)]
    assert len(parts) == 5
    assert sorted(split.first for split in splits) == [split.first for split in table.splits(None, None, 5)]


def test_there_are_no_more_slices_than_splits() -> None:
    table = Table(3, 3)
    assert [part.of for part in table.slices({"rows": 0}, {"rows": 3}, 8)] == [3, 3, 3]
    assert isinstance(table.slices({"rows": 0}, {"rows": 3}, 8)[0], Slice)
