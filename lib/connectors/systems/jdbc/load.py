"""Loads Arrow rows into a table: by COPY if the database has it, else by statements with many rows."""

from __future__ import annotations

import contextlib
import queue
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ...ground import machine
from ...ground.clients import ClientPool
from ...ground.errors import Transient
from .column_types import as_python
from .connection import Connection
from .dialects import Dialect, Table
from .dialects.postgresql import PostgreSql

LOADED_AT_ONCE = 1 << 20
"""The bytes of rows that a writer collects before it loads them; some more may be on their way to the database."""
_WAITING_LOADS: Final = 2
"""The most loads that wait for a COPY."""
_POLL_SECONDS: Final = 0.1
"""The time between two looks at a statement that takes no rows."""
_ROWS_PER_STATEMENT: Final = 10_000

_idle: ClientPool[Any] = ClientPool(lambda raw: raw.close())
"""Idle ADBC connections: opening one takes longer than a small load."""


class AdbcConnection(Connection):
    """A connection to PostgreSQL whose driver takes and returns Arrow. Each session begins with ``settings``.

    With ``autocommit`` each statement is a transaction. Else a transaction is always open, and :meth:`commit` ends it.
    """

    dialect: PostgreSql

    def __init__(self, dialect: PostgreSql, settings: Sequence[str], *, autocommit: bool) -> None:
        self._key = f"{dialect.load_url()} {autocommit}"
        super().__init__(dialect, _idle.take(self._key))
        self.autocommit = autocommit
        self.spoilt = False
        """True while nobody else may get the connection."""
        was_idle = self.raw is not None
        try:
            self._begin(settings)
        except Transient:
            if not was_idle:
                raise
            self.raw = None  # the server was down since the last use
            self._begin(settings)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Runs a statement. With ``values`` it must change rows; it counts them by RETURNING, since ADBC counts none."""
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
        """Returns the connection for the next load of this process, unless a transaction is open."""
        if self.raw is not None and not self.spoilt:
            _idle.give_back(self._key, self.raw)
        else:
            super().close()

    def _begin(self, settings: Sequence[str]) -> None:
        if self.raw is None:
            self.raw = self._open()
        for setting in settings:
            self.execute(setting)
        if not self.autocommit:
            self.commit()

    def _open(self) -> Any:
        module = self.dialect.module("adbc_driver_postgresql.dbapi")
        try:
            return module.connect(self.dialect.load_url(), autocommit=self.autocommit)
        except self.dialect.errors() as error:
            raise self.dialect.refused(error) from None


def _numbered(sql: str) -> str:
    """``sql`` with ADBC's placeholders."""
    first, *rest = sql.split("%s")
    return first + "".join(f"${number}{part}" for number, part in zip(count(1), rest, strict=False))


class Loader(ABC):
    """Loads rows; after :meth:`begin`, in one transaction. Its other statements go through :attr:`connection`."""

    @abstractmethod
    def __init__(self, dialect: Any) -> None: ...

    @property
    @abstractmethod
    def connection(self) -> Connection:
        """The connection, when all rows have arrived. Raises the error of a load."""

    @abstractmethod
    def begin(self, statement: str = "") -> None:
        """Begins the transaction unless it has begun; with ``statement`` if it is not an ordinary one."""

    @abstractmethod
    def load(self, table: Table, rows: pa.Table, *, temporary: bool = False) -> None:
        """Adds ``rows`` to ``table``: a ``temporary`` table of this connection or one that all sessions see."""

    def prepare(self, statements: Sequence[str]) -> None:
        """Ends the transaction with ``statements``, for another connection to commit."""
        for statement in statements:
            self.connection.execute(statement)

    def limit_idle(self) -> None:
        """Makes the server end the session if the transaction falls silent.

        Called after the last row: before that, a task may have to wait long for its query.
        """
        for statement in self.connection.dialect.limit_transaction():
            self.connection.execute(statement)

    def commit(self) -> None:
        self.connection.commit()

    @abstractmethod
    def close(self) -> None:
        """Frees the connection and rolls back an uncommitted transaction."""


