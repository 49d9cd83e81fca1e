"""Ids that are missing while somebody writes: they may still come, until all who wrote then are gone.

In positions holes are intervals, no more. Who might fill them is remembered here; after a restart it is not known, and
everybody who writes then is taken for one who did before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..connection import Connection
from .positions import Interval, common, without
from .writers import Writers, writers

MOST: Final = 500
"""So many holes of a table are watched at a time; the ids after them wait."""


@dataclass
class _Watch:
    writers: frozenset[str]
    holes: list[Interval]


@dataclass
class Holes:
    """The watched holes of all tables. With a ``single_writer`` ids become visible in their order, and nobody is asked."""

    single_writer: bool = False
    _watches: dict[str, list[_Watch]] = field(default_factory=dict)

    def writers(self, connection: Connection, oid: int | None) -> Writers:
        """Who may fill holes of a table with that ``oid``."""
        return Writers() if self.single_writer else writers(connection, oid)

    def open(self, table: str, holes: Sequence[Interval], writers: Writers) -> list[Interval]:
        """Those of ``holes`` that ``writers``, who are writing now, may still fill.

        A hole that was given up is remembered as long as the position has it: only a batch can write that it is gone.
        """
        watches = self._watches.setdefault(table, [])
        unknown = list(holes)
        for watch in watches:
            unknown = without(unknown, watch.holes)
            watch.writers = writers.remaining(watch.writers)
        self.watch(table, unknown, writers)
        self._watches[table] = watches = [watch for watch in watches if common(holes, watch.holes)]
        return merged(one for watch in watches if watch.writers for one in common(holes, watch.holes))

    def watch(self, table: str, holes: Sequence[Interval], writers: Writers) -> None:
        """From now on, ``writers`` may fill ``holes``."""
        if holes and writers:
            self._watches.setdefault(table, []).append(_Watch(writers.names, list(holes)))


def merged(some: Iterable[Interval]) -> list[Interval]:
    """Intervals in order, those that touch joined."""
    made: list[list[int]] = []
    for first, last in sorted((first or 0, last) for first, last in some):
        if made and first <= made[-1][1] + 1:
            made[-1][1] = max(made[-1][1], last)
        else:
            made.append([first, last])
    return [(first, last) for first, last in made]
