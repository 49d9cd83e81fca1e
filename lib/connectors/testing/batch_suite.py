"""Every case for a source that can only be read as a batch, such as a table that does not say what is new::

    class TestTable(BatchSuite):
        context = TableContext

The cases need no Spark; :class:`~connectors.testing.spark_suites.SparkBatchSuite` runs the same system on Spark.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ..core.planning import Planner
from ..core.reading import read_slice
from ..core.source import Slice, Source
from ..ground.errors import Misconfigured
from .compare import same_records
from .contexts import SourceContext
from .faults import Action, FailureInjector, Injected, Point, faulty_source
from .source_suite import COUNT, Rows, SourceCases, rows_by_turns


class BatchRead:
    """A batch read of a system. ``source`` is the context's, or a subclass of it."""

    def __init__(self, context: SourceContext, kind: type[Source] | None = None, /, **options: str) -> None:
        self.schema = context.schema
        self.source = (kind or context.source).of({**context.options(), **options})
        self.planner = Planner(self.source)
        context.planners.append(self.planner)

    def slices(self) -> list[Slice]:
        """The tasks of the plan after pickling, as Spark sends them."""
        return [pickle.loads(pickle.dumps(part)) for part in self.planner.whole()]

    def batches(self, part: Slice) -> Iterator[pa.RecordBatch]:
        return read_slice(self.source, part, self.schema)

    def rows(self) -> Rows:
        return [row for part in self.slices() for batch in self.batches(part) for row in batch.to_pylist()]


class BatchSuite(SourceCases):
    """The cases of a source that is read as a batch. A subclass sets ``context``."""

    @pytest.mark.parametrize("parallelism", ["1", "2", "5"])
    def test_everything_is_read_once(self, system: SourceContext, parallelism: str) -> None:
        written = system.write(COUNT)
        same_records(written, BatchRead(system, numPartitions=parallelism).rows())

    def test_each_read_gives_what_there_is_by_then(self, system: SourceContext) -> None:
        assert BatchRead(system).rows() == []
        written = system.write(COUNT)
        same_records(written, BatchRead(system).rows())
        written += system.write(COUNT)
        same_records(written, BatchRead(system).rows())

    def test_a_stream_is_refused(self, system: SourceContext) -> None:
        with pytest.raises(Misconfigured, match="batch only"):
            system.source.of(system.options(), streaming=True)

    def test_the_range_is_cut_lazily_and_alike_each_time(self, system: SourceContext) -> None:
        system.write(COUNT)
        read = BatchRead(system, numPartitions="3")
        for part in read.slices():
            splits = read.planner.enumerator.splits_of(part)
            assert iter(splits) is splits, "splits_of must give an iterator, not a list"
            assert list(splits) == list(BatchRead(system).planner.enumerator.splits_of(part))

    def test_a_split_is_resumed_after_any_record(self, system: SourceContext) -> None:
        system.write(COUNT)
        read = BatchRead(system, numPartitions="2")
        for part in read.slices():
            for split in read.planner.enumerator.splits_of(part):
                self._resume(read, split)

    def test_an_outage_while_reading_is_bridged(self, system: SourceContext, tmp_path: Path) -> None:
        written = system.write(COUNT)
        injector = FailureInjector(tmp_path / "faults")
        injector.arm(Point.READ_ROW, Action.OUTAGE, times=2, row=2)
        same_records(written, BatchRead(system, faulty_source(system.source, injector), numPartitions="1").rows())
        assert injector.struck() == 2

    def test_an_error_while_reading_surfaces(self, system: SourceContext, tmp_path: Path) -> None:
        system.write(COUNT)
        injector = FailureInjector(tmp_path / "faults")
        injector.arm(Point.READ_ROW)
        with pytest.raises(Injected):
            BatchRead(system, faulty_source(system.source, injector)).rows()

    def test_a_reader_that_is_left_stops(self, system: SourceContext) -> None:
        system.write(COUNT)
        read = BatchRead(system, numPartitions="1")
        (part,) = read.slices()
        before = threading.active_count()
        batches = read.batches(part)
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert threading.active_count() <= before

    def test_readers_of_different_tasks_do_not_disturb_each_other(self, system: SourceContext) -> None:
        written = system.write(COUNT)
        read = BatchRead(system, numPartitions="4")
        same_records(written, rows_by_turns([read.batches(part) for part in read.slices()]))

    def _resume(self, read: BatchRead, split: Any) -> None:
        reader = read.source.reader(read.schema)
        with contextlib.closing(reader):
            reader.open()
            whole = [row for batch in reader.read(split) for row in batch.to_pylist()]
            for count in range(1, len(whole) + 1):
                rest = [row for batch in reader.resume(split, count) for row in batch.to_pylist()]
                assert rest == whole[count:], f"resumed after {count} of {len(whole)} records of {split}"
            self._resume_between_batches(reader, split, whole)

    def _resume_between_batches(self, reader: Any, split: Any, whole: Rows) -> None:
        """Resumes as after an outage that came between two batches."""
        done = 0
        while done < len(whole):
            batches = reader.resume(split, done) if done else reader.read(split)
            batch = next(batches)
            batches.close()
            assert batch.to_pylist() == whole[done : done + batch.num_rows]
            done += batch.num_rows
