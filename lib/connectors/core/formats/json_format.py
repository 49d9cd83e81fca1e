"""JSON: Arrow's reader for what it can read, Python's for the rest and for records that Arrow refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .base import BadRecord, Decoded, Format, Settings, around, fields_of, one_by_one, present
from .json_values import parsed, readable, reader, refined, to_text
from .plain import text_of
from .registry import framed_by

_ROW = re.compile(r" in row (\d+)")
_BLOCK = 1024  # a column with bad records is read in parts of so many, so that they cost no more than their neighbours
_MANY = 16  # so many records of a part that Arrow refuses, and Python reads the rest of it


class JsonFormat(Format):
    """One JSON object a record, read as a struct. Missing fields are null; fields that the schema lacks are passed over.

    Types are read as Spark's ``from_json`` reads them: timestamps and dates in ISO form (a timestamp also as a number of
    seconds), decimals as numbers or text, binary as base64, ``"NaN"`` and ``"Infinity"``. What does not fit its column is
    a bad record, and never a null: also a fraction in a ``long``, digits that a decimal has no room for, text for a
    number and a number for text. Columns with maps or binary are read by Python, which is slower. ``encode`` leaves out
    fields that are null, as ``to_json`` does, but keeps microseconds.
    """

    name = "json"
    needs_schema = True

    def __init__(self, kind: pa.DataType, settings: Settings | None = None) -> None:
        super().__init__(kind, settings)
        self._reads = readable(kind)
        self._schema = pa.schema(fields_of(self._reads)) if self._reads is not None else None
        self._value = reader(kind)
        self._write = to_text(kind)
        self._framing = framed_by(self.settings)

    def decode(self, records: pa.Array) -> Decoded:
        if self._framing is None:
            return present(self._decode, records)
        return self._framing.decode(records, lambda number, payloads: present(self._decode, payloads), self.kind)

    def encode(self, values: pa.Array) -> pa.Array:
        bodies = pa.array(
            [None if value is None else self._write(value).encode() for value in refined(values).to_pylist()],
            pa.binary(),
        )
        return bodies if self._framing is None else self._framing.encode(bodies, json_schema(self.kind), "JSON")

    def _decode(self, records: pa.Array) -> Decoded:
        if self._schema is None:
            return one_by_one(records, self._by_python, self.kind)
        wrong = _no_objects(records)
        if not wrong.any():
            return self._objects(records)
        keep = np.flatnonzero(~wrong)
        decoded = self._objects(records.take(pa.array(keep)))
        bad = [replace(one, index=int(keep[one.index])) for one in decoded.bad]
        for index in np.flatnonzero(wrong).tolist():
            bad.append(_no_object(index, records[index].as_py()))
        places = np.cumsum(~wrong) - 1
        values = decoded.values.take(pa.array(places, mask=wrong))
        return Decoded(values, sorted(bad, key=lambda one: one.index))

    def _objects(self, records: pa.Array) -> Decoded:
        """The structs of ``records``, each of which begins with { and ends with }."""
        if not len(records):
            return Decoded(pa.nulls(0, self.kind))
        try:
            return Decoded(self._read(records))
        except (pa.ArrowInvalid, ValueError):
            bad: list[BadRecord] = []
            starts = range(0, len(records), _BLOCK)
            blocks = [self._block(records, first, min(first + _BLOCK, len(records)), bad) for first in starts]
            return Decoded(pa.concat_arrays(blocks), bad)

    def _block(self, records: pa.Array, first: int, end: int, bad: list[BadRecord]) -> pa.Array:
        """A part of ``records`` that may hold bad ones, cut down to these."""
        pieces: list[pa.Array] = []
        todo, single = [(first, end)], 0
        while todo:
            first, end = todo.pop()
            if end - first == 1 or single >= _MANY:
                single += 1
                pieces += [self._one(records[at : at + 1], at, bad) for at in range(first, end)]
                continue
            try:
                pieces.append(self._read(records[first:end]))
            except (pa.ArrowInvalid, ValueError) as error:
                todo += reversed(around(first, end, _row(error)))
        return pa.concat_arrays(pieces)

    def _one(self, record: pa.Array, at: int, bad: list[BadRecord]) -> pa.Array:
        try:
            return pa.array([self._by_python(record[0].as_py())], self.kind)
        except (ValueError, OverflowError) as error:
            if str(error).startswith("field "):  # a value that Arrow refuses too
                bad.append(BadRecord(at, str(error), type(error).__name__))
                return pa.nulls(1, self.kind)
            try:
                return self._read(record)  # which reads deeper nesting
            except (pa.ArrowInvalid, ValueError):
                bad.append(BadRecord(at, str(error), type(error).__name__))
                return pa.nulls(1, self.kind)

    def _by_python(self, record: bytes) -> object:
        return self._value(parsed(text_of(record)))

    def _read(self, records: pa.Array) -> pa.Array:
        import pyarrow.json as arrow_json

        whole = pa.ListArray.from_arrays(pa.array([0, len(records)], pa.int32()), records)
        text = pc.binary_join(whole, b"\n").buffers()[2]
        table = arrow_json.read_json(
            pa.BufferReader(text),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(records):
            raise ValueError("not one JSON object")
        columns = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table.columns]
        read = pa.StructArray.from_arrays(columns, fields=fields_of(self._reads))
        return read if self._reads == self.kind else refined(read, self.kind)


def json_schema(kind: pa.DataType) -> str:
    """What a registry keeps for JSON: that it is an object with these properties."""
    import json

    return json.dumps({"type": "object", "properties": {field.name: {} for field in fields_of(kind)}})



def _no_objects(records: pa.Array) -> npt.NDArray[np.bool_]:
    """True for records that are not UTF-8 or do not begin with { and end with }.

    Arrow reads values across line ends, and does not look at the bytes of text. If each record begins with { and ends
    with }, no value can cross the line end between two of them, and as many values as records are one for each.
    """
    offsets = np.frombuffer(records.buffers()[1], np.int32)[records.offset : records.offset + len(records) + 1]
    body = records.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(1, np.uint8)
    last = len(data) - 1
    wrong = (data[np.minimum(offsets[:-1], last)] != ord("{")) | (data[np.maximum(offsets[1:] - 1, 0)] != ord("}"))
    wrong |= np.diff(offsets) < 2
    try:
        texts = records.cast(pa.string())
    except pa.ArrowInvalid:
        texts = None
    for index in np.flatnonzero(wrong).tolist() if texts is not None else range(len(records)):
        wrong[index] = _why_no_object(records[index].as_py()) != ""
    return np.asarray(wrong, dtype=np.bool_)


def _why_no_object(record: bytes) -> str:
    try:
        text = text_of(record).strip(" \t\r\n")
    except ValueError as error:
        return str(error)
    return "" if len(text) > 1 and text[0] == "{" and text[-1] == "}" else "not a JSON object"


def _no_object(index: int, record: bytes) -> BadRecord:
    """A record that :func:`_why_no_object` refuses, with the class of the error that a parser raises for it."""
    kind = "ValueError"  # JSON, but no object
    try:
        parsed(text_of(record))
    except ValueError as error:
        kind = type(error).__name__
    return BadRecord(index, _why_no_object(record), kind)


def _row(error: Exception) -> int | None:
    """The row that Arrow names, counted from 0."""
    named = _ROW.search(str(error))
    return int(named[1]) if named else None
