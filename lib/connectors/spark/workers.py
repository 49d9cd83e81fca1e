"""The work of formats in the Python processes that Spark starts: a task stages its rows, the driver's process removes or
commits them, and an error of a connector is shown as its message alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from ..core.batch import Batch, Committable
from ..core.commit import Commit
from ..core.metrics import Meter
from ..core.sink import Sink
from ..core.writing import stage
from ..ground.errors import ConnectorError, Transient
from .query_watch import ends_when_silent

_log = logging.getLogger("connectors")


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Lets a connector's error reach the user as its message alone; Spark would put a worker's traceback in front of it."""
    try:
        yield
    except ConnectorError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # read by Spark's worker when it reports the exception, then it ends
        raise


@dataclass
class Staged(WriterCommitMessage):
    """The message of a task to the driver: its committable, and the query that it belongs to."""

    query: str | None
    committable: dict[str, Any]


def committables(messages: Sequence[WriterCommitMessage | None]) -> list[Committable]:
    """The committables of the tasks of a batch, as far as they have reported them."""
    return [Committable(**message.committable) for message in messages if isinstance(message, Staged)]


def stage_in_task(
    sink: Sink, batch: Batch, schema: pa.Schema, subtask: int, rows: Iterator[pa.RecordBatch], meter: Meter
) -> Committable:
    """Stages the rows of a task. One that fails by an outage ends when the target is back: Spark tries it again at once."""
    try:
        with ends_when_silent(sink.values["taskTimeout"], meter):
            return stage(sink, batch, schema, subtask, meter.through(rows))
    except Transient as outage:
        if not sink.writers_retry:
            Commit(sink).await_target(batch, outage)
        raise


def abort_batch(sink: Sink, batch: Batch, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Removes what was staged for a batch that failed, as far as the target can be reached.

    Spark replaces the error of the batch by "Writing job failed" when an abort raises one of its own.
    """
    try:
        Commit(sink).abort(batch, committables(messages))
    except Exception:
        _log.warning("connectors.%s: the stage of %s is left; a later run removes it", sink.name, batch, exc_info=True)
