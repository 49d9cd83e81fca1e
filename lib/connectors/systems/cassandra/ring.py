"""The ring of tokens, how much of a table lies on it, and how it is cut into splits."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...core import Fatal, Split
from ...core.planning import split_count
from ...ground.errors import ConnectorError
from .connection import CassandraClient

_log = logging.getLogger("connectors")

MOST_TASKS: Final = 16
SMALLEST_SPLIT: Final = 10 << 20
_ESTIMATES: Final = (
    "SELECT range_start, range_end, mean_partition_size, partitions_count FROM system.size_estimates "
    "WHERE keyspace_name = ? AND table_name = ?"
)


@dataclass(frozen=True)
class Ring:
    """The tokens of a partitioner. ``least`` is below that of every partition, ``most`` is the highest of one."""

    least: int
    most: int

    @property
    def tokens(self) -> int:
        return self.most - self.least

    def width(self, start: int, end: int) -> int:
        """The number of tokens after ``start`` up to ``end``; a range may go over the end of the ring to its beginning."""
        width = end - start
        return width if width > 0 else width + self.tokens


RINGS: Final[Mapping[str, Ring]] = {
    "Murmur3Partitioner": Ring(-(1 << 63), (1 << 63) - 1),
    "RandomPartitioner": Ring(-1, 1 << 127),
}


@dataclass(frozen=True)
class TokenRange(Split):
    """The partitions whose token lies after ``start``, up to ``end``."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"tokens after {self.start} to {self.end}"


def ring_of(partitioner: str) -> Ring:
    """The ring of a partitioner, by the last part of its name. Raises :class:`Fatal` where tokens are no numbers."""
    try:
        return RINGS[partitioner]
    except KeyError:
        text = f"the cluster orders its partitions by {partitioner}, whose tokens are no numbers"
        raise Fatal(text, way_out=f"only clusters with {' or '.join(RINGS)} can be read by token ranges") from None


def cut(ring: Ring, splits: int) -> Iterator[TokenRange]:
    """The ring as so many ranges that follow each other, made one by one: of what is left, the next takes its share."""
    start = ring.least
    for left in range(splits, 0, -1):
        end = start + (ring.most - start) // left
        if end > start:
            yield TokenRange(start, end)
        start = end


@dataclass(frozen=True)
class Estimate:
    """The bytes of a table on all of the ring, as far as the nodes know; ``None`` where they do not yet."""

    bytes: int | None

    def splits(self, largest: int, otherwise: int) -> int:
        """The number of splits, none larger than ``largest`` bytes; ``otherwise`` where the size is not known."""
        return otherwise if self.bytes is None else split_count(self.bytes, largest, SMALLEST_SPLIT)


def estimate(client: CassandraClient, ring: Ring, keyspace: str, table: str) -> Estimate:
    """The size of a table, from what each node says of the ranges that it is the first to have.

    Nodes that are down say nothing: the rest of the ring is taken to be as full as the ranges that are known.
    """
    known = ranges(client, keyspace, table)
    tokens = sum(ring.width(int(row["range_start"]), int(row["range_end"])) for row in known)
    size = sum(row["mean_partition_size"] * row["partitions_count"] for row in known)
    if not size or not tokens:
        return Estimate(None)
    return Estimate(max(size, size * ring.tokens // tokens))


def ranges(client: CassandraClient, keyspace: str, table: str) -> Sequence[Mapping[str, Any]]:
    """The sizes of a table's ranges as the nodes of the datacenter estimate them, each range once."""
    rows: dict[tuple[str, str], Mapping[str, Any]] = {}
    for host in client.hosts():
        try:
            for row in client.rows(_ESTIMATES, keyspace, table, host=host):
                rows[row["range_start"], row["range_end"]] = row
        except ConnectorError as error:
            _log.warning("connectors.cassandra: %s says nothing of the size of %s.%s: %s", host, keyspace, table, error)
    return list(rows.values())
