"""The driver's side of the hybrid source: the plan of each part, and the step from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...core import Fatal, PartitionProgress, Position, ReadLimit, Source, SplitEnumerator, StateError
from ...core.source import Slice
from ...ground import machine
from ...ground.state import canonical
from .overlap import Overlap, time_text
from .parts import NAME, Part, PartSplit

if TYPE_CHECKING:
    from .source import HybridSource


class HybridEnumerator(SplitEnumerator[PartSplit]):
    """Plans part by part; no batch has rows of two.

    A position has the name of the ``part`` and the position ``at`` in it, for a batch that begins a part also the one ``from``
    which it does. ``readers`` is the parallelism of the part, ``empty`` says that it had no record yet, ``predecessors`` names
    the parts before it; ``query`` and ``last`` are those of :class:`PartSplit`. ``record`` is :attr:`HybridSource.record`, as
    long as all rows are recorded in this way.
    """

    def __init__(self, source: HybridSource) -> None:
        self.source = source
        self._members: dict[str, tuple[Source, SplitEnumerator[Any]]] = {}
        self._known: Overlap | None = None
        self._ends: dict[str, Any] = {}
        """The ends of the parts that end, as this run has first seen them."""
        self._heads: dict[str, Any] = {}
        """What this run has seen last of each part."""

    def start(self) -> Position:
        first = self.source.parts[0]
        query = {"query": machine.token(), "record": self.source.record} if self.source.overlaps else {}
        return {"part": first.name, "at": self._member(first, None)[1].start(), "empty": True, **query}

    def head(self) -> bool:
        return False

    def freeze(self) -> bool:
        """True: the last part ends, too, where its data end when this run comes to it."""
        return True

    def advance(self, at: Position, head: bool, limit: ReadLimit) -> Position:
        part = self.source.part(at["part"])
        end = self._after(part, at["at"], at.get("last"), ends=head)
        if canonical(dict(end)) != canonical(dict(at["at"])):
            return self._position(part, end, at)
        following = self.source.parts[self.source.number(part.name) + 1 :]
        if not following:
            return at
        if again := [later.name for later in following if later.name in at.get("predecessors", ())]:
            raise StateError(
                f"{again[0]} is behind {part.name} in sources, and was read to its end before it",
                connector=NAME,
                way_out="give sources in the order in which they were read; or give it another name, to read it again",
            )
        if at.get("empty"):
            raise Fatal(
                f"{part.name} has no record, so that {following[0].name} would be all there is",
                connector=NAME,
                way_out="correct the options of the part, or leave it out of sources",
            )
        return self._begin(following[0], at, ends=head)

    def _begin(self, part: Part, before: Position, *, ends: bool) -> Position:
        """The end of the first batch of ``part``, even if it has no record: from now on its start does not move."""
        last, overlap = before.get("last"), self._overlap(before)
        if overlap is not None:
            last = self._last(part, overlap, before)
        elif self.source.start is not None:
            last = 0
        begin = self._member(part, last)[1].start()
        end = self._after(part, begin, last, ends=ends)
        is_empty = {"empty": True} if canonical(dict(begin)) == canonical(dict(end)) else {}
        known = {} if last is None else {"last": last}
        known["predecessors"] = [*before.get("predecessors", ()), before["part"]]
        return {**self._position(part, end, {**before, **known}), "from": begin, **is_empty}

    def _last(self, part: Part, overlap: Overlap, before: Position) -> int:
        """The last time of the rows before ``part``. Raises :class:`Fatal` if they do not tell where ``part`` starts."""
        if before.get("record") != self.source.record:
            raise Fatal(
                f"rows before {part.name} were read as those of the last part, or with another startFrom or deduplicateBy, so "
                f"nothing says which rows {part.name} must leave out",
                connector=NAME,
                way_out=f"give a time in startFrom; or leave it out, and say in the options of {part.name} where it starts",
            )
        last = overlap.end(part.name)
        if last is None:
            raise Fatal(
                f"no row before {part.name} has a time in {overlap.column}, which says where it starts",
                connector=NAME,
                way_out="name a column that has times, or give a time in startFrom",
            )
        if last - overlap.microseconds > machine.time() * 1e6:
            raise Fatal(
                f"the last time in {overlap.column} before {part.name} is in the future: {time_text(last)} UTC",
                connector=NAME,
                way_out="correct the rows, make the overlap longer than clocks differ, or give a time in startFrom",
            )
        return last

    def _position(self, part: Part, at: Position, before: Position) -> dict[str, Any]:
        """The position ``at`` in ``part``, with what stays the same since the position ``before``."""
        readers = self._member(part, before.get("last"))[0].parallelism()
        lasting = {name: before[name] for name in ("query", "last", "predecessors") if name in before}
        if part != self.source.parts[-1] and self.source.overlaps and before.get("record") == self.source.record:
            lasting["record"] = before["record"]
        return {"part": part.name, "at": at, "readers": readers, **lasting}

    def _after(self, part: Part, at: Position, last: int | None, *, ends: bool) -> Position:
        """The position after ``at`` in ``part``, which ends where its data do if it is not the last one, or ``ends``."""
        source, enumerator = self._member(part, last)
        if ends or part != self.source.parts[-1]:
            if part.name not in self._ends:
                self._ends[part.name] = enumerator.freeze()
            self._heads[part.name] = self._ends[part.name]
        else:
            self._heads[part.name] = enumerator.head()
        return enumerator.advance(at, self._heads[part.name], source.limit())

    def _member(self, part: Part, last: int | None) -> tuple[Source, SplitEnumerator[Any]]:
        if part.name not in self._members:
            source = self.source.member(part, last)
            self._members[part.name] = source, source.enumerator()
        return self._members[part.name]

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[PartSplit]:
        part, enumerator = self._part(end)
        return self._own(end, part, enumerator.splits(_begin(start, end), end["at"], parallelism))

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        begin, enumerator = _begin(start, end), self._part(end)[1]
        if canonical(dict(begin)) == canonical(dict(end["at"])):
            return []
        slices = enumerator.slices(begin, end["at"], end["readers"])
        return [replace(part, start=start, end=end, detail=part) for part in slices]

    def splits_of(self, part: Slice) -> Iterator[PartSplit]:
        name, enumerator = self._part(part.end)
        inner = replace(part.detail, run=part.run, retried=part.retried)
        return self._own(part.end, name, enumerator.splits_of(inner))

    def _part(self, at: Position) -> tuple[Part, SplitEnumerator[Any]]:
        part = self.source.part(at["part"])
        return part, self._member(part, at.get("last"))[1]

    def _own(self, end: Position, part: Part, splits: Iterator[Any]) -> Iterator[PartSplit]:
        for split in splits:
            yield PartSplit(part.name, split, end.get("query", ""), end.get("last"))

    def partition_of(self, split: PartSplit) -> str:
        part = self.source.part(split.part)
        return _partition(part, self._member(part, split.last)[1].partition_of(split.split))

    def progress(self, at: Position, head: bool) -> Sequence[PartitionProgress]:
        """That of the present part, and one of each part before it."""
        part, enumerator = self._part(at)
        number = self.source.number(part.name)
        before = [PartitionProgress(earlier.name, "end", "end", 0, 0.0) for earlier in self.source.parts[:number]]
        own = enumerator.progress(at["at"], self._heads[part.name])
        return [*before, *(replace(progress, partition=_partition(part, progress.partition)) for progress in own)]

    def committed(self, at: Position) -> None:
        part, enumerator = self._part(at)
        enumerator.committed(at["at"])
        if part != self.source.parts[-1] and (overlap := self._overlap(at)):
            overlap.tidy()

    def _overlap(self, at: Position) -> Overlap | None:
        if self._known is None:
            self._known = self.source.overlap(at.get("query", ""))
        return self._known

    def stop(self) -> None:
        for _, enumerator in self._members.values():
            enumerator.stop()

    def close(self) -> None:
        for _, enumerator in self._members.values():
            enumerator.close()
        self._members.clear()


def _begin(start: Position, end: Position) -> Position:
    """The position in the part of ``end`` where the batch between the two begins."""
    return dict(start["at"] if start["part"] == end["part"] else end["from"])


def _partition(part: Part, name: str) -> str:
    return f"{part.name}/{name}" if name else part.name
