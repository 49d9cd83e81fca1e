"""Ids that are missing while transactions write, and the transactions that are open in the database.

Missing ids, the holes of a position, may still come until all transactions that wrote then are gone. This module remembers
which transactions might fill them. After a restart it does not know that, and takes all that write then for such transactions.

A transaction takes an id before its row is visible, so a smaller id may become visible after a larger one. The driver
queries, without locks and in this order: the largest keys, the writers, the transactions that have ended, the rows. A
transaction that took a key before the first query is either among the writers, or the last query sees its rows.

PostgreSQL shows the locks of a table. A transaction holds its lock on the table, or on the sequence of its ids, from before
it takes an id until its rows are visible, and it reads a clock inside. A prepared transaction keeps its earlier name until
the server restarts and names it by its number.

MariaDB shows transactions, but not their tables, and no transaction before its first row. A session that has taken an id by
then is still busy with its statement, so busy sessions are writers too. The list of transactions comes from a cache,
which the server refills after a tenth of a second without readers. If it has this session's query, it is fresh.

A replica shows none of the transactions of its primary, and what they have written only when they commit. So it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ....ground import machine
from ....ground.errors import Fatal, Misconfigured, Problem, Transient
from ..connection import Connection
from ..selection import NAME
from .positions import Interval, difference, intersection, union

HOLE_LIMIT: Final = 500
"""The most holes of a table that are watched at a time; the ids after them wait."""


@dataclass
class _Watch:
    writers: frozenset[str]
    holes: list[Interval]


@dataclass
class Holes:
    """The watched holes of all tables. With a ``single_writer`` ids become visible in order, and nothing is queried."""

    single_writer: bool = False
    _watches: dict[str, list[_Watch]] = field(default_factory=dict)
    _ahead: dict[str, list[_Watch]] = field(default_factory=dict)
    """Ids that were already taken when the driver looked, but that no position has reached yet."""

    def writers(self, connection: Connection, oid: int | None) -> Writers:
        """The writers that may fill holes of a table with that ``oid``; none with a ``single_writer``."""
        return Writers() if self.single_writer else writers(connection, oid)

    def open(self, table: str, holes: Sequence[Interval], writers: Writers) -> list[Interval]:
        """Those of ``holes`` that ``writers``, which are writing now, may still fill.

        An abandoned hole is remembered as long as the position has it, since only a batch can remove it there.
        """
        watches = self._watches.setdefault(table, [])
        unknown = list(holes)
        for watch in watches:
            unknown = difference(unknown, watch.holes)
            watch.writers = writers.remaining(watch.writers)
        self.watch(table, unknown, writers)
        self._watches[table] = watches = [watch for watch in watches if intersection(holes, watch.holes)]
        return union(hole for watch in watches if watch.writers for hole in intersection(holes, watch.holes))

    def watch(self, table: str, holes: Sequence[Interval], writers: Writers) -> None:
        """Watches ``holes``, which ``writers`` may fill."""
        if holes and writers:
            self._watches.setdefault(table, []).append(_Watch(writers.names, list(holes)))

    def watch_ahead(self, table: str, after: int, last: int, writers: Writers) -> None:
        """Notes that only ``writers`` may fill ids past ``after`` up to ``last``, the newest id when they were queried."""
        watches = [watch for watch in self._ahead.get(table, []) if watch.holes[-1][1] > after]
        ids: list[Interval] = [(after + 1, last)] if last > after else []
        for watch in watches:
            ids = difference(ids, watch.holes)
        self._ahead[table] = [*watches, _Watch(writers.names, ids)] if ids else watches

    def settled(self, table: str, known: int | None, writers: Writers) -> list[Interval]:
        """The ids past ``known`` that no transaction can fill any more: all that could at the first look are gone."""
        if known is None:
            self._ahead.pop(table, None)  # the first batch, perhaps of another table of that name
        watches = self._ahead.get(table, [])
        for watch in watches:
            watch.writers = writers.remaining(watch.writers)
        return union(interval for watch in watches if not watch.writers for interval in watch.holes)


SOURCES: Final = """
WITH RECURSIVE source AS (
    SELECT oid AS relation, oid FROM unnest(%s::oid[]) AS oid
    UNION SELECT s.relation, below.oid FROM source s CROSS JOIN LATERAL (
        SELECT inhrelid FROM pg_inherits WHERE inhparent = s.oid
        UNION ALL SELECT d.refobjid FROM pg_rewrite w JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid
        WHERE w.ev_class = s.oid AND w.ev_type = '1' AND d.refclassid = 'pg_class'::regclass
    ) AS below (oid)
)
"""
"""The tables with the rows of each ``relation``: its partitions, and what a view selects from."""
_REPLICA: Final = {
    "postgresql": f"{SOURCES} SELECT pg_is_in_recovery() OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid IN "
    "(SELECT oid FROM source UNION SELECT above.relid FROM source s CROSS JOIN pg_partition_ancestors(s.oid) AS above)) "
    "OR EXISTS (SELECT FROM source JOIN pg_class USING (oid) WHERE relkind = 'f')",
    "mariadb": "SELECT EXISTS (SELECT 1 FROM information_schema.processlist WHERE command IN ('Slave_SQL', 'Slave_worker')) OR "
    "EXISTS (SELECT 1 FROM information_schema.global_status WHERE variable_name = 'wsrep_cluster_size' AND variable_value > 1)",
    "mysql": "SELECT EXISTS (SELECT 1 FROM performance_schema.replication_applier_status WHERE service_state = 'ON') OR "
    "(SELECT count(*) FROM performance_schema.replication_group_members) > 1",
}


def refuse_replica(connection: Connection, oids: Sequence[int], way_out: str) -> None:
    """Raises :class:`Misconfigured` if a replica is read, or if a subscription or another server fills one of these ``oids``.

    These are numbers of tables and views.
    """
    system = connection.dialect.system
    try:
        found = connection.rows(_REPLICA[system], [list(oids)] if system == "postgresql" else []) if system in _REPLICA else ()
    except Fatal as refused:
        if _NO_SELECT not in refused.message:
            raise
        grants = "GRANT PROCESS ON *.* and SELECT ON performance_schema.* TO that user"
        text = f"may not see whether the server is a replica; {grants}, or {way_out}."
        raise Misconfigured(NAME, [Problem("user", text)]) from None
    if found and found[0][0]:
        text = (
            "is that of a replica, or leads to a table that another server fills: it does not show who writes there, and rows "
            "that commit late would be missed."
        )
        raise Misconfigured(NAME, [Problem("url", f"{text} Give the primary's; or {way_out}.")])


HERE: Final = "(SELECT oid FROM pg_database WHERE datname = current_database())"
_RUNNING: Final = f"""
SELECT l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.granted AND l.mode = 'ExclusiveLock' AND a.datid = {HERE} AND l.pid <> pg_backend_pid()
AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
UNION SELECT '-1/' || transaction::text FROM pg_prepared_xacts WHERE database = current_database()
"""
_OPEN: Final = """
SELECT n FROM generate_series(%s::bigint, %s::bigint) AS n WHERE pg_xact_status(n::text::xid8) = 'in progress' ORDER BY n
"""
_UNSEEN: Final = "SELECT pg_snapshot_xip(pg_current_snapshot())::text::bigint"
PREPARED: Final = "-1/"
"""The prefix of names of prepared transactions: in ``pg_locks`` after a restart of the server, in :func:`running` always."""


@dataclass(frozen=True)
class EndedTransactions:
    """The transactions below ``x`` except ``open``, which have ended: they are committed and visible, or rolled back."""

    x: int
    open: tuple[Interval, ...]


def running(connection: Connection) -> frozenset[str]:
    """Every transaction in this database, also those that have written nothing yet: their times show when they began."""
    return frozenset(name for (name,) in connection.rows(_RUNNING))


class Transactions:
    """Finds the transactions that have ended, with subtransactions and prepared ones. Remembers the last answer."""

    def __init__(self) -> None:
        self._seen: EndedTransactions | None = None

    def ended(self, connection: Connection) -> EndedTransactions:
        ((x, oldest),) = connection.rows(
            "SELECT pg_snapshot_xmax(s)::text::bigint, pg_snapshot_xmin(s)::text::bigint FROM pg_current_snapshot() AS s"
        )
        known = self._seen
        unknown = [*known.open, (known.x, x - 1)] if known and known.x > oldest else [(oldest, x - 1)]
        open_ids = [n for first, last in unknown for (n,) in connection.rows(_OPEN, [first, last])]
        doubtful = self._ending(connection, x)
        if doubtful is not None:
            open_ids = sorted({*open_ids, *(n for first, last in unknown for n in range(max(first or 0, doubtful), last + 1))})
        self._seen = EndedTransactions(x, tuple(union((number, number) for number in open_ids)))
        return self._seen

    def _ending(self, connection: Connection, x: int) -> int | None:
        """The first transaction that counts as over while its rows are not yet visible, since its commit is in progress.

        The server does not tell its subtransactions; they have greater numbers, so all of these count as open.
        """
        unseen = [n for (n,) in connection.rows(_UNSEEN) if n < x]
        return next((n for n in sorted(unseen) if not connection.rows(_OPEN, [n, n])), None)


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
_BUSY_SESSIONS: Final = (
    "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND command NOT IN "
    "('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID', 'Slave_IO', 'Slave_SQL', 'Slave_worker')"
)
_TRANSACTIONS: Final = (
    "SELECT '{look}', CAST(trx_id AS CHAR), trx_mysql_thread_id, trx_mysql_thread_id = CONNECTION_ID(), trx_query "
    "FROM information_schema.innodb_trx"
)
_NO_NUMBER: Final = 1 << 48
"""Above it MySQL has the numbers of transactions without a row yet: they get another one."""
_CACHE_SECONDS: Final = 0.11
_LOOK_SECONDS: Final = 30.0
_DENIED: Final = "(1227,"
_NO_SELECT: Final = "(1142,"


@dataclass(frozen=True)
class Writers:
    """Open transactions at one moment. A watch begins with ``names``.

    ``present`` has all names by which an earlier watch may know them. ``detached`` transactions have no session, and may have
    had another name before: they may be any transaction of an earlier watch.
    """

    names: frozenset[str] = frozenset()
    present: frozenset[str] = frozenset()
    detached: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.names)

    def remaining(self, watched: frozenset[str]) -> frozenset[str]:
        """Those of ``watched`` that are still open; a watch that has ended remains ended."""
        return watched & self.present | self.detached if watched else watched


def writers(connection: Connection, oid: int | None) -> Writers:
    """The transactions that may hold ids of a table that are not visible yet; without an ``oid``, of any table.

    Databases with one writer have none. Raises :class:`Misconfigured` if the user may not see the transactions of others.
    """
    writers_of = {"postgresql": _lock_holders, "mariadb": _sessions, "mysql": _sessions}.get(connection.dialect.system)
    return writers_of(connection, oid) if writers_of else Writers()


def _lock_holders(connection: Connection, oid: int | None) -> Writers:
    rows = connection.rows(_WRITERS, [[oid]]) if oid is not None else connection.rows(_ANY_WRITER)
    names = frozenset(name for (name,) in rows)
    return Writers(names, names, frozenset(name for name in names if name.startswith(PREPARED)))


def _sessions(connection: Connection, oid: int | None) -> Writers:
    """The writers by session: a transaction has a number once it has a row; until then its session names it."""
    connection.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        busy = {session for (session,) in connection.rows(_BUSY_SESSIONS)}
        transactions = _transactions(connection)
    finally:
        connection.rollback()
    numbers = {session: number for number, session in transactions if session and 0 < int(number) < _NO_NUMBER}
    numbered = {session: f"transaction {number}" for session, number in numbers.items()}
    detached = frozenset(f"transaction {number}" for number, session in transactions if not session)
    sessions = {session: f"session {session}" for session in busy | {session for _, session in transactions if session}}
    names = frozenset({**sessions, **numbered}.values()) | detached
    return Writers(names, names | frozenset(sessions.values()), detached)


def _transactions(connection: Connection) -> list[tuple[str, int]]:
    """The number and the session (0: none) of each present transaction of other sessions."""
    until = machine.monotonic() + _LOOK_SECONDS
    while True:
        look = machine.token()
        try:
            rows = connection.rows(_TRANSACTIONS.format(look=look))
        except Fatal as refused:
            if _DENIED not in refused.message:
                raise
            raise Misconfigured(NAME, [Problem("user", _NO_PRIVILEGE)]) from None
        if any(own and look in (query or "") for *_, own, query in rows):
            return [(str(number), int(session)) for _, number, session, own, _ in rows if not own]
        if machine.monotonic() > until:
            raise Transient("the server's list of transactions is not fresh: others read it all the time", connector=NAME)
        machine.sleep(_CACHE_SECONDS)


_NO_PRIVILEGE: Final = (
    "may not see the transactions of others, whose ids become visible late; GRANT PROCESS ON *.* TO that user, or set "
    "singleWriter=true if one connection at a time writes the tables."
)
