"""Connections of ADBC to PostgreSQL, kept for the next one who needs one: to make one costs more than a small load."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ...core.errors import Transient
from .column_types import as_python
from .connection import Connection
from .dialects import Dialect, Table
from .dialects.postgresql import PostgreSql

_idle: dict[tuple[int, str, bool], Any] = {}
"""What the last one of this process has left, by process, address, and whether each statement is a transaction."""


class AdbcConnection(Connection):
    """A connection whose driver takes and gives Arrow. Each session begins with ``settings``.

    With ``autocommit`` each statement is a transaction, else one is always open, and ends with :meth:`commit`.
    """

    dialect: PostgreSql

    def __init__(self, dialect: PostgreSql, settings: Sequence[str], *, autocommit: bool) -> None:
        self._key = (os.getpid(), dialect.load_url(), autocommit)
        super().__init__(dialect, _idle.pop(self._key, None))
        self.autocommit = autocommit
        self.spoilt = False
        """True while nobody else must be given the connection."""
        kept = self.raw is not None
        try:
            self._begin(settings)
        except Transient:
            if not kept:
                raise
            self.raw = None  # the server was away since the connection was used
            self._begin(settings)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Runs a statement; with ``values`` it must change rows, and is asked for them, as ADBC does not count them."""
        self.spoilt = self.spoilt or not self.autocommit
        return len(self.rows(f"{sql} RETURNING 1", values)) if values else super().execute(sql)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self.spoilt = self.spoilt or not self.autocommit
        return super().rows(_numbered(sql) if values else sql, values)

    def commit(self) -> None:
        with self.judged():
            self.raw.commit()
        self.spoilt = False

    def rollback(self) -> None:
        with contextlib.suppress(Exception):
            self.raw.rollback()
            self.spoilt = False

    def close(self) -> None:
        if self.raw is not None and not self.spoilt and self._key not in _idle:
            _idle[self._key] = self.raw
        else:
            super().close()

    def _begin(self, settings: Sequence[str]) -> None:
        if self.raw is None:
            self.raw = self._opened()
        for setting in settings:
            self.execute(setting)
        if not self.autocommit:
            self.commit()

    def _opened(self) -> Any:
        module = self.dialect.module("adbc_driver_postgresql.dbapi")
        try:
            return module.connect(self._key[1], autocommit=self.autocommit)
        except self.dialect.errors() as error:
            raise self.dialect.refused(error) from None


def _numbered(sql: str) -> str:
    """``sql`` with ADBC's placeholders."""
    first, *rest = sql.split("%s")
    return first + "".join(f"${number}{part}" for number, part in zip(count(1), rest, strict=False))


@atexit.register
def _close_idle() -> None:
    for (process, *_), connection in list(_idle.items()):
        if process == os.getpid():
            with contextlib.suppress(Exception):
                connection.close()
    _idle.clear()


# MERGED How Arrow gets into a table: COPY where the database has it, else many rows in a statement.

LOADED_AT_ONCE = 1 << 20
"""Bytes of rows that a writer collects before it loads them; some more may be on their way into the database."""
_WAITING: Final = 2
"""Loads that a COPY has not taken yet."""
_LOOK: Final = 0.1
"""Seconds between looks at a statement that takes nothing."""
_ROWS = 10_000


class Chunks:
    """Collects record batches until they are worth a load."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.bytes = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """Keeps ``batch``; true if it is time to load."""
        self.batches.append(batch)
        self.bytes += batch.nbytes
        return self.bytes >= LOADED_AT_ONCE

    def take(self, names: Sequence[str]) -> pa.Table:
        table = pa.Table.from_batches(self.batches).rename_columns(list(names))
        self.batches, self.bytes = [], 0
        return table


class Loader(ABC):
    """Loads in one transaction, which is also that of what is done through ``connection``."""

    @abstractmethod
    def __init__(self, dialect: Any) -> None: ...

    @property
    @abstractmethod
    def connection(self) -> Connection:
        """For other statements; all that was loaded is there by then. Raises what a load has raised."""

    @abstractmethod
    def begin(self, statement: str = "") -> None:
        """Begins the transaction, unless it has begun; with ``statement`` where it is not an ordinary one."""

    @abstractmethod
    def load(self, table: Table, rows: pa.Table, *, temporary: bool = False) -> None:
        """Adds ``rows`` to ``table``, a ``temporary`` one of this connection's or one that all see."""

    def prepare(self, statements: Sequence[str]) -> None:
        """Ends the transaction with ``statements``, for another connection to commit."""
        for statement in statements:
            self.connection.execute(statement)

    def limit_idle(self) -> None:
        """After the last row: the server ends the session if the transaction is left alone. Before it, a task may wait long."""
        for statement in self.connection.dialect.limit_transaction():
            self.connection.execute(statement)

    def commit(self) -> None:
        self.connection.commit()

    @abstractmethod
    def close(self) -> None:
        """What was not committed is given up."""


