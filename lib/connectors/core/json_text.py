"""JSON of Arrow columns, a whole column at a time, in the form of Spark's JSON writer.

Fields that are null are left out of an object; nulls in arrays and maps stay. NaN and infinities are strings, decimals
numbers, binary is base64, a map is an object whose keys are the texts of Spark's internal values: a date is its number of
days since 1970, a timestamp its microseconds, a time its nanoseconds.
"""

from __future__ import annotations

import base64
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from .cell_text import text_of

_SHORT: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_LARGEST: Final = 64 << 20
"""So many bytes of rows become text at a time: Arrow's strings have room for 2 GB."""


def json_lines(rows: pa.RecordBatch) -> list[bytes]:
    """One JSON object a row, each ended by a newline, as UTF-8; in pieces, which follow each other."""
    if rows.nbytes > _LARGEST and rows.num_rows > 1:
        middle = rows.num_rows // 2
        return [*json_lines(rows.slice(0, middle)), *json_lines(rows.slice(middle))]
    lines = pc.binary_join_element_wise(_object(rows.schema.names, rows.columns, rows.num_rows), "\n", "")
    return [content_of(lines)]


def to_json_lines(batch: pa.RecordBatch) -> bytes:
    """One JSON object a row, each ended by a newline, in the form of Spark's JSON writer."""
    return b"".join(json_lines(batch))


def content_of(texts: pa.Array) -> bytes:
    """The bytes of all ``texts``, one after the other."""
    _, ends, content = texts.buffers()
    if content is None or not len(texts):
        return b""
    places = np.frombuffer(ends, np.int32)[texts.offset :]
    return bytes(memoryview(content)[int(places[0]) : int(places[len(texts)])])


def json_text(column: pa.Array) -> pa.Array:
    """The values of ``column`` as JSON; null stays null."""
    kind = column.type
    if types.is_struct(kind):
        return _present(column, _object([field.name for field in kind], column.flatten(), len(column)))
    if types.is_map(kind):
        first, last, lengths = _ends(column)
        keys = pc.binary_join_element_wise(quoted(_keys(column.keys[first:last])), ":", "")
        items = pc.fill_null(json_text(column.items[first:last]), "null")
        return _collected(column, pc.binary_join_element_wise(keys, items, ""), lengths, "{", "}")
    if types.is_list(kind) or types.is_large_list(kind):
        first, last, lengths = _ends(column)
        items = pc.fill_null(json_text(column.values[first:last]), "null")
        return _collected(column, items, lengths, "[", "]")
    return _leaf(column)


def quoted(texts: pa.Array) -> pa.Array:
    """Strings of JSON, with those signs escaped that must be."""
    if pc.any(pc.match_substring_regex(texts, r'["\\\x00-\x1f]')).as_py():
        texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
        if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
            for sign in map(chr, range(32)):
                texts = pc.replace_substring(texts, sign, _SHORT.get(sign, f"\\u{ord(sign):04X}"))
    return pc.binary_join_element_wise('"', texts, '"', "")


def _leaf(column: pa.Array) -> pa.Array:
    kind = column.type
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        cells = column.to_pylist()
        return pa.array([None if cell is None else f'"{base64.b64encode(cell).decode()}"' for cell in cells], pa.string())
    if types.is_duration(kind):
        return text_of(pc.divide(column.cast(pa.int64()).cast(pa.float64()), _per_second(kind.unit)))
    texts = text_of(column)
    if types.is_floating(kind):
        finite = pc.is_finite(column)
        return texts if pc.all(finite).as_py() in (None, True) else pc.if_else(finite, texts, quoted(texts))
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_decimal(kind) or types.is_null(kind):
        return texts
    return quoted(texts) if _needs_escapes(kind) else pc.binary_join_element_wise('"', texts, '"', "")


def _needs_escapes(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _per_second(unit: str) -> float:
    return {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]


def _object(names: list[str], columns: list[pa.Array], count: int) -> pa.Array:
    if not columns:
        return pa.array(["{}"] * count, pa.string())
    keys = quoted(pa.array(names, pa.string())).to_pylist()
    fields = [
        pc.binary_join_element_wise(f"{key}:", json_text(column), "") for key, column in zip(keys, columns, strict=True)
    ]
    return pc.binary_join_element_wise("{", _joined(fields), "}", "")


def _joined(fields: list[pa.Array]) -> pa.Array:
    """The fields of each row that are not null, with commas between them."""
    if all(field.null_count for field in fields):  # Arrow leaves out a row without any
        absent = reduce(pc.and_, (field.is_null() for field in fields))
        fields = [pc.if_else(absent, "", fields[0]), *fields[1:]]
    return pc.binary_join_element_wise(*fields, ",", null_handling="skip") if len(fields) > 1 else fields[0]


def _keys(keys: pa.Array) -> pa.Array:
    """The keys of a map as text."""
    kind = keys.type
    if types.is_date32(kind):
        return keys.cast(pa.int32()).cast(pa.string())
    if types.is_timestamp(kind) or types.is_time64(kind) or types.is_duration(kind):
        return keys.cast(pa.int64()).cast(pa.string())
    return json_text(keys) if types.is_nested(kind) or types.is_binary(kind) else text_of(keys)


def _ends(column: pa.Array) -> tuple[int, int, pa.Array]:
    """Where the items of ``column`` begin and end, and the offsets of each value from there."""
    places = column.offsets.to_numpy()
    first, last = int(places[0]), int(places[-1])
    return first, last, pa.array((places - first).astype(np.int32))


def _collected(column: pa.Array, items: pa.Array, places: pa.Array, opening: str, closing: str) -> pa.Array:
    joined = pc.binary_join(pa.ListArray.from_arrays(places, items), ",")
    return _present(column, pc.binary_join_element_wise(opening, joined, closing, ""))


def _present(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), texts, None) if column.null_count else texts
