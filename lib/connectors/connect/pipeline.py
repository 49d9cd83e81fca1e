"""The way of a source's records from ``poll`` to rows: transforms, then the converters of keys, values and headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from .columns import INDEX, Records
from .converters import Converter, converted, converter_of
from .host import HEADERS, SOURCE_COLUMNS, DeadLetter
from .records import Headers
from .tolerance import Failure, Tolerance, error_text
from .transforms import Chain


@dataclass
class Outcome:
    """What became of records: the ``rows``, the dead ``letters``, and the numbers of the records that became rows.

    The numbers are only there for a task that wants to hear of single records.
    """

    rows: pa.Table
    letters: list[DeadLetter] = field(default_factory=list)
    delivered: set[int] = field(default_factory=set)


class SourcePipeline:
    """Transforms and converters of one task."""

    def __init__(
        self,
        properties: Mapping[str, str],
        wait: Callable[[float], bool],
        task: int = 0,
        *,
        names_delivered: bool = True,
    ) -> None:
        self._names_delivered = names_delivered
        self.tolerance = Tolerance(properties, wait)
        self._chain = Chain.of(properties)
        self._key = converter_of(properties, "key")
        self._value = converter_of(properties, "value")
        self._header = converter_of(properties, "header")
        self._task = task

    def run(self, batches: Sequence[Records]) -> Outcome:
        """``batches``, whose records are numbered (:data:`INDEX`), as rows of :data:`SOURCE_COLUMNS`."""
        tables, delivered = [], set()
        for batch in batches:
            for records in self._chain.apply(batch, self.tolerance):
                for part, (key, value) in self._converted(records):
                    tables.append(_rows(part, key, value, self._header))
                    if self._names_delivered:
                        delivered.update(part.extra[INDEX].to_pylist())
        letters = [self._letter(failure) for failure in self.tolerance.take()]
        rows = pa.concat_tables(tables) if tables else SOURCE_COLUMNS.empty_table()
        return Outcome(rows, letters, delivered)

    def _converted(self, records: Records) -> list[tuple[Records, tuple[pa.Array, pa.Array]]]:
        out = []
        for with_key, key in self.tolerance.each(
            "KEY_CONVERTER", type(self._key), lambda part: converted(self._key, part.topic, part.key), records
        ):
            keyed = replace(with_key, extra={**with_key.extra, "_key": key})
            for part, value in self.tolerance.each(
                "VALUE_CONVERTER", type(self._value), lambda part: converted(self._value, part.topic, part.value), keyed
            ):
                bare = {name: column for name, column in part.extra.items() if name != "_key"}
                out.append((replace(part, extra=bare), (part.extra["_key"], value)))
        return out

    def _letter(self, failure: Failure) -> DeadLetter:
        record = failure.record
        kind, message, stack = error_text(failure.error)
        return DeadLetter(
            record.topic[0].as_py(),
            record.partition[0].as_py(),
            None,
            _shown(record.key.values()[0]),
            _shown(record.value.values()[0]),
            [(header.key, _shown(header.value)) for header in record.header_list()[0]],
            record.timestamp[0].as_py(),
            failure.stage,
            failure.executing_class,
            kind,
            message,
            stack,
            self._task,
        )


def _shown(value: Any) -> bytes | None:
    """A key or value that did not get through a converter, as bytes for a person."""
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else repr(value)).encode()


def _rows(records: Records, key: pa.Array, value: pa.Array, header: Converter) -> pa.Table:
    columns = [
        records.topic,
        records.partition.cast(pa.int32()),
        key,
        value,
        header_column(records.headers, len(records), header),
        records.timestamp.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
        records.extra["sourcePartition"],
        records.extra["sourceOffset"],
    ]
    return pa.table(dict(zip(SOURCE_COLUMNS.names, columns, strict=True)), schema=SOURCE_COLUMNS)


def header_column(headers: Sequence[Headers] | None, count: int, converter: Converter) -> pa.Array:
    """Headers as a column of keys and bytes; null where a record has none."""
    if headers is None:
        return pa.nulls(count, HEADERS)
    from .columns import Column

    return pa.array(
        [
            [
                (header.key, converter.from_connect("", Column.of(header.schema, [header.value]))[0].as_py())
                for header in record
            ]
            if len(record)
            else None
            for record in headers
        ],
        HEADERS,
    )
