"""Positions of the Kafka source: how far each partition was read, and where a batch begins if not where the last one ended.

As JSON: ``{"topics": {name: {"at": {partition: next offset}, "from": {partition: offset}, "id": topic id}}, "cut": {…}}``.
``from`` holds what only the driver could know: the first offset of a new partition, or the one after a loss. ``cut`` says how
the range is cut into splits, so that a replay cuts as the first try did, whatever the options say by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core import Position, Split
from ...core.planning import even_ranges

Partition = tuple[str, int]
"""A topic and a number."""
Offsets = Mapping[Partition, int]


def named(partition: Partition) -> str:
    """``topic-number``, as Kafka's own tools name a partition."""
    return f"{partition[0]}-{partition[1]}"


@dataclass(frozen=True)
class Range(Split):
    """The offsets ``first`` up to, not including, ``end`` of one partition. Not each of them is a record."""

    topic: str
    partition: int
    first: int
    end: int
    topic_id: str = field(default="", repr=False)

    def identity(self) -> str:
        """With the topic's id: one that was made anew has other records at the same offsets."""
        return f"{self} {self.topic_id}" if self.topic_id else str(self)


@dataclass(frozen=True)
class State:
    """A position with its parts by partition. ``ids`` are those of topics, where the brokers tell them."""

    at: Offsets
    begins: Offsets = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, position: Position) -> State:
        topics = position["topics"]
        return cls(
            dict(_flat(topics, "at")),
            dict(_flat(topics, "from")),
            {name: topic["id"] for name, topic in topics.items() if "id" in topic},
            position.get("cut", {}),
        )

    def position(self) -> Position:
        topics: dict[str, dict[str, Any]] = {}
        for kind, offsets in (("at", self.at), ("from", self.begins)):
            for (topic, partition), offset in offsets.items():
                topics.setdefault(topic, {"at": {}}).setdefault(kind, {})[str(partition)] = offset
        for name, topic_id in self.ids.items():
            if name in topics:
                topics[name]["id"] = topic_id
        return {"topics": topics, **({"cut": dict(self.cut)} if self.cut else {})}


def _flat(topics: Mapping[str, Any], kind: str) -> Iterator[tuple[Partition, int]]:
    for name, topic in topics.items():
        for partition, offset in topic.get(kind, {}).items():
            yield (name, int(partition)), int(offset)


def ranges(start: Position, end: Position) -> Iterator[Range]:
    """What lies between two positions, whole or cut as ``end`` says, in the order of topics and partitions."""
    before, after = State.of(start).at, State.of(end)
    whole = []
    for partition, last in sorted(after.at.items()):
        first = after.begins.get(partition, before.get(partition, last))
        if first < last:
            whole.append((partition, first, last))
    total = sum(last - first for _, first, last in whole)
    for (topic, number), first, last in whole:
        for low, high in even_ranges(first, last - 1, _pieces(last - first, total, after.cut)):
            yield Range(topic, number, low, high + 1, after.ids.get(topic, ""))


def _pieces(size: int, total: int, cut: Mapping[str, int]) -> int:
    """How many splits a range of ``size`` offsets is worth: ``least`` in all of ``total``, none larger than ``most``."""
    pieces = max(1, -(-cut.get("least", 0) * size // total))
    return max(pieces, -(-size // cut["most"])) if "most" in cut else pieces
