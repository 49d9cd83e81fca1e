"""Cursors over partitions, and the part of an epoch that one reader reads with them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..ground import machine
from ..ground.options import Values
from .epochs import Header
from .planning import reader_share
from .source import Split

POLL_SECONDS: Final = 0.05
SOME_LAG: Final = 1.0
"""The lag in seconds of a partition that is behind by an unknown time."""


@dataclass(frozen=True)
class Page:
    """The result of one read by a cursor: ``rows``, and the position after them, which is JSON.

    ``published`` is the publication time of each row (seconds since 1970), if the system tells it. ``is_last``: for now there
    are no more records. ``is_finished``: there will never be more, as in a closed shard. ``is_waiting``: the system has not
    yet said whether there are more. Then no query ends, and no epoch without rows ends before ``maxEpochTime``. ``lag``: how
    many seconds the page is behind the newest record, if the system tells it.
    """

    rows: pa.RecordBatch
    position: Any
    published: pa.Array | None = None
    is_last: bool = False
    is_finished: bool = False
    is_waiting: bool = False
    lag: float | None = None


class Cursor(ABC):
    """Reads partitions from a position on, one page at a time. Lives in a task."""

    def open(self) -> None:  # noqa: B027 - a hook, not a duty
        """Makes the client. Called once, before anything else."""

    @abstractmethod
    def read(self, partition: str, position: Any, end: Any, rows: int) -> Page:
        """At most ``rows`` records after ``position``, and none beyond the position ``end`` if there is one.

        Returns soon, also without rows. A page that reaches ``end`` has ``end`` as its position. If the position has expired,
        raise :class:`~connectors.ground.errors.DataLoss`, or with ``failOnDataLoss=false`` read from the oldest record on.
        Raise :class:`~connectors.ground.errors.Transient` for an outage: the task reads the epoch again after a pause.
        """

    def close(self) -> None:  # noqa: B027
        """Frees what :meth:`open` made."""


@dataclass(frozen=True)
class CursorSplit(Split):
    """The share of one reader in ``epoch`` of the log ``log``: the partitions that it reads, each from a position.

    In each partition reading ends at records that were published after ``until`` (seconds since 1970), which are for the next
    run, or after ``cap``, which wait for slower partitions.
    """

    log: str
    epoch: int
    reader: int
    readers: int
    positions: Mapping[str, Any]
    until: float | None = None
    cap: float | None = None

    def __str__(self) -> str:
        partitions = ", ".join(sorted(self.positions))
        return f"epoch {self.epoch}, {partitions}" if self.log else partitions


class CursorEpoch:
    """The rows and positions that one reader has read in an epoch, before it records them."""

    def __init__(self, values: Values, split: CursorSplit, cursor: Cursor) -> None:
        self._values = values
        self._split = split
        self._cursor = cursor
        self._positions = dict(split.positions)
        self._parts: dict[str, list[pa.RecordBatch]] = {name: [] for name in sorted(split.positions)}
        self._finished: set[str] = set()
        self._ended: set[str] = set()
        self._complete: set[str] = set()
        self._waiting: set[str] = set()
        self._lags: dict[str, float] = {}
        self._times: dict[str, float] = {}
        self._capped: set[str] = set()
        self._rows = self._bytes = 0
        self._is_dry = False
        self._patience = float(values["pollInterval" if split.until is None else "drainTimeout"])

    def read(self, awake: threading.Event) -> None:
        """Reads page by page from all partitions, until it reaches a limit or no partition has more."""
        values, split = self._values, self._split
        share = reader_share(values["maxRowsPerTrigger"], split.reader, max(1, split.readers))
        newest = machine.monotonic()
        end = newest + max(values["maxEpochTime"], self._patience)
        while not awake.is_set():
            progress = self._read_pages(share)
            if self._rows >= share or self._bytes >= values["maxBytesPerTrigger"]:
                return
            if machine.monotonic() > end:
                self._is_dry = not (self._rows or self._waiting)
                return
            if progress:
                newest = machine.monotonic()
            elif self._is_over(machine.monotonic() - newest):
                self._is_dry = not self._capped
                return
            else:
                awake.wait(POLL_SECONDS)

    def header(self) -> Header:
        return Header(
            self._rows,
            machine.time(),
            self._is_dry,
            positions=self._positions,
            lags=self._lags,
            times=self._times,
            finished=tuple(sorted(self._finished)),
            is_complete=self._complete == self._parts.keys(),
        )

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows, partition by partition, as a replay gives them."""
        for parts in self._parts.values():
            yield from parts

    def _is_over(self, pause: float) -> bool:
        """True if it is no use to wait for more; ``pause`` is the seconds since the last rows."""
        if len(self._finished | self._ended) == len(self._parts) or (self._rows and self._split.until is None):
            return True
        return pause > self._patience and not self._waiting

    def _read_pages(self, share: int) -> int:
        """Reads a page of each partition within their common limit of rows; returns the number of new rows."""
        before, active = self._rows, [name for name in self._parts if name not in self._finished | self._ended]
        for number, partition in enumerate(active):
            if self._rows < share:
                self._read_page(partition, max(1, (share - self._rows) // (len(active) - number)))
        return self._rows - before

    def _read_page(self, partition: str, rows: int) -> None:
        start, until = self._positions[partition], self._split.until
        page = self._cursor.read(partition, start, None, rows)
        if count := self._left_out(partition, page):
            self._ended.add(partition)
            if count == page.rows.num_rows:
                return
            page = self._cursor.read(partition, start, None, page.rows.num_rows - count)
        if page.is_finished:
            self._finished.add(partition)
        elif page.is_last and until is not None:
            self._ended.add(partition)
            if not page.rows.num_rows:
                self._complete.add(partition)
        self._positions[partition] = page.position
        (self._waiting.add if page.is_waiting else self._waiting.discard)(partition)
        if page.lag is not None and partition not in self._capped:
            self._lags[partition] = page.lag
        if page.rows.num_rows:
            if page.published is not None and partition not in self._capped:
                self._times[partition] = page.published[-1].as_py()
            self._parts[partition].append(page.rows)
            self._rows += page.rows.num_rows
            self._bytes += page.rows.nbytes

    def _left_out(self, partition: str, page: Page) -> int:
        """The number of records at the end of ``page`` that are for the next run or wait for slower partitions."""
        if page.published is None:
            return 0
        until, cap = self._split.until, self._split.cap
        late = 0 if until is None else late_count(page.published, until)
        ahead = 0 if cap is None else late_count(page.published, cap)
        if ahead > late:
            self._capped.add(partition)
            self._times[partition] = page.published[-ahead].as_py()
            self._lags[partition] = page.lag or SOME_LAG
        return max(late, ahead)


def late_count(published: pa.Array, until: float) -> int:
    """The number of records from the first one published after ``until`` to the end."""
    first = pc.index(pc.greater(published, until), True).as_py()
    return len(published) - first if first >= 0 else 0
