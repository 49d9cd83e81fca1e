"""Batches written to a sink without Spark."""

from __future__ import annotations

import pyarrow as pa

from connectors.core import Batch, Sink
from connectors.core.commit import Commit
from connectors.core.writing import stage


def write(sink: Sink, *tasks: pa.RecordBatch, number: int = 0, query: str = "q", replace: bool = False) -> Batch:
    """Stages each of ``tasks`` and commits them as one batch."""
    batch = Batch(sink.sink_id(), query, number, replace)
    staged = [stage(sink, batch, rows.schema, index, iter([rows])) for index, rows in enumerate(tasks)]
    Commit(sink).finish(batch, staged)
    return batch
