"""The way of a source's records from ``poll`` to rows: the converters of keys, values and headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from .columns import INDEX, Records, of_source_records
from .converters import Converter, converted, converter_of, header_bytes
from .host import HEADERS, SOURCE_COLUMNS, DeadLetter
from .records import Headers, SourceRecord
from .tolerance import Failure, Tolerance, error_text

_KEY, _VALUE, _HEADERS = "_key", "_value", "_headers"


@dataclass
class Outcome:
    """The outcome of records: the ``rows``, the dead ``letters``, and the numbers of the records that these were."""

    rows: pa.Table
    letters: list[DeadLetter] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)


class SourcePipeline:
    """The converters of one task."""

    def __init__(self, properties: Mapping[str, str], wait: Callable[[float], bool], task: int = 0) -> None:
        self.tolerance = Tolerance(properties, wait)
        self._key = converter_of(properties, "key")
        self._value = converter_of(properties, "value")
        self._header = converter_of(properties, "header")
        self._task = task

    def in_columns(self, records: Sequence[SourceRecord], first: int = 0) -> list[Records]:
        """``records`` in columns, numbered from ``first`` on. One that does not fit its schema fails as in a converter."""
        try:
            return list(of_source_records(records, first))
        except Exception as error:
            if not self.tolerance.tolerates:
                raise
            if len(records) == 1:
                self.tolerance.failed("VALUE_CONVERTER", type(self._value), _without_schema(records[0], first), error)
                return []
        half = len(records) // 2
        return [*self.in_columns(records[:half], first), *self.in_columns(records[half:], first + half)]

    def run(self, batches: Sequence[Records]) -> Outcome:
        """``batches``, whose records are numbered (:data:`INDEX`), as rows of :data:`SOURCE_COLUMNS`."""
        tables = [_rows(part) for batch in batches for part in self._converted(batch)]
        failures = self.tolerance.take()
        rows = pa.concat_tables(tables) if tables else SOURCE_COLUMNS.empty_table()
        failed = {failure.record.extra[INDEX][0].as_py() for failure in failures}
        return Outcome(rows, [self._letter(failure) for failure in failures], failed)

    def _converted(self, records: Records) -> list[Records]:
        """The records that all three converters take, with what they give as further columns."""
        steps: list[tuple[str, str, Converter, Callable[[Records], pa.Array]]] = [
            (_KEY, "KEY_CONVERTER", self._key, lambda part: converted(self._key, part.topic, part.key)),
            (_VALUE, "VALUE_CONVERTER", self._value, lambda part: converted(self._value, part.topic, part.value)),
            (
                _HEADERS,
                "HEADER_CONVERTER",
                self._header,
                lambda part: header_column(part.headers, len(part), self._header),
            ),
        ]
        parts = [records]
        for name, stage, converter, work in steps:
            parts = [
                replace(part, extra={**part.extra, name: column})
                for before in parts
                for part, column in self.tolerance.each(stage, type(converter), work, before)
            ]
        return parts

    def _letter(self, failure: Failure) -> DeadLetter:
        record = failure.record
        kind, message, stack = error_text(failure.error)
        return DeadLetter(
            record.topic[0].as_py(),
            record.partition[0].as_py(),
            None,
            _shown(record.key.values()[0]),
            _shown(record.value.values()[0]),
            [(header.key, _shown(header.value)) for header in (record.headers[0] if record.headers else ())],
            record.timestamp[0].as_py(),
            failure.stage,
            failure.executing_class,
            kind,
            message,
            stack,
            self._task,
        )


def _without_schema(record: SourceRecord, number: int) -> Records:
    """A record whose key or value does not fit its schema, for its dead letter."""
    bare = copy(record)
    bare.key_schema = bare.value_schema = None
    return next(of_source_records([bare], number))


def _shown(value: Any) -> bytes | None:
    """A key or value that did not get through a converter, as bytes for a person."""
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else repr(value)).encode()


def _rows(records: Records) -> pa.Table:
    columns = [
        records.topic,
        records.partition.cast(pa.int32()),
        records.extra[_KEY],
        records.extra[_VALUE],
        records.extra[_HEADERS],
        records.timestamp.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
        records.extra["sourcePartition"],
        records.extra["sourceOffset"],
    ]
    return pa.table(dict(zip(SOURCE_COLUMNS.names, columns, strict=True)), schema=SOURCE_COLUMNS)


def header_column(headers: Sequence[Headers] | None, count: int, converter: Converter) -> pa.Array:
    """Headers as a column of keys and bytes; null where a record has none."""
    if headers is None:
        return pa.nulls(count, HEADERS)
    cells = (
        [(header.key, header_bytes(converter, header)) for header in record] if len(record) else None for record in headers
    )
    return pa.array(list(cells), HEADERS)
