"""Straight into the target, in small transactions as the rows come: at least once, or idempotent by key.

A flush stages its rows in a temporary table and moves them from there, as a batch does. Plain inserts are loaded as they are.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from ...core.dead_letters import Rejects
from ...core.errors import Misconfigured, Poison, Problem
from ...core.options import Values
from ...core.retry import Retry
from ...core.sink import Committable, SinkWriter
from .column_types import flat
from .dialects import Dialect, Table
from .load import Loader, RowLoader, loader_for
from .prepared import loadable, unfit_columns
from .stage import Move, staged_columns, without_zeros
from .target import Plan, Target

_STAGED = Table("connectors_staged")


class DirectWriter(SinkWriter):
    """Writes ``batch.maxRecords`` rows at a time, or what has come within ``batch.maxTime``."""

    def __init__(self, values: Values, dialect: Dialect, schema: pa.Schema) -> None:
        self.dialect = dialect
        self.records = values["batch.maxRecords"]
        self.seconds = values["batch.maxTime"]
        self.retry = Retry.of(values)
        with contextlib.closing(dialect.connect()) as connection:
            self.plan = Target(values, dialect).plan(connection, schema)
            table = self.plan.table
            is_view = table.name not in dialect.tables(connection, table.schema, table.name)
        _check_order(self.plan)
        self.rows = 0
        is_insert = self.plan.operation == "insert" and not self.plan.keys
        self._moves = not is_insert or is_view or bool(list(unfit_columns(dialect, self.plan)))
        self._columns = staged_columns(dialect, self.plan.schema)
        self._loader: Loader | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._since = 0.0
        self._failure: BaseException | None = None
        self._lock = threading.Condition()
        self._done = False
        self._clock: threading.Thread | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        with self._lock:
            start = 0
            while start < batch.num_rows:
                start += self._take(batch.slice(start, self.records - self._count()))

    def prepare(self) -> Committable:
        with self._lock:
            self._flush()
        return Committable(self.rows)

    def close(self) -> None:
        with self._lock:
            self._done = True
            self._lock.notify()
        if self._clock is not None:
            self._clock.join()
        if self._loader is not None:
            self._loader.close()

    def _count(self) -> int:
        return sum(batch.num_rows for batch in self._waiting)

    def _take(self, batch: pa.RecordBatch) -> int:
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(batch)
        count: int = batch.num_rows
        self.rows += count
        if self._count() >= self.records:
            self._flush()
        if self._clock is None:
            self._clock = threading.Thread(target=self._watch, daemon=True)
            self._clock.start()
        self._lock.notify()
        return count

    def _watch(self) -> None:
        """Writes what has waited long enough, while the query has nothing new."""
        with self._lock:
            while not self._done:
                left = self._since + self.seconds - time.monotonic()
                if self._waiting and left <= 0 and self._failure is None:
                    try:
                        self._flush()
                    except BaseException as error:
                        self._failure = error
                else:
                    self._lock.wait(left if self._waiting and self._failure is None else None)

    def _flush(self) -> None:
        if self._failure is not None:
            raise self._failure
        batches, self._waiting = self._waiting, []
        self._since = time.monotonic()
        if batches:
            rows = pa.Table.from_batches([flat(batch) for batch in batches])
            self.retry.call(lambda: self._write(rows))

    def _write(self, rows: pa.Table) -> None:
        """One transaction; a row that is refused is looked for in a second one. Rejects count when that is committed."""
        try:
            return self._write_at_once(rows)
        except Poison:
            if self.rejects is None or not self.dialect.savepoints:
                raise
        refusals = _Refusals(self.rejects)
        # a loader without COPY, whose driver has no savepoints
        with contextlib.closing(RowLoader(self.dialect)) as loader, self._transaction(loader):
            self._move(loader, rows, refusals)
        refusals.report()

    def _load(self, loader: Loader, rows: pa.Table) -> None:
        if self._moves:
            return self._move(loader, rows)
        plan, dialect = self.plan, self.dialect
        batches = [loadable(dialect, plan, batch) for batch in rows.to_batches()]
        loader.load(plan.table, pa.Table.from_batches(batches).rename_columns(plan.names))

    def _move(self, loader: Loader, rows: pa.Table, refusals: _Refusals | None = None) -> None:
        names = [name for name, _ in self._columns]
        batches = [without_zeros(self.dialect, batch, refusals) for batch in rows.to_batches()]
        loader.connection.execute(self.dialect.create_stage(_STAGED, self._columns, temporary=True))
        loader.load(_STAGED, pa.Table.from_batches(batches, rows.schema).rename_columns(names), temporary=True)
        move = Move(loader.connection, self.plan, [_STAGED], keep_newer=True)
        move.check_keys()
        if refusals is None:
            move.all()
        else:
            move.all_but(refusals)

    def _write_at_once(self, rows: pa.Table) -> None:
        """On one connection for the task; where only one may write, on one for each flush."""
        loader, self._loader = self._loader or loader_for(self.dialect), None
        try:
            with self._transaction(loader):
                self._load(loader, rows)
        except BaseException:
            loader.close()
            raise
        if self.dialect.one_writer:
            loader.close()
        else:
            self._loader = loader

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
    """The bad rows of a transaction that may be tried again."""

    def __init__(self, rejects: Rejects) -> None:
        self.rejects = rejects
        self._rows: list[tuple[Mapping[str, Any], BaseException | str]] = []

    def add(self, row: Mapping[str, Any], error: BaseException | str) -> None:
        """Raises :class:`Poison` with ``errors=fail``."""
        if self.rejects.policy == "fail":
            self.rejects.add(row, error)
        self._rows.append((row, error))

    def report(self) -> None:
        """Counts them: the other rows are written."""
        for row, error in self._rows:
            self.rejects.add(row, error)


def _check_order(plan: Plan) -> None:
    """Flushes are compared with one another by the rows that they leave in the table."""
    if plan.order is None or any(column.index == plan.order for column in plan.columns):
        return
    name = plan.schema.names[plan.order]
    text = (
        f'names "{name}", which {plan.table} lacks, so rows of different transactions cannot be compared. Add the column to '
        "the table, or take guarantee=exactly-once, which compares all rows of a batch."
    )
    raise Misconfigured("connectors.jdbc", [Problem("orderColumn", text)])
