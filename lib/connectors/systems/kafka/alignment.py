"""Partitions and sources that wait for each other, by the times of their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...core.alignment import AlignmentGroup
from ...ground import machine
from ...ground.options import Values
from ...storage import storage_of
from .cluster import Cluster, KafkaHead, first_after
from .positions import Partition

_GROUP_PAUSE: Final = 0.5


class Alignment:
    """Watermark alignment by admission: the source reads no partition further than ``drift`` past the slowest active one.

    Spark has one watermark for all partitions: the time of the newest row minus a delay. It would drop all rows of a
    partition that is an hour behind. So the driver holds back partitions that are ahead, by the times of their records.

    A ``group`` has other sources, which wait for this one, as it does for them. ``drift`` and ``idle`` are in seconds. A
    partition at its end holds back the others until it has not grown for ``idle`` seconds. A partition that never had a record
    holds back nobody.
    """

    def __init__(self, drift: float, idle: float, group: AlignmentGroup | None = None) -> None:
        self.drift = int(drift * 1000)
        self.group = group
        self.idle = idle
        self._growth: dict[Partition, tuple[int, float]] = {}
        """The end of each partition, and when the driver first saw it."""
        self._newest: dict[Partition, tuple[int, int | None]] = {}
        """By partition, an end and the time of the last record before it."""

    @classmethod
    def of(cls, values: Values) -> Alignment | None:
        """What the options of a stream say; ``None`` without ``maxDrift``."""
        if values["maxDrift"] is None:
            return None
        group, idle = None, values["idleTimeout"]
        if values["alignmentGroup"]:
            storage = storage_of(values["stateLocation"], values["storageOptions"])
            group = AlignmentGroup(storage, values["alignmentGroup"], idle)
        return cls(values["maxDrift"], idle, group)

    def ends(
        self, cluster: Cluster, begins: Mapping[Partition, int], ends: Mapping[Partition, int], head: KafkaHead
    ) -> dict[Partition, int]:
        """``ends``, no further than the slowest partition allows. A frozen query waits for no partition at its end.

        It does wait here until other sources of the group have come near, as it would end if there were nothing to read.
        """
        active = self._active(ends)
        behind = {partition: begin for partition, begin in begins.items() if begin < ends[partition]}
        if not behind and self.group is None:
            return dict(ends)
        times = cluster.times(behind)
        slowest = [stamp for stamp in times.values() if stamp is not None]
        if not head.frozen:
            at_end = [partition for partition in active if partition not in behind]
            last_times = [self._last_time(cluster, name, head.first[name], ends[name]) for name in at_end]
            slowest += [stamp for stamp in last_times if stamp is not None]
        while True:
            others = self.group.exchange(min(slowest, default=None)) if self.group else []
            if not (behind and slowest):
                return dict(ends)
            capped = self._capped(cluster, behind, ends, times, min([*slowest, *others]) + self.drift)
            if not (head.frozen and others and capped == behind):
                return {**ends, **capped}
            machine.sleep(_GROUP_PAUSE)

    def close(self) -> None:
        """Leaves the group."""
        if self.group is not None:
            self.group.close()

    def _active(self, ends: Mapping[Partition, int]) -> set[Partition]:
        """The partitions that have grown within ``idle`` seconds."""
        now = machine.monotonic()
        for partition, end in ends.items():
            if self._growth.get(partition, (None, 0.0))[0] != end:
                self._growth[partition] = (end, now)
        return {partition for partition in ends if now - self._growth[partition][1] < self.idle}

    def _last_time(self, cluster: Cluster, partition: Partition, first: int, end: int) -> int | None:
        """The time of about the last record. It must search, since transaction markers may follow that record."""
        if self._newest.get(partition, (None, None))[0] != end:
            stamp, step = None, 1
            while stamp is None and end > first:
                stamp = cluster.times({partition: max(first, end - step)})[partition]
                if end - step <= first:
                    break
                step *= 2
            self._newest[partition] = (end, stamp)
        return self._newest[partition][1]

    @staticmethod
    def _capped(
        cluster: Cluster,
        behind: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        times: Mapping[Partition, int | None],
        limit: int,
    ) -> dict[Partition, int]:
        """The ends of the partitions ``behind``, each no further than its first record after ``limit`` (milliseconds)."""
        capped = {name: begin if (times[name] or 0) > limit else ends[name] for name, begin in behind.items()}
        within = [name for name in behind if times[name] is not None and capped[name] > behind[name]]
        for partition, record in cluster.after(dict.fromkeys(within, limit + 1)).items():
            if record is None:
                continue
            if record.offset > behind[partition]:
                capped[partition] = min(ends[partition], record.offset)
            else:  # a later record comes before: disorder, or a marker, whose time is when it was written
                capped[partition] = first_after(cluster, partition, behind[partition], ends[partition], limit)
        return capped
