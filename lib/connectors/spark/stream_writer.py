"""``df.writeStream.format``: a sink as Spark's streaming writer, which takes Arrow. This module needs Spark 4.1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..core.batch import Batch, driver_time
from ..core.commit import Commit
from ..core.sink import Sink
from ..ground import machine
from .measure import count_commit, sink_meter
from .session import arrow_schema, task_ids, task_run
from .workers import Staged, abort_batch, committables, plainly, stage_in_task


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format``: each micro-batch is committed once, also when Spark replays it.

    The driver makes one for each batch and sends it to the tasks, and one for its commit.
    """

    def __init__(self, sink: Sink, schema: StructType) -> None:
        self.sink = sink
        self.columns = schema
        self.time = driver_time()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        query, number, subtask = task_ids()
        batch = Batch(self.sink.sink_id(), str(query), number, run=task_run(), time=self.time)
        with plainly(), sink_meter(self.sink, batch, subtask).counting() as meter:
            if subtask == 0:  # no code of the driver runs before the tasks
                Commit(self.sink).drop_attempts(batch)
            staged = stage_in_task(self.sink, batch, arrow_schema(self.columns), subtask, iterator, meter)
        return Staged(query, asdict(staged))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with plainly():
            if batch := self._batch(messages, batchId):
                staged, began = committables(messages), machine.monotonic()
                with sink_meter(self.sink, batch).counting() as meter:
                    Commit(self.sink).finish(batch, staged)
                    count_commit(meter, began, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if batch := self._batch(messages, batchId):
            abort_batch(self.sink, batch, messages)

    def _batch(self, messages: Sequence[WriterCommitMessage | None], number: int) -> Batch | None:
        """The batch that the tasks wrote; ``None`` when no task ran, so that there is nothing to commit."""
        queries = [message.query for message in messages if isinstance(message, Staged)]
        return Batch(self.sink.sink_id(), str(queries[0]), number) if queries else None
