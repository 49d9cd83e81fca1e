"""Straight into the target, in small transactions as the rows come: at least once, or idempotent by key."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ...core.errors import Poison
from ...core.options import Values
from ...core.retry import Retry
from ...core.sink import Committable, SinkWriter
from .column_types import as_python, flat
from .connection import Connection
from .dialects import Dialect
from .dialects.postgresql import repeated_keys
from .target import Target

Row = tuple[Any, ...]


class DirectWriter(SinkWriter):
    """Writes ``batch.maxRecords`` rows at a time, or what has come within ``batch.maxTime``."""

    def __init__(self, values: Values, dialect: Dialect, schema: pa.Schema) -> None:
        self.dialect = dialect
        self.records = values["batch.maxRecords"]
        self.seconds = values["batch.maxTime"]
        self.retry = Retry.of(values)
        with contextlib.closing(dialect.connect()) as connection:
            self.plan = Target(values, dialect).plan(connection, schema)
        self.rows = 0
        self._connection: Connection | None = None
        self._waiting: list[Row] = []
        self._since = 0.0
        self._failure: BaseException | None = None
        self._lock = threading.Condition()
        self._done = False
        self._clock: threading.Thread | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, self.records):
            rows = as_python(flat(batch.slice(start, self.records)), plain=self.dialect.plain_values)
            with self._lock:
                self._take(rows)

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
        if self._connection is not None:
            self._connection.close()

    def _take(self, rows: list[Row]) -> None:
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting += rows
        self.rows += len(rows)
        while len(self._waiting) >= self.records:
            self._flush(self.records)
        if self._clock is None:
            self._clock = threading.Thread(target=self._watch, daemon=True)
            self._clock.start()
        self._lock.notify()

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

    def _flush(self, count: int | None = None) -> None:
        if self._failure is not None:
            raise self._failure
        rows, self._waiting = self._waiting[:count], self._waiting[count:] if count else []
        self._since = time.monotonic()
        if rows:
            last = self._last_of_each_key(rows)
            self.retry.call(lambda: self._write(last))

    def _write(self, rows: Sequence[Row]) -> None:
        with self._connected() as connection:
            try:
                with connection.transaction():
                    self._run(connection, rows)
            except Poison:
                with connection.transaction():
                    for row in rows:
                        self._one(connection, row)

    def _one(self, connection: Connection, row: Row) -> None:
        try:
            with connection.savepoint() if self.dialect.savepoints else contextlib.nullcontext():
                self._run(connection, [row])
        except Poison as refused:
            if self.rejects is None or not self.dialect.savepoints:
                raise
            self.rejects.add(dict(zip(self.plan.schema.names, row, strict=True)), refused)

    def _run(self, connection: Connection, rows: Sequence[Row]) -> None:
        plan, delete = self.plan, self.plan.delete
        kept = [row for row in rows if delete is None or not row[delete]]
        gone = [row for row in rows if delete is not None and row[delete]]
        slot = {one.target.name: one.index for one in plan.columns}
        if kept:
            order = [*plan.updated, *plan.keys] if plan.operation == "update" else plan.names
            connection.many(self._sql(), [[row[slot[name]] for name in order] for row in kept])
        if gone:
            sql = f"DELETE FROM {self.dialect.table(plan.table)} WHERE {self._same()}"
            connection.many(sql, [[row[index] for index in plan.key_indexes] for row in gone])

    def _sql(self) -> str:
        plan, dialect = self.plan, self.dialect
        if plan.operation == "update":
            changes = ", ".join(f"{dialect.quote(name)} = {dialect.placeholder}" for name in plan.updated)
            return f"UPDATE {dialect.table(plan.table)} SET {changes} WHERE {self._same()}"
        sql = dialect.insert(plan.table, plan.names, f"VALUES ({dialect.slots(len(plan.names))})")
        return f"{sql} {dialect.conflict(plan.keys, plan.updated)}" if plan.operation == "upsert" else sql

    def _same(self) -> str:
        return " AND ".join(f"{self.dialect.quote(name)} = {self.dialect.placeholder}" for name in self.plan.keys)

    def _last_of_each_key(self, rows: list[Row]) -> list[Row]:
        plan = self.plan
        if not plan.keys:
            return rows
        last: dict[Row, Row] = {}
        for row in rows:
            key = tuple(row[index] for index in plan.key_indexes)
            if key in last and plan.order is None:
                raise repeated_keys()
            if key not in last or _newer(row[plan.order or 0], last[key][plan.order or 0]):
                last[key] = row
        return list(last.values())

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection]:
        """One connection for the task; where only one may write, one for each flush."""
        connection = self._connection or self.dialect.connect()
        self._connection = None
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self.dialect.one_writer:
            connection.close()
        else:
            self._connection = connection


def _newer(value: Any, than: Any) -> bool:
    return value is not None and (than is None or value >= than)
