"""What PostgreSQL tells of transactions that are not over: whose rows may still come, and come with what keys.

Reading order matters, and all of it is sound without locks: first how far the keys go, then who is writing, then which
transactions are over, and last what rows are there. Whoever took a key before the first step is either among the writers, or
is over and seen by the last step: a writer holds its lock on the table (or on the sequence of its ids) from before it takes
an id until after its rows can be seen, and a clock is read in a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..connection import Connection
from .positions import Interval

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
"""How the names of prepared transactions begin: in ``pg_locks`` since the server started again, in :func:`running` always."""


@dataclass(frozen=True)
class Over:
    """Transactions below ``x`` are over, without those in ``open``: they are committed and can be seen, or rolled back."""

    x: int
    open: tuple[Interval, ...]


def running(connection: Connection) -> frozenset[str]:
    """Every transaction in this database, also those that have written nothing yet: their clocks show when they began."""
    return frozenset(name for (name,) in connection.rows(_RUNNING))


class Transactions:
    """Which transactions are over, subtransactions and prepared ones included. Remembers what it was told before."""

    def __init__(self) -> None:
        self._seen: Over | None = None

    def over(self, connection: Connection) -> Over:
        ((x, oldest),) = connection.rows(
            "SELECT pg_snapshot_xmax(s)::text::bigint, pg_snapshot_xmin(s)::text::bigint FROM pg_current_snapshot() AS s"
        )
        known = self._seen
        asked = [*known.open, (known.x, x - 1)] if known and known.x > oldest else [(oldest, x - 1)]
        found = [n for first, last in asked for (n,) in connection.rows(_OPEN, [first, last])]
        doubtful = self._ending(connection, x)
        if doubtful is not None:
            found = sorted({*found, *(n for first, last in asked for n in range(max(first or 0, doubtful), last + 1))})
        self._seen = Over(x, tuple(packed(found)))
        return self._seen

    def _ending(self, connection: Connection, x: int) -> int | None:
        """The first transaction that says that it is over while its rows cannot be seen yet: it is being committed.

        Nobody tells which subtransactions are its own; they have greater numbers, and all of those count as open.
        """
        unseen = [n for (n,) in connection.rows(_UNSEEN) if n < x]
        return next((n for n in sorted(unseen) if not connection.rows(_OPEN, [n, n])), None)


def packed(numbers: Iterable[int]) -> Sequence[Interval]:
    """Ascending numbers as intervals."""
    made: list[list[int]] = []
    for number in numbers:
        if made and made[-1][1] == number - 1:
            made[-1][1] = number
        else:
            made.append([number, number])
    return [(first, last) for first, last in made]