def loader_for(dialect: Dialect) -> Loader:
    """A new loader with its own connection."""
    loaders: dict[str, type[Loader]] = {"adbc": CopyLoader}
    return loaders.get(dialect.arrow_driver, RowLoader)(dialect)


class RowLoader(Loader):
    """Loads by ``INSERT`` of many rows. Without :meth:`begin` each statement is a transaction: no lock outlives it."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._connection = dialect.connect()
        self._is_open = False

    @property
    def connection(self) -> Connection:
        return self._connection

    def begin(self, statement: str = "") -> None:
        if not self._is_open:
            self.connection.execute(statement or self.dialect.begin)
            self._is_open = True

    def load(self, table: Table, rows: pa.Table, *, temporary: bool = False) -> None:
        sql = self.dialect.insert_values(table, rows.column_names)
        for batch in rows.to_batches(max_chunksize=_ROWS_PER_STATEMENT):
            self.connection.many(sql, as_python(batch, plain=self.dialect.plain_values))

    def commit(self) -> None:
        if self._is_open:
            super().commit()
            self._is_open = False

    def close(self) -> None:
        self._connection.close()


class CopyLoader(Loader):
    """Loads by PostgreSQL's binary COPY in a thread: while the database takes rows, Spark makes the next ones."""

    def __init__(self, dialect: PostgreSql) -> None:
        self._connection = AdbcConnection(dialect, dialect.settings(), autocommit=False)
        self._copy: _Copy | None = None

    @property
    def connection(self) -> AdbcConnection:
        self._end()
        return self._connection

    def begin(self, statement: str = "") -> None:
        """Does nothing: ADBC always has a transaction open."""

    def load(self, table: Table, rows: pa.Table, *, temporary: bool = False) -> None:
        self._connection.spoilt = True
        target = _CopyTarget(table, rows.schema, temporary)
        if self._copy is None or self._copy.target != target:
            self._end()
            self._copy = _Copy(self._connection, target)
        self._copy.put(rows)

    def prepare(self, statements: Sequence[str]) -> None:
        super().prepare(statements)
        self._connection.commit()  # an empty one: it lets the driver begin another

    def close(self) -> None:
        with contextlib.suppress(Exception):  # if the last load fails here, the task has already failed with another error
            self._end()
        self._connection.close()

    def _end(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.end()


class _CopyTarget(NamedTuple):
    table: Table
    schema: pa.Schema
    temporary: bool


class _Copy:
    """One COPY in a thread, which takes rows until :meth:`end`."""

    def __init__(self, connection: AdbcConnection, target: _CopyTarget) -> None:
        self.target = target
        self._connection = connection
        self._rows: queue.Queue[pa.Table | None] = queue.Queue(_WAITING_LOADS)
        self._result: Future[None] = Future()
        machine.thread(self._run, "connectors-copy").start()

    def put(self, rows: pa.Table | None) -> None:
        """Waits while the database is behind. Raises the statement's error."""
        while True:
            if self._result.done():
                self._result.result()
            with contextlib.suppress(queue.Full):
                self._rows.put(rows, timeout=_POLL_SECONDS)
                return

    def end(self) -> None:
        """Returns when all rows are in the database."""
        self.put(None)
        self._result.result()

    def _run(self) -> None:
        table = self.target.table
        schema = {"db_schema_name": table.schema} if table.schema else {}
        rows = pa.RecordBatchReader.from_batches(self.target.schema, self._batches())
        try:
            with self._connection.judged(), self._connection.raw.cursor() as cursor:
                cursor.adbc_ingest(table.name, rows, mode="append", temporary=self.target.temporary, **schema)
        except BaseException as error:
            self._result.set_exception(error)
        else:
            self._result.set_result(None)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (rows := self._rows.get()) is not None:
            yield from rows.to_batches()
