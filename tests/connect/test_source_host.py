"""Source connectors and their tasks in the planner process: life, offsets, commits, new deals, failures."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from connectors.connect import (
    DataException,
    RecordConverter,
    RecordMetadata,
    Schema,
    SourceBatch,
    SourceConnector,
    SourceRecord,
    SourceTask,
)
from connectors.connect.offsets import partition_key
from connectors.connect.pipeline import SourcePipeline
from connectors.core.source import ReadLimit
from connectors.ground.errors import Fatal, Misconfigured, Transient

from .database import Database, FlakyConnector, Run, TablesConnector, TableTask, outages, running

use = contextlib.contextmanager(running)


def whole(run: Run, database: Database) -> None:
    """Each table's numbers are there, in their order, each once."""
    assert run.sequences() == {table: list(range(1, rows + 1)) for table, rows in database.tables.items() if rows}


def test_con_01_a_connector_describes_work_and_tasks_copy() -> None:
    database = Database("a", "b", "c")
    database.insert(25)
    with use(TablesConnector, database, tasks_max=2) as run:
        run.until(75)
        assert [status.state for status in run.host.statuses()] == ["RUNNING", "RUNNING"]
        assert {part.task for part in run.records} == {0, 1}
        whole(run, database)


def test_con_02_a_connector_may_give_fewer_tasks() -> None:
    database = Database("a", "b")
    with use(TablesConnector, database, tasks_max=7) as run:
        assert database.configs == [2]
        assert len(run.host.statuses()) == 2


def test_con_02_more_task_configurations_than_allowed_are_refused() -> None:
    run = Run(Greedy, Database("a"), tasks_max=1)
    with pytest.raises(Exception, match=r"gives 2 task configurations, and tasks\.max is 1"):
        run.start()
    run.host.close()


def test_more_task_configurations_than_allowed_run_where_that_is_not_enforced(caplog: pytest.LogCaptureFixture) -> None:
    with use(Greedy, Database("a"), tasks_max=1, tasks_max_enforce="false") as run:
        assert len(run.host.statuses()) == 2
    assert "gives 2 task configurations, and tasks.max is 1" in caplog.text


class Greedy(TablesConnector):
    def task_configs(self, max_tasks: int) -> Any:
        return [{"tables": "a"}] * (max_tasks + 1)


def test_con_03_stop_ends_a_poll_that_blocks_from_another_thread() -> None:
    with use(Blocking, Database("a")) as run:
        assert BlockingTask.polling.wait(10)
        began = time.monotonic()
        run.host.close()
        assert time.monotonic() - began < 5
        assert BlockingTask.left.is_set()
        assert [status.state for status in run.host.statuses()] == ["STOPPED"]


class BlockingTask(TableTask):
    polling, left = threading.Event(), threading.Event()

    def poll(self) -> list[SourceRecord] | None:
        self.polling.set()
        self._stopping.wait()
        self.left.set()
        return None


class Blocking(TablesConnector):
    def task_class(self) -> type[SourceTask]:
        return BlockingTask


def test_con_03_a_host_that_is_closed_from_another_thread_ends_the_wait_for_records() -> None:
    with use(TablesConnector, Database("a")) as run:
        threading.Timer(0.2, run.host.close).start()
        began = time.monotonic()
        assert run.next(seconds=30) == []
        assert time.monotonic() - began < 10


def test_con_04_a_stream_that_is_closed_under_a_poll_is_no_failure() -> None:
    with use(Closing, Database("a")) as run:
        assert ClosingTask.reading.wait(10)
        run.host.close()
        assert [(status.state, status.trace) for status in run.host.statuses()] == [("STOPPED", "")]


class ClosingTask(TableTask):
    reading = threading.Event()

    def poll(self) -> list[SourceRecord] | None:
        self.reading.set()
        self._stopping.wait()
        raise ValueError("read of closed file")


class Closing(TablesConnector):
    def task_class(self) -> type[SourceTask]:
        return ClosingTask


def test_con_04_none_and_an_empty_list_mean_nothing_now() -> None:
    database = Database("a")
    with use(TablesConnector, database) as run:
        assert run.next(seconds=0.1) == []
        database.insert(3)
        run.until(3)


