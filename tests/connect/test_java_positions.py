"""Where a start of Debezium goes on, by records made by hand: transactions, snapshots, heartbeats, and starts inside a poll."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from connectors.connect.java.debezium import is_behind, offset_store
from connectors.connect.java.jvm import Jvm
from connectors.connect.java.source_records import RecordWriter
from connectors.connect.java.steps import Steps
from connectors.connect.java.validation import connector_jvm, plugin_class_path
from tests.connect.java_sources import FILES, settings
from tests.connect.test_java_records import READING, array_list, compiled

SCHEMAS = {
    "heartbeat": "io.debezium.connector.common.Heartbeat",
    "transaction": "io.debezium.connector.common.TransactionMetadataValue",
}


@pytest.fixture(scope="module")
def jvm() -> Iterator[Jvm]:
    running = connector_jvm(settings({}), plugin_class_path(None, [FILES]))
    yield running
    running.close()


@cache
def reading(jvm: Jvm) -> Any:
    return compiled(jvm, "Reading", READING)


class Log:
    """A store of positions, and a task that reads it."""

    def __init__(self, jvm: Jvm, database: str, entries: str = "[]", **properties: str) -> None:
        dotted = {name.replace("_", "."): value for name, value in properties.items()}
        config = {"connector.class": f"io.debezium.connector.{database}.Connector", **dotted}
        self.jvm, self.store = jvm, offset_store(jvm, config)
        self.store.reset(entries)
        self.reader, self.task = self.store.reader(0), reading(jvm)

    def start(self) -> dict[str, Any] | None:
        """The offset from which the task goes on."""
        offset = self.task.start(self.reader, {"server": "s"})
        return None if offset is None else dict(offset)

    def polled(self, *records: tuple[str, dict[str, Any]]) -> Any:
        return self.jvm.compiled(
            "PolledList", 0, self.reader, array_list(self.jvm, [self._record(*r) for r in records]), 1
        )

    def give(self, *records: tuple[str, dict[str, Any]]) -> list[str]:
        """The topics of those records that are handed over."""
        polled = self.polled(*records)
        assert self.store.enter(polled)
        assert self.store.accept(polled, polled.size())
        return [record.topic() for record in polled.records()]

    def _record(self, topic: str, offset: dict[str, Any]) -> Any:
        connect = self.jvm.java.org.apache.kafka.connect
        schema = connect.data.SchemaBuilder.string().name(SCHEMAS.get(topic, "row")).build()
        return connect.source.SourceRecord({"server": "s"}, offset, topic, schema, topic)


def postgres(lsn: int, commit: int | None, transaction: int | None, **more: Any) -> dict[str, Any]:
    fields = {"lsn": lsn, "lsn_proc": lsn, "lsn_commit": commit, "txId": transaction, "messageType": "INSERT", **more}
    return {name: value for name, value in fields.items() if value is not None}


def test_what_was_handed_over_of_a_transaction_is_dropped_when_it_comes_again(jvm: Jvm) -> None:
    log = Log(jvm, "postgresql")
    assert log.start() is None
    log.give(
        ("a", postgres(50, 40, 1)), ("a", postgres(70, 60, 2)), ("a", postgres(70, 60, 2)), ("b", postgres(70, 60, 2))
    )
    assert log.start() == {"lsn": 60, "lsn_commit": 60, "txId": 2}
    beat = ("heartbeat", {"lsn": 60, "lsn_commit": 60, "txId": 2})
    assert log.give(beat, ("a", postgres(70, 60, 2)), beat) == ["heartbeat", "heartbeat"]
    assert log.start() == {"lsn": 60, "lsn_commit": 60, "txId": 2}  # again, before all of it has come
    again = [("a", postgres(70, 60, 2))] * 5 + [("b", postgres(70, 60, 2))] * 2
    assert log.give(*again) == ["a", "a", "a", "b"]
    assert log.give(("a", postgres(90, 80, 3))) == ["a"]


def test_a_record_behind_all_that_was_handed_over_is_no_repeat_whatever_the_count(jvm: Jvm) -> None:
    """Without its primary key, an update of a key comes again as one record in place of two."""
    log = Log(jvm, "postgresql")
    log.give(("a", postgres(50, 60, 2)), ("a", postgres(50, 60, 2)))
    log.start()
    assert log.give(("a", postgres(50, 60, 2)), ("a", postgres(70, 60, 2))) == ["a"]


def test_heartbeats_and_notifications_begin_no_position(jvm: Jvm) -> None:
    """Debezium's first ones say where the database is, not the slot, or nothing at all."""
    log = Log(jvm, "postgresql")
    assert log.give(("heartbeat", {"lsn": 900, "txId": 9}), ("heartbeat", {})) == ["heartbeat", "heartbeat"]
    assert log.start() is None


def test_nothing_is_dropped_when_the_transaction_does_not_come_again(jvm: Jvm) -> None:
    log = Log(jvm, "postgresql")
    log.give(("a", postgres(70, 60, 2)))
    log.start()
    assert log.give(("a", postgres(90, 80, 3)), ("a", postgres(70, 60, 2))) == ["a", "a"]


