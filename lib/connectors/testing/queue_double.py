"""A message queue that misbehaves on purpose, in a file that all processes share.

It leases messages, and redelivers those whose lease has ended. ``misbehaviour`` makes it deliver leased messages twice
(``duplicate``), out of order (``reorder``), and forget acknowledgements (``forget``), each with its probability.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..ground import machine
from .sqlite_file import transaction

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS messages (
    id TEXT PRIMARY KEY, body, published REAL, visible REAL DEFAULT 0, lease TEXT, deliveries INTEGER DEFAULT 0
)"""
_CLOCK: Final = "CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY, now REAL)"
_VISIBLE: Final = "SELECT id, body, published FROM messages WHERE visible <= ? ORDER BY rowid LIMIT ?"
_LEASED: Final = "SELECT id, body, published FROM messages WHERE visible > ? ORDER BY random() LIMIT 1"


class QueueDouble:
    """The queue in the file ``path``. Leases last ``lease_seconds``."""

    def __init__(self, path: Path, lease_seconds: float = 30.0, misbehaviour: Mapping[str, float] | None = None) -> None:
        self.path = path
        self.lease_seconds = lease_seconds
        self._chances = dict(misbehaviour or {})
        with transaction(self.path) as file:
            file.execute(_TABLE)
            file.execute(_CLOCK)

    def set_time(self, now: float) -> None:
        """Stops the queue's clock at ``now``, in seconds since 1970; without it the clock is the caller's."""
        with transaction(self.path) as file:
            file.execute("INSERT OR REPLACE INTO clock VALUES (1, ?)", (now,))

    def publish(self, bodies: Sequence[Any]) -> list[str]:
        """Adds a message for each number or text, and returns their ids."""
        with transaction(self.path) as file:
            now = _now(file)
            rows = [(machine.token(), body, now) for body in bodies]
            file.executemany("INSERT INTO messages (id, body, published) VALUES (?, ?, ?)", rows)
        return [id for id, _, _ in rows]

    def receive(self, count: int, lease_seconds: float | None = None) -> list[tuple[str, Any, float, str]]:
        """At most ``count`` messages that nobody has leased: id, body, time of publication, lease."""
        until = self.lease_seconds if lease_seconds is None else lease_seconds
        with transaction(self.path) as file:
            now = _now(file)
            rows = file.execute(_VISIBLE, (now, count)).fetchall()
            if rows and len(rows) < count and self._happens("duplicate"):
                rows += file.execute(_LEASED, (now,)).fetchall()
            if self._happens("reorder"):
                rows.sort(key=lambda _: machine.uniform(0.0, 1.0))
            leased = [(id, body, published, f"{id}/{machine.token()}") for id, body, published in rows]
            changes = ((now + until, lease, id) for id, _, _, lease in leased)
            file.executemany("UPDATE messages SET visible = ?, lease = ?, deliveries = deliveries + 1 WHERE id = ?", changes)
        return leased

    def acknowledge(self, leases: Sequence[str]) -> None:
        """Removes the messages whose leases have not ended. It silently ignores the others, as the strictest systems do."""
        with transaction(self.path) as file:
            now = _now(file)
            kept = [(lease, now) for lease in leases if not self._happens("forget")]
            file.executemany("DELETE FROM messages WHERE lease = ? AND visible > ?", kept)

    def set_visible(self, leases: Sequence[str], seconds: float) -> None:
        """Redelivers those of these messages that are still leased after ``seconds``."""
        with transaction(self.path) as file:
            now = _now(file)
            changes = [(now + seconds, lease, now) for lease in leases]
            file.executemany("UPDATE messages SET visible = ? WHERE lease = ? AND visible > ?", changes)

    def now(self) -> float:
        """The time by the queue's clock, in seconds since 1970."""
        with transaction(self.path) as file:
            return _now(file)

    def waiting(self) -> int:
        """The number of messages that could be received now."""
        with transaction(self.path) as file:
            return int(file.execute("SELECT count(*) FROM messages WHERE visible <= ?", (_now(file),)).fetchone()[0])

    def unacknowledged(self) -> int:
        """The number of messages that the queue still has."""
        with transaction(self.path) as file:
            return int(file.execute("SELECT count(*) FROM messages").fetchone()[0])

    def end_leases(self) -> None:
        """Ends all leases, so that the queue redelivers every unacknowledged message."""
        with transaction(self.path) as file:
            file.execute("UPDATE messages SET visible = 0")

    def _happens(self, what: str) -> bool:
        return machine.uniform(0.0, 1.0) < self._chances.get(what, 0.0)


def _now(file: sqlite3.Connection) -> float:
    row = file.execute("SELECT now FROM clock").fetchone()
    return float(row[0]) if row else machine.time()
