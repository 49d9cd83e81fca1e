"""A batch whose rows are dealt out by a hash, as ``foreach_batch`` does for ``commit=task``, on the engine without Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from connectors.core.commit import Commit
from connectors.core.ledger import Verdict
from connectors.core.sink import Batch
from connectors.core.source import Slice
from connectors.core.state import digest
from connectors.testing.engine import Engine
from connectors.testing.sink_cases import SinkQuery


class DealtWriting(SinkQuery):
    def engine(self, **how: Any) -> Engine:
        engine = super().engine(**how)
        return Dealing(**{field.name: getattr(engine, field.name) for field in dataclasses.fields(engine)})


@dataclasses.dataclass
class Dealing(Engine):
    """``tasks`` are those of a new batch; a batch that an earlier run has recorded keeps its number of tasks."""

    def __post_init__(self) -> None:
        self.new_tasks = self.tasks

    def _batch(self, commit: Commit, batch: Batch, slices: Sequence[Slice]) -> None:
        verdict, sink = commit.begin(batch), self.sink
        if verdict is Verdict.RECORD_ONLY:
            commit.finish(batch, [], *self._measure(slices))
            return
        if verdict is Verdict.WRITE:
            self.sink = sink.with_slots(batch, self.new_tasks)  # type: ignore[attr-defined]
            self.tasks = self.sink.slots  # type: ignore[attr-defined]
        super()._batch(commit, batch, slices)
        self.sink = sink

    def _deal(self, slices: Sequence[Slice], subtask: int, tasks: int) -> Iterator[pa.RecordBatch]:
        for part in slices:
            for rows in self._rows(part):
                places = [int(digest(sorted(row.items())), 16) % tasks for row in rows.to_pylist()]
                yield rows.take(pa.array([at for at, place in enumerate(places) if place == subtask], pa.int64()))
