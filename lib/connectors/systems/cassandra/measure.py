"""A table read split by split in one process, for a look at how even its ring is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ...core.planning import Planner
from ...ground import machine
from ...ground.clients import client_library
from .connection import NAME
from .ring import Ring, TokenRange, ranges, ring_of
from .source import CassandraSource

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS: Final = ("start", "end", "estimate", "rows", "bytes", "seconds")


def measured_splits(options: Mapping[str, Any]) -> pd.DataFrame:
    """Reads the table of ``options``, those of ``connectors.cassandra``, and gives a row for each split in a pandas frame.

    ``start`` and ``end`` are its tokens, as parts of the ring from 0 to 1. ``estimate`` is how many bytes Cassandra takes it
    to have; ``rows``, ``bytes`` and ``seconds`` are what reading it has given, in Arrow, and taken.
    """
    pandas = client_library("pandas", "pandas", connector=NAME)
    source = CassandraSource.of(options)
    if not isinstance(source, CassandraSource):
        raise TypeError("CassandraSource.of gives one of its own")
    with source.client() as client:
        table = source.selection(client).table
        known = ranges(client, table.keyspace, table.name)
        schema = pa.schema(source.columns(client))
    planner = Planner(source)
    parts = planner.whole()
    ring = ring_of(parts[0].end["partitioner"])
    splits = sorted(
        (split for part in parts for split in planner.enumerator.splits_of(part)), key=lambda split: split.start
    )
    rows = [_measured(source, schema, ring, split, known) for split in splits]
    return pandas.DataFrame(rows, columns=_COLUMNS)


def _measured(
    source: CassandraSource, schema: pa.Schema, ring: Ring, split: TokenRange, known: Sequence[Mapping[str, Any]]
) -> tuple[Any, ...]:
    reader = source.reader(schema)
    reader.open()
    began, rows, size = machine.monotonic(), 0, 0
    try:
        for batch in reader.read(split):
            rows += batch.num_rows
            size += batch.nbytes
    finally:
        reader.close()
    seconds = machine.monotonic() - began
    first, last = ((token - ring.least) / ring.tokens for token in (split.start, split.end))
    return first, last, _estimate(ring, split, known), rows, size, seconds


def _estimate(ring: Ring, split: TokenRange, known: Sequence[Mapping[str, Any]]) -> int:
    """The bytes of a split: of each range that is known the part that it shares with the split."""
    size = 0
    for row in known:
        start, end = int(row["range_start"]), int(row["range_end"])
        width, whole = ring.width(start, end), row["mean_partition_size"] * row["partitions_count"]
        pieces = [(start, end)] if end > start else [(start, ring.most), (ring.least, end)]
        shared = sum(max(0, min(last, split.end) - max(first, split.start)) for first, last in pieces)
        size += whole * shared // width
    return size
