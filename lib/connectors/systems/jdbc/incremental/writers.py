"""Who may hold ids that nobody sees yet: the open transactions of PostgreSQL and MariaDB, by names that last.

An id is taken before its row can be seen, so a smaller id may become visible after a larger one. The driver first asks how far
the ids go, then who is writing, and last which rows are there. Whoever took an id before the first question is among the
writers, or its rows are there at the last one.

PostgreSQL shows the locks of a table: a transaction holds its lock from before it takes an id until its rows can be seen. A
prepared transaction keeps the name that it had before, until the server starts again and names it by its number.

MariaDB shows transactions, but not their tables, and no transaction before its first row. A session that has taken an id by
then is still busy with its statement, so busy sessions are writers as well. The list of transactions comes from a cache, which
the server fills again after a tenth of a second without readers. The query of our own session in it tells a fresh one.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Final

from ....core.errors import Fatal, Misconfigured, Problem, Transient
from ..connection import Connection
from ..selecting import NAME
from .transactions import HERE, PREPARED

_WRITES: Final = "('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
_WRITERS: Final = f"""
WITH RECURSIVE family AS (
    SELECT unnest(%s::oid[]) AS oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN family f ON i.inhparent = f.oid
), own AS (
    SELECT d.objid FROM pg_depend d JOIN family f ON d.refobjid = f.oid
    WHERE d.refclassid = 'pg_class'::regclass AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
    UNION SELECT s.refobjid FROM pg_attrdef t JOIN family f ON t.adrelid = f.oid
    JOIN pg_depend s ON s.classid = 'pg_attrdef'::regclass AND s.objid = t.oid AND s.refclassid = 'pg_class'::regclass
), roots AS (SELECT oid FROM family UNION SELECT objid FROM own)
SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND database = {HERE} AND granted AND mode IN {_WRITES}
AND pid IS DISTINCT FROM pg_backend_pid() AND relation IN (SELECT oid FROM roots)
"""
_ANY_WRITER: Final = f"""
SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND database = {HERE} AND granted AND mode IN {_WRITES}
AND pid IS DISTINCT FROM pg_backend_pid() AND relation >= 16384
"""
_BUSY: Final = (
    "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND command NOT IN "
    "('Sleep', 'Daemon', 'Binlog Dump', 'Slave_IO', 'Slave_SQL', 'Slave_worker')"
)
_TRANSACTIONS: Final = (
    "SELECT '{look}', CAST(trx_id AS CHAR), trx_mysql_thread_id, trx_mysql_thread_id = CONNECTION_ID(), trx_query "
    "FROM information_schema.innodb_trx"
)
_CACHE_SECONDS: Final = 0.11
_LOOK_SECONDS: Final = 30.0
_DENIED: Final = "1227"


@dataclass(frozen=True)
class Writers:
    """Open transactions at one moment. ``names`` are those that a watch begins with.

    ``present`` are all names by which an earlier watch may know them. ``detached`` have no session, and may have had another
    name before: they may be any of an earlier watch.
    """

    names: frozenset[str] = frozenset()
    present: frozenset[str] = frozenset()
    detached: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.names)

    def remaining(self, watched: frozenset[str]) -> frozenset[str]:
        """Those of ``watched`` that are still open; a watch that has ended stays so."""
        return watched & self.present | self.detached if watched else watched


def writers(connection: Connection, oid: int | None) -> Writers:
    """The transactions that may hold ids of a table that nobody sees yet; of any table without an ``oid``.

    Databases with one writer have none. Raises :class:`Misconfigured` if the user may not see the transactions of others.
    """
    if connection.dialect.system == "postgresql":
        rows = connection.rows(_WRITERS, [[oid]]) if oid is not None else connection.rows(_ANY_WRITER)
        names = frozenset(name for (name,) in rows)
        return Writers(names, names, frozenset(name for name in names if name.startswith(PREPARED)))
    return _sessions(connection) if connection.dialect.system == "mariadb" else Writers()


def _sessions(connection: Connection) -> Writers:
    """A transaction has a number once it has a row; until then its session names it."""
    connection.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        busy = {session for (session,) in connection.rows(_BUSY)}
        transactions = _transactions(connection)
    finally:
        connection.rollback()
    numbered = {session: f"transaction {number}" for number, session in transactions if number != "0" and session}
    detached = frozenset(f"transaction {number}" for number, session in transactions if not session)
    sessions = {session: f"session {session}" for session in busy | {session for _, session in transactions if session}}
    names = frozenset({**sessions, **numbered}.values()) | detached
    return Writers(names, names | frozenset(sessions.values()), detached)


def _transactions(connection: Connection) -> list[tuple[str, int]]:
    """The number and the session (0: none) of each transaction of other sessions, as they are now."""
    until = time.monotonic() + _LOOK_SECONDS
    while True:
        look = uuid.uuid4().hex
        try:
            rows = connection.rows(_TRANSACTIONS.format(look=look))
        except Fatal as refused:
            if _DENIED not in refused.message:
                raise
            raise Misconfigured(NAME, [Problem("user", _NO_PRIVILEGE)]) from None
        if any(own and look in (query or "") for *_, own, query in rows):
            return [(str(number), int(session)) for _, number, session, own, _ in rows if not own]
        if time.monotonic() > until:
            raise Transient("MariaDB's list of transactions is not fresh: others read it all the time", connector=NAME)
        time.sleep(_CACHE_SECONDS)


_NO_PRIVILEGE: Final = (
    "may not see the transactions of others, whose ids become visible late; GRANT PROCESS ON *.* TO that user, or set "
    "singleWriter=true if one connection at a time writes the tables."
)
