"""An outage is waited for, and is never mistaken for bad records: a target that comes back, and one that stays away."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import connectors
from connectors import metrics
from connectors.core import Batch, CommitRefused, Transient
from connectors.ground import machine
from connectors.ground.retry import Contact, RetrySettings
from connectors.spark.foreach_batch import ForeachBatch
from connectors.spark.formats import format_of
from connectors.systems.buffered import BufferedSink
from connectors.systems.file_stream import FileStreamSink
from connectors.systems.jdbc import JdbcSink
from connectors.systems.sequence import SequenceSource
from connectors.testing import FailureInjector, same_records
from connectors.testing.engine import Engine
from connectors.testing.faults import Action, Point, faulty_sink, faulty_source
from connectors.testing.servers import PostgresServer

from .reference_contexts import BufferedContext

QUICK = {"retry.initialBackoff": "1ms", "retry.maxBackoff": "5ms"}
NUMBERS = pa.schema([("value", pa.int64())])


class Run:
    """Forty numbers into a buffered sink whose target fails at a point of our choice."""

    def __init__(self, folder: Path) -> None:
        self.injector = FailureInjector(folder / "faults")
        self.target = BufferedContext(folder / "out")
        self.folder = folder

    def engine(self, **options: str) -> Engine:
        source = {"end": "40", "maxRowsPerTrigger": "10", **QUICK}
        return Engine(
            self.folder / "checkpoint",
            faulty_source(SequenceSource, self.injector).of(source, streaming=True),
            faulty_sink(BufferedSink, self.injector).of({**self.target.options(), **QUICK, **options}),
            NUMBERS,
            injector=self.injector,
        )

    def expect(self, last: int = 40) -> None:
        same_records([{"value": number} for number in range(1, last + 1)], self.target.rows())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.mark.parametrize("point", [Point.READ_ROW, Point.COMMIT_BEFORE, Point.RECORDED, Point.PUBLISHED])
def test_an_outage_that_ends_is_not_noticed(run: Run, point: Point) -> None:
    run.injector.arm(point, Action.OUTAGE, times=3)
    run.engine().run()
    assert run.injector.struck() == 3
    run.expect()


@pytest.mark.parametrize("point", [Point.READ_ROW, Point.COMMIT_BEFORE, Point.RECORDED, Point.PUBLISHED])
def test_an_outage_that_outlasts_the_tries_is_waited_for(run: Run, point: Point) -> None:
    run.injector.arm(point, Action.OUTAGE, times=20)
    run.engine(**{"retry.maxRetries": "1"}).run()
    assert run.injector.struck() == 20
    run.expect()


@pytest.mark.parametrize("point", [Point.COMMIT_BEFORE, Point.RECORDED, Point.PUBLISHED])
def test_an_outage_that_stays_fails_the_batch_and_loses_nothing(run: Run, point: Point) -> None:
    run.injector.arm(point, Action.OUTAGE, times=100)
    with pytest.raises(Transient):
        run.engine(**{"retry.maxRetries": "2", "outageTimeout": "0s"}).run()
    assert run.injector.struck() == 3
    run.injector.disarm()
    run.engine().run()
    run.expect()


def test_an_outage_that_was_waited_for_ends_the_query_whatever_failures_are_allowed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(machine, "monotonic", lambda: clock[0])
    monkeypatch.setattr(machine, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr("connectors.spark.foreach_batch.is_stopped", lambda *_: False)
    sink = BufferedSink.of({**run.target.options(), "maxFailures": "3"})

    def refuse() -> None:
        raise Transient("connection refused")

    contact = Contact(RetrySettings.of(sink.values), reached=True)
    monkeypatch.setattr(ForeachBatch, "write", lambda *_: contact.call(refuse))
    with pytest.raises(Transient, match="longer than outageTimeout"):
        ForeachBatch(sink)._writes(SimpleNamespace(sparkSession=None), Batch("s", "q", 3))  # type: ignore[arg-type]


def test_a_commit_whose_answer_was_lost_is_not_repeated(run: Run) -> None:
    run.injector.arm(Point.RECORDED, Action.OUTAGE)
    run.engine().run()
    run.expect()
    entries = BufferedSink.of(run.target.options()).ledger()
    assert entries.unpublished() == []


@pytest.mark.spark
class TestOnSpark:
    def write(self, run: Run, spark: Any, **options: str) -> ForeachBatch:
        sink = faulty_sink(BufferedSink, run.injector).of({**run.target.options(), **QUICK, **options})
        carrier = ForeachBatch(sink)
        carrier.write(spark.range(1, 41, 1, 3).selectExpr("id AS value"), Batch("s", "q", 0))
        return carrier

    def test_tasks_that_meet_an_outage_are_staged_again_after_a_pause(self, run: Run, spark: Any) -> None:
        run.injector.arm(Point.TASK_ROW, Action.OUTAGE, row=2, times=2)
        self.write(run, spark)
        run.expect()
        replay = spark.range(1, 41, 1, 2).selectExpr("id AS value")
        ForeachBatch(BufferedSink.of(run.target.options())).write(replay, Batch("s", "q", 0))  # the same rows, by count and sum
        run.expect()

    def query(self, run: Run, spark: Any, **options: str) -> None:
        sink = faulty_sink(BufferedSink, run.injector).of({**run.target.options(), **QUICK, **options})
        source = {"end": "40", "maxRowsPerTrigger": "10"}
        writer = spark.readStream.format("connectors.sequence").options(**source).load().writeStream
        writer = writer.foreachBatch(ForeachBatch(sink)).option("checkpointLocation", str(run.folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    @pytest.mark.parametrize("point", [Point.TASK_ROW, Point.COMMIT_BEFORE, Point.RECORDED, Point.COMMIT_AFTER])
    def test_as_many_failures_as_are_allowed_do_not_end_the_query(self, run: Run, spark: Any, point: Point) -> None:
        run.injector.arm(point, Action.RAISE, times=2)
        self.query(run, spark, maxFailures="2")
        assert run.injector.struck() == 2
        run.expect()

    def test_more_failures_within_the_window_end_the_query(self, run: Run, spark: Any) -> None:
        run.injector.arm(Point.COMMIT_BEFORE, Action.RAISE, times=3)
        with pytest.raises(Exception, match="Injected"):
            self.query(run, spark, maxFailures="2")
        assert run.injector.struck() == 3
        run.injector.arm(Point.COMMIT_BEFORE, Action.RAISE, times=3)
        pauses = {"retry.initialBackoff": "20ms", "retry.maxBackoff": "20ms"}
        self.query(run, spark, maxFailures="1", failureWindow="1ms", **pauses)
        run.expect()

    def test_what_only_a_person_can_mend_is_tried_once(self, run: Run, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        writes: list[int] = []

        def refuse(carrier: ForeachBatch, frame: Any, batch: Batch) -> None:
            writes.append(batch.number)
            raise CommitRefused("the target has other rows", way_out="look")

        monkeypatch.setattr(ForeachBatch, "write", refuse)
        with pytest.raises(Exception, match="the target has other rows"):
            self.query(run, spark, maxFailures="5")
        assert writes == [0]

    def test_an_outage_that_stays_is_told_as_one(self, run: Run, spark: Any) -> None:
        run.injector.arm(Point.TASK_ROW, Action.OUTAGE, times=1000)
        with pytest.raises(Transient, match=r"connectors\.buffered"):
            self.write(run, spark, **{"retry.maxRetries": "1", "outageTimeout": "0s"})
        assert run.target.rows() == []
        run.injector.disarm()
        self.write(run, spark)
        run.expect()

    def test_an_outage_never_ends_in_the_dead_letters(self, run: Run, spark: Any, tmp_path: Path) -> None:
        run.injector.arm(Point.TASK_ROW, Action.OUTAGE, times=1000)
        letters = {
            "errors": "deadLetter",
            "deadLetterPath": str(tmp_path / "letters"),
            "retry.maxRetries": "0",
            "outageTimeout": "0s",
        }
        sink = faulty_sink(FileStreamSink, run.injector).of({"path": str(tmp_path / "lines"), **letters})
        with pytest.raises(Transient):
            ForeachBatch(sink).write(spark.createDataFrame([("a\nb",), ("c",)], "value string"), Batch("s", "q", 0))
        assert not list((tmp_path / "letters").glob("*.parquet"))


PATIENT = {
    "retry.maxRetries": "0",
    "retry.initialBackoff": "100ms",
    "retry.maxBackoff": "500ms",
    "outageTimeout": "2min",
}


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("part", ["sink by format", "sink by foreach_batch", "source"])
def test_a_query_waits_for_a_database_that_restarts(spark: Any, tmp_path: Path, part: str) -> None:
    """The server is killed, the query's table names what is waited for, and after a new start every row is there once."""
    with PostgresServer() as server:
        address = {"url": server.jdbc, "user": server.user, "dbtable": "numbers", **PATIENT}
        with contextlib.closing(JdbcSink.of(address).dialect().connect()) as connection:
            connection.execute("CREATE TABLE numbers (value BIGINT PRIMARY KEY)")
            if part == "source":
                connection.execute("INSERT INTO numbers SELECT generate_series(1, 100)")
        increments = {**address, "incremental": "incrementing", "incrementingColumn": "value", "maxRowsPerTrigger": "5"}
        sequence = {"end": "100", "maxRowsPerTrigger": "5"}
        rows = (
            spark.readStream.format("connectors.jdbc").options(**increments).load()
            if part == "source"
            else spark.readStream.format("connectors.sequence").options(**sequence).load()
        )
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        if part == "source":
            writer = writer.foreachBatch(
                connectors.foreach_batch("files", {"path": str(tmp_path / "out"), "fileFormat": "json"})
            )
        elif part == "sink by foreach_batch":
            writer = writer.foreachBatch(connectors.foreach_batch("jdbc", address))
        else:
            writer = writer.format("connectors.jdbc").options(**address)
        query = writer.trigger(processingTime="100 milliseconds").start()
        try:
            wait_for(lambda: finished_batch(query) >= 2)
            server.kill()
            wait_for(lambda: waits(query))
            server.relaunch()
            wait_for(lambda: rows_written(query) == 100, 120)
            assert not waits(query)
        finally:
            query.stop()
        if part == "source":
            values = [row.value for row in spark.read.json(str(tmp_path / "out")).collect()]
        else:
            with contextlib.closing(JdbcSink.of(address).dialect().connect()) as connection:
                values = [value for (value,) in connection.rows("SELECT value FROM numbers")]
    assert sorted(values) == list(range(1, 101))


