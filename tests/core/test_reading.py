"""What happens in a task: outages are bridged, atomic splits come whole or not at all, several fetchers share the work."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import (
    Fatal,
    Poison,
    Position,
    ReadLimit,
    RecordEmitter,
    SeekingReader,
    Slice,
    Source,
    Split,
    SplitEnumerator,
    SplitReader,
    Transient,
)
from connectors.core.reading import read_slice

SCHEMA = pa.schema([("value", pa.int64())])
ROWS = 10


@dataclass(frozen=True)
class Tens(Split):
    number: int


class Enumerator(SplitEnumerator[Tens]):
    closed = 0

    def __init__(self, source: Numbers) -> None:
        self.source = source

    def start(self) -> Position:
        return {"tens": 0}

    def head(self) -> int:
        return self.source.count

    def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
        return {"tens": head}

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Tens]:
        for number in range(start["tens"], end["tens"]):
            self.source.cut.append(number)
            if number == self.source.cannot_cut:
                raise Fatal("cannot cut")
            yield Tens(number)

    def close(self) -> None:
        self.source.did.append("enumerator closed")


class Numbers(Source):
    """``count`` splits of ten numbers each, which fail as a test says."""

    name, schema = "numbers", "value long"
    count = 4
    cannot_cut: int | None = None
    atomic = False
    fetchers = 1
    emits: RecordEmitter | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.did: list[str] = []
        self.cut: list[int] = []
        self.faults: dict[int, list[Exception]] = {}
        self.at = 4
        self.readers: list[Reader] = []
        self.gate: threading.Event | None = None

    def enumerator(self) -> Enumerator:
        return Enumerator(self)

    def reader(self, schema: pa.Schema) -> Reader:
        self.readers.append(Reader(self))
        return self.readers[-1]

    def emitter(self, schema: pa.Schema) -> RecordEmitter | None:
        return self.emits


class Reader(SplitReader[Tens]):
    def __init__(self, source: Numbers) -> None:
        super().__init__()
        self.source = source
        self.atomic = source.atomic  # type: ignore[misc]
        self.fetchers = source.fetchers  # type: ignore[misc]

    def open(self) -> None:
        self.source.did.append("open")

    def close(self) -> None:
        self.source.did.append("close")

    def read(self, split: Tens) -> Iterator[pa.RecordBatch]:
        self.source.did.append(f"read {split.number}")
        if self.source.gate is not None and split.number:
            deadline = time.monotonic() + 20  # a test that fails must not hang
            while time.monotonic() < deadline and not (self.source.gate.is_set() or self.awake.wait(0.01)):
                pass
        values = range(split.number * ROWS, (split.number + 1) * ROWS)
        yield batch(values[: self.source.at])
        if faults := self.source.faults.get(split.number):
            raise faults.pop(0)
        yield batch([])
        yield batch(values[self.source.at :])


def batch(values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)}, schema=SCHEMA)


@pytest.fixture
def source() -> Numbers:
    numbers = Numbers.of({})
    assert isinstance(numbers, Numbers)
    return numbers


def part(source: Numbers, index: int = 0, of: int = 1) -> Slice:
    return Slice({"tens": 0}, {"tens": source.count}, index, of, of)


def read(source: Numbers, which: Slice | None = None) -> list[int]:
    return [value for rows in read_slice(source, which or part(source), SCHEMA) for value in rows.column(0).to_pylist()]


def away() -> Transient:
    return Transient("away", retry_after=0.001)


def test_a_task_reads_its_splits_in_order(source: Numbers) -> None:
    assert read(source) == list(range(40))
    assert source.did[0] == "open"
    assert source.did.count("close") == 1


def test_a_task_reads_its_own_splits_only(source: Numbers) -> None:
    assert read(source, part(source, 1, 3)) == list(range(10, 20))
    assert read(source, part(source, 0, 3)) == [*range(10), *range(30, 40)]


def test_splits_are_made_one_by_one(source: Numbers) -> None:
    rows = read_slice(source, part(source), SCHEMA)
    next(rows)
    assert source.cut == [0]
    rows.close()  # type: ignore[attr-defined]


def test_an_outage_in_a_split_loses_and_doubles_nothing(source: Numbers) -> None:
    source.faults = {0: [away()], 2: [away(), away()]}
    assert read(source) == list(range(40))


def test_an_outage_that_does_not_end_fails_with_its_place() -> None:
    source = Numbers.of({"outageTimeout": "0s"})
    source.at = 0
    source.faults = {1: [away() for _ in range(20)]}
    with pytest.raises(Transient, match=r"connectors\.numbers, Tens\(number=1\): away"):
        read(source)
    assert len(source.faults[1]) == 14


def test_an_outage_outlasts_the_tries_for_as_long_as_the_user_allows() -> None:
    source = Numbers.of({"outageTimeout": "1min", "retry.maxRetries": "2"})
    source.at = 0
    source.faults = {1: [away() for _ in range(20)]}
    assert read(source) == list(range(40))


def test_outages_are_counted_anew_after_progress(source: Numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    source.at = 1
    tries = iter(range(100))

    def resume(split: Tens, records: int) -> Iterator[pa.RecordBatch]:
        yield batch([split.number * ROWS + records])
        if next(tries) < 8:
            raise away()
        yield batch(range(split.number * ROWS + records + 1, (split.number + 1) * ROWS))

    monkeypatch.setattr(Reader, "resume", lambda self, split, records: resume(split, records))
    source.count = 1
    source.faults = {0: [away()]}
    assert read(source) == list(range(10))


def test_an_atomic_split_comes_whole_or_not_at_all(source: Numbers) -> None:
    source.atomic = True
    source.faults = {1: [Fatal("broken")]}
    rows = read_slice(source, part(source), SCHEMA)
    assert [next(rows).column(0).to_pylist() for _ in range(3)] == [[0, 1, 2, 3], [], [4, 5, 6, 7, 8, 9]]
    with pytest.raises(Fatal, match="broken"):
        next(rows)


def test_an_atomic_split_is_read_anew_after_an_outage(source: Numbers) -> None:
    source.atomic = True
    source.faults = {1: [away(), away()]}
    assert read(source) == list(range(40))
    assert source.did.count("read 1") == 3


def test_an_error_tells_the_connector_and_the_split_and_closes_the_reader(source: Numbers) -> None:
    source.faults = {2: [Poison("rotten", record=b"x")]}
    with pytest.raises(Poison, match=r"connectors\.numbers, Tens\(number=2\): rotten") as caught:
        read(source)
    assert caught.value.record == b"x"
    assert source.did.count("open") == source.did.count("close") == 1


def test_a_task_that_is_left_closes_its_reader(source: Numbers) -> None:
    rows = read_slice(source, part(source), SCHEMA)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert "close" in source.did


def test_the_enumerator_of_a_task_is_closed(source: Numbers) -> None:
    read(source)
    assert source.did.count("enumerator closed") == 1


class Doubling(RecordEmitter):
    def __init__(self) -> None:
        self.finished: list[int] = []
        self.faults: list[str] = []

    def _fail(self, step: str) -> None:
        if step in self.faults:
            self.faults.remove(step)
            raise away()

    def emit(self, records: pa.RecordBatch, split: Split) -> pa.RecordBatch:
        self._fail("emit")
        return batch([2 * value for value in records.column(0).to_pylist()])

    def finish(self, split: Split) -> None:
        assert isinstance(split, Tens)
        self._fail("finish")
        self.finished.append(split.number)


def test_an_emitter_makes_the_rows_and_is_told_of_whole_splits_only(source: Numbers) -> None:
    source.emits = emitter = Doubling()
    source.faults = {0: [away()]}
    assert read(source) == [2 * value for value in range(40)]
    assert emitter.finished == [0, 1, 2, 3]
    source.faults = {1: [Fatal("broken")]}
    with pytest.raises(Fatal):
        read(source)
    assert emitter.finished == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("step", ["emit", "finish"])
def test_an_outage_of_what_the_emitter_needs_is_waited_for(source: Numbers, step: str) -> None:
    source.emits = emitter = Doubling()
    emitter.faults = [step, step]
    assert read(source) == [2 * value for value in range(40)]
    assert emitter.finished == [0, 1, 2, 3]


@pytest.mark.parametrize("fetchers", [2, 3, 8])
def test_several_fetchers_read_everything_once(source: Numbers, fetchers: int) -> None:
    source.fetchers, source.count = fetchers, 25
    source.faults = {3: [away()], 7: [away(), away()]}
    assert sorted(read(source)) == list(range(250))
    assert source.did.count("open") == source.did.count("close") == fetchers


def test_several_fetchers_read_splits_at_the_same_time(source: Numbers) -> None:
    source.fetchers, source.gate = 3, threading.Event()
    rows = read_slice(source, part(source), SCHEMA)
    next(rows)
    deadline = time.monotonic() + 20
    while not {"read 1", "read 2"} <= set(source.did) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert {"read 1", "read 2"} <= set(source.did)
    source.gate.set()
    assert sum(1 for _ in rows) == 7


def test_fetchers_wait_when_nobody_takes_what_they_read(source: Numbers) -> None:
    source.fetchers, source.count = 2, 500
    rows = read_slice(source, part(source), SCHEMA)
    next(rows)
    count = -1
    while count != (count := len(source.cut)):
        time.sleep(0.3)
    assert count <= 8
    rows.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [Poison("rotten"), Fatal("broken")])
def test_an_error_of_a_fetcher_surfaces_with_its_place(source: Numbers, error: Exception) -> None:
    source.fetchers = 3
    source.faults = {2: [error]}
    with pytest.raises(type(error), match=r"connectors\.numbers, Tens\(number=2\): "):
        read(source)
    assert source.did.count("open") == source.did.count("close")


def test_an_error_that_is_not_ours_surfaces_from_a_fetcher(source: Numbers) -> None:
    source.fetchers = 3
    source.faults = {2: [ZeroDivisionError("oops")]}
    with pytest.raises(ZeroDivisionError, match="oops"):
        read(source)


@pytest.mark.parametrize("fetchers", [1, 3])
def test_an_error_while_splits_are_made_surfaces(source: Numbers, fetchers: int) -> None:
    source.fetchers, source.cannot_cut = fetchers, 2
    with pytest.raises(Fatal, match="cannot cut"):
        read(source)


def test_leaving_early_wakes_and_joins_the_fetchers(source: Numbers) -> None:
    source.fetchers, source.gate = 3, threading.Event()  # splits after the first wait, unless they are woken
    before = threading.active_count()
    rows = read_slice(source, part(source), SCHEMA)
    next(rows)
    start = time.monotonic()
    rows.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 10
    assert threading.active_count() == before
    assert source.did.count("open") == source.did.count("close")
    assert all(reader.awake.is_set() for reader in source.readers[1:])


def test_an_outage_is_not_waited_out_when_nobody_reads_any_more(source: Numbers) -> None:
    source.fetchers = 2
    source.faults = {1: [Transient("away", retry_after=60.0)]}
    rows = read_slice(source, part(source), SCHEMA)
    next(rows)
    start = time.monotonic()
    rows.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 30


class SeekingTens(SeekingReader[Tens]):
    """Reads numbers in batches of four; without ``seeks`` no read can begin behind them."""

    def __init__(self, seeks: bool) -> None:
        super().__init__()
        self.seeks = seeks
        self.starts: list[int] = []

    def read_after(self, split: Tens, position: int | None) -> Iterator[tuple[pa.RecordBatch, int | None]]:
        first = 0 if position is None else position
        self.starts.append(first)
        while first < 12:
            first += 4
            yield pa.RecordBatch.from_pydict({"value": list(range(first - 4, first))}, SCHEMA), first if self.seeks else None


def values_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [row["value"] for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_reader_that_seeks_goes_on_behind_the_newest_position_that_it_knows(batches: int) -> None:
    reader = SeekingTens(seeks=True)
    records = len(values_of(islice(reader.read(Tens(0)), batches)))
    assert values_of(reader.resume(Tens(0), records)) == list(range(records, 12))
    assert reader.starts == [0, records]


@pytest.mark.parametrize("records", range(1, 13))
def test_it_can_be_resumed_after_any_record(records: int) -> None:
    reader = SeekingTens(seeks=True)
    values_of(reader.read(Tens(0)))
    assert values_of(reader.resume(Tens(0), records)) == list(range(records, 12))


class Place:
    """A position that can be counted while it is remembered."""


class SeekingPlaces(SeekingReader[Tens]):
    def __init__(self) -> None:
        super().__init__()
        self.places: weakref.WeakSet[Place] = weakref.WeakSet()

    def read_after(self, split: Tens, position: Place | None) -> Iterator[tuple[pa.RecordBatch, Place]]:
        for value in range(100):
            place = Place()
            self.places.add(place)
            yield pa.RecordBatch.from_pydict({"value": [value]}, SCHEMA), place


def test_it_remembers_one_position_whatever_the_number_of_batches() -> None:
    reader = SeekingPlaces()
    assert values_of(reader.read(Tens(0))) == list(range(100))
    assert len(reader.places) == 1


@pytest.mark.parametrize("is_same", [True, False])
def test_without_a_known_position_it_reads_again_and_drops_what_was_handed_on(is_same: bool) -> None:
    reader = SeekingTens(seeks=not is_same)
    values_of(reader.read(Tens(0)))
    assert values_of(reader.resume(Tens(0 if is_same else 1), 6)) == list(range(6, 12))
    assert reader.starts == [0, 0]
