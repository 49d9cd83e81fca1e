"""Watermarks per partition by admission: no partition is read further than ``maxDrift`` past the slowest one that is active.

Spark has one watermark for all partitions, the time of the newest row less a delay. A partition that is an hour behind would
have all its rows dropped. Here the driver holds back the partitions that are ahead, by the times of their records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from .cluster import Cluster
from .positions import Partition


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
