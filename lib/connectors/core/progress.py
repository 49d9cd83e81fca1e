"""The progress of a source by partition. It is part of the end offset, which Spark shows in each progress of a query."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..ground import machine

PARTITIONS: Final = 1000
"""The most partitions in a list; the rest, those with the smallest lag, are added up."""
_STEPS: Final = 128


@dataclass(frozen=True)
class PartitionProgress:
    """The progress of a batch in one partition: where the batch ends, and where the partition ends.

    ``position`` and ``latest`` are in the unit of the source (numbers, bytes, offsets). ``lag_records`` is the number of
    records between them, if it is known without reading. ``lag_seconds`` is how long the oldest of these records has waited.
    ``None`` means "not known". If only ``lag_seconds`` is missing and the positions are whole numbers, it is the time since
    the query first saw that record waiting. ``skipped`` is how many records or files, in the unit of the source, the query
    has skipped for good, if it counts them. ``facts`` are what else a source knows, by columns of ``metrics.table``.
    """

    partition: str
    position: int | str | None = None
    latest: int | str | None = None
    lag_records: int | None = None
    lag_seconds: float | None = None
    skipped: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def behind(self) -> int:
        """The lag, in records or else in the unit of the position; 0 if it is not known."""
        return behind(self.lag_records, self.position, self.latest)


def behind(lag_records: Any, position: Any, latest: Any) -> int:
    """The lag in records, else ``latest`` - ``position`` if they are whole numbers, else 0."""
    if lag_records is not None:
        return int(lag_records)
    return max(0, int(latest - position)) if isinstance(position, int) and isinstance(latest, int) else 0


class Waiting:
    """Remembers when the query first saw each end of a partition. So the oldest unread record has an age."""

    def __init__(self, now: Callable[[], float] = machine.time) -> None:
        self._now = now
        self._ends: dict[str, list[tuple[float, int]]] = {}

    def timed(self, partitions: Sequence[PartitionProgress]) -> list[PartitionProgress]:
        """``partitions`` with ``lag_seconds``, computed where the source left it out and the positions are numbers."""
        known = {progress.partition for progress in partitions}
        self._ends = {name: ends for name, ends in self._ends.items() if name in known}
        return [self._timed(progress) for progress in partitions]

    def _timed(self, progress: PartitionProgress) -> PartitionProgress:
        if progress.lag_seconds is not None or not isinstance(progress.position, int) or not isinstance(progress.latest, int):
            return progress
        ends = [(seen, end) for seen, end in self._ends.get(progress.partition, []) if end > progress.position]
        if progress.latest > progress.position and (not ends or ends[-1][1] < progress.latest):
            ends.append((self._now(), progress.latest))
        self._ends[progress.partition] = ends = ends if len(ends) <= _STEPS else ends[::2]
        return replace(progress, lag_seconds=self._now() - ends[0][0] if ends else 0.0)


def packed(partitions: Sequence[PartitionProgress]) -> dict[str, Any]:
    """``partitions`` as small JSON, ordered by name: it has the common prefix of all names once; times are milliseconds.

    A partition that is read to its end has three cells (name, position, lag_records), others have all five. ``skipped``
    and ``facts`` are maps of their own by the partition's number, since few partitions have them.
    """
    listed, rest = list(partitions), []
    if len(listed) > PARTITIONS:
        listed.sort(key=PartitionProgress.behind, reverse=True)
        listed, rest = listed[: PARTITIONS - 1], listed[PARTITIONS - 1 :]
    if rest:
        waits = max((progress.lag_seconds or 0.0 for progress in rest), default=0.0)
        skips = [progress.skipped for progress in rest if progress.skipped is not None]
        lag = sum(map(PartitionProgress.behind, rest))
        listed.append(PartitionProgress(f"({len(rest)} others)", None, None, lag, waits, sum(skips) if skips else None))
    start = os.path.commonprefix([progress.partition for progress in listed])  # noqa: RUF071 - letters in common, not folders
    listed.sort(key=lambda progress: progress.partition)
    cells: dict[str, Any] = {"start": start, "parts": [_cells(progress, len(start)) for progress in listed]}
    skipped = {str(number): progress.skipped for number, progress in enumerate(listed) if progress.skipped is not None}
    facts = {str(number): dict(progress.facts) for number, progress in enumerate(listed) if progress.facts}
    return {**cells, **({"skipped": skipped} if skipped else {}), **({"facts": facts} if facts else {})}


def _cells(progress: PartitionProgress, start: int) -> list[Any]:
    waits = None if progress.lag_seconds is None else round(progress.lag_seconds * 1000)
    if progress.latest is not None and progress.latest == progress.position and waits == 0:
        return [progress.partition[start:], progress.position, progress.lag_records]
    return [progress.partition[start:], progress.position, progress.lag_records, progress.latest, waits]


def unpacked(offset: Mapping[str, Any]) -> list[PartitionProgress]:
    """The progress of the partitions in an offset; empty if the source tells none."""
    progress = offset.get("progress", {})
    skipped, facts = progress.get("skipped", {}), progress.get("facts", {})
    return [
        _unpacked(progress["start"], skipped.get(str(number)), facts.get(str(number), {}), *cells)
        for number, cells in enumerate(progress.get("parts", []))
    ]


def _unpacked(
    start: str, skipped: int | None, facts: Mapping[str, Any], name: str, position: Any, lag: int | None, *more: Any
) -> PartitionProgress:
    latest, waits = more if more else (position, 0)
    return PartitionProgress(start + name, position, latest, lag, None if waits is None else waits / 1000, skipped, facts)
