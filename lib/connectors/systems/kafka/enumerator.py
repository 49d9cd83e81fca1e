"""The driver's side of the Kafka source: the partitions, the end of each batch, and partitions added or lost."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core import DataLoss, PartitionProgress, Position, ReadLimit, SplitEnumerator, Transient
from ...core.planning import fair_shares
from ...core.source import Slice
from ...ground import machine
from .alignment import Alignment
from .cluster import Cluster, KafkaHead, KafkaTopic, first_records
from .positions import KafkaPosition, OffsetRange, Partition, offset_ranges, partition_name
from .start_positions import LATEST, QueryBound, StartOffsets, end_of, start_of, topic_names

if TYPE_CHECKING:
    from .source import KafkaSource

_log = logging.getLogger("connectors.kafka")
_WAY_OUT = "set failOnDataLoss=false to go on with the first records that are there, or give the query a new checkpoint"


class KafkaEnumerator(SplitEnumerator[OffsetRange]):
    """Plans batches of offsets; :mod:`.positions` describes its positions. Its own state only saves requests."""

    def __init__(self, source: KafkaSource) -> None:
        self.source = source
        self.values = source.values
        self.fail = source.values["failOnDataLoss"]
        self._cluster: Cluster | None = None
        self._topics: dict[str, KafkaTopic] | None = None
        self._listed = 0.0
        self._last: Mapping[Partition, int] = {}
        self._records: dict[Partition, int] = {}
        """The records before which the query ends, by the option of a time."""
        self._without_record: dict[Partition, int] = {}
        """The offsets before which there is no such record."""
        self._published: Position | None = None
        self._planned: Position | None = None
        self._waiting_since: float | None = None
        self._alignment = Alignment.of(source.values) if source.streaming else None

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self.source.cluster()
        return self._cluster

    def start(self) -> Position:
        self.source.check_start()
        head = self._head(fresh=True)
        start = start_of(self.values, streaming=self.source.streaming)
        offsets = StartOffsets(self.values, self.cluster, head).resolve(start, end_of(self.values))
        self._published = KafkaPosition(offsets, {}, head.ids()).position()  # nothing read that the group should know
        return self._published

    def head(self) -> KafkaHead:
        return replace(self._head(), frozen=not self.source.streaming)

    def freeze(self) -> KafkaHead:
        return replace(self._head(fresh=True), frozen=True)

    def advance(self, at: Position, head: KafkaHead, limit: ReadLimit) -> Position:
        self._publish(at)
        before = KafkaPosition.of(at)
        begins = self._begins(before, head)
        available = self._ends(begins, head)
        alignment = self._alignment
        ends = available if alignment is None else alignment.ends(self.cluster, begins, available, head)
        backlog = {partition_name(partition): ends[partition] - begin for partition, begin in begins.items()}
        # A batch that others hold back has what they allow: they may wait for it.
        if self._waits_for_more(sum(backlog.values()), at_once=head.frozen or ends != available):
            return at
        shares = fair_shares(limit.rows, backlog)
        after = {partition: begin + shares[partition_name(partition)] for partition, begin in begins.items()}
        moved = {partition: begin for partition, begin in begins.items() if before.at.get(partition) != begin}
        is_lost = any(
            partition in moved or (partition not in begins and self._is_read(partition)) for partition in before.at
        )
        if not is_lost and not any(shares.values()):
            return at
        unread = {
            partition: offset
            for partition, offset in before.at.items()
            if not self._is_read(partition) and not _is_anew(partition[0], before, head)
        }
        ids = {topic: before.ids[topic] for topic, _ in unread if topic in before.ids} | head.ids()
        end = KafkaPosition({**unread, **after}, moved, ids, self.source.cut()).position()
        self._planned = None if head.frozen else end
        return end

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        """Checks the topics of a batch that an earlier run or an old head has planned: its offsets may be another topic's."""
        return super().slices(start, end if end == self._planned else self._without_new_topics(end), parallelism)

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[OffsetRange]:
        return offset_ranges(start, end)

    def progress(self, at: Position, head: KafkaHead) -> Sequence[PartitionProgress]:
        """The progress of each partition. The lag is in offsets, so it includes transaction markers."""
        offsets = KafkaPosition.of(at).at
        return [
            PartitionProgress(partition_name(partition), offset, max(last, offset), max(0, last - offset))
            for partition, last in head.last.items()
            if (offset := offsets.get(partition)) is not None
        ]

    def partition_of(self, split: OffsetRange) -> str:
        return split.name

    def committed(self, at: Position) -> None:
        self._publish(at)

    def stop(self) -> None:
        if self._alignment is not None:
            self._alignment.close()

    def close(self) -> None:
        self.stop()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _publish(self, at: Position) -> None:
        """Commits ``at`` for the group: when the next batch is planned, all records before it are in the sink."""
        if self.source.publishes and self._published != at:
            self.cluster.publish(KafkaPosition.of(at).at)
        self._published = at

    # ---- what there is

    def _head(self, *, fresh: bool = False) -> KafkaHead:
        if fresh or self._topics is None or machine.monotonic() - self._listed >= self.values["discoveryInterval"]:
            self._list_topics()
        head = self._measured_head()
        if head.last != self._last:  # a recreated topic looks like one that has grown: ask before it is read
            topics = self._list_topics()
            head = self._measured_head() if topics != head.topics else head
            self._last = head.last
        return head

    def _list_topics(self) -> dict[str, KafkaTopic]:
        topics = self.cluster.topics(topic_names(self.values, self.cluster))
        if topics != self._topics:
            self._records.clear()
            self._without_record.clear()
        self._topics, self._listed = topics, machine.monotonic()
        return topics

    def _measured_head(self) -> KafkaHead:
        topics = self._topics or {}
        partitions = [(name, number) for name, topic in topics.items() for number in topic.partitions]
        partitions = [partition for partition in partitions if self._is_read(partition)]
        try:
            return KafkaHead(topics, self.cluster.first(partitions), self.cluster.last(partitions))
        except Transient:
            self._topics = None  # a topic may be gone: the next try looks it up first
            raise

    def _is_read(self, partition: Partition) -> bool:
        if self.values["subscribePattern"] is not None:
            return re.fullmatch(self.values["subscribePattern"], partition[0]) is not None
        if self.values["assign"] is not None:
            return partition in self.values["assign"]
        return partition[0] in self.values["subscribe"]

    # ---- how far a batch may go

    def _ends(self, begins: Mapping[Partition, int], head: KafkaHead) -> dict[Partition, int]:
        """The offsets at which the next batch may end in each partition, without the read limit and alignment."""
        ends = dict(head.last)
        if (bound := end_of(self.values)) is not None:
            stops = self._stops(bound, head)
            if bound.offsets is not None and not self.source.streaming:
                self._check_stops(stops, begins, head)
            ends = {partition: min(last, stops.get(partition, 0)) for partition, last in ends.items()}
        return {partition: max(ends[partition], begin) for partition, begin in begins.items()}

    def _stops(self, bound: QueryBound, head: KafkaHead) -> dict[Partition, int]:
        """The ends of the query in the partitions that the user named; it does not read later partitions."""
        if bound.times is not None:
            times = dict.fromkeys(head.last, bound.times) if isinstance(bound.times, int) else bound.times
            new = {name: stamp for name, stamp in times.items() if name in head.last and name not in self._records}
            records = first_records(self.cluster, new, head.last, self._without_record)
            self._records |= {name: at for name, at in records.items() if at is not None}
            self._without_record |= {name: head.last[name] for name, at in records.items() if at is None}
            return {name: self._records.get(name, head.last[name]) for name in times.keys() & head.last.keys()}
        offsets = bound.offsets or {}
        return {
            partition: last if offsets[partition] == LATEST else offsets[partition]
            for partition, last in head.last.items()
            if partition in offsets
        }

    def _check_stops(self, stops: Mapping[Partition, int], begins: Mapping[Partition, int], head: KafkaHead) -> None:
        """Reports the partitions in which a batch would read less than up to the offsets that its user has named."""
        for partition, stop in stops.items():
            begin, last = begins.get(partition, stop), head.last[partition]
            if not begin <= stop <= last:
                text = f"the batch is to end at offset {stop}, but it begins at {begin}, and the partition ends at {last}"
                self._report_loss(partition_name(partition), text)

    def _waits_for_more(self, offsets: int, *, at_once: bool) -> bool:
        """True while there are fewer offsets than ``minOffsetsPerTrigger``, but for at most ``maxTriggerDelay``."""
        least = self.values["minOffsetsPerTrigger"]
        if least is None or at_once or offsets >= least or not offsets:
            self._waiting_since = None
            return False
        now = machine.monotonic()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if now - self._waiting_since < self.values["maxTriggerDelay"]:
            return True
        self._waiting_since = None
        return False

    # ---- what is lost

    def _without_new_topics(self, end: Position) -> Position:
        """``end`` without topics recreated since: the next batch reads these from their first records."""
        state = KafkaPosition.of(end)
        topics = self.cluster.topics(sorted(state.ids))
        new = {name for name, topic in topics.items() if topic.id not in (None, state.ids[name])}
        for name in sorted(new):
            loss = "the topic was deleted and made anew; a batch that was planned before has lost its records"
            self._report_loss(name, loss)
        if not new:
            return end
        at, begins = (
            {partition: offset for partition, offset in offsets.items() if partition[0] not in new}
            for offsets in (state.at, state.begins)
        )
        return KafkaPosition(at, begins, state.ids, state.cut).position()

    def _begins(self, before: KafkaPosition, head: KafkaHead) -> dict[Partition, int]:
        """The start of the next batch in each partition: the end of the last batch, or the first offset of a new partition."""
        begins = dict(head.first)
        for partition, offset in before.at.items():
            if not self._is_read(partition):
                continue
            if (loss := self._loss(partition, offset, before, head)) is None:
                begins[partition] = offset
            else:
                self._report_loss(partition_name(partition), loss)
        return begins

    def _loss(self, partition: Partition, offset: int, before: KafkaPosition, head: KafkaHead) -> str | None:
        topic = head.topics.get(partition[0])
        if topic is None:
            return f"the topic is gone; it was read up to offset {offset}"
        if _is_anew(partition[0], before, head):
            return f"the topic was deleted and made anew; the old one was read up to offset {offset}"
        if partition not in head.first:
            return f"the partition is gone; it was read up to offset {offset}"
        if offset < head.first[partition]:
            return f"offset {offset} comes next, but the first one that is there is {head.first[partition]}"
        if offset > head.last[partition] and (end := self.cluster.last([partition], written=True)[partition]) < offset:
            return f"offset {offset} comes next, but the partition ends at {end}"
        return None

    def _report_loss(self, where: str, loss: str) -> None:
        """Raises ``DataLoss``; with ``failOnDataLoss=false`` it only warns."""
        DataLoss(loss, connector="connectors.kafka", where=where, way_out=_WAY_OUT).report(_log, fails=self.fail)


def _is_anew(topic: str, before: KafkaPosition, head: KafkaHead) -> bool:
    """True if ``topic`` is another one than that of the position."""
    return topic in before.ids and head.ids().get(topic, before.ids[topic]) != before.ids[topic]
