"""Transactions that tasks have prepared in the database, and that the driver commits when the batch is decided.

They are called ``connectors-<sink>-<batch>-<run>-<time><random>``. A prepared transaction outlives its connection and the
server.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Sequence

from ...core.errors import Fatal
from ...core.sink import Batch
from ...core.state import digest
from .connection import Connection

ABANDONED_SECONDS = 3600.0
"""When the sweep rolls back a prepared transaction that no ledger row names; the next run of its batch does so at once."""


def prepared_name(batch: Batch) -> str:
    """A new name for a prepared transaction, 78 bytes; the last 32 are the time and what is random."""
    return f"{_run(batch)}{int(time.time()):08x}{uuid.uuid4().hex[:24]}"


def _sink(sink_id: str) -> str:
    return f"connectors-{digest(sink_id)}-"


def _run(batch: Batch) -> str:
    """How the names begin that the run of ``batch`` gives; versions before gave names without a run."""
    return f"{_sink(batch.sink_id)}{batch.prefix()}-{batch.run_id()}-"


class Prepared:
    """The prepared transactions of one sink."""

    def __init__(self, connection: Connection, sink_id: str) -> None:
        self.connection = connection
        self.dialect = connection.dialect
        self.prefix = _sink(sink_id)

    def of_batch(self, batch: Batch) -> set[str]:
        """The names that attempts at ``batch`` have prepared."""
        return {name for name in self._found() if name.startswith(f"{self.prefix}{batch.prefix()}-")}

    def of_earlier_runs(self, batch: Batch) -> set[str]:
        """Those of :meth:`of_batch` that another run than that of ``batch`` has prepared."""
        return {name for name in self.of_batch(batch) if not name.startswith(_run(batch))}

    def check(self, batch: Batch, names: Sequence[str]) -> None:
        """Before the decision: raises :class:`Fatal` unless all of ``names`` exist.

        The others of ``batch`` belong to dead attempts. They are rolled back, whichever way this run commits: the rows
        that they have locked are about to be written.
        """
        if not self.dialect.prepares:
            return
        found = self.of_batch(batch)
        if missing := set(names) - found:
            raise Fatal(
                f"{len(missing)} of {len(names)} prepared transactions of the batch are gone; somebody has rolled them back",
                way_out="start the query again: nothing of the batch was committed",
            )
        self.roll_back(found - set(names))

    def commit(self, names: Sequence[str]) -> None:
        """Commits those of ``names`` that are still there."""
        for name in set(names) & set(self._found() if names else ()):
            self.dialect.commit_prepared(self.connection, name)

    def roll_back(self, names: Collection[str]) -> None:
        for name in set(names) & set(self._found() if names else ()):
            self.dialect.rollback_prepared(self.connection, name)

    def roll_back_dead(self, live: frozenset[str], decided: Collection[str]) -> None:
        """Rolls back what is old, not ``decided``, and not of a ``live`` batch."""
        for name, age in self._found().items():
            if age > ABANDONED_SECONDS and name not in decided and name.split("-")[2] not in live:
                self.dialect.rollback_prepared(self.connection, name)

    def _found(self) -> dict[str, float]:
        return self.dialect.prepared(self.connection, self.prefix)
