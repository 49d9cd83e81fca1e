"""JSON: Arrow's reader for the types that it can read, Python's for the others and for records that Arrow refuses."""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..ground.columns import is_text
from .base import (
    BadRecord,
    Decoded,
    Format,
    FormatSettings,
    decoded_each,
    fields_of,
    present,
    quoted,
    smaller_parts,
    sql_type,
    text_of,
)
from .registry import framed_by
from .text import json_text

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf, "INF": math.inf}
_FRACTION = re.compile(r"(\.\d{6})\d+")
_PLAIN = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{6})?)Z?", re.ASCII)
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_DIGITS, _SCALE = 38, 18
_EPOCH = datetime.datetime(1970, 1, 1)
_PARTS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_ZONE = re.compile(r"[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$")
_Reader = Callable[[Any], Any]


def readable(kind: pa.DataType) -> pa.DataType | None:
    """The type as which Arrow's JSON reader can read ``kind``, to be cast; ``None`` if it cannot."""
    if pa.types.is_struct(kind):
        inner = [(field.name, readable(field.type)) for field in fields_of(kind)]
        return None if any(kind is None for _, kind in inner) else pa.struct(inner)
    if pa.types.is_list(kind):
        item = readable(kind.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_map(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return None
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_decimal(kind):  # Arrow's reader does not count the digits before the point; the cast does
        return pa.decimal256(76, kind.scale)
    known = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_float64, pa.types.is_timestamp)
    return kind if is_text(kind) or any(test(kind) for test in known) else None


def parsed(text: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """The content of a JSON text, with fractions as decimals. Raises ``ValueError`` for what is no JSON.

    ``parse_constant`` makes the values of ``NaN``, ``Infinity`` and ``-Infinity``; default: floats.
    """
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=parse_constant, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except InvalidOperation:
        raise ValueError("a number has an exponent that no decimal has") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has a key twice")
    return fields


def columns_of(records: Sequence[Mapping[str, Any]]) -> str:
    """The columns of parsed records as SQL text.

    A field with values of several kinds is text. Decimals have 38 digits, 18 of them behind the point unless the values need
    others; numbers that need more are text.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    return ", ".join(f"{quoted(name)} {_sql_type_of([record.get(name) for record in records])}" for name in names)


def _sql_type_of(values: Sequence[Any]) -> str:
    try:
        kind = _DECIMAL.sub(_roomy, sql_type(pa.array(values).type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, OverflowError):
        return "string"
    return "string" if "void" in kind or "struct<>" in kind else kind


def _roomy(decimal: re.Match[str]) -> str:
    """A decimal with room for more than a sample has. Raises ``ValueError`` where it would need more than 38 digits."""
    digits, scale = int(decimal[1]), int(decimal[2])
    if digits > _DIGITS:
        raise ValueError("too many digits")
    usual = scale <= _SCALE and digits - scale <= _DIGITS - _SCALE
    return f"decimal({_DIGITS},{_SCALE if usual else scale})"


def reader(kind: pa.DataType, path: str = "") -> _Reader:
    """A function that turns a parsed value into one of ``kind``; its ``ValueError`` names the field and the value."""
    if pa.types.is_struct(kind):
        inner = [(field.name, reader(field.type, _at(path, field.name))) for field in fields_of(kind)]
        return _checked(dict, "an object", path, lambda value: {name: read(value.get(name)) for name, read in inner})
    if pa.types.is_map(kind):
        key, item = partial(_key, kind=kind.key_type), reader(kind.item_type, path)
        return _checked(dict, "an object", path, lambda value: [(key(name), item(inner)) for name, inner in value.items()])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = reader(kind.value_type, path)
        return _checked(list, "a list", path, lambda value: [item(inner) for inner in value])
    return _leaf(kind, path)


def _checked(kind: type, what: str, path: str, read: _Reader) -> _Reader:
    def checked(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not kind:
            raise _wrong(value, what, path)
        return read(value)

    return checked


def _leaf(kind: pa.DataType, path: str) -> _Reader:
    what, read = _leaf_reader(kind)

    def leaf(value: Any) -> Any:
        if value is None:
            return None
        try:
            return read(value)
        except (ValueError, TypeError, InvalidOperation, OverflowError):
            raise _wrong(value, what, path) from None

    return leaf


def _leaf_reader(kind: pa.DataType) -> tuple[str, _Reader]:
    if pa.types.is_boolean(kind):
        return "true or false", lambda value: _of(value, bool)
    if pa.types.is_integer(kind):
        return f"a whole number ({kind})", _whole(kind)
    if pa.types.is_float32(kind):
        return "a number that fits a float", lambda value: struct.unpack("<f", struct.pack("<f", _float(value)))[0]
    if pa.types.is_floating(kind):
        return "a number", _float
    if pa.types.is_decimal(kind):
        return f"a number that fits {kind}", lambda value: pa.scalar(_decimal(value), kind).as_py()
    if pa.types.is_timestamp(kind):
        return "a timestamp such as 2024-01-31T12:00:00Z", lambda value: _timestamp(value, kind)
    if pa.types.is_date(kind):
        return "a date such as 2024-01-31", lambda value: pa.scalar(_of(value, str)).cast(kind).value
    if pa.types.is_time(kind):
        return "a time such as 12:00:00", lambda value: _time(_of(value, str))
    if pa.types.is_duration(kind):
        return "a number of seconds", lambda value: int(_decimal(value) * _PARTS[kind.unit])
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "base64", lambda value: _base64(_of(value, str))
    return "text", lambda value: _text(_of(value, str))


def _of(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError
    return value


def _text(value: str) -> str:
    value.encode()  # a surrogate without its other half is no text
    return value


def _float(value: Any) -> float:
    if isinstance(value, str):
        if value not in _WORDS:
            raise ValueError
        return _WORDS[value]
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError
    read = float(value)
    if math.isinf(read) and not isinstance(value, float):
        raise ValueError
    return read


def _decimal(value: Any) -> Decimal:
    if isinstance(value, (bool, float)):
        raise ValueError
    return Decimal(value)


def _timestamp(value: Any, kind: pa.DataType) -> int:
    if type(value) is int:
        return int(pa.scalar(value, pa.timestamp("s")).cast(pa.timestamp("us")).value)
    text = _FRACTION.sub(r"\1", _of(value, str))
    if kind.unit == "us" and (plain := _PLAIN.fullmatch(text)):  # most are; Arrow takes ten times as long for one value
        with contextlib.suppress(ValueError):
            return (datetime.datetime.fromisoformat(plain[1]) - _EPOCH) // datetime.timedelta(microseconds=1)
    zone = "UTC" if _ZONE.search(text) else None  # one without a zone is in UTC, as Arrow's reader has it
    return int(pc.cast(pa.scalar(text), pa.timestamp(kind.unit, zone)).value)


def _time(text: str) -> Any:
    moment = pa.scalar(_FRACTION.sub(r"\1", f"1970-01-01T{text}"))  # Arrow reads no time of the day by itself
    return moment.cast(pa.timestamp("us")).cast(pa.time64("us")).as_py()


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError from None


def _whole(kind: pa.DataType) -> _Reader:
    most = 2 ** (kind.bit_width - 1) - 1
    least = -most - 1
    if pa.types.is_unsigned_integer(kind):
        least, most = 0, 2 * most + 1

    def whole(value: Any) -> Any:
        if type(value) is not int or not least <= value <= most:
            raise ValueError
        return value

    return whole


def _key(key: str, kind: pa.DataType) -> Any:
    if is_text(kind):
        return _text(key)
    if pa.types.is_time(kind):
        return _time(key)
    return _base64(key) if pa.types.is_binary(kind) else pa.scalar(key).cast(kind).as_py()


def _wrong(value: Any, what: str, path: str) -> ValueError:
    got = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    return ValueError(f"field {path}: must be {what}; got {got}" if path else f"must be {what}; got {got}")


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_ROW = re.compile(r" in row (\d+)")
_BLOCK = 1024  # records of a part: a bad record slows down only the part that it is in
_MANY = 16  # bad records of a part, after which Python reads the rest of it


class JsonFormat(Format):
    """One JSON object a record, read as a struct. Missing fields are null; fields that the schema lacks are passed over.

    Types are read as Spark's ``from_json`` reads them: timestamps and dates in ISO form (a timestamp also as a number of
    seconds), decimals as numbers or text, binary as base64, ``"NaN"`` and ``"Infinity"``. What does not fit its column is
    a bad record, and never a null: also a fraction in a ``long``, digits that a decimal has no room for, text for a
    number and a number for text. Columns with maps, binary or times of day are read by Python, which is slower. ``encode``
    leaves out fields that are null; :mod:`~connectors.formats.text` says how it writes the others.
    """

    name = "json"
    needs_schema = True

    def __init__(self, kind: pa.DataType, settings: FormatSettings | None = None) -> None:
        super().__init__(kind, settings)
        self._reads = readable(kind)
        self._schema = pa.schema(fields_of(self._reads)) if self._reads is not None else None
        self._value = reader(kind)
        self._framing = framed_by(self.settings)

    def decode(self, records: pa.Array) -> Decoded:
        if self._framing is None:
            return present(self._decode, records)
        return self._framing.decode(records, lambda number, payloads: present(self._decode, payloads), self.kind)

    def encode(self, values: pa.Array) -> pa.Array:
        bodies = json_text(values, nulls=False).cast(pa.binary())
        return bodies if self._framing is None else self._framing.encode(bodies, json_schema(self.kind), "JSON")

    def _decode(self, records: pa.Array) -> Decoded:
        if self._schema is None:
            return decoded_each(records, self._by_python, self.kind)
        wrong = _no_objects(records)
        if not wrong.any():
            return self._objects(records)
        keep = np.flatnonzero(~wrong)
        decoded = self._objects(records.take(pa.array(keep)))
        bad = [replace(record, index=int(keep[record.index])) for record in decoded.bad]
        for index in np.flatnonzero(wrong).tolist():
            bad.append(_no_object(index, records[index].as_py()))
        places = np.cumsum(~wrong) - 1
        values = decoded.values.take(pa.array(places, mask=wrong))
        return Decoded(values, sorted(bad, key=lambda record: record.index))

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
                pieces += [self._single(records[at : at + 1], at, bad) for at in range(first, end)]
                continue
            try:
                pieces.append(self._read(records[first:end]))
            except (pa.ArrowInvalid, ValueError) as error:
                todo += reversed(smaller_parts(first, end, _row(error)))
        return pa.concat_arrays(pieces)

    def _single(self, record: pa.Array, at: int, bad: list[BadRecord]) -> pa.Array:
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
        return read if self._reads == self.kind else read.cast(self.kind)


def json_schema(kind: pa.DataType) -> str:
    """The schema that a registry keeps for JSON: an object with the fields of ``kind`` as its properties."""
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
