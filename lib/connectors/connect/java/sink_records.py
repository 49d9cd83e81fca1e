"""Rows on their way into the JVM: their columns in a file, of which ``RecordReader.java`` makes the records of a sink."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...ground.errors import Transient
from ..arrow_data import cast_to, schema_of
from ..errors import ConnectException
from ..host import HEADERS
from ..json_data import JsonWriter, schema_json
from ..tolerance import ERRORS
from .failures import JavaFailure, failure
from .jvm import Jvm
from .steps import Steps

_JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
_DATA_ERROR: Final = "org.apache.kafka.connect.errors.DataException"
_NULL: Final = -(2**63)
"""Stands for null among numbers."""


@dataclass(frozen=True)
class BadRow:
    """A row that is no record: its ``place`` among the rows, and what failed at which ``stage``."""

    place: int
    stage: str
    executing_class: str
    failure: JavaFailure


class RecordReader:
    """Makes Java lists of ``SinkRecord`` of rows."""

    def __init__(self, jvm: Jvm, properties: Mapping[str, str], folder: Path) -> None:
        self.jvm, self.folder = jvm, folder
        self.steps = Steps(jvm, properties)
        errors = ERRORS.parse({key: value for key, value in properties.items() if key in ERRORS.keys})
        self.tolerates = errors["errors.tolerance"] == "all"
        self._converters: dict[tuple[str, pa.DataType], Any] = {}

    def records(self, rows: pa.Table) -> tuple[Any, list[BadRow], dict[tuple[str, int], int]]:
        """The records of ``rows`` as a Java list, and the rows that are none, where errors are tolerated.

        The third is the offset behind the last record of each topic and partition of the rows. Raises
        :class:`ConnectException` where errors are not tolerated, and :class:`Transient` for an outage.
        """
        if unread := self._unread(rows):
            places = [place for place in range(rows.num_rows) if place not in unread]
            records, bad, ends = self.records(rows.take(places))
            return records, [*unread.values(), *(replace(row, place=places[row.place]) for row in bad)], ends
        (keys, key_converter), (values, value_converter) = self._side(rows, "key"), self._side(rows, "value")
        out, steps = self.jvm.java.java.util.ArrayList(), self.steps.java(key_converter, value_converter)
        parts = [*_cells(rows["topic"])]
        parts += [_numbers(rows["partition"]), _numbers(rows["offset"]), _numbers(milliseconds(rows["timestamp"]))]
        parts += [*_cells(keys), *_cells(values), *_headers(rows["headers"])]
        with NamedTemporaryFile(dir=self.folder) as file:
            sizes = [file.write(part) for part in parts]
            file.flush()
            reader = self.jvm.compiled("RecordReader", steps, file.name, self._java_sizes(sizes))
        try:
            bad = self._read(reader, steps, rows.num_rows, out)
            return out, bad, _ends(reader.ends())
        finally:
            if self.jvm.is_alive():
                reader.close()
                self.jvm.release(reader)

    def _unread(self, rows: pa.Table) -> dict[int, BadRow]:
        """The rows with a number that the JSON of typed columns lacks: Java's converter would read zero."""
        unread: dict[int, BadRow] = {}
        for part in ("key", "value"):
            if not _has_non_finite(rows[part].combine_chunks()):
                continue
            for place, value in enumerate(rows[part].to_pylist()):
                if path := _non_finite(value, part):
                    text = f"{path} is NaN or infinite, which JSON for Java has no form of; leave it out or write null"
                    if not self.tolerates:
                        raise ConnectException(f"{_DATA_ERROR}: {text}")
                    failed = JavaFailure(_DATA_ERROR, text, "")
                    unread[place] = BadRow(place, f"{part.upper()}_CONVERTER", _JSON, failed)
        return unread

    def _read(self, reader: Any, steps: Any, count: int, out: Any) -> list[BadRow]:
        at, bad = 0, []
        while at < count:
            at += int(reader.read(count - at, out))
            if at < count:
                thrown = failure(reader.failure(), self.jvm.masked)
                if thrown.is_retriable:
                    raise Transient(f"{steps.stage()} by {steps.executingClass()} failed: {thrown}")
                if not self.tolerates:
                    raise ConnectException(f"{thrown}\n{thrown.trace}")
                bad.append(BadRow(at, str(steps.stage()), str(steps.executingClass()), thrown))
                at += 1
        return bad

    def _side(self, rows: pa.Table, part: str) -> tuple[pa.ChunkedArray, Any]:
        """The bytes of a key or value and what converts them. Rows with types of their own bring their schema."""
        column = rows[part]
        kind = column.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_string(kind) or pa.types.is_null(kind):
            return column.cast(pa.binary()), self.steps.converters[part]
        if (part, kind) not in self._converters:
            schema = schema_of(kind)
            converter = self.jvm.instance(_JSON)
            content = json.dumps(schema_json(schema))
            converter.configure({"schemas.enable": "true", "schema.content": content}, part == "key")
            self._converters[part, kind] = converter
        schema = schema_of(kind)
        data = cast_to(column.combine_chunks(), schema.arrow())
        return pa.chunked_array([JsonWriter(numeric=False, envelope=False).write(schema, data)]), self._converters[part, kind]

    def _java_sizes(self, sizes: Sequence[int]) -> Any:
        java = self.jvm.java.java.util.ArrayList()
        for size in sizes:
            java.add(size)
        return java


