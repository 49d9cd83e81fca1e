"""Records in columns: the form in which they pass converters.

A :class:`Records` holds records whose keys have one schema and whose values have one; a list of records becomes as many of
them as it has changes of schema. With a schema, values are an Arrow array of its type; without one, Python values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrow_data import from_arrow, to_arrow
from .data import Schema
from .json_text import sorted_json
from .offsets import partition_key
from .records import Headers, SinkRecord, SourceBatch, SourceRecord

INDEX = "index"
"""The column that tells which record of the original list a record was."""


@dataclass(frozen=True)
class Column:
    """The keys, or the values, of many records: an Arrow array of ``schema``, or a list of Python values without one."""

    schema: Schema | None
    data: Any

    @classmethod
    def of(cls, schema: Schema | None, values: Sequence[Any]) -> Column:
        return cls(schema, list(values) if schema is None else to_arrow(values, schema))

    def __len__(self) -> int:
        return len(self.data)

    def values(self) -> list[Any]:
        """The values as Connect has them."""
        return list(self.data) if self.schema is None else from_arrow(self.data, self.schema)

    def take(self, places: Sequence[int]) -> Column:
        if self.schema is None:
            return Column(None, [self.data[place] for place in places])
        return Column(self.schema, self.data.take(pa.array(places, pa.int64())))

    def slice(self, first: int, count: int) -> Column:
        return Column(
            self.schema, self.data[first : first + count] if self.schema is None else self.data.slice(first, count)
        )


@dataclass(frozen=True)
class Records:
    """Records in columns. ``headers`` is ``None`` where none has any; ``extra`` are columns that go along as they are."""

    topic: pa.Array
    partition: pa.Array
    key: Column
    value: Column
    timestamp: pa.Array
    headers: Sequence[Headers] | None = None
    extra: Mapping[str, pa.Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.topic)

    def slice(self, first: int, count: int) -> Records:
        return replace(
            self,
            topic=self.topic.slice(first, count),
            partition=self.partition.slice(first, count),
            key=self.key.slice(first, count),
            value=self.value.slice(first, count),
            timestamp=self.timestamp.slice(first, count),
            headers=None if self.headers is None else self.headers[first : first + count],
            extra={name: column.slice(first, count) for name, column in self.extra.items()},
        )

    def to_sink_records(self) -> list[SinkRecord]:
        """The records one by one, as a sink task takes them."""
        cells = zip(
            self.topic.to_pylist(),
            self.partition.to_pylist(),
            self.extra["offset"].to_pylist(),
            self.value.values(),
            self.key.values(),
            self.timestamp.to_pylist(),
            self.headers or [Headers() for _ in range(len(self))],
            strict=True,
        )
        return [
            SinkRecord(
                topic,
                partition,
                offset,
                value,
                value_schema=self.value.schema,
                key=key,
                key_schema=self.key.schema,
                timestamp=timestamp,
                headers=headers,
            )
            for topic, partition, offset, value, key, timestamp, headers in cells
        ]


def of_source_records(records: Sequence[SourceRecord], first: int = 0) -> Iterator[Records]:
    """``records`` in columns, in their order; ``first`` is the number of the first one."""
    known: dict[int, str] = {}
    at = first
    for _, same in groupby(records, lambda record: (record.key_schema, record.value_schema)):
        group = list(same)
        yield Records(
            pa.array([record.topic for record in group], pa.string()),
            pa.array([record.partition for record in group], pa.int32()),
            Column.of(group[0].key_schema, [record.key for record in group]),
            Column.of(group[0].value_schema, [record.value for record in group]),
            pa.array([record.timestamp for record in group], pa.int64()),
            [record.headers for record in group] if any(len(record.headers) for record in group) else None,
            {
                "sourcePartition": pa.array([_partition_text(r.source_partition, known) for r in group], pa.string()),
                "sourceOffset": pa.array([_offset_text(record.source_offset) for record in group], pa.string()),
                INDEX: numbers(at, len(group)),
            },
        )
        at += len(group)


def of_source_batch(batch: SourceBatch) -> Records:
    """The records of a batch that a task has given in columns."""
    count = len(batch)
    source = partition_key(batch.source_partition)
    name = sorted_json(batch.offset_field)
    offsets = pc.binary_join_element_wise(f"{{{name}:", batch.offsets.cast(pa.string()), "}", "")
    return Records(
        pa.repeat(batch.topic, count),
        pa.nulls(count, pa.int32()),
        Column(batch.key_schema, [None] * count if batch.key is None else batch.key),
        Column(batch.value_schema, batch.value),
        pa.nulls(count, pa.int64())
        if batch.timestamp is None
        else pa.repeat(pa.scalar(batch.timestamp, pa.int64()), count),
        None,
        {
            "sourcePartition": pa.repeat(source, count),
            "sourceOffset": offsets,
            INDEX: numbers(0, count),
        },
    )


def numbers(first: int, count: int) -> pa.Array:
    """Whole numbers from ``first`` on."""
    return pa.array(np.arange(first, first + count, dtype=np.int64))


def offsets_of(records: Sequence[SourceRecord]) -> dict[str, Any]:
    """The newest source offset of each source partition."""
    newest: dict[int, tuple[Mapping[str, Any], Any]] = {}
    offsets: dict[str, Any] = {}
    for record in records:
        if record.source_partition is not None:
            newest.pop(id(record.source_partition), None)
            newest[id(record.source_partition)] = (record.source_partition, record.source_offset)
    for partition, offset in newest.values():
        if offset is not None:
            offsets[partition_key(partition)] = dict(offset)
    return offsets


def batch_offsets(batch: SourceBatch) -> dict[str, Any]:
    """As :func:`offsets_of`, of a batch in columns."""
    if not len(batch):
        return {}
    return {partition_key(batch.source_partition): {batch.offset_field: batch.offsets[len(batch) - 1].as_py()}}


def _partition_text(partition: Mapping[str, Any] | None, known: dict[int, str]) -> str | None:
    if partition is None:
        return None
    text = known.get(id(partition))
    if text is None:
        text = known[id(partition)] = partition_key(partition)
    return text


def _offset_text(offset: Mapping[str, Any] | None) -> str | None:
    return None if offset is None else sorted_json(dict(offset))
