"""Fair shares and lazy cuts: the arithmetic that enumerators have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def fair_shares(limit: int | None, backlog: Mapping[str, int]) -> dict[str, int]:
    """How much of each partition's backlog fits into ``limit``, max-min fair: small backlogs whole, the rest evenly.

    The same input gives the same shares. What does not divide goes to the largest backlogs: a partition that is passed over
    grows until its turn comes, so that nobody starves under a limit below the number of partitions.
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
    """``first..last`` (both included) as ``count`` ranges that differ by one at most; fewer when there are fewer values."""
    total = last - first + 1
    count = min(count, total)
    for index in range(count):
        yield first + total * index // count, first + total * (index + 1) // count - 1


def split_count(estimate: int, largest: int, smallest: int) -> int:
    """How many splits a table of ``estimate`` bytes needs so that none is larger than ``largest``, at least one.

    ``smallest`` guards against a maximum that would make millions of tiny splits: a lower ``largest`` counts as
    ``smallest``. The estimate is not trusted further than that: a table that has grown since only makes larger splits.
    """
    return max(1, -(-estimate // max(largest, smallest)))
