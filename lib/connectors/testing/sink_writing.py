"""A query of the kit's own engine that writes rows to a target under test, and what the target must hold afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from ..core.sink import Guarantee
from ..systems.sequence import SequenceSource
from .compare import same_records
from .contexts import SinkContext
from .engine import Engine
from .faults import FailureInjector, Injected, Point
from .faulty import faulty_sink

ROWS, BATCH = 40, 10
_NUMBERS = pa.schema([("value", pa.int64())])


class Writing:
    """A query that writes the rows ``first`` to ``last`` of a context, a few at a time."""

    def __init__(self, target: SinkContext, folder: Path, carrier: str) -> None:
        self.target = target
        self.checkpoint = folder / "checkpoint"
        self.injector = FailureInjector(folder / "faults")
        self.carrier = carrier

    def engine(
        self, *, last: int = ROWS, first: int = 1, tasks: int = 2, rows: int = BATCH, **options: str
    ) -> Engine:
        """The query as it is started: with so many ``tasks``, and ``rows`` in a batch."""
        source = {"start": first, "end": last, "numPartitions": tasks, "maxRowsPerTrigger": rows}
        target, schema = self.target, self.target.schema

        def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
            numbers = batch.column(0).to_pylist()
            return pa.RecordBatch.from_pylist([target.row(number) for number in numbers], schema)

        kind = faulty_sink(target.sink, self.injector)
        return Engine(
            self.checkpoint,
            SequenceSource.of({name: str(value) for name, value in source.items()}, streaming=True),
            kind.of({**target.options(), **options}),
            _NUMBERS,
            convert,
            self.carrier,
            injector=self.injector,
            tasks=tasks,
        )

    def expect(self, last: int = ROWS, first: int = 1) -> None:
        """The target holds the rows ``first`` to ``last``, as often as its guarantee says."""
        repeats = self.target.guarantee is Guarantee.AT_LEAST_ONCE
        expected = [self.target.row(number) for number in range(first, last + 1)]
        same_records(expected, self.target.rows(), repeats=repeats)

    def points(self) -> tuple[Point, ...]:
        """The points that a batch of this sink passes."""
        sink = self.target.sink.of(self.target.options())
        commit = (Point.COMMIT_BEFORE, Point.COMMIT_AFTER) if sink.committer() is not None else ()
        recorded = (Point.RECORDED, Point.PUBLISHED) if sink.ledger() is not None else ()
        return (Point.TASK_ROW, Point.TASK_STAGED, *commit, *recorded, Point.BATCH_DONE)

    def fails(self, run: Callable[[], object]) -> None:
        """``run`` dies of the injected error."""
        with pytest.raises(Injected):
            run()