def test_con_05_a_record_has_its_source_partition_offset_topic_key_and_value() -> None:
    database = Database("a")
    database.insert(1)
    with use(TablesConnector, database) as run:
        run.until(1)
        (row,) = run.rows()
        assert row["topic"] == "db.a"
        assert row["sourcePartition"] == '{"table":"a"}'
        assert row["sourceOffset"] == '{"n":1}'
        assert (row["key"], row["value"]) == (b'"1"', b'{"table":"a","n":1}')


def test_con_06_what_was_committed_is_told_to_the_task_and_not_read_again() -> None:
    database = Database("a", "b")
    database.insert(30)
    with use(TablesConnector, database, tasks_max=2) as run:
        run.until(60)
        assert sorted(database.committed) == [(table, n) for table in "ab" for n in range(1, 31)]
        assert database.commits >= 2
        run.restart()
        database.insert(5)
        run.until(70)
        whole(run, database)


def test_con_06_what_was_polled_and_not_recorded_is_read_again_after_a_crash() -> None:
    database = Database("a")
    database.insert(50)
    with use(TablesConnector, database) as run:
        run.host.poll(1, ReadLimit(rows=10), 5.0)  # handed over, and lost with the process before it was recorded
        run.restart()
        run.until(50)
        whole(run, database)


def test_con_07_a_thousand_partitions_are_one_read() -> None:
    tables = [f"t{number}" for number in range(1000)]
    database = Database(*tables)
    database.insert(2)
    run = Run(TablesConnector, database)
    run.offsets = {partition_key({"table": table}): {"n": 1} for table in tables}
    run.start()
    with contextlib.closing(run.host):
        run.until(1000)
        assert run.host._store.reads == 1
        assert {numbers[0] for numbers in run.sequences().values()} == {2}


def test_con_10_a_monitoring_thread_asks_for_new_tasks_and_they_commit_before() -> None:
    database = Database("a", "b")
    database.insert(20)
    with use(TablesConnector, database, tasks_max=3) as run:
        run.until(40)
        database.create("c", "d")
        database.insert(10, "c", "d")
        run.until(60)
        whole(run, database)
        assert database.configs == [2, 3]
        assert run.host.generation() == 2
        again = database.events.index("task started with a,b")
        assert database.events[:again].count("commit") >= 1
        assert len(database.committed) == 60


def test_con_11_a_table_that_is_dropped_before_the_connector_notices_ends_no_query() -> None:
    database = Database("a", "b")
    database.insert(5)
    with use(Unwatching, database, tasks_max=2) as run:
        run.until(10)
        database.drop("a")
        database.insert(5)
        run.until(15)
        assert run.sequences()["b"] == list(range(1, 11))
        assert [status.restarts for status in run.host.statuses()] == [0, 0]


class Unwatching(TablesConnector):
    def _watch(self) -> None:
        """Never notices anything."""


def test_con_14_one_connector_copies_a_whole_database() -> None:
    tables = [f"t{number:03}" for number in range(120)]
    database = Database(*tables)
    database.insert(3)
    with use(TablesConnector, database, tasks_max=4) as run:
        run.until(360)
        whole(run, database)
        assert len(run.host.statuses()) == 4


def test_con_19_the_number_of_tasks_changes_3_5_1_5_3_without_a_gap_or_a_double() -> None:
    database = Database(*(f"t{number}" for number in range(10)))
    database.tasks_wanted = 3
    database.batch = 7
    with use(TablesConnector, database, tasks_max=5) as run:
        for generation, count in enumerate((3, 5, 1, 5, 3), start=1):
            database.insert(40)
            database.tasks_wanted = count
            while run.host.generation() < generation:  # the change comes in the middle of the work
                run.next(seconds=0.05, limit=ReadLimit(rows=20))
        run.until(2000)
        whole(run, database)
        assert [
            count for count, before in zip(database.configs, [0, *database.configs], strict=False) if count != before
        ] == [
            3,
            5,
            1,
            5,
            3,
        ]


def test_an_outage_is_polled_again_without_a_new_start() -> None:
    database = Database("a")
    database.insert(4)
    database.broken["poll"] = outages(3)
    with use(FlakyConnector, database) as run:
        run.until(4)
        assert database.events.count("task started with a") == 1


