"""Watermarks per partition by admission: no partition is read further than ``maxDrift`` past the slowest one that is active.

Spark has one watermark for all partitions, the time of the newest row less a delay. A partition that is an hour behind would
have all its rows dropped. Here the driver holds back the partitions that are ahead, by the times of their records.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core import DataLoss, PartitionProgress, Position, ReadLimit, SplitEnumerator, Transient
from ...core.planning import fair_shares
from ...core.source import Slice
from .cluster import Cluster, Head, Topic
from .positions import Partition, Range, State, named, ranges
from .start_positions import LATEST, Edge, Origin, wanted_names

if TYPE_CHECKING:
    from .source import KafkaSource


class Alignment:
    """``drift`` and ``idle`` are in seconds; without a drift it is false and must not be used.

    A partition at its end holds back the others until nothing was added to it for ``idle`` seconds. One that never had a
    record holds back nobody.
    """

    def __init__(self, drift: float | None, idle: float, now: Callable[[], float] = time.monotonic) -> None:
        self.drift = None if drift is None else int(drift * 1000)
        self.idle = idle
        self._now = now
        self._grown: dict[Partition, tuple[int, float]] = {}
        self._newest: dict[Partition, tuple[int, int | None]] = {}

    def __bool__(self) -> bool:
        return self.drift is not None

    def ends(
        self,
        cluster: Cluster,
        begins: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        first: Mapping[Partition, int],
        *,
        frozen: bool,
    ) -> dict[Partition, int]:
        """``ends``, no further than the slowest partition allows. A ``frozen`` query waits for no partition at its end."""
        active = self._active(ends)
        behind = {one: begin for one, begin in begins.items() if begin < ends[one]}
        if not behind:
            return dict(ends)
        times = cluster.times(behind)
        held_by = [stamp for stamp in times.values() if stamp is not None]
        if not frozen:
            waiting = [one for one in active if one not in behind]
            held_by += [
                stamp for one in waiting if (stamp := self._last_time(cluster, one, first[one], ends[one])) is not None
            ]
        if not held_by:
            return dict(ends)
        return {**ends, **self._capped(cluster, behind, ends, times, min(held_by) + (self.drift or 0))}

    def _active(self, ends: Mapping[Partition, int]) -> set[Partition]:
        """The partitions to which something was added not long ago."""
        now = self._now()
        for one, end in ends.items():
            if self._grown.get(one, (None, 0.0))[0] != end:
                self._grown[one] = (end, now)
        return {one for one in ends if now - self._grown[one][1] < self.idle}

    def _last_time(self, cluster: Cluster, one: Partition, first: int, end: int) -> int | None:
        """The time of about the last record of a partition. Markers of transactions lie behind it, so it is looked for."""
        if self._newest.get(one, (None, None))[0] != end:
            stamp, step = None, 1
            while stamp is None and end > first:
                stamp = cluster.times({one: max(first, end - step)})[one]
                if end - step <= first:
                    break
                step *= 2
            self._newest[one] = (end, stamp)
        return self._newest[one][1]

    @staticmethod
    def _capped(
        cluster: Cluster,
        behind: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        times: Mapping[Partition, int | None],
        limit: int,
    ) -> dict[Partition, int]:
        """Where each partition has its first record after ``limit``."""
        capped = {one: begin if (times[one] or 0) > limit else ends[one] for one, begin in behind.items()}
        open_ = [one for one in behind if times[one] is not None and capped[one] > behind[one]]
        for one, record in cluster.after(dict.fromkeys(open_, limit + 1)).items():
            if record is None:
                continue
            if record.offset > behind[one]:
                capped[one] = min(ends[one], record.offset)
            else:  # what is later than the limit lies before: disorder, or a marker, which has the time of its writing
                capped[one] = _searched(cluster, one, behind[one], ends[one], limit)
        return capped


def _searched(cluster: Cluster, one: Partition, low: int, high: int, limit: int) -> int:
    """The first offset after ``low`` whose record is later than ``limit``, if times only grow from there."""
    while high - low > 1:
        middle = (low + high) // 2
        stamp = cluster.times({one: middle})[one]
        if stamp is not None and stamp <= limit:
            low = middle
        else:
            high = middle
    return high


# MERGED The driver's side of the Kafka source: which partitions there are, how far a batch goes, what was added or
# lost.

_log = logging.getLogger("connectors.kafka")
_WAY_OUT = "set failOnDataLoss=false to go on with the first records that are there, or give the query a new checkpoint"


class KafkaEnumerator(SplitEnumerator[Range]):
    """Positions are in :mod:`.positions`; what is kept here only saves requests."""

    def __init__(self, source: KafkaSource) -> None:
        self.source = source
        self.values = source.values
        self.fail = source.values["failOnDataLoss"]
        self._cluster: Cluster | None = None
        self._topics: dict[str, Topic] | None = None
        self._listed = 0.0
        self._last: Mapping[Partition, int] = {}
        self._published: Position | None = None
        self._planned: Position | None = None
        self._waiting_since: float | None = None
        self._alignment = Alignment(source.values["maxDrift"], source.values["idleTimeout"])

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self.source.cluster()
        return self._cluster

    def start(self) -> Position:
        self.source.check_start()
        head = self._look(fresh=True)
        offsets = Origin(self.values, self.cluster, head).offsets(self.source.start, self.source.end)
        state = State(offsets, {}, _ids(head))
        self._published = state.position()  # nothing of it was read by us: there is nothing to tell the group
        return self._published

    def head(self) -> Head:
        return self._look()

    def freeze(self) -> Head:
        return replace(self._look(fresh=True), frozen=True)

    def advance(self, at: Position, head: Head, limit: ReadLimit) -> Position:
        self._publish(at)
        before = State.of(at)
        begins = self._begins(before, head)
        ends = self._ends(begins, head)
        backlog = {named(one): ends[one] - begin for one, begin in begins.items()}
        if self._waits_for_more(sum(backlog.values()), head):
            return at
        shares = fair_shares(limit.rows, backlog)
        after = {one: begin + shares[named(one)] for one, begin in begins.items()}
        moved = {one: begin for one, begin in begins.items() if before.at.get(one) != begin}
        lost = any(one in before.at for one in moved) or any(
            one not in begins and self._is_read(one) for one in before.at
        )
        if not lost and not any(shares.values()):
            return at
        elsewhere = {one: offset for one, offset in before.at.items() if not self._is_read(one)}
        ids = {name: told for name, told in before.ids.items() if any(one[0] == name for one in elsewhere)}
        self._planned = State({**elsewhere, **after}, moved, {**ids, **_ids(head)}, self.source.cut()).position()
        return self._planned

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        """Those of a batch that an earlier run has planned are looked at: its offsets may be another topic's by now."""
        return super().slices(start, end if end == self._planned else self._still_there(end), parallelism)

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Range]:
        return ranges(start, end)

    def progress(self, at: Position, head: Head) -> Sequence[PartitionProgress]:
        """Each partition that is read. The lag is in offsets, so markers of transactions count in it."""
        offsets = State.of(at).at
        return [
            PartitionProgress(named(one), offsets[one], max(last, offsets[one]), max(0, last - offsets[one]))
            for one, last in head.last.items()
            if one in offsets
        ]

    def partition_of(self, split: Range) -> str:
        return named((split.topic, split.partition))

    def committed(self, at: Position) -> None:
        self._publish(at)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _publish(self, at: Position) -> None:
        """Tells the group how far it is: everything before ``at`` is in the sink when the next batch is planned after it."""
        if self.source.publishes and self._published != at:
            self.cluster.publish(State.of(at).at)
        self._published = at

    # ---- what there is

    def _look(self, *, fresh: bool = False) -> Head:
        if fresh or self._topics is None or time.monotonic() - self._listed >= self.values["discoveryInterval"]:
            self._list()
        head = self._measure()
        if head.last != self._last:  # a topic that was made anew looks like one that has grown: ask before it is read
            known = self._list()
            head = self._measure() if known != head.topics else head
            self._last = head.last
        return head

    def _list(self) -> dict[str, Topic]:
        self._topics = self.cluster.topics(wanted_names(self.values, self.cluster))
        self._listed = time.monotonic()
        return self._topics

    def _measure(self) -> Head:
        topics = self._topics or {}
        there = [(name, number) for name, topic in topics.items() for number in topic.partitions]
        wanted = [one for one in there if self._is_read(one)]
        try:
            return Head(topics, self.cluster.first(wanted), self.cluster.last(wanted))
        except Transient:
            self._topics = None  # a topic may be gone: the next try looks for it first
            raise

    def _is_read(self, partition: Partition) -> bool:
        if self.values["subscribePattern"] is not None:
            return re.fullmatch(self.values["subscribePattern"], partition[0]) is not None
        if self.values["assign"] is not None:
            return partition in self.values["assign"]
        return partition[0] in self.values["subscribe"]

    # ---- how far it may go

    def _ends(self, begins: Mapping[Partition, int], head: Head) -> dict[Partition, int]:
        """Where the next batch may end in each partition, the read limit aside."""
        ends = dict(head.last)
        if (edge := self.source.end) is not None:
            stops = self._stops(edge, head)
            ends = {one: min(last, stops.get(one, 0)) for one, last in ends.items()}
        ends = {one: max(ends[one], begin) for one, begin in begins.items()}
        if not self._alignment:
            return ends
        return self._alignment.ends(self.cluster, begins, ends, head.first, frozen=head.frozen)

    def _stops(self, edge: Edge, head: Head) -> dict[Partition, int]:
        """Where the query ends, of those partitions that the user named; a partition that came later is not read."""
        if edge.times is not None:
            times = dict.fromkeys(head.last, edge.times) if isinstance(edge.times, int) else edge.times
            found = self.cluster.after({one: time for one, time in times.items() if one in head.last})
            return {one: record.offset if record else head.last[one] for one, record in found.items()}
        offsets = edge.offsets or {}
        return {
            one: last if offsets[one] == LATEST else offsets[one] for one, last in head.last.items() if one in offsets
        }

    def _waits_for_more(self, offsets: int, head: Head) -> bool:
        """True while ``minOffsetsPerTrigger`` are not together, but no longer than ``maxTriggerDelay``."""
        least = self.values["minOffsetsPerTrigger"]
        if least is None or head.frozen or offsets >= least or not offsets:
            self._waiting_since = None
            return False
        now = time.monotonic()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if now - self._waiting_since < self.values["maxTriggerDelay"]:
            return True
        self._waiting_since = None
        return False

    # ---- what is lost

    def _still_there(self, end: Position) -> Position:
        """``end`` without topics that were made anew since: the next batch reads those from their first records."""
        state = State.of(end)
        now = self.cluster.topics(sorted(state.ids))
        anew = {name for name, topic in now.items() if topic.id not in (None, state.ids[name])}
        for name in sorted(anew):
            loss = "the topic was deleted and made anew; a batch that was planned before has lost its records"
            if self.fail:
                raise DataLoss(loss, connector="connectors.kafka", where=name, way_out=_WAY_OUT)
            _log.warning("%s: %s", name, loss)
        if not anew:
            return end
        kept, begins = (
            {one: at for one, at in part.items() if one[0] not in anew} for part in (state.at, state.begins)
        )
        return State(kept, begins, state.ids, state.cut).position()

    def _begins(self, before: State, head: Head) -> dict[Partition, int]:
        """Where the next batch begins in every partition: where the last one ended, or at the first offset of a new one."""
        begins = dict(head.first)
        for one, offset in before.at.items():
            if not self._is_read(one):
                continue
            if (loss := self._loss(one, offset, before, head)) is None:
                begins[one] = offset
            elif self.fail:
                raise DataLoss(loss, connector="connectors.kafka", where=named(one), way_out=_WAY_OUT)
            else:
                _log.warning("%s: %s", named(one), loss)
        return begins

    def _loss(self, one: Partition, offset: int, before: State, head: Head) -> str | None:
        topic = head.topics.get(one[0])
        if topic is None:
            return f"the topic is gone; it was read up to offset {offset}"
        known = before.ids.get(one[0])
        if known is not None and topic.id is not None and known != topic.id:
            return f"the topic was deleted and made anew; the old one was read up to offset {offset}"
        if one not in head.first:
            return f"the partition is gone; it was read up to offset {offset}"
        if offset < head.first[one]:
            return f"offset {offset} comes next, but the first one that is there is {head.first[one]}"
        if offset > head.last[one] and (end := self.cluster.last([one], written=True)[one]) < offset:
            return f"offset {offset} comes next, but the partition ends at {end}"
        return None


def _ids(head: Head) -> dict[str, str]:
    return {name: topic.id for name, topic in head.topics.items() if topic.id is not None}
