"""An outage is waited for, and is never mistaken for bad records: a target that comes back, and one that stays away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Transient
from connectors.core.ledger import FileLedger
from connectors.spark.foreach_batch import ForeachBatch
from connectors.systems.buffered import BufferedSink
from connectors.systems.file_stream import FileStreamSink
from connectors.systems.sequence import SequenceSource
from connectors.testing import FailureInjector, same_records
from connectors.testing.engine import Engine
from connectors.testing.faults import Action, Point
from connectors.testing.faulty import faulty_sink, faulty_source

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


@pytest.mark.parametrize("point", [Point.COMMIT_BEFORE, Point.RECORDED, Point.PUBLISHED])
def test_an_outage_that_stays_fails_the_batch_and_loses_nothing(run: Run, point: Point) -> None:
    run.injector.arm(point, Action.OUTAGE, times=100)
    with pytest.raises(Transient):
        run.engine(**{"retry.maxRetries": "2"}).run()
    assert run.injector.struck() == 3
    run.injector.disarm()
    run.engine().run()
    run.expect()


def test_a_commit_whose_answer_was_lost_is_not_repeated(run: Run) -> None:
    run.injector.arm(Point.RECORDED, Action.OUTAGE)
    run.engine().run()
    run.expect()
    entries = FileLedger(BufferedSink.of(run.target.options()).ledger().storage)  # type: ignore[union-attr, attr-defined]
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

    def test_an_outage_that_stays_is_told_as_one(self, run: Run, spark: Any) -> None:
        run.injector.arm(Point.TASK_ROW, Action.OUTAGE, times=1000)
        with pytest.raises(Transient, match=r"connectors\.buffered"):
            self.write(run, spark, **{"retry.maxRetries": "1"})
        assert run.target.rows() == []
        run.injector.disarm()
        self.write(run, spark)
        run.expect()

    def test_an_outage_never_ends_in_the_dead_letters(self, run: Run, spark: Any, tmp_path: Path) -> None:
        run.injector.arm(Point.TASK_ROW, Action.OUTAGE, times=1000)
        letters = {"errors": "deadLetter", "deadLetterPath": str(tmp_path / "letters"), "retry.maxRetries": "0"}
        sink = faulty_sink(FileStreamSink, run.injector).of({"path": str(tmp_path / "lines"), **letters})
        with pytest.raises(Transient):
            ForeachBatch(sink).write(spark.createDataFrame([("a\nb",), ("c",)], "value string"), Batch("s", "q", 0))
        assert not list((tmp_path / "letters").glob("*.parquet"))