def test_an_outage_is_no_idleness_and_an_error_when_it_lasts() -> None:
    database = Database("a")
    database.broken["poll"] = outages(10_000)
    run = Run(FlakyConnector, database, backoff=0.01)
    run.host.settings = dataclasses.replace(run.settings, outage_timeout=0.5)
    run.start()
    with contextlib.closing(run.host):
        assert run.next(seconds=0.2) == []
        assert run.host.idle_seconds() < 0.1
        with pytest.raises(Transient, match=r"(?s)outageTimeout=0.5s: the database is away") as away:
            run.next(seconds=5.0)
    assert away.value.is_waited_for


def test_a_record_that_does_not_fit_its_schema_or_whose_header_fails_is_set_aside() -> None:
    pipeline = SourcePipeline({"errors.tolerance": "all", "header.converter": "JsonConverter"}, lambda _: False)
    values: list[Any] = [0, "one", 2, 3, 4]
    records = [
        SourceRecord(
            {"p": 1}, {"o": n}, "t", value, value_schema=Schema.INT64_SCHEMA, headers={"h": object() if n == 3 else n}
        )
        for n, value in enumerate(values)
    ]
    outcome = pipeline.run(pipeline.in_columns(records))
    assert outcome.rows["value"].to_pylist() == [b"0", b"2", b"4"]
    assert outcome.failed == {1, 3}
    assert [(letter.stage, letter.value) for letter in outcome.letters] == [
        ("VALUE_CONVERTER", b"one"),
        ("HEADER_CONVERTER", b"3"),
    ]
    strict = SourcePipeline({}, lambda _: False)
    with pytest.raises(DataException, match="'one'"):
        strict.in_columns(records)


def test_a_record_that_a_converter_has_refused_is_committed_without_metadata() -> None:
    database = Database("a")
    database.insert(4)
    with use(Noting, database, errors_tolerance="all", value_converter=f"{__name__}.RefusesThree") as run:
        run.until(3)
        noted = [event for event in database.events if event.startswith("record")]
        assert noted == [f"record {n}, epoch {None if n == 3 else 1}" for n in range(1, 5)]


class NotingTask(TableTask):
    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        epoch = None if metadata is None else metadata.epoch
        self._database.events.append(f"record {record.value['n']}, epoch {epoch}")


class Noting(TablesConnector):
    def task_class(self) -> type[SourceTask]:
        return NotingTask