@pytest.mark.soak
@pytest.mark.spark
def test_a_query_that_is_stopped_waits_no_more(run: Run, spark: Any, tmp_path: Path) -> None:
    run.injector.arm(Point.COMMIT_BEFORE, Action.OUTAGE, times=100_000)
    sink = ForeachBatch(faulty_sink(BufferedSink, run.injector).of({**run.target.options(), "retry.maxRetries": "0"}))
    rows = spark.readStream.format("connectors.sequence").options(end=10).load()
    query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    wait_for(lambda: waits(query))
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 30


def finished_batch(query: Any) -> int:
    """The newest batch that ``query`` has finished. Raises what the query died of."""
    if query.exception() is not None:
        raise query.exception()
    return query.lastProgress.batchId if query.lastProgress else -1


def waits(query: Any) -> bool:
    finished_batch(query)
    frame = metrics.table(query)
    texts = frame["waiting_for"].dropna()
    assert frame["waiting_since"].notna().sum() == len(texts)
    return len(texts) > 0


def rows_written(query: Any) -> int:
    finished_batch(query)
    frame = metrics.table(query)
    return int(frame[frame["component"].str.startswith("sink")]["rows"].sum())


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.05)


def test_a_system_that_tells_its_schema_may_start_beside_the_query_if_the_query_is_told_to_wait() -> None:
    outages = iter(range(9))

    class Late(SequenceSource):
        @property
        def schema(self) -> str:  # type: ignore[override]
            if next(outages) % 3 < 2:
                raise Transient("not there yet")
            return "value long"

    late = format_of("late", Late, None)
    options = {**QUICK, "end": "1", "retry.maxRetries": "0"}
    assert late({**options, "outageTimeout.atStart": "true"}).schema() == "value long"
    with pytest.raises(Transient):
        late(options).schema()
