"""Planning of a query on the driver: from positions to the offsets of a streaming engine, and the arithmetic of enumerators.

An offset is ``{"v": 1, "source": name, "at": position, "parts": number of tasks}``. The very first one is a constant: Spark
asks for it again at any time, also when it replays the first batch. The planner finds the real start with the first end
offset and keeps it in there (``from``), so that a start such as "latest" cannot move.

``progress`` in an end offset is for people: how far the batch leaves each partition behind. No plan depends on it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..ground.errors import StateError, Transient
from ..ground.options import is_secret
from ..ground.retry import Contact, RetrySettings, observed_retries
from ..ground.state import canonical, checked, digest, dumps, versioned
from .metrics import PLANNING, Component, Meter, Place
from .progress import Waiting, packed
from .source import UNLIMITED, Position, ReadLimit, Slice, Source, SplitEnumerator


def fair_shares(limit: int | None, backlog: Mapping[str, int]) -> dict[str, int]:
    """The part of each partition's backlog that fits into ``limit``, max-min fair: small backlogs whole, the rest evenly.

    The same input gives the same shares. What does not divide goes to the largest backlogs: a partition that is passed over
    grows until its turn comes, so that nobody starves under a limit below the number of partitions.
    """
    if limit is None or sum(backlog.values()) <= limit:
        return dict(backlog)
    shares: dict[str, int] = {}
    left = limit
    for still_open, (name, size) in zip(
        range(len(backlog), 0, -1), sorted(backlog.items(), key=lambda item: (item[1], item[0])), strict=True
    ):
        shares[name] = min(size, left // still_open)
        left -= shares[name]
    return shares


def even_ranges(first: int, last: int, count: int) -> Iterator[tuple[int, int]]:
    """``first..last`` (both included) as ``count`` ranges that differ by one at most; fewer when there are fewer values."""
    total = last - first + 1
    count = min(count, total)
    for index in range(count):
        yield first + total * index // count, first + total * (index + 1) // count - 1


def reader_share(limit: int, reader: int, readers: int) -> int:
    """The share of one of ``readers`` in ``limit``, at least one: a reader without a share would never find its end."""
    return max(1, limit * (reader + 1) // readers - limit * reader // readers)


def split_count(estimate: int, largest: int, smallest: int) -> int:
    """The number of splits that a table of ``estimate`` bytes needs so that none is larger than ``largest``, at least one.

    ``smallest`` guards against a maximum that would make millions of tiny splits: a lower ``largest`` counts as
    ``smallest``. The estimate is not trusted further than that: a table that has grown since only makes larger splits.
    """
    return max(1, -(-estimate // max(largest, smallest)))


Offset = dict[str, Any]
T = TypeVar("T")

_log = logging.getLogger("connectors")
_TUNING = ("numpartitions", "maxrowspertrigger", "maxbytespertrigger", "maxfilespertrigger", "retry.", "outagetimeout")

INITIAL: Offset = versioned(phase="initial")


class Planner:
    """Plans the batches of one query over one source. Outages are waited for (``retry.*``, ``outageTimeout``)."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.contact = Contact(RetrySettings.of(source.values))
        self._meter = Meter(Place(PLANNING, Component("source", source.name, source_id(source)), 0, -1))
        self._enumerator: SplitEnumerator[Any] | None = None
        self._frozen: Any = None
        self._is_to_freeze = False
        self._waiting = Waiting()

    @property
    def enumerator(self) -> SplitEnumerator[Any]:
        """The source's enumerator, made when it is first needed."""
        if self._enumerator is None:
            self._enumerator = self.source.enumerator()
        return self._enumerator

    def freeze(self) -> None:
        """From now on the data ends where it ends now: the query stops when it has read that.

        In an outage it ends where the first :meth:`latest` finds its end: there is known whether the query has ever reached
        the system, and so how long it waits for it.
        """
        try:
            self._frozen = (self.enumerator.freeze(),)
            self.contact.reached = True
        except Transient:
            self._is_to_freeze = True

    def latest(self, offset: Offset, limit: ReadLimit = UNLIMITED) -> Offset:
        """The end of the next batch after ``offset``; the same offset when there is nothing new."""
        at = self._position(offset)
        self.contact.reached |= at is not None
        if self._is_to_freeze:
            self._frozen, self._is_to_freeze = (self._call(self.enumerator.freeze),), False
        start = at if at is not None else self._call(self.enumerator.start)
        head = self._frozen[0] if self._frozen else self._call(self.enumerator.head)
        with _readable_position(offset) if at is not None else contextlib.nullcontext():
            end = self._call(lambda: self.enumerator.advance(start, head, limit))
        if at is not None and canonical(dict(end)) == canonical(dict(at)):
            return offset
        origin = dict(start) if at is None else None
        progress = self._progress(end, head)
        return versioned(
            source=self.source.name,
            at=dict(end),
            parts=self.source.parallelism(),
            progress=progress,
            **{"from": origin},
        )

    def _call(self, work: Callable[[], T], *, reaches: bool = True) -> T:
        with observed_retries(self._meter):
            return self.contact.call(work, reaches=reaches)

    def _progress(self, end: Position, head: Any) -> dict[str, Any] | None:
        """The progress of the partitions, as far as it is known; a source that fails to say it does not fail the query."""
        try:
            partitions = packed(self._waiting.timed(self.enumerator.progress(end, head)))
        except Exception:
            _log.warning("connectors.%s: the progress of its partitions is not known", self.source.name, exc_info=True)
            return None
        return {"id": source_id(self.source), **partitions} if partitions["parts"] else None

    def slices(self, start: Offset, end: Offset) -> Sequence[Slice]:
        """The tasks between two offsets. They depend on the two offsets alone."""
        self.contact.reached = True  # an end offset exists
        after = checked(end, "the end offset")
        first, last = self._position(start), self._position(end)
        with _readable_position(end):
            begin: Position = first if first is not None else after["from"]
            if last is None:
                raise KeyError("at")
            if canonical(dict(begin)) == canonical(last):
                return []
            return self._call(lambda: self.enumerator.slices(begin, last, after["parts"]))

    def whole(self) -> Sequence[Slice]:
        """The tasks of a batch read: all there is now, from the start."""
        start = self._call(self.enumerator.start, reaches=False)  # where all is read, it needs no look at the system
        head = self._call(self.enumerator.head)
        end = self._call(lambda: self.enumerator.advance(start, head, UNLIMITED))
        if canonical(dict(start)) == canonical(dict(end)):
            return []
        return self._call(lambda: self.enumerator.slices(start, end, self.source.parallelism()))

    def committed(self, offset: Offset) -> None:
        """Everything up to ``offset`` has reached the sink."""
        at = self._position(offset)
        if at is not None:
            with _readable_position(offset):
                self.enumerator.committed(at)

    def close(self) -> None:
        if self._enumerator is not None:
            self._enumerator.stop()
            self._enumerator.close()
            self._enumerator = None

    def _position(self, offset: Offset) -> Position | None:
        """The position of an offset; ``None`` for the initial one. An offset of version 1 always has one of the two."""
        state = checked(offset, "the offset in the checkpoint")
        if state.get("phase") == "initial":
            return None
        if state.get("source", self.source.name) != self.source.name:
            raise StateError(
                f"the checkpoint belongs to a query over connectors.{state['source']}, not connectors.{self.source.name}",
                way_out="give this query a checkpointLocation of its own",
            )
        if not isinstance(state.get("at"), dict):
            raise StateError(
                f"the offset in the checkpoint has no position: {dumps(offset)[:200]}", way_out="restore it from a copy"
            )
        return dict(state["at"])


@contextlib.contextmanager
def _readable_position(offset: Offset) -> Iterator[None]:
    """A source that does not find its way in ``offset`` has not written it: raises :class:`StateError`."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StateError(
            f"the offset in the checkpoint is none of this source ({type(error).__name__}: {error}): {dumps(offset)[:200]}",
            way_out="restore the checkpoint from a copy, or give this query a checkpointLocation of its own",
        ) from error


def source_id(source: Source) -> str:
    """A name that tells a query's sources apart, also of one system; it stays when only sizes are tuned."""
    options = {**source.values.extra, **source.values}
    identity = {key: value for key, value in options.items() if not key.startswith(_TUNING) and not is_secret(key)}
    return digest(source.name, dumps(identity))
