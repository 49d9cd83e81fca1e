"""The one writer of text and JSON: Arrow columns, a whole column at a time.

==================  =======================================================================================
float, double       the fewest digits, as Java writes them: ``1.0``, ``0.001``, ``9.99E-4``, ``1.0E7``, ``NaN``, ``-Infinity``
decimal             every digit of its scale, without an exponent: ``1.50``, ``0.00000000``
date                ``2025-01-31``, ``-0044-03-15``, ``+12345-06-07``
timestamp           in UTC, with microseconds: ``2025-01-31T12:00:00.123456Z``
timestamp_ntz       the same without the ``Z``
time                ``13:00:00``, with a fraction of up to six digits if there is one
interval            a number of seconds, with microseconds: ``90.000000``
boolean, integers   ``true``, ``-1``
==================  =======================================================================================

In JSON, null fields of an object stay or are left out; nulls in arrays and maps stay. NaN and infinities are strings, decimals
numbers, binary is base64. A map is an object whose keys are these texts.
"""

from __future__ import annotations

import base64
import re
from decimal import Decimal
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ..ground.columns import is_binary, is_text
from ..ground.errors import Misconfigured, Problem

Numbers = npt.NDArray[np.int64]

_PARTS: Final = r"(?P<sign>-?)(?P<whole>\d+)(?:\.(?P<fraction>\d*))?(?:e(?P<power>[+-]?\d+))?"
_SURROGATE: Final = re.compile(b"\xed[\xa0-\xbf][\x80-\xbf]")
_YEAR: Final = re.compile(r"([+-]?)(\d+)(.*)", re.DOTALL)


def text_of(column: pa.Array) -> pa.Array:
    """The values of ``column`` as strings; null stays null. Raises :class:`Misconfigured` for a type without a text."""
    kind = column.type
    if is_text(kind):
        return valid_text(column.cast(pa.string()))
    if is_binary(kind) or types.is_fixed_size_binary(kind):
        cells = column.to_pylist()
        return pa.array([None if cell is None else base64.b64encode(cell).decode() for cell in cells], pa.string())
    if types.is_floating(kind):
        return _float_text(column)
    if types.is_timestamp(kind):
        return _timestamp_text(column)
    if types.is_date(kind):
        return _date_text(column)
    if types.is_time(kind):
        text = column.cast(pa.time64("us"), safe=False).cast(pa.string())
        return pc.utf8_rtrim(pc.utf8_rtrim(text, characters="0"), characters=".")
    if types.is_decimal(kind):
        return _decimal_text(column.cast(pa.string()))
    if types.is_duration(kind):
        whole = column.cast(pa.int64()).cast(pa.decimal128(19, 0))
        return _decimal_text(whole.view(pa.decimal128(19, _DIGITS[kind.unit])).cast(pa.string()))
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind):
        return column.cast(pa.string())
    raise Misconfigured("connectors", [Problem("schema", f"values of the type {kind} have no text; cast them to string.")])


def valid_text(column: pa.Array) -> pa.Array:
    """Text with U+FFFD for what is no UTF-8, as Java reads it; Spark's strings may hold any bytes."""
    try:
        column.validate(full=True)
        return column
    except pa.ArrowInvalid:
        cells = column.cast(pa.binary()).to_pylist()
        return pa.array([None if cell is None else _decoded(cell) for cell in cells], pa.string())


def _decoded(cell: bytes) -> str:
    return _SURROGATE.sub("�".encode(), cell).decode(errors="replace")


def _decimal_text(texts: pa.Array) -> pa.Array:
    odd = pc.fill_null(pc.match_substring(texts, "E"), False)
    if not pc.any(odd).as_py():
        return texts
    return pc.replace_with_mask(texts, odd, pa.array([format(Decimal(text), "f") for text in texts.filter(odd).to_pylist()]))


def _float_text(column: pa.Array) -> pa.Array:
    """Arrow's digits, which are the fewest, in Java's form."""
    text = column.cast(pa.string())
    numbers = column.fill_null(1.0).to_numpy(zero_copy_only=False)
    size = np.abs(numbers)
    whole = np.isfinite(size) & (np.floor(size) == size) & (size < 1e7)
    if whole.any():
        text = pc.if_else(pa.array(whole), pc.binary_join_element_wise(text, ".0", ""), text)
    odd = ~((size >= 1e-3) & (size < 1e7) | (size == 0))
    return _replaced(text, odd, _odd_floats(text.filter(pa.array(odd)), numbers[odd])) if odd.any() else text


