"""Writes into the target in small transactions as rows come: at least once, or idempotent by key.

A flush stages its rows in a temporary table and moves them from there, as a batch does. Plain inserts need no stage.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from ...core.batch import Committable
from ...core.dead_letters import Rejects
from ...core.sink import SinkWriter
from ...ground import machine
from ...ground.errors import Poison, Problem
from ...ground.options import Values
from ...ground.retry import RetrySettings
from .column_types import with_json_text
from .dialects import Dialect
from .load import Loader, RowLoader, loader_for
from .stage import PLACE, TEMPORARY_STAGE, StageMove, places
from .statement_move import move_of
from .target import WritePlan, refuse, staged_columns
from .writers import loadable_rows, target_rows


class DirectWriter(SinkWriter):
    """Writes ``batch.maxRecords`` rows at a time, or the rows of ``batch.maxTime``."""

    def __init__(self, values: Values, dialect: Dialect, plan: WritePlan) -> None:
        self.dialect = dialect
        self.plan = plan
        self.max_records = values["batch.maxRecords"]
        self.max_seconds = values["batch.maxTime"]
        self.retry = RetrySettings.of(values)
        self.rows = 0
        self._stage_columns = staged_columns(dialect, plan.schema)
        self._has_places = plan.statement is not None and not dialect.keeps_order
        if self._has_places:
            self._stage_columns.append((PLACE, dialect.types["int64"]))
        self._loader: Loader | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_since = 0.0
        self._failure: BaseException | None = None
        self._lock = threading.Condition()
        self._closed = False
        self._timer: threading.Thread | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        with self._lock:
            start = 0
            while start < batch.num_rows:
                part = batch.slice(start, self.max_records - self._waiting_rows())
                self._add(part)
                start += part.num_rows

    def prepare(self) -> Committable:
        with self._lock:
            self._flush()
        return Committable(self.rows)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify()
        if self._timer is not None:
            self._timer.join()
        if self._loader is not None:
            self._loader.close()

    def _waiting_rows(self) -> int:
        return sum(batch.num_rows for batch in self._waiting)

    def _add(self, batch: pa.RecordBatch) -> None:
        if not self._waiting:
            self._waiting_since = machine.monotonic()
        self._waiting.append(batch)
        self.rows += batch.num_rows
        if self._waiting_rows() >= self.max_records:
            self._flush()
        if self._timer is None:
            self._timer = machine.thread(self._flush_in_time, "connectors")
            self._timer.start()
        self._lock.notify()

    def _flush_in_time(self) -> None:
        """Writes rows that have waited for ``batch.maxTime``, while the query has nothing new."""
        with self._lock:
            while not self._closed:
                can_flush = bool(self._waiting) and self._failure is None
                seconds = self._waiting_since + self.max_seconds - machine.monotonic()
                if not can_flush or seconds > 0:
                    self._lock.wait(seconds if can_flush else None)
                    continue
                try:
                    self._flush()
                except BaseException as error:
                    self._failure = error

    def _flush(self) -> None:
        if self._failure is not None:
            raise self._failure
        batches, self._waiting = self._waiting, []
        self._waiting_since = machine.monotonic()
        if batches:
            rows = pa.Table.from_batches([with_json_text(batch) for batch in batches])
            self.retry.call(lambda: self._write(rows))

    def _write(self, rows: pa.Table) -> None:
        """Runs one transaction; if a row is refused, a second one looks for it. Rejects count when that is committed."""
        try:
            return self._write_at_once(rows)
        except Poison:
            if self.rejects is None or not self.dialect.savepoints:
                raise
        refusals = _Refusals(self.rejects)
        # a loader without COPY, whose driver has no savepoints
        with contextlib.closing(RowLoader(self.dialect)) as loader, self._transaction(loader):
            self._stage(loader, rows, refusals).move_all_but(refusals)
        refusals.report()

    def _write_at_once(self, rows: pa.Table) -> None:
        """Writes on one connection for the task; if only one may write, on a new one for each flush."""
        loader, self._loader = self._loader or loader_for(self.dialect), None
        try:
            with self._transaction(loader):
                if self.plan.via_stage:
                    self._stage(loader, rows).move()
                else:
                    batches = [target_rows(self.dialect, self.plan, batch) for batch in rows.to_batches()]
                    loader.load(self.plan.table, pa.Table.from_batches(batches).rename_columns(self.plan.names))
        except BaseException:
            loader.close()
            raise
        if self.dialect.one_writer:
            loader.close()
        else:
            self._loader = loader

    def _stage(self, loader: Loader, rows: pa.Table, refusals: _Refusals | None = None) -> StageMove:
        names = [name for name, _ in self._stage_columns]
        batches = [loadable_rows(self.dialect, batch, refusals) for batch in rows.to_batches()]
        for statement in self.dialect.create_stage(TEMPORARY_STAGE, self._stage_columns, temporary=True):
            loader.connection.execute(statement)
        staged = pa.Table.from_batches(batches, rows.schema)
        if self._has_places:
            staged = staged.append_column(PLACE, places(0, 0, staged.num_rows))
        loader.load(TEMPORARY_STAGE, staged.rename_columns(names), temporary=True)
        move = move_of(loader.connection, self.plan, TEMPORARY_STAGE, keep_newer=True)
        move.check_keys()
        return move

    @contextlib.contextmanager
    def _transaction(self, loader: Loader) -> Iterator[None]:
        for statement in self.dialect.before_small:
            loader.connection.execute(statement)
        loader.begin()
        for statement in self.dialect.at_begin:
            loader.connection.execute(statement)
        yield
        loader.commit()


class _Refusals:
    """The bad rows of a transaction that may be retried."""

    def __init__(self, rejects: Rejects) -> None:
        self.rejects = rejects
        self._rows: list[tuple[Mapping[str, Any], BaseException | str]] = []

    def add(self, row: Mapping[str, Any], error: BaseException | str) -> None:
        """Adds a bad row. Raises :class:`Poison` with ``errors=fail``."""
        if self.rejects.policy == "fail":
            self.rejects.add(row, error)
        self._rows.append((row, error))

    def report(self) -> None:
        """Counts the bad rows, once the other rows are written."""
        for row, error in self._rows:
            self.rejects.add(row, error)


def check_order(plan: WritePlan) -> None:
    """Raises :class:`Misconfigured` if the target lacks the order column, which compares rows of different flushes."""
    if plan.order is None or any(column.index == plan.order for column in plan.columns):
        return
    name = plan.schema.names[plan.order]
    text = (
        f'names "{name}", which {plan.table} lacks, so rows of different transactions cannot be compared. Add the column to '
        "the table, or take guarantee=exactly-once, which compares all rows of a batch."
    )
    refuse([Problem("orderColumn", text)])
