"""Keeps the metrics of all queries of a session over time, in a table."""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ..core.progress import behind
from ..ground import machine
from ..ground.errors import Misconfigured, Problem
from ..ground.options import Duration
from .alerts import Observation
from .watch import Listening

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("connectors.metrics")
_LONGEST: Final = 100_000

SCHEMA: Final = """at timestamp, query string, name string, run string, state string, batch long, batch_ms long,
    input_rows long, component string, partition string, position string, latest string, lag long, lag_records long,
    lag_seconds double, rows long, bytes long, errors long, retries long, dead_letters long, in_flight long,
    commit_ms long, last_commit timestamp"""
"""The columns of the table: those of :func:`~connectors.metrics.table`, and which query, batch and time they are of.
Its columns are fixed, since tables that were recorded before have no others: what came later (``skipped``, what is waited for,
times of transactions, replication slots and snapshots) is in :func:`~connectors.metrics.table` only.

``lag`` is ``lag_records``, or where that is not known the way from ``position`` to ``latest`` in the source's unit.
``state`` is ``running`` after a batch, ``ended`` or ``failed`` after the last one.
"""


def record(spark: SparkSession, table: str, *, file_format: str = "delta", every: str | float = "10s") -> MetricsRecorder:
    """From now on, keeps the metrics of every query of ``spark``; returns an object whose ``stop()`` ends that.

    ``table``: a path (it has a ``/``) or the name of a table; :data:`SCHEMA` says what is in it. Each batch adds a row per
    component and partition. ``file_format``: ``delta`` or ``parquet``. Rows are appended ``every`` so often ("10s", or seconds)
    and by ``stop()``: each time is a small Spark job. A table that cannot be written is a warning in the log, and no error of
    any query. Raises :class:`~connectors.ground.errors.Misconfigured`.
    """
    problems = []
    if not table:
        problems.append(Problem("table", "missing; give the name of a table, or a path."))
    if file_format not in ("delta", "parquet"):
        problems.append(Problem("file_format", f'must be delta or parquet; got "{file_format}"'))
    try:
        seconds = Duration(None).parse(str(every))
    except ValueError as wrong:
        problems.append(Problem("every", f'must be {wrong}; got "{every}"'))
    if problems:
        raise Misconfigured("metrics.record", problems)
    return MetricsRecorder(spark, table, file_format, seconds)


class MetricsRecorder(Listening):
    """The recorder that :func:`record` returns; also a context manager."""

    def __init__(self, spark: SparkSession, table: str, file_format: str, every: float) -> None:
        self.table, self.file_format, self.every = table, file_format, every
        self._pending: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()
        self._writer = machine.thread(self._write_now_and_then, "Recorder-writer")
        super().__init__(spark)
        self._writer.start()

    def observed(self, batch: Observation, state: str) -> None:
        rows = [_cells(batch, state, row) for row in batch.rows]
        with self._lock:
            self._pending = [*self._pending, *rows][-_LONGEST:]

    def stop(self) -> None:
        """Writes the rest, and records no more."""
        super().stop()
        self._writer.join()

    def _write_now_and_then(self) -> None:
        """Beside the thread that looks at batches: a write takes seconds, in which several may end."""
        while not self._stopped.wait(self.every):
            self._write()
        self._thread.join()
        self._write()

    def _write(self) -> None:
        with self._lock:
            rows, self._pending = self._pending, []
        if not rows:
            return
        try:
            writer = self._spark.createDataFrame(rows, SCHEMA).coalesce(1).write.format(self.file_format).mode("append")
            writer.save(self.table) if "/" in self.table else writer.saveAsTable(self.table)
        except Exception as refused:
            with self._lock:
                self._pending = [*rows, *self._pending][-_LONGEST:]
            _log.warning("the metrics are not recorded: %s cannot be written (%s)", self.table, str(refused)[:500])


def _cells(batch: Observation, state: str, row: Mapping[str, Any]) -> tuple[Any, ...]:
    progress = batch.progress
    known = row["latest"] is not None or row["lag_records"] is not None
    lag = behind(row["lag_records"], row["position"], row["latest"]) if known else None
    return (
        batch.at, batch.query, progress.get("name"), str(progress["runId"]), state, batch.batch,
        round(batch.seconds * 1000), batch.input_rows, row["component"], row["partition"],
        _text(row["position"]), _text(row["latest"]), lag, row["lag_records"],
        row["lag_seconds"], row["rows"], row["bytes"], row["errors"], row["retries"], row["dead_letters"],
        row["in_flight"], row["commit_ms"], _moment(row["last_commit"]),
    )  # fmt: skip


def _moment(seconds: float | None) -> datetime.datetime | None:
    return None if seconds is None else datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
