"""Plans a query on the driver: turns positions into the offsets of a streaming engine. Also the arithmetic of enumerators.

An offset is ``{"v": 1, "source": name, "at": position, "parts": number of tasks}``. The initial offset is a constant, because
Spark may ask for it at any time, also when it replays the first batch. The planner finds the real start together with the
first end offset and stores it there (``from``), so that a start such as "latest" cannot move.

``progress`` in an end offset is for people: the lag of each partition after the batch. No plan depends on it.
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

    The same input gives the same shares. The remainder of the division goes to the largest backlogs. A partition without a
    share grows until its turn comes, so none starves even if ``limit`` is below the number of partitions.
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
    """``first..last`` (both included) as ``count`` ranges whose sizes differ by at most one; fewer for fewer values."""
    total = last - first + 1
    count = min(count, total)
    for index in range(count):
        yield first + total * index // count, first + total * (index + 1) // count - 1


def reader_share(limit: int, reader: int, readers: int) -> int:
    """The share of one of ``readers`` in ``limit``, at least one: a reader without a share would never find its end."""
    return max(1, limit * (reader + 1) // readers - limit * reader // readers)


def split_count(estimate: int, largest: int, smallest: int) -> int:
    """The number of splits for a table of ``estimate`` bytes so that none is larger than ``largest``, at least one.

    ``smallest`` prevents millions of tiny splits: a lower ``largest`` counts as ``smallest``. Nothing else depends on the
    estimate: if the table has grown since, the splits are larger.
    """
    return max(1, -(-estimate // max(largest, smallest)))


Offset = dict[str, Any]
T = TypeVar("T")

_log = logging.getLogger("connectors")
_TUNING = ("numpartitions", "maxrowspertrigger", "maxbytespertrigger", "maxfilespertrigger", "retry.", "outagetimeout")

INITIAL: Offset = versioned(phase="initial")


class Planner:
    """Plans the batches of one query over one source. It waits during outages (``retry.*``, ``outageTimeout``)."""

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
        """The source's enumerator, made on first use."""
        if self._enumerator is None:
            self._enumerator = self.source.enumerator()
        return self._enumerator

    def freeze(self) -> None:
        """Fixes the end of the query's data at its present end: the query stops when it has read that.

        During an outage the first :meth:`latest` fixes the end. Only then is it known whether the query has ever reached the
        system, and so how long to wait for it.
        """
        try:
            self._frozen = (self.enumerator.freeze(),)
            self.contact.reached = True
        except Transient:
            self._is_to_freeze = True

    def latest(self, offset: Offset, limit: ReadLimit = UNLIMITED) -> Offset:
        """The end of the next batch after ``offset``; ``offset`` itself if there is nothing new."""
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
        """The progress of the partitions, if it is known. If the source fails to tell it, the query goes on."""
        try:
            partitions = packed(self._waiting.timed(self.enumerator.progress(end, head)))
        except Exception:
            _log.warning("connectors.%s: the progress of its partitions is not known", self.source.name, exc_info=True)
            return None
        return {"id": source_id(self.source), **partitions} if partitions["parts"] else None

    def slices(self, start: Offset, end: Offset) -> Sequence[Slice]:
        """The tasks between two offsets. They depend only on the two offsets."""
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
        """The tasks of a batch read: all present data, from the start."""
        start = self._call(self.enumerator.start, reaches=False)  # to read everything, the source need not contact the system
        head = self._call(self.enumerator.head)
        end = self._call(lambda: self.enumerator.advance(start, head, UNLIMITED))
        if canonical(dict(start)) == canonical(dict(end)):
            return []
        return self._call(lambda: self.enumerator.slices(start, end, self.source.parallelism()))

    def committed(self, offset: Offset) -> None:
        """Tells the source that everything up to ``offset`` is in the sink."""
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
        """The position of an offset; ``None`` for the initial offset. An offset of version 1 is always one of the two."""
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
    """Raises :class:`StateError` if the source cannot read ``offset``: then it has not written it."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StateError(
            f"the offset in the checkpoint is none of this source ({type(error).__name__}: {error}): {dumps(offset)[:200]}",
            way_out="restore the checkpoint from a copy, or give this query a checkpointLocation of its own",
        ) from error


def source_id(source: Source) -> str:
    """A name that tells a query's sources apart, also two of one system. Tuning options (sizes, retries) do not change it."""
    options = {**source.values.extra, **source.values}
    identity = {key: value for key, value in options.items() if not key.startswith(_TUNING) and not is_secret(key)}
    return digest(source.name, dumps(identity))
