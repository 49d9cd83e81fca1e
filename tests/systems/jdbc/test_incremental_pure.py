"""The clocks and sets of numbers behind the positions of a stream."""

from __future__ import annotations

import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.systems.jdbc.incremental.keys import UTC, like, limit, moment_of, safe_wall, tick_like, tick_of
from connectors.systems.jdbc.incremental.positions import (
    changed,
    difference,
    fingerprint,
    ids_between,
    intersection,
    shares,
)

BERLIN = ZoneInfo("Europe/Berlin")


# ---- clocks


@pytest.mark.parametrize(
    ("now", "safe"),
    [
        ("2026-10-24 12:00:00", "2026-10-24 14:00:00"),
        ("2026-10-25 00:30:00", "2026-10-25 01:59:59.999999"),  # 02:30, which comes a second time
        ("2026-10-25 01:30:00", "2026-10-25 02:30:00"),  # the second time
        ("2026-10-25 00:00:00", "2026-10-25 01:59:59.999999"),
        ("2026-03-29 00:59:59", "2026-03-29 01:59:59"),
        ("2026-03-29 01:00:01", "2026-03-29 03:00:01"),
    ],
)
def test_an_hour_that_the_clock_shows_twice_is_read_after_the_second_time(now: str, safe: str) -> None:
    moment = datetime.datetime.fromisoformat(now).replace(tzinfo=UTC)
    assert safe_wall(moment, BERLIN) == datetime.datetime.fromisoformat(safe)


@given(st.datetimes(datetime.datetime(2025, 10, 20), datetime.datetime(2026, 11, 5)), st.integers(0, 100_000))
def test_no_time_that_may_still_be_written_is_passed(now: datetime.datetime, later: int) -> None:
    moment = now.replace(tzinfo=UTC)
    after = (moment + datetime.timedelta(seconds=later)).astimezone(BERLIN).replace(tzinfo=None)
    assert safe_wall(moment, BERLIN) <= after


def test_a_day_is_read_when_it_is_over() -> None:
    noon = datetime.datetime(2026, 5, 5, 12, tzinfo=UTC)
    assert limit(noon, 0, "day", ZoneInfo("UTC")) == "2026-05-04"
    assert limit(noon, 86400, "day", ZoneInfo("UTC")) == "2026-05-03"


@pytest.mark.parametrize(
    ("sql", "system", "tick"),
    [
        ("datetime", "mariadb", 1), ("timestamp(3)", "mariadb", 0.001), ("datetime(6)", "mariadb", 1e-6),
        ("TIMESTAMP_S", "duckdb", 1), ("TIMESTAMP_MS", "duckdb", 0.001), ("TIMESTAMP", "duckdb", 1e-6),
        ("timestamp(0) without time zone", "postgresql", 1), ("timestamp with time zone", "postgresql", 1e-6),
    ],
)  # fmt: skip
def test_a_type_tells_how_long_its_times_last(sql: str, system: str, tick: float) -> None:
    assert tick_of(sql, system) == pytest.approx(tick)


@pytest.mark.parametrize(
    ("plain", "tick"),
    [
        ("2024-05-05 12:00", 60), ("2024-05-05T12:00Z", 60), ("2024-05-05 12:00+02:00", 60), ("2024-05-05 12:00:00", 1),
        ("2024-05-05T12:00:00+02:00", 1), ("2024-05-05 12:00:00.25", 0.01), ("2024-05-05", 1),
        (1714910400, 1), (1714910400.5, 0),
    ],
)  # fmt: skip
def test_a_text_or_number_tells_how_long_its_time_lasts(plain: Any, tick: float) -> None:
    assert tick_like(plain) == pytest.approx(tick)


@pytest.mark.parametrize(
    "plain", ["2024-05-05 12:00:00", "2024-05-05T12:00:00.5", "2024-05-05T12:00:00Z", "2024-05-05", 1714910400, 1714910400000]
)
def test_the_clock_is_written_as_the_column_has_its_times(plain: Any) -> None:
    now = datetime.datetime(2026, 5, 5, tzinfo=UTC)
    last = like(plain, now, ZoneInfo("UTC"))
    assert type(last) is type(plain)
    assert plain < last
    assert moment_of(last, ZoneInfo("UTC")) in (now, now - datetime.timedelta(days=1))


# ---- intervals

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=6)


def _ascending(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    intervals: list[tuple[int, int]] = []
    for gap, length in spans:
        first = (intervals[-1][1] + 2 if intervals else 0) + gap
        intervals.append((first, first + length))
    return intervals


def _numbers(some: list[Any]) -> list[int]:
    return [n for first, last in some for n in range(first, last + 1)]


@given(SPANS, SPANS)
def test_intervals_are_sets_of_numbers(spans: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = _ascending(spans), _ascending(other)
    assert _numbers(list(difference(a, b))) == sorted(set(_numbers(a)) - set(_numbers(b)))
    assert _numbers(list(intersection(a, b))) == sorted(set(_numbers(a)) & set(_numbers(b)))


@given(SPANS, st.integers(1, 9))
def test_shares_are_disjoint_and_even(spans: list[tuple[int, int]], count: int) -> None:
    whole = _ascending(spans)
    parts = list(shares(whole, None, count))
    assert [n for share in parts for n in _numbers(share)] == _numbers(list(whole))
    sizes = [len(_numbers(share)) for share in parts]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_hole_above_an_id_that_was_moved_back_is_read_once() -> None:
    after, upto = {"id": 50, "holes": [[40, 41], [48, 55], [98, 98]]}, {"id": 120, "holes": [[90, 90]]}
    assert ids_between(after, upto) == [(40, 41), (48, 50), (51, 89), (91, 120)]


def test_a_fingerprint_tells_what_has_changed() -> None:
    before = fingerprint([("a", "int"), ("b", "text")])
    change = changed(before, [("a", "bigint"), ("c", "text")])
    assert (change.added, change.retyped, change.gone) == (("c",), ("a",), 1)
