"""Offsets: the start is found once, the end is canonical, a replay plans the same tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import (
    UNLIMITED,
    Position,
    ReadLimit,
    Slice,
    Source,
    Split,
    SplitEnumerator,
    SplitReader,
    StateError,
    Transient,
)
from connectors.core.planning import INITIAL, Planner, even_ranges
from connectors.ground.state import dumps


@dataclass
class System:
    """A log that grows, and what is asked of it."""

    size: int = 10
    first: int = 0
    away_until: float = 0.0
    calls: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Part(Split):
    first: int
    last: int


class Enumerator(SplitEnumerator[Part]):
    def __init__(self, system: System) -> None:
        self.system = system

    def start(self) -> Position:
        self.system.calls.append("start")
        return {"z": {"b": 1, "a": 2}, "at": self.system.first}

    def head(self) -> int:
        self.system.calls.append("head")
        if time.monotonic() < self.system.away_until:
            raise Transient("the system is away", retry_after=0.01)
        return self.system.size

    def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
        end = head if limit.rows is None else min(head, at["at"] + limit.rows)
        return {"at": max(end, at["at"]), "z": {"a": 2, "b": 1}}

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Part]:
        for first, last in even_ranges(start["at"], end["at"] - 1, parallelism):
            yield Part(first, last)

    def committed(self, at: Position) -> None:
        self.system.calls.append(f"committed {at['at']}")

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        if time.monotonic() < self.system.away_until:
            raise Transient("the system is away", retry_after=0.01)
        return super().slices(start, end, parallelism)

    def stop(self) -> None:
        self.system.calls.append("stop")

    def close(self) -> None:
        self.system.calls.append("close")


class Log(Source):
    name, schema = "log", "value long"
    system: System

    def enumerator(self) -> Enumerator:
        return Enumerator(self.system)

    def reader(self, schema: pa.Schema) -> SplitReader[Part]:
        raise NotImplementedError


@pytest.fixture
def system() -> System:
    return System()


def planner(system: System, **options: str) -> Planner:
    source = Log.of(options, streaming=True)
    source.system = system  # type: ignore[attr-defined]
    return Planner(source)


def spans(planner: Planner, start: Any, end: Any) -> list[tuple[int, int]]:
    return [
        (split.first, split.last) for part in planner.slices(start, end) for split in planner.enumerator.splits_of(part)
    ]


def test_the_initial_offset_is_a_constant() -> None:
    assert dumps(INITIAL) == '{"phase":"initial","v":1}'


def test_the_start_is_found_once_and_kept_in_the_first_end(system: System) -> None:
    system.first = 4
    end = planner(system).latest(INITIAL)
    assert end["from"]["at"] == 4
    system.first = 9
    again = planner(system)
    assert spans(again, INITIAL, end) == [(4, 6), (7, 9)]
    assert system.calls.count("start") == 1


def test_later_ends_hold_no_start(system: System) -> None:
    plan = planner(system)
    first = plan.latest(INITIAL, ReadLimit(rows=3))
    assert "from" not in plan.latest(first)


def test_a_query_that_finds_nothing_still_remembers_its_start(system: System) -> None:
    system.first = 10
    end = planner(system).latest(INITIAL)
    assert end != INITIAL
    assert spans(planner(system), INITIAL, end) == []
    system.size = 12
    assert spans(planner(system), end, planner(system).latest(end)) == [(10, 10), (11, 11)]


def test_offsets_are_canonical(system: System) -> None:
    end = planner(system).latest(INITIAL)
    assert json.dumps(end, separators=(",", ":")) == dumps(end)
    assert list(end["from"]) == ["at", "z"]
    assert list(end["at"]["z"]) == ["a", "b"]


def test_the_same_offset_comes_back_when_there_is_nothing_new(system: System) -> None:
    end = json.loads(dumps(planner(system).latest(INITIAL)))
    assert planner(system, numPartitions="7").latest(end) is end


def test_a_replay_has_the_tasks_of_the_first_try(system: System) -> None:
    end = planner(system, numPartitions="3").latest(INITIAL)
    first = planner(system, numPartitions="3").slices(INITIAL, end)
    system.size = 1000
    assert planner(system, numPartitions="8").slices(INITIAL, end) == first
    assert len(first) == 3


def test_a_frozen_query_ends_where_the_data_ended(system: System) -> None:
    plan = planner(system)
    plan.freeze()
    first = plan.latest(INITIAL, ReadLimit(rows=4))
    system.size = 100
    second = plan.latest(first)
    assert second["at"]["at"] == 10
    assert plan.latest(second) is second


def test_the_next_run_of_a_query_waits_for_the_system_for_the_time_of_an_outage(system: System) -> None:
    options = {"retry.maxRetries": "1", "retry.initialBackoff": "10ms", "outageTimeout": "20s"}
    first = planner(system, **options)
    log = [first.latest(INITIAL)]
    system.size = 20
    log.append(first.latest(log[0]))
    system.size = 30
    system.away_until = time.monotonic() + 0.3
    again = planner(system, **options)
    again.freeze()
    assert again.latest(log[1])["at"]["at"] == 30
    system.away_until = time.monotonic() + 0.3
    assert spans(planner(system, **options), log[0], log[1]) != []
    system.away_until = time.monotonic() + 0.3
    new = planner(system, **options)
    new.freeze()
    with pytest.raises(Transient):  # a query that has never reached it may have the wrong address
        new.latest(INITIAL)


def test_a_source_that_cannot_be_frozen_says_so_at_once(system: System) -> None:
    plan = planner(system)

    def never() -> Any:
        raise ValueError("it has no end")

    plan.enumerator.freeze = never  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no end"):
        plan.freeze()


def test_a_batch_read_is_all_there_is(system: System) -> None:
    plan = planner(system)
    splits = [split for part in plan.whole() for split in plan.enumerator.splits_of(part)]
    assert splits == [Part(0, 4), Part(5, 9)]
    system.size = 0
    assert planner(system).whole() == []


def test_a_commit_tells_the_position_and_the_initial_one_tells_nothing(system: System) -> None:
    plan = planner(system)
    plan.committed(INITIAL)
    plan.committed(plan.latest(INITIAL, UNLIMITED))
    assert [call for call in system.calls if call.startswith("committed")] == ["committed 10"]


def test_the_enumerator_is_made_when_it_is_needed_and_closed_once(system: System) -> None:
    plan = planner(system)
    plan.close()
    plan.latest(INITIAL)
    plan.close()
    plan.close()
    assert [call for call in system.calls if call in ("stop", "close")] == ["stop", "close"]


def test_an_offset_of_an_older_version_is_read(system: System) -> None:
    old = {"v": 0, "at": {"at": 3, "z": {}}, "parts": 1}
    new = planner(system).latest(old)
    assert spans(planner(system), old, new) == [(3, 5), (6, 9)]


@pytest.mark.parametrize("offset", [{"v": 2, "at": {}}, {}, {"at": {}}, {"v": "1"}])
def test_an_offset_of_another_program_or_version_is_a_clear_error(system: System, offset: Any) -> None:
    with pytest.raises(StateError, match="the offset in the checkpoint"):
        planner(system).latest(offset)
    with pytest.raises(StateError, match="the end offset"):
        planner(system).slices(INITIAL, offset)


@pytest.mark.parametrize("offset", [{"v": 1}, {"v": 1, "at": 5}, {"v": 1, "parts": 2}])
def test_a_damaged_offset_is_a_clear_error(system: System, offset: Any) -> None:
    with pytest.raises(StateError):
        planner(system).latest(offset)


FOREIGN: list[dict[str, Any]] = [
    {"v": 1, "source": "log", "at": {"logOffset": 3}, "parts": 1},
    {"v": 1, "source": "log", "at": {"at": None, "z": {}}, "parts": 1},
    {"v": 1, "source": "log", "at": {"at": 3, "z": {}}},
    {"v": 1, "phase": "initial"},
]


@pytest.mark.parametrize("offset", FOREIGN, ids=["position", "value", "parts", "phase"])
def test_an_offset_that_something_else_has_written_is_a_clear_error_as_the_end_of_a_batch(
    system: System, offset: dict[str, Any]
) -> None:
    start = {"v": 1, "source": "log", "at": {"at": 1, "z": {}}, "parts": 1}
    with pytest.raises(StateError, match=r"is none of this source(?s:.*)checkpointLocation of its own"):
        planner(system).slices(start, offset)


@pytest.mark.parametrize("offset", FOREIGN[:2], ids=["position", "value"])
def test_an_offset_that_something_else_has_written_is_a_clear_error_as_a_start(
    system: System, offset: dict[str, Any]
) -> None:
    with pytest.raises(StateError, match="is none of this source"):
        planner(system).latest(offset)


def test_parallelism_keeps_to_what_the_system_allows(system: System) -> None:
    class Narrow(Log):
        max_parallelism = 3

    assert Narrow.of({"numPartitions": "2"}).parallelism() == 2
    assert Narrow.of({"numPartitions": "3"}).parallelism() == 3
    assert Log.of({}).parallelism() == 2
    assert Log.of({"numPartitions": "9"}).parallelism() == 9


def test_a_checkpoint_of_another_source_is_refused_by_name(system: System) -> None:
    offset = {"v": 1, "source": "elsewhere", "at": {"at": 3, "z": {}}, "parts": 1}
    with pytest.raises(StateError, match=r"connectors\.elsewhere, not connectors\.log"):
        planner(system).latest(offset)
