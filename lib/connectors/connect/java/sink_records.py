"""Rows on their way into the JVM: files of cells, of which the JVM makes the records of a sink.

Lengths go into one file, the cells of a row behind each other into another one. A chain of method handles reads a row, converts
key and value, applies the transforms, and adds the record to a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError

from ..data import schema_of
from ..json_data import JsonWriter, schema_json
from ..tolerance import ERRORS
from .failures import JavaFailure, failure_of
from .handles import Handles
from .steps import Steps

_CELLS: Final = ("timestamp", "offset", "value", "key", "partition", "topic")
"""The order in the file: handles read the last argument first."""
_BUFFER: Final = 1 << 16


@dataclass(frozen=True)
class BadRow:
    """A row that is no record: its ``place`` among the rows, and what failed at which ``stage``."""

    place: int
    stage: str
    executing_class: str
    failure: JavaFailure


class RecordReader:
    """Makes Java lists of ``SinkRecord`` of rows."""

    def __init__(self, handles: Handles, properties: Mapping[str, str], folder: Path) -> None:
        self.handles, self.properties, self.folder = handles, properties, folder
        self.steps = Steps(handles, properties)
        errors = ERRORS.parse({key: value for key, value in properties.items() if key in ERRORS.keys})
        self.tolerates = errors["errors.tolerance"] == "all"
        self.done = handles.java.java.util.concurrent.atomic.AtomicLongArray(1)
        self._converters: dict[tuple[str, pa.DataType], Any] = {}
        self._number = 0

    def records(self, rows: pa.Table) -> tuple[Any, list[BadRow]]:
        """The records of ``rows`` as a Java list, and the rows that are none, where errors are tolerated.

        Raises :class:`Py4JJavaError` where they are not.
        """
        out, bad = self.handles.java.java.util.ArrayList(), []
        (key, key_converter), (value, value_converter) = self._side(rows, "key"), self._side(rows, "value")
        columns = {
            **{name: rows[name].cast(pa.string()).cast(pa.binary()) for name in ("topic", "partition", "offset")},
            "timestamp": milliseconds(rows["timestamp"]).cast(pa.string()).cast(pa.binary()),
            "key": key,
            "value": value,
        }
        with self._file([columns[name] for name in _CELLS]) as file:
            loop = self._loop(file, key_converter, value_converter, out)
            at = 0
            while at < rows.num_rows:
                self.done.set(0, 0)
                try:
                    loop.apply(rows.num_rows - at)
                    break
                except Py4JJavaError as error:
                    at += int(self.done.get(0))
                    if not self.tolerates:
                        raise
                    thrown = failure_of(error, self.handles.jvm.masked)
                    bad.append(BadRow(at, *self._place(rows, at, key_converter, value_converter), thrown))
                    at += 1
        return out, bad

    def _side(self, rows: pa.Table, part: str) -> tuple[pa.ChunkedArray, Any]:
        """The bytes of a key or value and what converts them. Rows with types of their own bring their schema."""
        column = rows[part]
        kind = column.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_string(kind) or pa.types.is_null(kind):
            return column.cast(pa.binary()), self.steps.converters[part]
        if (part, kind) not in self._converters:
            schema = schema_of(kind)
            converter = self.handles.instance("org.apache.kafka.connect.json.JsonConverter")
            content = json.dumps(schema_json(schema))
            converter.configure({"schemas.enable": "true", "schema.content": content}, part == "key")
            self._converters[part, kind] = converter
        schema = schema_of(kind)
        data = column.combine_chunks().cast(schema.arrow())
        return pa.chunked_array([JsonWriter(numeric=False, envelope=False).write(schema, data)]), self._converters[part, kind]

    def _file(self, columns: list[pa.ChunkedArray]) -> _CellFile:
        self._number += 1
        return _CellFile(self.handles, self.folder / f"rows-{self._number}", columns)

    def _loop(self, file: _CellFile, key_converter: Any, value_converter: Any, out: Any) -> Any:
        """A function of n that adds the records of the next n rows to ``out``."""
        handles = self.handles
        add = handles.cast(handles.bound(out, "List", "add", "bool", "Object"), "void", "Record")
        record = handles.cast(self._record(file.cell(), key_converter, value_converter), "Record")
        count = handles.bound(self.done, "Longs", "getAndIncrement", "long", "int")
        count = handles.cast(handles.make.insertArguments(count, 0, handles.objects(0)), "void")
        done = handles.make.dropArguments(count, 0, handles.class_array(handles["Record"]))
        whole = handles.chain(self.steps.transformed(), handles.unless_null(add, "Record"))
        body = handles.make.collectArguments(handles.in_turn([whole, done]), 0, record)
        body = handles.make.dropArguments(body, 0, handles.class_array(handles["int"], handles["int"]))
        loop = handles.make.countedLoop(handles.make.identity(handles["int"]), None, body)
        return handles.implement("Function", handles.cast(loop, "Object", "Object"))

    def _record(self, cell: Any, key_converter: Any, value_converter: Any) -> Any:
        """A handle without arguments that reads a row and makes its record."""
        handles, make = self.handles, self.handles.make
        arguments = ("String", "int", "Schema", "Object", "Schema", "Object", "long", "Long", "TimestampType")
        whole = handles.constructor("SinkRecord", *arguments)
        kind = handles.java.org.apache.kafka.common.record.TimestampType.CREATE_TIME
        whole = make.insertArguments(whole, 8, handles.objects(kind))
        schema = handles.method("SchemaAndValue", "schema", "Schema")
        value = handles.method("SchemaAndValue", "value", "Object")
        whole = make.filterArguments(whole, 2, handles.handles(schema, value, schema, value))
        pair, text = handles["SchemaAndValue"], handles["String"]
        long, boxed = handles["long"], handles["Long"]
        kinds = handles.class_array(text, handles["int"], pair, pair, long, boxed)
        whole = make.permuteArguments(
            whole, handles.types.methodType(handles["SinkRecord"], kinds), handles.ints(0, 1, 2, 2, 3, 3, 4, 5)
        )
        # topic, partition, topic and key, topic and value, offset, timestamp
        for place, converter in ((3, value_converter), (2, key_converter)):
            convert = handles.bound(converter, "Converter", "toConnectData", "SchemaAndValue", "String", "Bytes")
            whole = make.collectArguments(whole, place, convert)
        number = handles.chain(handles.utf8_text(), handles.static("java.lang.Integer", "parseInt", "int", "String"))
        large = handles.chain(handles.utf8_text(), handles.static("java.lang.Long", "parseLong", "long", "String"))
        boxed_number = handles.chain(handles.utf8_text(), handles.static("java.lang.Long", "valueOf", "Long", "String"))
        whole = make.filterArguments(whole, 6, handles.handles(large, handles.unless_null(boxed_number, "Bytes")))
        whole = make.filterArguments(whole, 1, handles.handles(number))
        bytes_, string = handles["Bytes"], handles["String"]
        kinds = handles.class_array(string, bytes_, bytes_, bytes_, bytes_, bytes_)
        whole = make.permuteArguments(
            whole, handles.types.methodType(handles["SinkRecord"], kinds), handles.ints(0, 1, 0, 2, 0, 3, 4, 5)
        )
        whole = make.filterArguments(whole, 0, handles.handles(handles.utf8_text()))
        for _ in range(len(_CELLS)):
            whole = make.foldArguments(whole, cell)
        return whole

    def _place(self, rows: pa.Table, at: int, key_converter: Any, value_converter: Any) -> tuple[str, str]:
        """The stage at which the row fails, in Connect's words, and the class that runs there."""
        row = rows.slice(at, 1)
        topic = row["topic"][0].as_py()
        for part, converter in (("key", key_converter), ("value", value_converter)):
            try:
                converter.toConnectData(topic, self._side(row, part)[0][0].as_py())
            except Py4JJavaError:
                return f"{part.upper()}_CONVERTER", str(converter.getClass().getName())
        failing = self.steps.transforms[-1] if self.steps.transforms else None
        return "TRANSFORMATION", failing.class_name() if failing else ""


