"""One batch, written by one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from connectors.core import Batch, Committable
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.elasticsearch import ElasticsearchSink

QUICK = {"retry.initialBackoff": "10ms", "retry.maxBackoff": "50ms"}


def write(
    hosts: str, index: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None, **options: str
) -> Committable:
    """Writes ``rows`` as a batch of their own and commits it. An option's dots are written as ``__``."""
    typed = {name.replace("__", "."): value for name, value in options.items()}
    sink = ElasticsearchSink.of({"hosts": hosts, "index": index, **QUICK, **typed})
    batch = Batch(sink.sink_id(), "q", 0)
    records = pa.RecordBatch.from_pylist(list(rows), schema)
    staged = stage(sink, batch, records.schema, 0, iter([records]))
    Commit(sink).finish(batch, [staged])
    return staged
