"""When hidden parts become a file: the policy of ``rolling=policy``, without a clock and without a disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ...core.options import Values

MAX_PART_SIZE = 256 << 20
"""The default of ``rolling.maxPartSize``, in bytes."""
CROWD = 32
"""So many parts of a bucket that were merged equally often are merged into one."""


@dataclass(frozen=True)
class RollingPolicy:
    """A bucket's parts are sealed when they are ``max_part_size`` bytes together, ``rollover`` seconds after the first of
    them, or ``inactivity`` seconds after the last one: whatever comes first."""

    rollover: float = 900.0
    inactivity: float = 300.0
    max_part_size: int = MAX_PART_SIZE

    @classmethod
    def of(cls, values: Values) -> RollingPolicy:
        names = ("rolloverInterval", "inactivityInterval", "maxPartSize")
        return cls(*(values[f"rolling.{name}"] for name in names))


class Part(NamedTuple):
    """A committed file that no reader sees yet: ``path`` below the target, committed ``at`` (seconds), its ``size``.

    ``final`` is the name that it would have by itself, relative to the target. ``level`` counts how often it was merged:
    many parts are merged into one, still hidden, so that a look at them costs the same after any number of batches.
    """

    at: float
    final: str
    path: str
    size: int
    level: int = 0

    @classmethod
    def name(cls, at: float, size: int, final: str, level: int = 0) -> str:
        """The file name of a part: all that the policy asks is in it, so that a listing is enough.

        Its time is never later than ``at``: a part that may be sealed at once would else wait for the next batch.
        """
        return f"{int(at * 1000)}-{size}-{level}-{final}"

    @classmethod
    def of(cls, path: str, folder: str) -> Part:
        """The part at ``path``, somewhere below the hidden ``folder``; its folders are those of the target."""
        bucket, _, name = path[len(folder) + 1 :].rpartition("/")
        at, size, level, final = name.split("-", 3)
        return cls(int(at) / 1000, f"{bucket}/{final}" if bucket else final, path, int(size), int(level))

    @property
    def kind(self) -> tuple[str, str]:
        """The bucket, and the extension: only parts that have both in common can be joined."""
        bucket, _, name = self.final.rpartition("/")
        return bucket, name.partition(".")[2]


def due(parts: Iterable[Part], now: float, policy: RollingPolicy, *, ending: bool = False) -> list[list[Part]]:
    """The groups of parts that are to be sealed now, each as one file; ``ending`` seals everything."""
    return [group for bucket in _by_kind(parts) for group in _due(bucket, now, policy, ending)]


def crowded(parts: Iterable[Part]) -> list[list[Part]]:
    """The groups of parts that are to be merged, each into one part that goes on waiting.

    The newest part of a bucket is never among them: its time says how long the bucket has been inactive.
    """
    groups = []
    for bucket in _by_kind(parts):
        levels: dict[int, list[Part]] = {}
        for part in bucket[:-1]:
            levels.setdefault(part.level, []).append(part)
        groups += [group for group in levels.values() if len(group) >= CROWD]
    return groups


def _by_kind(parts: Iterable[Part]) -> Iterable[list[Part]]:
    buckets: dict[tuple[str, str], list[Part]] = {}
    for part in sorted(parts):
        buckets.setdefault(part.kind, []).append(part)
    return buckets.values()


def _due(parts: list[Part], now: float, policy: RollingPolicy, ending: bool) -> list[list[Part]]:
    groups: list[list[Part]] = [[]]
    size = 0
    for part in parts:
        if size and size + part.size > policy.max_part_size:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    growing = groups.pop() if size < policy.max_part_size else []
    if growing and (ending or _is_old(growing, now, policy)):
        groups.append(growing)
    return groups


def _is_old(parts: list[Part], now: float, policy: RollingPolicy) -> bool:
    return now - parts[0].at >= policy.rollover or now - parts[-1].at >= policy.inactivity