class _CellFile:
    """The cells of rows in two files, open in the JVM."""

    def __init__(self, handles: Handles, path: Path, columns: list[pa.ChunkedArray]) -> None:
        self.handles = handles
        count = len(columns[0])
        flat = pa.concat_arrays([column.combine_chunks().cast(pa.large_binary()) for column in columns])
        order = np.arange(count * len(columns)).reshape(len(columns), count).T.ravel()
        cells = flat.take(pa.array(order))
        lengths = np.array(pc.binary_length(cells).fill_null(-1), dtype=">i4")
        self._paths = [path.with_suffix(".data"), path.with_suffix(".lengths")]
        self._paths[0].write_bytes(_content(cells))
        self._paths[1].write_bytes(lengths.tobytes())
        io = handles.java.java.io
        self._streams = [
            io.DataInputStream(io.BufferedInputStream(io.FileInputStream(str(file)), _BUFFER)) for file in self._paths
        ]

    def cell(self) -> Any:
        """A handle without arguments that reads the next cell."""
        handles = self.handles
        data, lengths = self._streams
        read = handles.bound(data, "DataInput", "readNBytes", "Bytes", "int")
        equals = handles.static("java.util.Objects", "equals", "bool", "Object", "Object")
        is_null = handles.cast(handles.make.insertArguments(equals, 0, handles.objects(-1)), "bool", "int")
        cell = handles.make.guardWithTest(is_null, handles.make.empty(read.type()), read)
        return handles.make.collectArguments(cell, 0, handles.bound(lengths, "DataInput", "readInt", "int"))

    def __enter__(self) -> _CellFile:
        return self

    def __exit__(self, *error: object) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)
        if self.handles.jvm.is_alive():
            for stream in self._streams:
                stream.close()


def _content(cells: pa.Array) -> memoryview | bytes:
    """The bytes of all cells behind each other."""
    _, offsets, data = cells.buffers()
    if data is None:
        return b""
    places = np.frombuffer(offsets, dtype=np.int64)[cells.offset : cells.offset + len(cells) + 1]
    return memoryview(data)[int(places[0]) : int(places[-1])]


def milliseconds(times: Any) -> Any:
    """Times as Connect has them."""
    return times.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())


def chunks(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    """``rows`` in pieces."""
    for first in range(0, rows.num_rows, size):
        yield rows.slice(first, size)