class CopyLoader(Loader):
    """PostgreSQL's binary COPY, in a thread: while the database takes rows, Spark makes the next ones."""

    def __init__(self, dialect: PostgreSql) -> None:
        self._connection = AdbcConnection(dialect, dialect.settings(), autocommit=False)
        self._copy: _Copy | None = None

    @property
    def connection(self) -> AdbcConnection:
        self._end()
        return self._connection

    def begin(self, statement: str = "") -> None:
        """One is always open."""

    def load(self, table: Table, rows: pa.Table, *, temporary: bool = False) -> None:
        self._connection.spoilt = True
        into = _Into(table, rows.schema, temporary)
        if self._copy is None or self._copy.into != into:
            self._end()
            self._copy = _Copy(self._connection, into)
        self._copy.put(rows)

    def prepare(self, statements: Sequence[str]) -> None:
        super().prepare(statements)
        self._connection.commit()  # of nothing: it lets the driver begin another one

    def close(self) -> None:
        with contextlib.suppress(Exception):  # an error of the last load is that of a task that has another one already
            self._end()
        self._connection.close()

    def _end(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.end()


class _Into(NamedTuple):
    table: Table
    schema: pa.Schema
    temporary: bool


class _Copy:
    """One statement in a thread, which takes rows until it is told of their end."""

    def __init__(self, connection: AdbcConnection, into: _Into) -> None:
        self.into = into
        self._connection = connection
        self._rows: queue.Queue[pa.Table | None] = queue.Queue(_WAITING)
        self._done: Future[None] = Future()
        threading.Thread(target=self._run, name="connectors-copy", daemon=True).start()

    def put(self, rows: pa.Table | None) -> None:
        """Waits while the database is behind. Raises what the statement has raised."""
        while True:
            if self._done.done():
                self._done.result()
            with contextlib.suppress(queue.Full):
                self._rows.put(rows, timeout=_LOOK)
                return

    def end(self) -> None:
        """Returns when all rows are in the database."""
        self.put(None)
        self._done.result()

    def _run(self) -> None:
        table = self.into.table
        more = {"db_schema_name": table.schema} if table.schema else {}
        rows = pa.RecordBatchReader.from_batches(self.into.schema, self._batches())
        try:
            with self._connection.judged(), self._connection.raw.cursor() as cursor:
                cursor.adbc_ingest(table.name, rows, mode="append", temporary=self.into.temporary, **more)
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (rows := self._rows.get()) is not None:
            yield from rows.to_batches()


class RowLoader(Loader):
    """``INSERT`` of many rows."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._connection = dialect.connect()
        self._begun = False

    @property
    def connection(self) -> Connection:
        return self._connection

    def begin(self, statement: str = "") -> None:
        if not self._begun:
            self.connection.execute(statement or self.dialect.begin)
            self._begun = True

    def load(self, table: Table, rows: pa.Table, *, temporary: bool = False) -> None:
        self.begin()
        sql = f"INSERT INTO {self.dialect.table(table)} ({self.dialect.names(rows.column_names)}) VALUES "
        sql += f"({self.dialect.slots(rows.num_columns)})"
        for batch in rows.to_batches(max_chunksize=_ROWS):
            self.connection.many(sql, as_python(batch, plain=self.dialect.plain_values))

    def commit(self) -> None:
        if self._begun:
            super().commit()
            self._begun = False

    def close(self) -> None:
        self._connection.close()


def loader_for(dialect: Dialect) -> Loader:
    loaders: dict[str, type[Loader]] = {"adbc": CopyLoader}
    return loaders.get(dialect.arrow_driver, RowLoader)(dialect)
