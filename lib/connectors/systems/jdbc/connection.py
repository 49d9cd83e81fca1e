"""Connections to a database, with explicit transactions and with errors that say what to do next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...ground.clients import ClientPool
from ...ground.errors import ConnectorError, Fatal, Poison, Transient

if TYPE_CHECKING:
    from .dialects import Dialect, Table


@dataclass(frozen=True)
class ServerSession:
    """A session in the database's catalog; ``since`` is when its ``state`` began."""

    number: int
    user: str
    client: str
    state: str
    since: str

    def __str__(self) -> str:
        return f"session {self.number} of {self.user} from {self.client} ({self.state} since {self.since})"


class LockTimeout(Transient):
    """Another session has held a lock for longer than ``request.timeout``."""

    def with_holders(self, sessions: Sequence[ServerSession], dialect: Dialect) -> LockTimeout:
        """This error, with the ``sessions`` that may hold the lock, and how to end them."""
        if sessions:
            self.message += f"; locks are held by {', '.join(map(str, sessions))}"
            commands = "; ".join(dialect.end_session(session.number) for session in sessions)
            self.way_out = (
                f"a session of this sink whose client is gone ends by itself after {dialect.idle_seconds:g} seconds; "
                f"end others by {commands}"
            )
        return self


def repeated_keys() -> Fatal:
    """The error for a batch that has a key more than once if nothing says which row is the last."""
    return Fatal(
        "a key comes more than once in the batch, and nothing says which of its rows is the last",
        way_out="give orderColumn, the column whose largest value wins; or leave one row per key in the query",
    )


@contextlib.contextmanager
def naming_holders(dialect: Dialect, tables: Sequence[Table], lock: str = "") -> Iterator[None]:
    """Adds the sessions that hold locks in ``tables``, or the ``lock`` of a sink, to a :class:`LockTimeout`."""
    try:
        yield
    except LockTimeout as timeout:
        sessions: list[ServerSession] = []
        with contextlib.suppress(Exception), contextlib.closing(dialect.connect()) as connection:
            sessions = dialect.lock_holders(connection, tables, lock)
        raise timeout.with_holders(sessions, dialect) from None


class Connection:
    """A driver's connection in autocommit mode; :meth:`transaction` is explicit.

    It raises :class:`~connectors.ground.errors.Transient` for an outage, a lost connection or a deadlock, its subclass
    :class:`LockTimeout` for a lock that another session keeps, :class:`~connectors.ground.errors.Poison` for a row that the
    database refuses, and :class:`~connectors.ground.errors.Fatal` for anything else.
    """

    def __init__(self, dialect: Dialect, raw: Any) -> None:
        self.dialect = dialect
        self.raw = raw

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Runs a statement and returns the number of rows it changed (-1 if the driver does not say)."""
        with self.judged(), self.dialect.cursor(self.raw) as cursor:
            self.dialect.run(cursor, sql, values)
            return int(cursor.rowcount)

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Runs a statement once for each of ``rows``."""
        with self.judged(), self.dialect.cursor(self.raw) as cursor:
            cursor.executemany(sql, rows)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.judged(), self.dialect.cursor(self.raw) as cursor:
            self.dialect.run(cursor, sql, values)
            return [tuple(row) for row in cursor.fetchall()]

    def commit(self) -> None:
        self.execute("COMMIT")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction around the block. An error at COMMIT does not say whether the server has committed.

        The server ends the session if it hears nothing for :attr:`~.dialects.Dialect.idle_seconds` meanwhile.
        """
        self.execute(self.dialect.begin)
        try:
            for statement in self.dialect.limit_transaction():
                self.execute(statement)
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def rollback(self) -> None:
        """Rolls the transaction back; if the connection is lost, the server has done so."""
        with contextlib.suppress(Exception):
            self.execute("ROLLBACK")

    @contextlib.contextmanager
    def savepoint(self, name: str = "connectors_try") -> Iterator[None]:
        """A savepoint around the block: a refused row inside undoes only the block."""
        self.execute(f"SAVEPOINT {name}")
        try:
            yield
        except Poison:
            self.execute(f"ROLLBACK TO SAVEPOINT {name}")
            self.execute(f"RELEASE SAVEPOINT {name}")
            raise
        self.execute(f"RELEASE SAVEPOINT {name}")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.raw.close()

    @contextlib.contextmanager
    def judged(self) -> Iterator[None]:
        """Turns the driver's exceptions into a connector's errors, without the driver's traceback."""
        try:
            yield
        except self.dialect.errors() as error:
            raise self.dialect.judge(error) from None


_idle: ClientPool[Connection] = ClientPool(Connection.close)


@contextlib.contextmanager
def pooled_connection(dialect: Dialect) -> Iterator[Connection]:
    """An idle connection of this process, else a new one, so that the steps of a driver share one.

    An error closes it. A database in a file is opened each time, since an open file keeps other processes out.
    """
    connection = None if dialect.one_writer else _idle_connection(dialect)
    connection = connection or dialect.connect()
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    if dialect.one_writer:
        connection.close()
    else:
        _idle.give_back(dialect.pool_key, connection)


def _idle_connection(dialect: Dialect) -> Connection | None:
    """An idle connection that still answers."""
    while connection := _idle.take(dialect.pool_key):
        connection.dialect = dialect
        try:
            connection.rows("SELECT 1")
        except ConnectorError:
            connection.close()
        else:
            return connection
    return None
