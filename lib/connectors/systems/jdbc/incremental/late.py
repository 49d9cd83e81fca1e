"""Rows that get a time before they can be seen: which transactions may still write, and since when.

A transaction that was not there when we last looked has begun after that, and by its clock it writes later times. So the rows
that may come late lie after the moment at which the oldest transaction that is still running was first missed. What this
remembers may be forgotten: a transaction of which nothing is known is taken to be as old as the position says.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import Any
from zoneinfo import ZoneInfo

from ..dialects import Dialect
from .clocks import limit
from .positions import State
from .probe import Probe
from .transactions import PREPARED, Over, Transactions, running
from .watching import Watched


class Late:
    """What the position of a table says of transactions. Only tables of PostgreSQL tell."""

    def __init__(self, dialect: Dialect, zone: ZoneInfo, delay: float) -> None:
        self.dialect = dialect
        self.zone = zone
        self.delay = delay
        self._transactions = Transactions()
        self._over: Over | None = None
        self._began: dict[str, datetime.datetime | None] = {}
        self._looked: datetime.datetime | None = None

    def look(self, probe: Probe, tables: Iterable[Watched]) -> None:
        """Asks who is writing, and then who is done; before that, the largest keys must be known."""
        if not any(one.keys.by_transaction for one in tables):
            return
        now = probe.now()
        there = running(probe.connection)
        self._began = {name: self._began.get(name, self._first_seen(name)) for name in there}
        self._looked = now
        self._over = self._transactions.over(probe.connection)

    def _first_seen(self, name: str) -> datetime.datetime | None:
        """Since when a new one may be running: it was not there at the last look. One that was prepared has a new name."""
        return None if name.startswith(PREPARED) else self._looked

    def told(self, one: Watched, state: State, at: Any) -> dict[str, Any]:
        """What belongs to a state that goes up to the time ``at``, after ``state``."""
        if not one.keys.by_transaction or self._over is None:
            return {}
        told: dict[str, Any] = {"x": self._over.x}
        if self._over.open:
            told["open"] = [list(pair) for pair in self._over.open]
        if self._began and (low := self._low(one, state, at)) != at:
            told["low"] = low
        return told

    def _low(self, one: Watched, state: State, at: Any) -> Any:
        """From where on rows may come late; ``None`` for anywhere."""
        begun = [moment for moment in self._began.values() if moment is not None]
        texts = [at, *([limit(min(begun), self.delay, one.time_kind, self.zone)] if begun else [])]
        if len(begun) < len(self._began):
            before = state.get("low", state.get("at"))
            if before is None:
                return None
            texts.append(before)
        moments = {text: _comparable(text) for text in texts}
        known = [(moment, text) for text, moment in moments.items() if moment is not None]
        return min(known)[1] if len(known) == len(moments) else None


def _comparable(text: str) -> datetime.datetime | None:
    """``text``, as PostgreSQL writes a time, for comparing; ``None`` where Python has no such time."""
    plain = re.sub(r"([+-]\d\d)$", r"\1:00", text) if ":" in text else text
    plain = re.sub(r"\.(\d{1,6})", lambda found: "." + found[1].ljust(6, "0"), plain)
    try:
        found = datetime.datetime.fromisoformat(plain)
    except ValueError:
        return None
    return found.astimezone(datetime.timezone.utc).replace(tzinfo=None) if found.tzinfo else found
