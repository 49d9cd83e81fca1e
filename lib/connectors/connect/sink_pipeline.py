"""The way of a sink's rows to ``put``: the converters of keys, values and headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ..ground.columns import is_binary, is_text
from .arrow_data import cast_to, schema_of
from .columns import INDEX, Column, Records, numbers
from .converters import converter_of, header_of
from .data import Schema
from .host import DeadLetter
from .records import Headers, SinkRecord
from .tolerance import Tolerance, error_text

_RAW_KEY, _RAW_VALUE, _RAW_HEADERS = "_key", "_value", "_headers"


class SinkPipeline:
    """The converters of one sink task."""

    def __init__(self, properties: Mapping[str, str], wait: Callable[[float], bool], task: int = 0) -> None:
        self.tolerance = Tolerance(properties, wait)
        self._key = converter_of(properties, "key")
        self._value = converter_of(properties, "value")
        self._header = converter_of(properties, "header")
        self._task = task
        self._rows = pa.table({})
        self._schemas: dict[pa.DataType, Schema] = {}

    def run(self, rows: pa.Table) -> list[SinkRecord]:
        """The records of ``rows``, each with its origin; the failed ones are :meth:`letters`.

        Raises :class:`RetriableException` for an outage; it may be called again then.
        """
        self._rows = rows
        self.tolerance.take()  # those of a call that an outage has ended
        records: list[SinkRecord] = []
        first = 0
        for batch in rows.combine_chunks().to_batches():
            converted, first = self._converted(batch, first), first + batch.num_rows
            for part in converted:
                sink_records = part.to_sink_records()
                for record, place in zip(sink_records, part.extra[INDEX].to_pylist(), strict=True):
                    record.origin = (rows, place)
                records += sink_records
        return records

    def letters(self) -> list[DeadLetter]:
        """The dead letters of the records that failed in :meth:`run`, each with the bytes that it came with."""
        letters = []
        for failure in self.tolerance.take():
            kind, message, stack = error_text(failure.error)
            place = failure.record.extra[INDEX][0].as_py()
            name = failure.executing_class
            letters.append(letter_of(self._rows, place, failure.stage, name, kind, message, stack, self._task))
        return letters

    def _converted(self, batch: pa.RecordBatch, first: int) -> list[Records]:
        count = batch.num_rows
        raw = Records(
            batch["topic"],
            batch["partition"],
            Column(None, [None] * count),
            Column(None, [None] * count),
            cast_to(batch["timestamp"], pa.timestamp("ms", tz="UTC")).cast(pa.int64()),
            None,
            {
                "offset": batch["offset"],
                INDEX: numbers(first, count),
                _RAW_KEY: batch["key"],
                _RAW_VALUE: batch["value"],
                _RAW_HEADERS: batch["headers"],
            },
        )
        keyed = self._side(raw, _RAW_KEY, "KEY_CONVERTER", self._key)
        both = [part for records in keyed for part in self._side(records, _RAW_VALUE, "VALUE_CONVERTER", self._value)]
        return [_bare(records) for part in both for records in self._with_headers(part)]

    def _side(self, records: Records, raw: str, stage: str, converter: Any) -> list[Records]:
        """Records with their keys, or values, as Connect has them: parts of one schema."""
        data = records.extra[raw]
        side = "key" if raw == _RAW_KEY else "value"
        if not (is_text(data.type) or is_binary(data.type)):
            return [_with(records, side, self._typed(data))]
        out = []
        for part, pieces in self.tolerance.each(
            stage, type(converter), lambda some: _pieces(some, raw, converter), records
        ):
            out += [_with(part.slice(first, count), side, column) for first, count, column in pieces]
        return out

    def _with_headers(self, records: Records) -> list[Records]:
        if records.extra[_RAW_HEADERS].null_count == len(records):
            return [records]
        done = self.tolerance.each("HEADER_CONVERTER", type(self._header), self._headers, records)
        return [replace(part, headers=headers) for part, headers in done]

    def _headers(self, records: Records) -> list[Headers]:
        cells = zip(records.topic.to_pylist(), records.extra[_RAW_HEADERS].to_pylist(), strict=True)
        return [
            Headers([header_of(self._header, topic, header["key"], header["value"]) for header in row or ()])
            for topic, row in cells
        ]

    def _typed(self, data: pa.Array) -> Column:
        """A column of a type of its own: what Spark knows the type of needs no converter."""
        if pa.types.is_null(data.type):
            return Column(None, [None] * len(data))
        if data.type not in self._schemas:
            self._schemas[data.type] = schema_of(data.type)
        schema = self._schemas[data.type]
        return Column(schema, cast_to(data, schema.arrow()))


def _pieces(records: Records, raw: str, converter: Any) -> list[tuple[int, int, Column]]:
    """The runs of one schema; a run of one topic is converted at once."""
    topics, data = records.topic.to_pylist(), records.extra[raw].cast(pa.binary())
    pieces, first = [], 0
    while first < len(topics):
        end = first + 1
        while end < len(topics) and topics[end] == topics[first]:
            end += 1
        for start, count, column in converter.to_connect(topics[first], data.slice(first, end - first)):
            pieces.append((first + start, count, column))
        first = end
    return pieces


def _with(records: Records, side: str, column: Column) -> Records:
    return replace(records, key=column) if side == "key" else replace(records, value=column)


def _bare(records: Records) -> Records:
    extra = {name: column for name, column in records.extra.items() if name in ("offset", INDEX)}
    return replace(records, extra=extra)


def letter_of(
    rows: pa.Table, place: int, stage: str, name: str, kind: str, message: str, stack: str, task: int
) -> DeadLetter:
    """The dead letter of a row, with the bytes that it came with."""
    row = rows.slice(place, 1).to_pylist()[0]
    timestamp = row["timestamp"]
    return DeadLetter(
        row["topic"],
        row["partition"],
        row["offset"],
        _bytes(row["key"]),
        _bytes(row["value"]),
        [(header["key"], header["value"]) for header in row["headers"] or ()],
        None if timestamp is None else int(timestamp.timestamp() * 1000),
        stage,
        name,
        kind,
        message,
        stack,
        task,
    )


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    from ..core.dead_letters import to_json

    return (to_json(value) if isinstance(value, dict) else str(value)).encode()