def _has_non_finite(column: pa.Array) -> bool:
    """Whether NaN or an infinity is anywhere in a column."""
    kind = column.type
    if pa.types.is_floating(kind):
        return not pc.all(pc.is_finite(column)).as_py() if len(column) > column.null_count else False
    if pa.types.is_struct(kind):
        return any(_has_non_finite(child) for child in column.flatten())
    if pa.types.is_map(kind):
        return _has_non_finite(column.keys) or _has_non_finite(column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_non_finite(column.flatten())
    return False


def _non_finite(value: Any, path: str) -> str:
    """The path to NaN or an infinity in ``value``; empty where there is none."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else path
    if isinstance(value, dict):
        return next(filter(None, (_non_finite(item, f"{path}.{name}") for name, item in value.items())), "")
    if isinstance(value, (list, tuple)):  # a map is a list of pairs
        return next(filter(None, (_non_finite(item, path) for item in value)), "")
    return ""


def _ends(java: Any) -> dict[tuple[str, int], int]:
    """Offsets by topic and partition, out of a Java map."""
    entries = [(entry.getKey(), entry.getValue()) for entry in list(java.entrySet())]
    return {(str(place.topic()), int(place.partition())): int(end) for place, end in entries}


def _cells(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Lengths, and the bytes of all cells behind each other."""
    cells = column.cast(pa.large_binary()).combine_chunks()
    lengths = _numbers(pc.binary_length(cells), -1)
    _, offsets, data = cells.fill_null(b"").buffers()  # Arrow allows bytes behind a null
    if data is None or not len(cells):
        return lengths, b""
    places = np.frombuffer(offsets, dtype=np.int64)[cells.offset : cells.offset + len(cells) + 1]
    return lengths, memoryview(data)[int(places[0]) : int(places[-1])]


def _numbers(column: Any, null: int = _NULL) -> bytes:
    """Numbers in Java's order of bytes."""
    return np.asarray(column.cast(pa.int64()).fill_null(null)).astype(">i8").tobytes()


def _headers(column: pa.ChunkedArray) -> tuple[Any, ...]:
    """The number of headers of each row, and the keys and values of all."""
    headers = column.cast(HEADERS).combine_chunks()
    keys, values = (pa.chunked_array([column]) for column in headers.flatten().flatten())
    return _numbers(pc.list_value_length(headers), 0), *_cells(keys), *_cells(values)


def milliseconds(times: pa.ChunkedArray) -> pa.Array:
    """Times as Connect has them."""
    return cast_to(times.combine_chunks(), pa.timestamp("ms", tz="UTC")).cast(pa.int64())


def chunks(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    """``rows`` in pieces."""
    for first in range(0, rows.num_rows, size):
        yield rows.slice(first, size)
