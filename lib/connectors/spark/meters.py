"""Where the parts of a streaming query find the meter that counts for them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from ..core.ledger import is_stream
from ..core.metrics import Component, Meter, Place
from ..core.planning import source_id
from ..core.sink import Batch, Committable, Sink
from ..core.source import Source
from .measure import Measured
from .session import task_ids, task_run


def source_meter(source: Source, index: int) -> Meter:
    """In a task: counts what it reads as the ``index``-th share of its batch; a batch read is not counted.

    Not by Spark's number of the task: ``coalesce`` lets one task read several shares.
    """
    query, batch, _ = task_ids()
    component = Component("source", source.name, source_id(source))
    return Meter(Place(query, component, batch, index, task_run()) if query else None)


def sink_meter(sink: Sink, batch: Batch, index: int | None = None) -> Meter:
    """Counts for one sink: what its ``index``-th task does, or without it the commit of the batch on the driver."""
    component = Component("sink", sink.name, batch.sink_id)
    place = Place(batch.query, component, batch.number, index if index is not None else -1)
    return Meter(place if is_stream(batch.query) else None)


def count_commit(meter: Meter, began: float, staged: Sequence[Committable], seen: Measured | None = None) -> None:
    """A batch is committed, since ``began`` on the monotonic clock: ``staged`` by tasks, or ``seen`` as Spark wrote it."""
    meter.now(commit_ms=round((time.monotonic() - began) * 1000), last_commit=round(time.time(), 3))
    rejected = sum(one.rejected for one in staged)
    meter.count(errors=rejected, dead_letters=sum(one.rejected for one in staged if one.letters))
    if (rows := _rows(staged, seen, rejected)) is not None:
        meter.count(rows=rows)


def _rows(staged: Sequence[Committable], seen: Measured | None, rejected: int) -> int | None:
    """The rows that were written; ``None`` if nobody can tell. The batch is committed: nothing may fail here any more."""
    given = None
    with contextlib.suppress(Exception):
        given = seen.rows_if_known() if seen else None
    if given is not None:
        return given - rejected
    return sum(one.rows for one in staged) if staged or seen is None else None
