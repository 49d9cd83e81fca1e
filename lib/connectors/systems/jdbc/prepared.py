"""Prepared transactions: tasks prepare them in the database, and the driver commits them when the batch is decided.

Their names are ``connectors-<sink>-<batch>-<run>-<time><random>``. A prepared transaction outlives its connection and the
server. When a name is gone, the server does not say whether the transaction was committed or rolled back. So each transaction
writes a *marker*: its own name as a row of the table ``connectors_prepared``, which is visible once it is committed.

A driver decides, commits and rolls back under the *lock* of the sink, so that no driver rolls back a transaction that another
is about to commit. It is a session lock, since databases end prepared transactions only outside of transactions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

from ...core.batch import Batch
from ...ground import machine
from ...ground.errors import DataLoss, Fatal
from ...ground.state import digest
from .connection import Connection
from .dialects import Dialect, Table
from .ledger import exists, make_table

ABANDONED_SECONDS = 3600.0
"""The age at which the sweep rolls back a prepared transaction that no ledger row names.

The next run of its batch does so at once.
"""
_MARKERS = "connectors_prepared"


def prepared_name(batch: Batch) -> str:
    """A new name for a prepared transaction, 78 bytes; the last 32 are the time and the random part."""
    return f"{_run_prefix(batch)}{int(machine.time()):08x}{machine.token()[:24]}"


def lock_name(sink_id: str) -> str:
    """The name of a sink's lock, 23 bytes."""
    return f"connectors-{digest(sink_id)}"


def _run_prefix(batch: Batch) -> str:
    """The prefix of the names from the run of ``batch``."""
    return f"{lock_name(batch.sink_id)}-{batch.prefix()}-{batch.run_id()}-"


class Markers:
    """The table of markers beside ``target``."""

    def __init__(self, dialect: Dialect, target: Table) -> None:
        self.dialect = dialect
        self.table = target.beside(_MARKERS)

    def make(self, connection: Connection) -> None:
        """Makes the table unless it exists. Do not call it inside a transaction."""
        make_table(connection, self.table, f"name {self.dialect.identifier} NOT NULL PRIMARY KEY")

    def add(self, connection: Connection, name: str) -> None:
        """Adds the marker of the transaction ``name``, inside that transaction."""
        sql = f"INSERT INTO {self.dialect.table(self.table)} (name) VALUES ({self.dialect.placeholder})"
        connection.execute(sql, [name])

    def committed_names(self, connection: Connection, names: Sequence[str]) -> set[str]:
        """Those of ``names`` whose transactions are committed."""
        if not names or not exists(connection, self.table):
            return set()
        sql = f"SELECT name FROM {self.dialect.table(self.table)} WHERE name IN ({self.dialect.slots(len(names))})"
        return {name for (name,) in connection.rows(sql, names)}

    def remove(self, connection: Connection, names: Collection[str]) -> None:
        """Removes the markers of ``names``, whose batch is complete in the ledger."""
        sql = f"DELETE FROM {self.dialect.table(self.table)} WHERE name = {self.dialect.placeholder}"
        for name in sorted(names):
            connection.execute(sql, [name])


class PreparedTransactions:
    """The prepared transactions of one sink, whose rows are in ``target``."""

    def __init__(self, connection: Connection, target: Table, sink_id: str) -> None:
        self.connection = connection
        self.dialect = connection.dialect
        self.name = lock_name(sink_id)
        self.markers = Markers(self.dialect, target)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """The lock of the sink; it ends with the session at the latest.

        Raises :class:`~connectors.systems.jdbc.connection.LockTimeout` if another session holds it too long.
        """
        self.dialect.lock(self.connection, self.name)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                self.dialect.unlock(self.connection, self.name)

    def of_batch(self, batch: Batch) -> set[str]:
        """The transactions that attempts at ``batch`` have prepared, by name."""
        return {name for name in self._existing() if name.startswith(f"{self.name}-{batch.prefix()}-")}

    def of_earlier_runs(self, batch: Batch) -> set[str]:
        """Those of :meth:`of_batch` that other runs than that of ``batch`` have prepared."""
        return {name for name in self.of_batch(batch) if not name.startswith(_run_prefix(batch))}

    def orphans(self, live: frozenset[str]) -> set[str]:
        """The names of old transactions, except those of ``live`` batches."""
        old = {name for name, age in self._existing().items() if age > ABANDONED_SECONDS}
        return {name for name in old if name.split("-")[2] not in live}

    def check(self, batch: Batch, names: Collection[str]) -> None:
        """Raises :class:`Fatal` unless all of ``names`` exist. Called under the lock before the decision.

        Rolls back the other transactions of ``batch``, which belong to dead attempts.
        """
        existing = self.of_batch(batch)
        if missing := set(names) - existing:
            raise Fatal(
                f"{len(missing)} of {len(names)} prepared transactions of the batch are gone: another run of the query, or a "
                "person, has rolled them back",
                way_out="start the query again: nothing of the batch was committed",
            )
        self.roll_back(existing - set(names))

    def commit(self, names: Sequence[str]) -> None:
        """Commits decided transactions, under the lock. Raises :class:`DataLoss` if somebody has rolled one back."""
        for name in sorted(set(names) & self._existing().keys()):
            self.dialect.commit_prepared(self.connection, name)
        if lost := set(names) - self.markers.committed_names(self.connection, names):
            table = self.dialect.table(self.markers.table)
            markers = "; ".join(f"INSERT INTO {table} VALUES ('{name}')" for name in sorted(lost))
            raise DataLoss(
                f"{len(lost)} of {len(names)} prepared transactions of a batch that is decided were rolled back by somebody "
                "else, and their rows are not in the table; the others are committed",
                way_out=f"write the missing rows of the batch yourself, and say so by {markers}; then start the query again",
            )

    def roll_back(self, names: Collection[str]) -> None:
        """Rolls back those of ``names`` that exist; under the lock, unless only the caller knows the name."""
        for name in sorted(set(names) & self._existing().keys()) if names else ():
            self.dialect.rollback_prepared(self.connection, name)

    def _existing(self) -> dict[str, float]:
        return self.dialect.prepared(self.connection, f"{self.name}-")