def _odd_floats(text: pa.Array, numbers: npt.NDArray[Any]) -> pa.Array:
    parts = pc.extract_regex(text, _PARTS)
    finite = np.isfinite(numbers)
    sign, whole, fraction, power = (pc.struct_field(parts, name) for name in ("sign", "whole", "fraction", "power"))
    digits = pc.binary_join_element_wise(whole, fraction, "")
    first = pc.utf8_ltrim(digits, characters="0")
    leading = pc.subtract(pc.binary_length(digits), pc.binary_length(first))
    exponent = pc.if_else(pc.equal(power, ""), "0", pc.replace_substring(power, "+", "")).cast(pa.int32())
    exponent = pc.subtract(pc.add(exponent, pc.binary_length(whole)), pc.add(leading, 1)).cast(pa.string())
    rest = pc.utf8_rtrim(pc.utf8_slice_codeunits(first, 1), characters="0")
    rest = pc.if_else(pc.equal(rest, ""), "0", rest)
    start = pc.binary_join_element_wise(sign, pc.utf8_slice_codeunits(first, 0, 1), "")
    text = pc.binary_join_element_wise(start, ".", rest, "E", exponent, "")
    tiny = finite & (np.abs(numbers) < (1e-43 if numbers.dtype == np.float32 else 1e-321))
    text = _replaced(text, tiny, pa.array([_tiny(number) for number in numbers[tiny]], pa.string()))
    return _replaced(text, ~finite, pa.array([_word(number) for number in numbers[~finite]], pa.string()))


def _tiny(number: Any) -> str:
    """Java writes two digits at least, and of those the nearest ones: 4.9E-324."""
    near = f"{number:.1e}"
    text = near if type(number)(near) == number else np.format_float_scientific(number, trim="0")
    mantissa, exponent = text.split("e")
    return f"{mantissa}E{int(exponent)}"


def _word(number: float) -> str:
    return "NaN" if np.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _timestamp_text(column: pa.Array) -> pa.Array:
    times = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64()).fill_null(0).to_numpy()
    text = _iso(times, "us")
    if column.type.tz:
        text = pc.binary_join_element_wise(text, "Z", "")
    return pc.if_else(column.is_valid(), text, None) if column.null_count else text


def _date_text(column: pa.Array) -> pa.Array:
    text = _iso(column.cast(pa.date32()).cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64), "D")
    return pc.if_else(column.is_valid(), text, None) if column.null_count else text


def _iso(counts: Numbers, unit: str) -> pa.Array:
    """Days or microseconds since 1970 as text; years that have no four digits are signed."""
    first, last = (np.datetime64(day).astype(f"datetime64[{unit}]").astype(np.int64) for day in ("0000-01-01", "10000-01-01"))
    odd = (counts < first) | (counts >= last)
    plain = np.where(odd, 0, counts)
    kind = pa.timestamp("us") if unit == "us" else pa.date32()
    text = pa.array(plain if unit == "us" else plain.astype(np.int32)).cast(kind).cast(pa.string())
    if unit == "us":
        text = pc.binary_replace_slice(text, 10, 11, "T")
    if not odd.any():
        return text
    far = np.datetime_as_string(counts[odd].astype(f"datetime64[{unit}]"))
    return _replaced(text, odd, pa.array([_signed(year) for year in far.tolist()], pa.string()))


def _signed(text: str) -> str:
    """Numpy's ``-044-03-15`` and ``12345-06-07`` as Java has them."""
    sign, year, rest = _YEAR.fullmatch(text).groups()  # type: ignore[union-attr]
    return f"{sign or '+'}{int(year):04d}{rest}"


def _replaced(text: pa.Array, mask: npt.NDArray[np.bool_], texts: pa.Array) -> pa.Array:
    return pc.replace_with_mask(text, pa.array(mask), texts) if len(texts) else text


_BARE: Final = (types.is_integer, types.is_boolean, types.is_decimal, types.is_duration, types.is_null)
"""Types whose text is JSON."""
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Digits of a second's fraction."""
_SHORT: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_LARGEST: Final = 64 << 20
"""So many bytes of rows become text at a time: Arrow's strings have room for 2 GB."""


