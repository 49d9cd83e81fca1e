"""Rows on their way into the JVM: their columns in a file, of which ``RecordReader.java`` makes the records of a sink."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..data import schema_of
from ..errors import ConnectException
from ..host import HEADERS
from ..json_data import JsonWriter, schema_json
from ..tolerance import ERRORS
from .failures import JavaFailure, failure
from .jvm import Jvm
from .steps import Steps

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

    def records(self, rows: pa.Table) -> tuple[Any, list[BadRow]]:
        """The records of ``rows`` as a Java list, and the rows that are none, where errors are tolerated.

        Raises :class:`ConnectException` where they are not.
        """
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
            return out, self._read(reader, steps, rows.num_rows, out)
        finally:
            if self.jvm.is_alive():
                reader.close()
                self.jvm.release(reader)

    def _read(self, reader: Any, steps: Any, count: int, out: Any) -> list[BadRow]:
        at, bad = 0, []
        while at < count:
            at += int(reader.read(count - at, out))
            if at < count:
                thrown = failure(reader.failure(), self.jvm.masked)
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
            converter = self.jvm.instance("org.apache.kafka.connect.json.JsonConverter")
            content = json.dumps(schema_json(schema))
            converter.configure({"schemas.enable": "true", "schema.content": content}, part == "key")
            self._converters[part, kind] = converter
        schema = schema_of(kind)
        data = column.combine_chunks().cast(schema.arrow())
        return pa.chunked_array([JsonWriter(numeric=False, envelope=False).write(schema, data)]), self._converters[part, kind]

    def _java_sizes(self, sizes: Sequence[int]) -> Any:
        java = self.jvm.java.java.util.ArrayList()
        for size in sizes:
            java.add(size)
        return java


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
    """How many headers each row has, and the keys and values of all."""
    headers = column.cast(HEADERS).combine_chunks()
    keys, values = (pa.chunked_array([column]) for column in headers.flatten().flatten())
    return _numbers(pc.list_value_length(headers), 0), *_cells(keys), *_cells(values)


def milliseconds(times: Any) -> Any:
    """Times as Connect has them."""
    return times.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())


def chunks(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    """``rows`` in pieces."""
    for first in range(0, rows.num_rows, size):
        yield rows.slice(first, size)
