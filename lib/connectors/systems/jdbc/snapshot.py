"""One snapshot for all partitions of a read, if the database can share a snapshot between connections: PostgreSQL.

The tasks hold the snapshot among themselves. The first task exports it and announces it in its ``application_name``. Each
process that joins imports it, exports it again and announces that, so it lasts as long as any of them. This writes no table,
leaves no process behind, and locks no table. After its last task a process keeps the snapshot for :data:`LINGER` seconds, for
tasks that still wait for a core.

The planning process cannot hold it: it may end before the tasks begin. Spark also plans a read once for all its actions, each
of which must see the data of its own time. So the plan and the action name a moment.

A task that was tried before, or that lost its connection, never begins a new moment. If nobody holds the old one any more, the
read fails, since its other partitions may be done. Only if no task of a read runs for longer than :data:`LINGER` seconds would
the rest see another moment.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final

from ...ground.errors import ConnectorError, Fatal
from ...ground.state import digest
from .connection import Connection
from .dialects.postgresql import PostgreSql

LINGER: Final = 20.0
_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_PREFIX: Final = "connectors-moment-"
_GONE: Final = Fatal(
    "the moment that the other partitions were read at is gone: every connection that held it was lost",
    way_out="read again; or set snapshot=false, and each partition is read at a moment of its own",
)


class _Holder:
    """A connection of this process that keeps a snapshot."""

    def __init__(self, connection: Connection, snapshot: str) -> None:
        self.connection = connection
        self.snapshot = snapshot
        self.users = 0
        self.timer: threading.Timer | None = None

    def alive(self) -> bool:
        try:
            return self.connection.rows("SELECT 1") == [(1,)]
        except ConnectorError:
            return False


_held: dict[tuple[int, str], _Holder] = {}
_lock = threading.Lock()


@contextlib.contextmanager
def shared_snapshot(dialect: PostgreSql, moment: str, *, begin: bool) -> Iterator[str]:
    """The id of a snapshot of ``moment``, valid for import inside the ``with``; ``begin`` allows a new moment.

    Raises :class:`Fatal` if the moment is gone, or has not begun and must not begin.
    """
    key = (os.getpid(), digest(str(dialect.address), dialect.address.user, moment))
    holder = _acquire(dialect, key, begin)
    try:
        yield holder.snapshot
    finally:
        _release(key, holder)


def _acquire(dialect: PostgreSql, key: tuple[int, str], begin: bool) -> _Holder:
    with _lock:
        holder = _held.get(key)
        if holder is not None and not holder.alive():
            _close(key)
            holder, begin = None, False
        if holder is None:
            holder = _held[key] = _join(dialect, key[1], begin)
        if holder.timer is not None:
            holder.timer.cancel()
        holder.users += 1
        return holder


def _release(key: tuple[int, str], holder: _Holder) -> None:
    with _lock:
        holder.users -= 1
        if holder.users == 0 and _held.get(key) is holder:
            holder.timer = threading.Timer(LINGER, _expire, (key, holder))
            holder.timer.daemon = True
            holder.timer.start()


def _expire(key: tuple[int, str], holder: _Holder) -> None:
    with _lock:
        if holder.users == 0 and _held.get(key) is holder:
            _close(key)


def _close(key: tuple[int, str]) -> None:
    _held.pop(key).connection.close()


def _join(dialect: PostgreSql, name: str, begin: bool) -> _Holder:
    """Joins the moment or begins it, under an advisory lock that lets one process at a time do so."""
    connection = dialect.connect()
    try:
        number = int(name, 16)
        connection.rows("SELECT pg_advisory_lock(%s)", [number])
        snapshot = _import(connection, f"{_PREFIX}{name}:")
        if not snapshot:
            if not begin:
                raise Fatal(_GONE.message, way_out=_GONE.way_out)
            connection.execute(_BEGIN)
        exported = _export(connection, name)
        connection.rows("SELECT pg_advisory_unlock(%s)", [number])
        return _Holder(connection, exported)
    except BaseException:
        connection.close()
        raise


def _import(connection: Connection, prefix: str) -> str:
    """Imports the snapshot of the first remaining holder into this transaction, and returns it; ``""`` if none remains."""
    here = "datname = current_database() AND starts_with(application_name, %s)"
    for (announced,) in connection.rows(f"SELECT application_name FROM pg_stat_activity WHERE {here}", [prefix]):
        snapshot = str(announced).removeprefix(prefix)
        connection.execute(_BEGIN)
        with contextlib.suppress(ConnectorError):
            connection.execute(import_of(snapshot))
            return snapshot
        connection.rollback()
    return ""


def _export(connection: Connection, name: str) -> str:
    ((snapshot,),) = connection.rows("SELECT pg_export_snapshot()")
    connection.rows("SELECT set_config('application_name', %s, false)", [f"{_PREFIX}{name}:{snapshot}"])
    connection.execute("SET idle_in_transaction_session_timeout = 0")
    return str(snapshot)


def import_of(snapshot: str) -> str:
    """The statement that makes a new transaction use ``snapshot``; it takes no bound value."""
    if not all(letter in "0123456789ABCDEFabcdef-" for letter in snapshot):
        raise ValueError(f"{snapshot!r} is no snapshot")
    return f"SET TRANSACTION SNAPSHOT '{snapshot}'"


def begin_at(snapshot: str) -> tuple[str, ...]:
    """The statements that begin a transaction with ``snapshot``."""
    return _BEGIN, import_of(snapshot)


@atexit.register
def _close_all() -> None:
    for (process, _), holder in list(_held.items()):
        if process == os.getpid():
            with contextlib.suppress(Exception):
                holder.connection.close()
    _held.clear()
