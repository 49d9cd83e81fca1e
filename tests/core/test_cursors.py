"""Cursor sources: shards whose ends are known only by reading, read again from the recorded positions."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.cursor_source import CursorReader, Discovery
from connectors.core.cursors import CursorSplit, Page
from connectors.core.epochs import HISTORY, EpochLog
from connectors.core.planning import Planner
from connectors.core.progress import unpacked
from connectors.ground.errors import DataLoss, Misconfigured, StateError
from connectors.storage import storage_of
from connectors.testing.epoch_suite import EpochSourceSuite
from connectors.testing.source_suite import SourceQuery
from connectors.testing.sqlite_file import transaction
from tests.shard_double import SCHEMA, ShardCursor, ShardDoubleSource

from ..systems.reference_contexts import ShardContext
from .epoch_race import two_attempts


class TestShards(EpochSourceSuite):
    context = ShardContext


@pytest.fixture
def system(tmp_path: Path) -> ShardContext:
    folder = tmp_path / "system"
    folder.mkdir()
    return ShardContext(folder)


def values(rows: list[dict[str, Any]] | None) -> list[int]:
    return sorted(row["value"] for row in rows or [])


def test_a_replay_reads_the_recorded_range_and_not_what_came_since(system: ShardContext) -> None:
    system.write(5)
    log: list[Any] = []
    rows = SourceQuery(system).next(log)
    system.write(5)
    assert SourceQuery(system).batch(log, 0) == rows
    assert values(rows) == [0, 1, 2, 3, 4]


def test_a_replay_has_the_partitions_of_the_plan_whatever_was_added_since(system: ShardContext) -> None:
    system.write(6)
    log: list[Any] = []
    query = SourceQuery(system, numPartitions="2")
    assert query.plan(log) == 0
    before = [part.detail for part in query.planner.slices({"v": 1, "phase": "initial"}, log[0])]
    system.shards.add("c")
    after = [part.detail for part in SourceQuery(system).planner.slices({"v": 1, "phase": "initial"}, log[0])]
    assert [detail["positions"] for detail in before] == [{"a": 0}, {"b": 0}]
    assert before == after


def test_children_are_read_after_their_parent_is_finished(system: ShardContext) -> None:
    system.write(4)
    system.shards.split("a")
    system.write(6)
    log: list[Any] = []
    query = SourceQuery(system, maxRowsPerTrigger="2")
    shards: list[str] = []
    while (rows := query.next(log)) is not None:
        shards += [row["shard"] for row in rows]
    assert len(shards) == 10
    assert max(number for number, shard in enumerate(shards) if shard == "a") < min(
        number for number, shard in enumerate(shards) if shard in ("a1", "a2")
    )


def test_a_query_that_ends_reads_children_of_a_shard_that_ended_without_records(system: ShardContext) -> None:
    for shard in ("a", "a1", "b", "b1"):
        system.shards.split(shard)
    system.write(8)
    query, log = SourceQuery(system), []
    query.planner.freeze()
    rows: list[dict[str, Any]] = []
    while (number := query.plan(log)) is not None:
        rows += query.batch(log, number)
    assert values(rows) == list(range(8))


def moved(system: ShardContext, log: list[Any], positions: Mapping[str, Any] | None) -> list[Any]:
    """The offsets of a query whose last one was moved, as ``connectors offsets`` does it."""
    at = log[-1]["at"]
    return [*log[:-1], {**log[-1], "at": {"epoch": at["epoch"], "log": at["log"], "positions": positions}}]


@pytest.mark.parametrize(("positions", "again"), [({"a": 2}, [2, 4]), (None, [0, 1, 2, 3, 4, 5])], ids=["a shard", "all"])
def test_a_query_whose_position_was_moved_goes_on_there(
    system: ShardContext, positions: Mapping[str, Any] | None, again: list[int]
) -> None:
    system.write(6)  # their numbers are 1 to 6, and every other one is in shard a
    query, log = SourceQuery(system), []
    query.planner.freeze()
    while query.next(log) is not None:
        pass
    log = moved(system, log, positions)
    query = SourceQuery(system)
    query.planner.freeze()
    first = query.plan(log)
    assert first is not None
    assert values(query.batch(log, first)) == again
    assert values(SourceQuery(system).batch(log, first)) == again  # a replay
    system.write(2)
    assert values(SourceQuery(system).rest(log)) == [6, 7]


def test_a_shard_that_was_read_to_its_end_is_read_again_and_its_children_wait_for_it(system: ShardContext) -> None:
    system.write(4)
    system.shards.split("a")
    system.write(6)
    query, log = SourceQuery(system), []
    query.planner.freeze()
    while query.next(log) is not None:
        pass
    log = moved(system, log, {"a": 0})
    query = SourceQuery(system)
    query.planner.freeze()
    rows: list[dict[str, Any]] = []
    while (more := query.next(log)) is not None:
        rows += more
    assert [(row["shard"], row["value"]) for row in rows] == [("a", 0), ("a", 2)]


class SlowCursor(ShardCursor):
    """The system says nothing before ``answers_at``."""

    answers_at = 0.0

    def read(self, partition: str, position: Any, end: Any, rows: int) -> Page:
        if time.monotonic() < self.answers_at:
            return Page(pa.RecordBatch.from_pylist([], schema=SCHEMA), position, is_waiting=True)
        return super().read(partition, position, end, rows)


class SlowSource(ShardDoubleSource):
    def cursor(self, schema: pa.Schema) -> SlowCursor:
        return SlowCursor(self._shards(), fail=True)


@pytest.mark.parametrize("limit", ["10s", "100ms"], ids=["one epoch", "several epochs"])
def test_a_query_that_ends_waits_for_a_system_that_has_not_answered(
    system: ShardContext, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.write(5)
    monkeypatch.setattr(SlowCursor, "answers_at", time.monotonic() + 1.0)
    query, log = SourceQuery(system, SlowSource, maxEpochTime=limit, drainTimeout="50ms"), []
    query.planner.freeze()
    rows: list[dict[str, Any]] = []
    while (number := query.plan(log)) is not None and len(log) < 30:
        rows += query.batch(log, number)
    assert values(rows) == list(range(5))


class SubscribedCursor(SlowCursor):
    """The system answers some time after each epoch has begun."""

    def open(self) -> None:
        super().open()
        self.answers_at = time.monotonic() + 0.5


class SubscribedSource(ShardDoubleSource):
    def cursor(self, schema: pa.Schema) -> SubscribedCursor:
        return SubscribedCursor(self._shards(), fail=True)


def test_an_epoch_of_a_stream_waits_for_a_system_that_has_not_answered(system: ShardContext) -> None:
    system.write(5)
    query, log = SourceQuery(system, SubscribedSource, pollInterval="50ms"), []
    assert values(query.next(log)) == list(range(5))


def test_a_finished_shard_is_never_read_again(system: ShardContext) -> None:
    system.write(4)
    system.shards.split("a")
    log: list[Any] = []
    SourceQuery(system).rest(log)
    system.write(3)
    query = SourceQuery(system)
    query.plan(log)
    details = [part.detail for part in query.planner.slices(log[-2], log[-1])]
    assert {shard for detail in details for shard in detail["positions"]} == {"a1", "a2", "b"}


def test_of_two_attempts_at_an_epoch_one_counts_and_the_other_reads_what_is_recorded(system: ShardContext) -> None:
    system.write(4)
    source = ShardDoubleSource.of({**system.options(), "numPartitions": "1"}, streaming=True)
    log_id = Planner(source).latest({"v": 1, "phase": "initial"})["at"]["log"]
    source.log().claim(log_id)  # type: ignore[attr-defined]
    split = CursorSplit(log_id, 1, 0, 1, {"a": 0, "b": 0})
    slower, faster = two_attempts(lambda: CursorReader(source, SCHEMA), split, lambda: system.write(4))
    assert pa.Table.from_batches(slower) == pa.Table.from_batches(faster)
    assert pa.Table.from_batches(faster).num_rows == 8


def test_a_range_that_has_expired_cannot_be_read_again(system: ShardContext) -> None:
    system.write(5)
    log: list[Any] = []
    SourceQuery(system).next(log)
    system.lose()
    with pytest.raises(DataLoss, match=r"(?s)epoch 1 cannot be read again from a, b: it has 0 rows now.*failOnDataLoss"):
        SourceQuery(system).batch(log, 0)
    assert SourceQuery(system, failOnDataLoss="false").batch(log, 0) == []


def test_a_query_that_ends_stops_at_what_was_there_at_its_start(system: ShardContext) -> None:
    system.write(5)
    query, log = SourceQuery(system, maxRowsPerTrigger="2"), []
    query.planner.freeze()
    rows = query.next(log) or []
    system.write(20)
    rows += query.rest(log)
    assert values(rows) == [0, 1, 2, 3, 4]
    assert values(SourceQuery(system).rest(log)) == list(range(5, 25))


def test_a_later_run_to_the_same_time_reads_what_has_come_late(system: ShardContext) -> None:
    system.write(4)
    time.sleep(0.01)
    stop = str(time.time_ns() // 1_000_000)
    log: list[Any] = []
    for count in (4, 2, 0):
        run = SourceQuery(system, stopAt=stop)
        run.planner.freeze()
        rows: list[dict[str, Any]] = []
        while (batch := run.next(log)) is not None:
            rows += batch
        assert len(rows) == count
        if count == 4:
            system.write(2)
            with transaction(system.shards.path) as file:
                file.execute("UPDATE records SET published = published - 100")


def test_old_epochs_are_deleted(system: ShardContext) -> None:
    log: list[Any] = []
    for _ in range(HISTORY + 5):
        system.write(1)
        SourceQuery(system).rest(log)
    assert len(list((Path(system.options()["stateLocation"]) / "epochs").iterdir())) <= HISTORY + 2


def test_an_epoch_without_records_does_not_read_for_ever(system: ShardContext) -> None:
    reads = ShardCursor.reads
    assert SourceQuery(system).rest([]) == []
    assert ShardCursor.reads - reads < 20


def test_an_epoch_that_was_deleted_is_not_read_anew(system: ShardContext) -> None:
    log: list[Any] = []
    for _ in range(HISTORY + 5):
        system.write(1)
        SourceQuery(system).rest(log)
    with pytest.raises(StateError, match=r"(?s)epoch 1 of .* is deleted.*start from the newest checkpoint"):
        SourceQuery(system).batch(log, 0)


def test_a_batch_reads_all_shards_up_to_now_and_needs_no_log(system: ShardContext) -> None:
    system.write(4)
    system.shards.split("a")
    written = system.write(6)
    options = {name: text for name, text in system.options().items() if name != "stateLocation"}
    planner = Planner(ShardDoubleSource.of({**options, "numPartitions": "2"}))
    slices = planner.whole()
    system.write(5)
    reader = ShardDoubleSource.of(options).reader(SCHEMA)
    splits = [split for part in slices for split in planner.enumerator.splits_of(part)]
    rows = [row for split in splits for batch in reader.read(split) for row in batch.to_pylist()]
    assert len(slices) == 2
    assert values(rows) == list(range(10))
    assert all(row in rows for row in written)


def test_an_epoch_of_a_run_that_died_does_not_end_the_next_run(system: ShardContext) -> None:
    """Its records came after the start of the first run, and before that of the second one."""
    log: list[Any] = []
    query = SourceQuery(system)
    query.planner.freeze()
    query.plan(log)
    system.write(4)
    again = SourceQuery(system)
    again.planner.freeze()
    assert again.batch(log, 0) == []
    assert values(again.rest(log)) == list(range(4))


def test_a_stream_without_a_state_location_is_refused(system: ShardContext) -> None:
    with pytest.raises(Misconfigured, match=r"stateLocation +missing; a stream needs"):
        ShardDoubleSource.of({"path": system.options()["path"]}, streaming=True)


def test_the_table_of_the_query_shows_where_each_partition_stands(system: ShardContext) -> None:
    system.write(4)
    log: list[Any] = []
    query = SourceQuery(system)
    query.next(log)
    system.write(2)
    query.next(log)
    assert [(part.partition, part.position, part.lag_seconds) for part in unpacked(log[1])] == [("a", 3, 0.0), ("b", 4, 0.0)]


class ForgettingSource(ShardDoubleSource):
    """Forgets finished shards whose children are being read."""

    def partitions(self, positions: Mapping[str, Any], finished: Collection[str]) -> Discovery:
        known = set(positions) | set(finished)
        shards = self._shards().shards()
        ready = {name: 0 for name, parent in shards.items() if (parent in finished if known else parent is None)}
        parents = {shards[name] for name in known & set(shards)}
        return Discovery(ready | dict(positions), gone=parents & set(finished))


def test_partitions_that_are_gone_leave_the_plan_and_are_not_read_again(system: ShardContext) -> None:
    system.write(4)
    system.shards.split("a")
    log: list[Any] = []
    query = SourceQuery(system, ForgettingSource)
    rows = query.next(log) or []
    for _ in range(3):
        system.write(3)
        rows += query.next(log) or []
    assert values(rows) == list(range(13))
    source: Any = query.source
    plans = [source.log().plan(epoch) for epoch in range(1, 5)]
    assert [plan["finished"] for plan in plans] == [[], ["a"], [], []]
    assert [sorted(plan["positions"]) for plan in plans[1:]] == [["a1", "a2", "b"]] * 3


# alignment


def write_at(system: ShardContext, shard: str, times: list[float]) -> None:
    """Adds a record to ``shard`` for each of the times."""
    with transaction(system.shards.path) as file:
        rows = [(shard, round(at), at) for at in times]
        file.executemany("INSERT INTO records (shard, body, published) VALUES (?, ?, ?)", rows)


def times_of(rows: list[dict[str, Any]] | None) -> dict[str, list[int]]:
    return {shard: [row["value"] for row in rows or [] if row["shard"] == shard] for shard in ("a", "b")}


@pytest.mark.parametrize("readers", ["1", "2"])
def test_no_shard_is_read_further_than_the_drift_past_the_slowest_one(system: ShardContext, readers: str) -> None:
    write_at(system, "a", [float(at) for at in range(0, 100, 10)])
    write_at(system, "b", [float(at) for at in range(0, 1000, 10)])
    query = SourceQuery(system, maxDrift="50s", numPartitions=readers, maxRowsPerTrigger="8")
    query.planner.freeze()
    log: list[Any] = []
    newest, rows = {"a": 0, "b": 0}, []
    while (number := query.plan(log)) is not None:
        before, batch = newest["a"], query.batch(log, number)
        read = times_of(batch)
        if before < 90:  # then it is at its end
            assert max(read["b"], default=0) <= before + 10 + 50
        newest = {shard: max([newest[shard], *own]) for shard, own in read.items()}
        rows += batch
    assert len(rows) == 110


def test_a_shard_with_a_gap_longer_than_the_drift_goes_on(system: ShardContext) -> None:
    write_at(system, "a", [0.0, 1.0, 500.0, 501.0, 2000.0])
    query = SourceQuery(system, maxDrift="10s")
    query.planner.freeze()
    log: list[Any] = []
    rows: list[dict[str, Any]] = []
    while (number := query.plan(log)) is not None and len(log) < 30:
        rows += query.batch(log, number)
    assert values(rows) == [0, 1, 500, 501, 2000]


@pytest.mark.parametrize(("idle", "expected"), [("1 hour", []), ("0s", [1000])])
def test_a_shard_at_its_end_holds_back_the_others_until_it_is_idle(
    system: ShardContext, idle: str, expected: list[int]
) -> None:
    write_at(system, "a", [0.0])
    write_at(system, "b", [0.0])
    query, log = SourceQuery(system, maxDrift="10s", idleTimeout=idle), []
    assert values(query.next(log)) == [0, 0]
    write_at(system, "b", [1000.0])
    rows: list[dict[str, Any]] = []
    for _ in range(3):
        rows += query.next(log) or []
    assert values(rows) == expected


def test_a_replay_does_not_take_the_record_of_another_query_that_has_got_the_folder(system: ShardContext) -> None:
    system.write(4)
    log, other = list[Any](), list[Any]()
    SourceQuery(system, maxRowsPerTrigger="2").next(log)
    query = SourceQuery(system, maxRowsPerTrigger="2")
    assert query.plan(log) == 1
    parts = query.planner.slices(log[0], log[1])
    shutil.rmtree(system.options()["stateLocation"])
    assert SourceQuery(system, maxRowsPerTrigger="1").next(other)
    with pytest.raises(StateError, match="another query's epoch log"):
        SourceQuery(system, maxRowsPerTrigger="2").tasks(log, 1)
    assert EpochLog(storage_of(system.options()["stateLocation"]), "double").plan(2) is None, "the other one has yet to make it"
    assert SourceQuery(system, maxRowsPerTrigger="1").next(other)
    with pytest.raises(StateError, match="another query's epoch log"):
        [query.rows(part) for part in parts]
