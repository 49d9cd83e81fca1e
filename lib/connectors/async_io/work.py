"""What the engine works on: batches of rows, the slots that serve them, the outputs that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from math import inf
from typing import Any, Final


class _Mark(Enum):
    PENDING = "the row has no outcome yet"
    SENT = "its outcome has left the engine"


PENDING: Final = _Mark.PENDING
SENT: Final = _Mark.SENT


@dataclass(frozen=True)
class Settings:
    """How an engine runs; durations are seconds, ``timeout`` may be infinite."""

    capacity: int = 100
    timeout: float = 30.0
    ordered: bool = False
    batch_size: int = 1
    batch_time: float = 0.1
    close_timeout: float = 5.0
    flush_interval: float = 0.2


class Batch:
    """Rows that came together; ``source`` is whatever the caller needs to give the results a form."""

    __slots__ = ("arrived", "left", "results", "rows", "sent", "size", "source", "taken")

    def __init__(self, rows: list[Any], source: Any = None) -> None:
        self.rows = rows
        self.source = source
        self.size = self.left = len(rows)
        self.taken = self.sent = 0
        self.results: list[Any] = [PENDING] * self.size
        self.arrived = 0.0

    def put(self, first: int, results: list[Any]) -> bool:
        """Stores the results of the rows from ``first`` on; true when they were the last."""
        self.results[first : first + len(results)] = results
        self.left -= len(results)
        return not self.left

    def finished(self, in_order: bool) -> list[int]:
        """The rows that have an outcome and have not left; ``in_order`` only those before any without outcome."""
        if in_order:
            return list(takewhile(lambda i: self.results[i] is not PENDING, range(self.sent, self.size)))
        return [i for i, result in enumerate(self.results) if result is not PENDING and result is not SENT]

    def send(self, indices: list[int]) -> Output:
        """Takes the outcomes of ``indices`` out; others are still to come."""
        results = [self.results[i] for i in indices]
        for i in indices:
            self.results[i] = SENT
        self.sent += len(indices)
        return Output(self.source, indices, results, last=False)

    def send_rest(self) -> Output:
        """Takes out all that have not left: the whole batch, untouched, where nothing has."""
        if not self.sent:
            return Output(self.source, None, self.results, last=True)
        indices = [i for i, result in enumerate(self.results) if result is not SENT]
        return Output(self.source, indices, [self.results[i] for i in indices], last=True)


_NO_BATCH: Final = Batch([])


@dataclass
class Output:
    """Outcomes that leave: the rows ``indices`` of ``source`` (``None``: all of them); ``last`` when none are left."""

    source: Any
    indices: list[int] | None
    results: list[Any]
    last: bool


class Slot:
    """One place in the capacity: the rows that it serves now, and since when (infinity: none, or the clock stands)."""

    __slots__ = ("batch", "index", "late", "places", "rows", "since", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.late = False
        self.park()

    def park(self) -> None:
        """Serves nothing, and holds on to nothing."""
        self.batch = _NO_BATCH
        self.index = 0
        self.rows: Any = None
        self.places: list[tuple[Batch, int, int]] = []
        self.since = inf

    def pieces(self) -> list[tuple[Batch, int, int]]:
        """Where the results of its rows go: batch, first index, index after the last."""
        return self.places or [(self.batch, self.index, self.index + 1)]


Call = Callable[[Any, Slot], Awaitable[Any]]
"""The call of one row, or of a list of rows where ``batch_size`` is above 1 (it then returns a result for each)."""

Fallback = Callable[[Any, BaseException], Any]
"""The result of a row whose call came to nothing, by the row and the cause; it raises where there is none."""


def one_each(rows: list[Any], results: Any) -> list[Any]:
    """The results of a call of several rows. Raises ``TypeError`` unless there is one for each."""
    if not isinstance(results, (list, tuple)) or len(results) != len(rows):
        got = f"{len(results)} entries" if isinstance(results, (list, tuple)) else type(results).__name__
        raise TypeError(f"a call of {len(rows)} rows must return a list with one entry for each; got {got}")
    return list(results)
