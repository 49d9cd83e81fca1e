"""A connector with a failure injector in it: subclasses that pass every point of :class:`~connectors.testing.faults.Point`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..core.ledger import Entry, Ledger
from ..core.sink import Batch, Committable, Committer, GlobalCommitter, Sink, SinkWriter
from ..core.source import Source, Split, SplitReader
from .faults import FailureInjector, Point

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def faulty_sink(kind: type[Sink], injector: FailureInjector) -> type[Sink]:
    """``kind``, passing the points of a sink: rows, staging, decision, publication."""

    class Faulty(kind):  # type: ignore[valid-type, misc]
        def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
            return _Writer(super().writer(batch, schema, subtask), injector)

        def ledger(self) -> Ledger | None:
            inner = super().ledger()
            return _Ledger(inner, injector) if inner is not None else None

        def committer(self) -> Committer | GlobalCommitter | None:
            inner = super().committer()
            if isinstance(inner, GlobalCommitter):
                wrapper = _FrameCommitter if hasattr(inner, "commit_frame") else _GlobalCommitter
                return wrapper(inner, injector)
            return _Committer(inner, injector) if inner is not None else None

    if not hasattr(kind, "stage_frame"):
        return Faulty

    class FaultyFrames(Faulty):
        def stage_frame(self, frame: DataFrame, batch: Batch) -> list[Committable] | None:
            watched = frame.mapInArrow(_pass_rows(injector), frame.schema) if injector.armed(Point.TASK_ROW) else frame
            staged: list[Committable] | None = super().stage_frame(watched, batch)
            injector.reach(Point.TASK_STAGED)
            return staged

    return FaultyFrames


def faulty_source(kind: type[Source], injector: FailureInjector) -> type[Source]:
    """``kind``, passing :attr:`Point.READ_ROW`."""

    class Faulty(kind):  # type: ignore[valid-type, misc]
        def reader(self, schema: pa.Schema) -> SplitReader[Any]:
            return _Reader(super().reader(schema), injector)

    return Faulty


def _pass_rows(injector: FailureInjector) -> Any:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in batches:
            seen += batch.num_rows
            injector.reach(Point.TASK_ROW, seen)
            yield batch

    return task


class _Writer(SinkWriter):
    def __init__(self, inner: SinkWriter, injector: FailureInjector) -> None:
        self.inner = inner
        self.injector = injector
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.inner.write(batch)
        self.rows += batch.num_rows
        self.injector.reach(Point.TASK_ROW, self.rows)

    def prepare(self) -> Committable:
        staged = self.inner.prepare()
        self.rejects = self.inner.rejects
        self.injector.reach(Point.TASK_STAGED)
        return staged

    def abort(self) -> None:
        self.inner.abort()

    def close(self) -> None:
        self.inner.close()


class _Ledger(Ledger):
    def __init__(self, inner: Ledger, injector: FailureInjector) -> None:
        self.inner = inner
        self.injector = injector

    def last(self, query: str) -> Entry | None:
        return self.inner.last(query)

    def queries(self) -> frozenset[str]:
        return self.inner.queries()

    def record(self, entry: Entry) -> bool:
        self.injector.reach(Point.COMMIT_BEFORE)
        recorded = self.inner.record(entry)
        self.injector.reach(Point.RECORDED)
        return recorded

    def unpublished(self) -> list[Entry]:
        return self.inner.unpublished()

    def mark_published(self, entry: Entry) -> None:
        self.inner.mark_published(entry)
        self.injector.reach(Point.COMMIT_AFTER)


class _Committer(Committer):
    def __init__(self, inner: Committer, injector: FailureInjector) -> None:
        self.inner = inner
        self.injector = injector

    def check(self, committables: Sequence[Committable], rows: int) -> None:
        self.inner.check(committables, rows)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        self.inner.drop_attempts(batch, failed=failed)

    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        self.inner.publish(batch, committables)
        self.injector.reach(Point.PUBLISHED)

    def discard(self, committable: Committable) -> None:
        self.inner.discard(committable)

    def sweep(self, live: frozenset[str]) -> None:
        self.inner.sweep(live)


class _GlobalCommitter(GlobalCommitter):
    def __init__(self, inner: GlobalCommitter, injector: FailureInjector) -> None:
        self.inner = inner
        self.injector = injector

    def last(self, query: str) -> Entry | None:
        return self.inner.last(query)

    def queries(self) -> frozenset[str]:
        return self.inner.queries()

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        self.injector.reach(Point.COMMIT_BEFORE)
        self.inner.rejects = self.rejects
        self.inner.commit(entry, committables)
        self.injector.reach(Point.COMMIT_AFTER)

    def discard(self, committable: Committable) -> None:
        self.inner.discard(committable)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        self.inner.drop_attempts(batch, failed=failed)

    def sweep(self, live: frozenset[str]) -> None:
        self.inner.sweep(live)


class _FrameCommitter(_GlobalCommitter):
    """For targets that take a whole DataFrame in one transaction."""

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        watched = frame.mapInArrow(_pass_rows(self.injector), frame.schema) if self.injector.armed(Point.TASK_ROW) else frame
        self.injector.reach(Point.COMMIT_BEFORE)
        inner: Any = self.inner
        inner.commit_frame(watched, batch)
        self.injector.reach(Point.COMMIT_AFTER)


class _Reader(SplitReader[Any]):
    def __init__(self, inner: SplitReader[Any], injector: FailureInjector) -> None:
        super().__init__()
        self.inner = inner
        self.injector = injector
        self.atomic = inner.atomic  # type: ignore[misc]
        self.fetchers = inner.fetchers  # type: ignore[misc]

    def open(self) -> None:
        self.inner.open()

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self._passing(self.inner.read(split), 0)

    def resume(self, split: Split, records: int) -> Iterator[pa.RecordBatch]:
        return self._passing(self.inner.resume(split, records), records)

    def wake_up(self) -> None:
        self.inner.wake_up()
        super().wake_up()

    def close(self) -> None:
        self.inner.close()

    def _passing(self, batches: Iterator[pa.RecordBatch], seen: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            for part in (batch.slice(0, half), batch.slice(half)):
                if part.num_rows:
                    yield part
                    seen += part.num_rows
                    self.injector.reach(Point.READ_ROW, seen)