class RefusesThree(RecordConverter):
    def from_connect_data(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value["n"] == 3:
            raise ValueError("refused")
        return b"taken"

    def to_connect_data(self, topic: str, value: bytes | None) -> tuple[Schema | None, Any]:
        raise NotImplementedError


def test_a_task_that_fails_shows_its_trace_while_others_run_and_starts_again_from_its_offsets() -> None:
    database = Database("a", "b")
    database.insert(20)
    database.broken["a"] = [RuntimeError("disk on fire")]
    with use(TablesConnector, database, tasks_max=2) as run:
        run.until(40)
        whole(run, database)
        first, second = run.host.statuses()
        assert "RuntimeError: disk on fire" in first.trace
        assert (first.restarts, second.restarts) == (1, 0)
        assert (first.state, second.trace) == ("RUNNING", "")


def test_a_task_that_fails_for_good_leaves_the_others_alone() -> None:
    database = Database("a", "b")
    database.broken["a"] = [RuntimeError(f"failure {number}") for number in range(100)]
    with use(TablesConnector, database, tasks_max=2, restarts=2) as run:
        database.insert(10)
        run.until(10)
        end = time.monotonic() + 10
        while not run.host.statuses()[0].final and time.monotonic() < end:
            run.next(seconds=0.05)
        assert [(status.state, status.final) for status in run.host.statuses()] == [
            ("FAILED", True),
            ("RUNNING", False),
        ]
        assert "failure 2" in run.host.statuses()[0].trace


def test_when_all_tasks_have_failed_the_query_fails_with_a_trace() -> None:
    database = Database("a")
    database.broken["a"] = [RuntimeError("no such disk") for _ in range(100)]
    with (
        use(TablesConnector, database, restarts=1) as run,
        pytest.raises(Fatal, match=r"(?s)failed 2 times, in the end without progress.*no such disk"),
    ):
        run.until(1)


def test_a_connector_that_fails_in_its_thread_fails_the_query() -> None:
    with use(Failing, Database("a")) as run, pytest.raises(Fatal, match="the catalog is gone"):
        run.until(1)


class Failing(TablesConnector):
    def _watch(self) -> None:
        self.context.raise_error(RuntimeError("the catalog is gone"))


def test_wrong_settings_stop_the_start() -> None:
    run = Run(TablesConnector, Database("a"), tasks_max="many")
    with pytest.raises(Misconfigured, match=r"tasks\.max"):
        run.start()


@pytest.fixture
def slow() -> Database:
    database = Database("a")
    database.batch = 4
    return database


def test_boundary_poll_a_poll_is_never_divided(slow: Database) -> None:
    slow.insert(20)
    with use(TablesConnector, slow) as run:
        sizes = []
        while sum(sizes) < 20:
            sizes.append(sum(part.rows.num_rows for part in run.next(limit=ReadLimit(rows=6))))
        assert set(sizes) == {4}


def test_boundary_interval_records_come_when_it_is_over(slow: Database) -> None:
    slow.batch = 1
    with use(
        TablesConnector, slow, transaction_boundary="interval", **{"transaction_boundary_interval_ms": 600}
    ) as run:
        slow.insert(10**9)
        assert run.next(seconds=0.2) == []
        run.until(1)
        assert run.records[0].rows.num_rows > 1


def test_boundary_interval_ends_early_when_there_is_nothing_more(slow: Database) -> None:
    with use(TablesConnector, slow, transaction_boundary="interval") as run:  # of a minute
        slow.insert(8)
        run.until(8, seconds=5.0)
        assert [part.rows.num_rows for part in run.records] == [8]


def test_boundary_connector_transactions_end_where_the_task_says(slow: Database) -> None:
    slow.batch = 100
    slow.insert(10)
    with use(Transactions, slow, transaction_boundary="connector") as run:
        run.until(6)
        assert [int(row["key"].decode().strip('"')) for row in run.rows()] == [1, 2, 3, 7, 8, 9]  # 4 to 6 were aborted


def test_boundary_connector_an_abort_drops_what_earlier_polls_gave_of_the_transaction(slow: Database) -> None:
    slow.batch = 2
    slow.insert(10)
    with use(Transactions, slow, transaction_boundary="connector") as run:
        run.until(6)
        assert run.sequences() == {"a": [1, 2, 3, 7, 8, 9]}
        assert run.offsets == {'{"table":"a"}': {"n": 9}}


class BatchTask(TableTask):
    """Gives batches of three rows in columns; the first transaction, of two of them, is aborted."""

    def poll(self) -> SourceBatch | None:  # type: ignore[override]
        at = self._at["a"]
        context = self.context.transaction_context()
        if at >= 9 or context is None:
            self._stopping.wait(0.01)
            return None
        self._at["a"] = at + 3
        if at:
            (context.abort_transaction if at == 3 else context.commit_transaction)()
        numbers = pa.array([at + 1, at + 2, at + 3])
        text = numbers.cast(pa.string())
        return SourceBatch({"table": "a"}, "n", numbers, "db.a", text, Schema.STRING_SCHEMA, text, Schema.STRING_SCHEMA)


class Batches(TablesConnector):
    def task_class(self) -> type[SourceTask]:
        return BatchTask


def test_boundary_connector_an_abort_drops_batches_in_columns() -> None:
    with use(Batches, Database("a"), transaction_boundary="connector") as run:
        run.until(3)
        assert run.sequences() == {"a": [7, 8, 9]}


class TransactionTask(TableTask):
    def poll(self) -> list[SourceRecord] | None:
        records = super().poll()
        context = self.context.transaction_context()
        assert context is not None
        for record in records or ():
            if record.value["n"] % 3 == 0:
                (context.abort_transaction if record.value["n"] == 6 else context.commit_transaction)(record)
        return records


class Transactions(TablesConnector):
    def task_class(self) -> type[SourceTask]:
        return TransactionTask


def test_a_boundary_that_the_connector_cannot_have_is_refused() -> None:
    run = Run(Undecided, Database("a"), transaction_boundary="connector", exactly_once_support="required")
    options = {problem.option for problem in run.host.validate()}
    assert options == {"transaction.boundary", "exactly.once.support"}


class Undecided(TablesConnector):
    can_define_transaction_boundaries = SourceConnector.can_define_transaction_boundaries
    exactly_once_support = SourceConnector.exactly_once_support