def test_the_first_transaction_of_a_log_begins_at_its_own_position(jvm: Jvm) -> None:
    log = Log(jvm, "postgresql")
    log.give(("a", postgres(50, None, 1)))
    assert log.start() == {"lsn": 50, "txId": 1}
    assert log.give(("a", postgres(50, None, 1)), ("a", postgres(50, None, 1))) == ["a"]


def test_an_initial_snapshot_begins_again_and_all_of_it_comes(jvm: Jvm) -> None:
    log = Log(jvm, "postgresql")
    running = {"lsn": 9, "snapshot": "INITIAL", "snapshot_completed": False}
    log.give(("a", running), ("a", running))
    assert log.start() == running
    polled = log.polled(("a", running))
    assert log.store.enter(polled)
    assert polled.size() == 1
    report = json.loads(reported(jvm, log, polled))
    assert report["again"]
    assert log.store.accept(polled, 0)  # no row: the next list still tells it
    assert json.loads(reported(jvm, log, entered(log, ("a", running))))["again"]
    assert log.give(("a", {**running, "snapshot_completed": True, "last_snapshot_record": True})) == ["a"]
    log.start()
    assert not json.loads(reported(jvm, log, entered(log, ("a", postgres(20, 10, 3)))))["again"]


def test_a_later_snapshot_does_not_begin_the_first_one_again(jvm: Jvm) -> None:
    """It may be one of a part of the rows: ``snapshot.mode=always`` with ``snapshot.select.statement.overrides``."""
    log = Log(jvm, "postgresql", snapshot_mode="always")
    running = {"lsn": 9, "snapshot": "INITIAL", "snapshot_completed": False}
    log.give(("a", running), ("a", {**running, "snapshot_completed": True, "last_snapshot_record": True}))
    for _ in range(2):  # the second time behind one that was interrupted
        log.start()
        polled = entered(log, ("a", {**running, "lsn": 20}))
        report = json.loads(reported(jvm, log, polled))
        assert not report["again"]
        assert log.store.accept(polled, 1)
    again = json.dumps([[*place[:2], place[2]] for place in report["offsets"]])
    restarted = Log(jvm, "postgresql", again, snapshot_mode="always")
    restarted.start()
    assert not json.loads(reported(jvm, restarted, entered(restarted, ("a", running))))["again"]


def entered(log: Log, *records: tuple[str, dict[str, Any]]) -> Any:
    polled = log.polled(*records)
    assert log.store.enter(polled)
    return polled


def reported(jvm: Jvm, log: Log, polled: Any) -> str:
    with TemporaryDirectory() as folder:
        writer = RecordWriter(jvm, Steps(jvm, {}), log.store, Path(folder))
        try:
            return str(writer.java.write(polled, 0))
        finally:
            writer.close()


@pytest.mark.parametrize("kind", ["BLOCKING", "blocking"])
def test_a_blocking_snapshot_moves_no_position(jvm: Jvm, kind: str) -> None:
    log = Log(jvm, "postgresql")
    log.give(("a", postgres(70, 60, 2)))
    assert log.give(("a", {"lsn": 500, "snapshot": kind}), ("b", {"lsn": 500, "snapshot": kind})) == ["a", "b"]
    assert log.start() == {"lsn": 60, "lsn_commit": 60, "txId": 2}
    assert log.give(("a", postgres(70, 60, 2)), ("a", postgres(71, 60, 2))) == ["a"]


def test_behind_a_blocking_snapshot_the_task_starts_again_before_the_first_change(jvm: Jvm) -> None:
    log, blocking = Log(jvm, "postgresql"), ("a", {"lsn": 500, "snapshot": "BLOCKING"})
    log.start()
    log.give(("a", postgres(50, 40, 1)), ("a", postgres(70, 60, 2)))
    polled = entered(log, blocking, ("heartbeat", postgres(70, 60, 2)), ("b", postgres(90, 80, 3)), ("b", postgres(91, 80, 3)))
    assert (polled.size(), json.loads(reported(jvm, log, polled))["next"]) == (2, "start")
    assert log.store.accept(polled, 2)
    assert log.start() == {"lsn": 80, "lsn_commit": 80, "txId": 3}
    polled = entered(log, blocking, ("b", postgres(90, 80, 3)))  # it is asked for inside of that transaction
    assert (polled.size(), json.loads(reported(jvm, log, polled))["next"]) == (1, "stop")
    log.start()
    assert log.give(("b", postgres(90, 80, 3)), ("b", postgres(91, 80, 3)), ("a", postgres(99, 98, 4))) == ["b", "b", "a"]


