"""One step of one table: from its state to the next one, with as many rows as its share allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..selection import Clause
from .keys import between, late_rows
from .positions import BOTH, Interval, State, difference, holes_of, intersection, union
from .probe import LateTransactions, Newest, Probe
from .tables import StreamTable
from .writers import HOLE_LIMIT, Holes

_END = (1 << 63) - 1
_LEAST = -(1 << 62)
"""A number below all ids; another ``1`` less is still one of 64 bits."""


@dataclass(frozen=True)
class Step:
    """``backlog`` returns how many rows there are, up to a limit; ``state`` makes the next state with a share of them.

    Without a limit the backlog is not counted. ``state`` returns ``None`` if there is nothing to read.
    """

    backlog: Callable[[int | None], int]
    state: Callable[[int | None], dict[str, Any] | None]


def step_of_bulk(state: State) -> Step:
    """Everything once more, whatever the limit."""
    polls = state.get("polls", 0) + 1
    return Step(lambda most: 1, lambda share: {"polls": polls})


# ---- by ids


def step_by_id(probe: Probe, table: StreamTable, state: State, newest: Newest, holes: Holes) -> Step | None:
    """Ids up to the newest, without missing ids that may still come; and ids that were missing before."""
    last, before = newest.id or 0, state.get("id")
    if before is not None and last <= before and not state.get("holes"):
        return None
    reading = _ById(probe, table, state, max(last, before if before is not None else last), holes)
    return Step(reading.backlog, reading.state)


@dataclass(frozen=True)
class _ById:
    probe: Probe
    table: StreamTable
    before: State
    last: int
    holes: Holes

    @property
    def known(self) -> int | None:
        return self.before.get("id")

    def backlog(self, most: int | None) -> int:
        if most is None:
            return 0
        return self.probe.count(self.table, self._rows([*self._holes(), *self._new(self.last)]), most)

    def state(self, share: int | None) -> dict[str, Any] | None:
        if share == 0:
            return None
        last, later = (self.last, []) if share is None else self._cut(share)
        # in this order: a transaction that has taken an id is still writing, or the queries below see its row
        writing = self.holes.writers(self.probe.connection, self.table.oid)
        old = difference(self._holes(), later)
        new, smallest = self._known_new(last)
        if not old and not new:
            return None
        if not writing and not old:
            return self._state(last, later, smallest)
        doubtful = difference(new, self.holes.settled(self.table.name, self.known, writing)) if writing else []
        missing = self.probe.missing(self.table, [*old, *doubtful], HOLE_LIMIT) if old or doubtful else []
        still_missing = intersection(old, missing)
        arrivals = difference(old, still_missing)
        still_open = self.holes.open(self.table.name, still_missing, writing)
        fresh = intersection(doubtful, missing)
        room = max(0, HOLE_LIMIT - len(still_open))
        if len(fresh) > room:
            fresh, last = self._fewer(fresh, room, last)
        self.holes.watch_ahead(self.table.name, last, self.last, writing)
        if not arrivals and (self.known is not None and last <= self.known):
            return None
        self.holes.watch(self.table.name, fresh, writing)
        return self._state(last, union([*still_open, *fresh, *later]), smallest)

    def _state(self, last: int, holes: list[Interval], smallest: int | None) -> dict[str, Any]:
        state: dict[str, Any] = {"id": last}
        if holes:
            state["holes"] = [list(pair) for pair in holes]
        return state if smallest is None else {**state, "min": smallest}

    def _fewer(self, fresh: list[Interval], room: int, last: int) -> tuple[list[Interval], int]:
        """The holes that fit into ``room``, and the id at which to stop before the first one that does not."""
        stop = fresh[room][0] or 0
        return fresh[:room], max(stop - 1, self.known if self.known is not None else stop - 1)

    def _cut(self, share: int) -> tuple[int, list[Interval]]:
        """The id at which ``share`` rows end, late rows first, and the holes that must wait for the next batch."""
        old = self._holes()
        if old:
            beyond = self.probe.nth_id(self.table, self._rows(old), share)
            if beyond is not None:
                return self.known or 0, intersection(old, [(int(beyond), _END)])
            share -= self.probe.count(self.table, self._rows(old), share)
        if share <= 0 and self.known is not None:
            return self.known, []
        new = self._new(self.last)
        end = self.probe.nth_id(self.table, self._rows(new), share - 1) if new else None
        return (int(end) if end is not None else self.last), []

    def _holes(self) -> list[Interval]:
        return holes_of(self.before)

    def _new(self, last: int) -> list[Interval]:
        if self.known is None:
            return [(None, last)]
        return [(self.known + 1, last)] if last > self.known else []

    def _known_new(self, last: int) -> tuple[list[Interval], int | None]:
        """The new ids, with a start; in the first batch that is 1, or below all ids if there are some below 1."""
        new = self._new(last)
        if self.known is not None or not new:
            return new, None
        column = self.table.keys.id(self.probe.dialect)
        value = self.probe.smallest_value(self.table, self._rows(new), column)
        smallest = int(last if value is None else value)
        return [(1 if smallest >= 1 else _LEAST, last)], smallest

    def _rows(self, ids: list[Interval]) -> Clause:
        return between(self.table.keys, self.probe.dialect, {}, {"id": 0}, ids)


# ---- by times


def step_by_time(probe: Probe, table: StreamTable, state: State, newest: Newest, late: LateTransactions) -> Step | None:
    """Times up to the newest, in whole groups; and rows whose transactions have ended since."""
    key = {"at": newest.at, **({"id": newest.id} if table.keys.mode == BOTH else {})}
    reading = _ByTime(probe, table, state, key, late)
    return Step(reading.backlog, reading.state) if reading.has_new or reading.has_late else None


@dataclass(frozen=True)
class _ByTime:
    probe: Probe
    table: StreamTable
    before: State
    key: State
    late: LateTransactions

    @cached_property
    def has_new(self) -> bool:
        same = all(self.before.get(name) == value for name, value in self.key.items())
        return not same and self.probe.any(self.table, self._new(self._upto(self.key)))

    @cached_property
    def has_late(self) -> bool:
        rows = self._late_rows()
        return bool(rows) and self.probe.any(self.table, rows)

    def backlog(self, most: int | None) -> int:
        if most is None:
            return 0
        new = self.probe.count(self.table, self._new(self._upto(self.key)), most) if self.has_new else 0
        return min(most, new + self._late_count(most))

    def state(self, share: int | None) -> dict[str, Any] | None:
        if share == 0:
            return None
        if not self.has_new:
            return self._upto(self._known_key())
        return self._upto(self.key if share is None else self._cut(share))

    def _cut(self, share: int) -> State:
        """The key of the last whole group of equal times that fits into the share, at least of the first group."""
        share -= self._late_count(share)
        if share <= 0:
            return self._known_key()
        rows = self._new(self._upto(self.key))
        beyond = self.probe.nth_time(self.table, rows, share)
        if beyond is None:
            return self.key
        at = self.probe.largest_below(self.table, rows, beyond)
        if at is None:
            at = self.probe.smallest_time(self.table, rows)
        return {"at": at, **({"id": self.probe.largest_id(self.table, at)} if self.table.keys.mode == BOTH else {})}

    def _known_key(self) -> State:
        return {name: self.before[name] for name in ("at", "id") if name in self.before}

    def _upto(self, key: State) -> dict[str, Any]:
        return {**key, **self.late.state_fields(self.table, self.before, key["at"])}

    def _new(self, upto: State) -> Clause:
        """The rows past the last key."""
        known = {name: value for name, value in self.before.items() if name in ("at", "id")}
        return between(self.table.keys, self.probe.dialect, known, upto)

    def _late_rows(self) -> Clause:
        """The rows before the last key that were not visible then."""
        if "at" not in self.before:
            return ()
        return late_rows(self.table.keys, self.probe.dialect, self.before, self._upto(self._known_key()))

    def _late_count(self, most: int) -> int:
        rows = self._late_rows()
        return self.probe.count(self.table, rows, most) if rows else 0