def json_lines(rows: pa.RecordBatch) -> list[bytes]:
    """One JSON object a row, without its nulls, each ended by a newline, as UTF-8; in pieces, which follow each other."""
    if rows.nbytes > _LARGEST and rows.num_rows > 1:
        middle = rows.num_rows // 2
        return [*json_lines(rows.slice(0, middle)), *json_lines(rows.slice(middle))]
    return [content_of(pc.binary_join_element_wise(json_objects(rows, nulls=False), "\n", ""))]


def json_objects(rows: pa.RecordBatch, *, nulls: bool = True) -> pa.Array:
    """The JSON object of each row; ``nulls`` is whether fields that are null stay."""
    return _object(rows.schema.names, rows.columns, rows.num_rows, nulls)


def content_of(texts: pa.Array) -> bytes:
    """The bytes of all ``texts``, one after the other."""
    _, ends, content = texts.buffers()
    if content is None or not len(texts):
        return b""
    places = np.frombuffer(ends, np.int32)[texts.offset :]
    return bytes(memoryview(content)[int(places[0]) : int(places[len(texts)])])


def json_text(column: pa.Array, *, nulls: bool = True) -> pa.Array:
    """The values of ``column`` as JSON; null stays null. ``nulls`` is whether fields of objects that are null stay."""
    kind = column.type
    if types.is_struct(kind):
        return _present(column, _object([field.name for field in kind], column.flatten(), len(column), nulls))
    if types.is_map(kind):
        first, last, lengths = _ends(column)
        keys = column.keys[first:last]
        texts = json_text(keys, nulls=nulls) if types.is_nested(kind.key_type) else text_of(keys)
        items = pc.fill_null(json_text(column.items[first:last], nulls=nulls), "null")
        return _collected(column, pc.binary_join_element_wise(quoted(texts), items, ":"), lengths, "{", "}")
    if types.is_list(kind) or types.is_large_list(kind):
        first, last, lengths = _ends(column)
        items = pc.fill_null(json_text(column.values[first:last], nulls=nulls), "null")
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
    texts = text_of(column)
    if types.is_floating(kind):
        finite = pc.is_finite(column)
        return texts if pc.all(finite).as_py() in (None, True) else pc.if_else(finite, texts, quoted(texts))
    if any(test(kind) for test in _BARE):
        return texts
    return quoted(texts) if is_text(kind) else pc.binary_join_element_wise('"', texts, '"', "")


def _object(names: list[str], columns: list[pa.Array], count: int, nulls: bool) -> pa.Array:
    if not columns:
        return pa.array(["{}"] * count, pa.string())
    keys = quoted(pa.array(names, pa.string())).to_pylist()
    values = (json_text(column, nulls=nulls) for column in columns)
    fields = [
        pc.binary_join_element_wise(f"{key}:", pc.fill_null(value, "null") if nulls else value, "")
        for key, value in zip(keys, values, strict=True)
    ]
    return pc.binary_join_element_wise("{", _joined(fields), "}", "")


def _joined(fields: list[pa.Array]) -> pa.Array:
    """The fields of each row that are not null, with commas between them."""
    if all(field.null_count for field in fields):  # Arrow leaves out a row without any
        absent = reduce(pc.and_, (field.is_null() for field in fields))
        fields = [pc.if_else(absent, "", fields[0]), *fields[1:]]
    return pc.binary_join_element_wise(*fields, ",", null_handling="skip") if len(fields) > 1 else fields[0]


def _ends(column: pa.Array) -> tuple[int, int, pa.Array]:
    """The bounds of the items of ``column``: their begin and end, and the offsets of each value from the begin."""
    places = column.offsets.to_numpy()
    first, last = int(places[0]), int(places[-1])
    return first, last, pa.array((places - first).astype(np.int32))


def _collected(column: pa.Array, items: pa.Array, places: pa.Array, opening: str, closing: str) -> pa.Array:
    joined = pc.binary_join(pa.ListArray.from_arrays(places, items), ",")
    return _present(column, pc.binary_join_element_wise(opening, joined, closing, ""))


def _present(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), texts, None) if column.null_count else texts