def test_the_end_of_a_transaction_comes_behind_the_blocking_snapshot_that_was_asked_for_in_it(jvm: Jvm) -> None:
    """It stands behind the commit, where a start goes on."""
    log, blocking = Log(jvm, "postgresql"), ("a", {"lsn": 500, "snapshot": "BLOCKING"})
    log.give(("transaction", postgres(60, 40, 1)), ("signals", postgres(60, 40, 1)))
    end = ("transaction", postgres(70, 70, 1))
    begin, change = ("transaction", postgres(80, 70, 2)), ("a", postgres(80, 70, 2))
    polled = entered(log, blocking, end, begin, change)
    assert (polled.size(), json.loads(reported(jvm, log, polled))["next"]) == (3, "start")
    assert log.store.accept(polled, 3)
    assert log.start() == {"lsn": 70, "lsn_commit": 70, "txId": 2}
    assert log.give(begin, change) == ["a"]


@pytest.mark.parametrize("kind", ["INITIAL", "INCREMENTAL"])
def test_a_run_ends_at_the_position_of_its_start_and_in_no_snapshot(kind: str) -> None:
    assert is_behind(postgres(70, 60, 2), 70)
    assert not is_behind(postgres(70, 60, 2), 71)
    assert not is_behind(postgres(70, 60, 2, snapshot=kind, snapshot_completed=False), 70)
    assert is_behind(postgres(70, 60, 2, snapshot=kind, snapshot_completed=True), 70)


def test_an_incremental_snapshot_goes_on_behind_its_newest_row_and_its_rows_are_not_counted(jvm: Jvm) -> None:
    log = Log(jvm, "postgresql")
    log.give(("a", postgres(70, 60, 2, incremental_snapshot_primary_key="1")))
    chunk = {"snapshot": "INCREMENTAL", "snapshot_completed": True}
    log.give(("a", postgres(90, 80, 3, incremental_snapshot_primary_key="2", **chunk)))
    assert log.start() == {"lsn": 80, "lsn_commit": 80, "txId": 3, "incremental_snapshot_primary_key": "2"}
    row = ("a", postgres(90, 80, 3, incremental_snapshot_primary_key="2"))
    assert log.give(row) == ["a"]
    log.start()
    newer = ("a", postgres(61, 60, 2, incremental_snapshot_primary_key="3", **chunk))  # before the transaction has come
    assert log.give(newer) == ["a"]
    assert log.start() == {"lsn": 80, "lsn_commit": 80, "txId": 3, "incremental_snapshot_primary_key": "3"}
    assert log.give(row) == []


@pytest.mark.parametrize(
    ("database", "offset", "start"),
    [
        (
            "sqlserver",
            {"commit_lsn": "c", "change_lsn": "d", "event_serial_no": 2},
            {"commit_lsn": "c", "change_lsn": "d"},
        ),
        ("mariadb", {"file": "f", "pos": 4, "event": 2, "row": 1, "ts_sec": 8}, {"file": "f", "pos": 4, "ts_sec": 8}),
        ("mysql", {"file": "f", "pos": 4, "gtids": "g", "row": 1}, {"file": "f", "pos": 4, "gtids": "g"}),
    ],
)
def test_other_logs_go_on_from_the_beginning_of_a_transaction_or_change(
    jvm: Jvm, database: str, offset: dict[str, Any], start: dict[str, Any]
) -> None:
    log = Log(jvm, database)
    log.give(("a", offset), ("a", offset))
    assert log.start() == start
    assert log.give(("a", offset), ("a", offset), ("a", offset)) == ["a"]


def test_a_log_of_single_positions_goes_on_behind_them(jvm: Jvm) -> None:
    log = Log(jvm, "mongodb")
    log.give(("a", {"resume_token": "x", "sec": 1}))
    assert log.start() == {"resume_token": "x", "sec": 1}
    assert log.give(("a", {"resume_token": "x", "sec": 1})) == ["a"]


def test_a_position_comes_back_from_its_json(jvm: Jvm) -> None:
    log = Log(jvm, "postgresql")
    polled = entered(log, ("a", postgres(70, 60, 2)), ("a", postgres(71, 60, 2)))
    ((partition, offset, group),) = json.loads(reported(jvm, log, polled))["offsets"]
    again = Log(jvm, "postgresql", json.dumps([[partition, offset, group]]))
    assert again.start() == {"lsn": 60, "lsn_commit": 60, "txId": 2}
    assert again.give(*[("a", postgres(70 + n, 60, 2)) for n in range(3)]) == ["a"]


def test_what_was_polled_before_a_task_starts_itself_again_is_discarded(jvm: Jvm) -> None:
    log = Log(jvm, "postgresql")
    log.start()
    early, late = log.polled(("a", postgres(70, 60, 2))), log.polled(("a", postgres(71, 60, 2)))
    assert log.store.enter(early)
    log.start()  # while a thread of this process converts the list
    assert not log.store.accept(early, 1)
    assert not log.store.enter(late)
    assert log.start() is None  # nothing was handed over
    assert log.give(("a", postgres(70, 60, 2)), ("a", postgres(71, 60, 2))) == ["a", "a"]


def test_what_a_task_polls_that_was_given_up_is_discarded(jvm: Jvm) -> None:
    log = Log(jvm, "postgresql")
    polled = log.polled(("a", postgres(70, 60, 2)))
    log.store.reader(0)  # of the next life of the task
    assert not log.store.enter(polled)
