"""Positions of the Kafka source: the next offset of each partition, and batch starts that are not the last batch's end.

As JSON: ``{"topics": {name: {"at": {partition: next offset}, "from": {partition: offset}, "id": topic id}}, "cut": {…}}``.
``from`` holds offsets that only the driver could know: the first of a new partition, or the first after a loss. ``cut`` says
how the range is cut into splits, so that a replay has the same splits even if the options have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core import Position, Split
from ...core.planning import even_ranges

Partition = tuple[str, int]
"""A topic and the number of its partition."""
Offsets = Mapping[Partition, int]


def partition_name(partition: Partition) -> str:
    """``topic-number``, as Kafka's own tools name a partition."""
    return f"{partition[0]}-{partition[1]}"


@dataclass(frozen=True)
class OffsetRange(Split):
    """The offsets ``first`` up to, not including, ``end`` of one partition. Not every offset has a record.

    A recreated topic has another ``topic_id``, and other records at the same offsets.
    """

    topic: str
    partition: int
    first: int
    end: int
    topic_id: str = ""

    @property
    def name(self) -> str:
        """The name of the partition."""
        return partition_name((self.topic, self.partition))


@dataclass(frozen=True)
class KafkaPosition:
    """A position by partition: the next offsets ``at``, and ``begins`` if a batch does not begin at the last one's end.

    ``ids`` has the ids of topics, if the brokers have ids.
    """

    at: Offsets
    begins: Offsets = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, position: Position) -> KafkaPosition:
        topics = position["topics"]
        ids = {name: topic["id"] for name, topic in topics.items() if "id" in topic}
        return cls(_offsets(topics, "at"), _offsets(topics, "from"), ids, position.get("cut", {}))

    def position(self) -> Position:
        topics: dict[str, dict[str, Any]] = {}
        for kind, offsets in (("at", self.at), ("from", self.begins)):
            for (topic, partition), offset in offsets.items():
                topics.setdefault(topic, {"at": {}}).setdefault(kind, {})[str(partition)] = offset
        for name, topic_id in self.ids.items():
            if name in topics:
                topics[name]["id"] = topic_id
        return {"topics": topics, **({"cut": dict(self.cut)} if self.cut else {})}


def _offsets(topics: Mapping[str, Any], kind: str) -> dict[Partition, int]:
    return {
        (name, int(number)): int(offset) for name, topic in topics.items() for number, offset in topic.get(kind, {}).items()
    }


def offset_ranges(start: Position, end: Position) -> Iterator[OffsetRange]:
    """The splits between two positions, in the order of topics and partitions. ``end`` says how to cut them."""
    before, after = KafkaPosition.of(start).at, KafkaPosition.of(end)
    whole = []
    for partition, last in sorted(after.at.items()):
        first = after.begins.get(partition, before.get(partition, last))
        if first < last:
            whole.append((partition, first, last))
    total = sum(last - first for _, first, last in whole)
    for (topic, number), first, last in whole:
        for low, high in even_ranges(first, last - 1, _split_count(last - first, total, after.cut)):
            yield OffsetRange(topic, number, low, high + 1, after.ids.get(topic, ""))


def _split_count(size: int, total: int, cut: Mapping[str, int]) -> int:
    """The number of splits for ``size`` of ``total`` offsets: ``least`` splits in all, and none larger than ``most``."""
    count = max(1, -(-cut.get("least", 0) * size // total))
    return max(count, -(-size // cut["most"])) if "most" in cut else count
