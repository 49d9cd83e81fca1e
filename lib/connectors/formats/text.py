"""Text of Arrow columns as Spark's writers of json and csv make it, a whole column at a time.

==================  =======================================================================================
float, double       as Java has them: ``1.0``, ``0.001``, ``9.99E-4``, ``1.0E7``, ``NaN``, ``-Infinity``
decimal             with its whole scale; tiny ones with an exponent, such as ``0E-18``
date                ``2025-01-31``, ``-0044-03-15``, ``+12345-06-07``
timestamp           milliseconds and the offset: ``2025-01-31T13:00:00.123+01:00``, in the zone of its Arrow type
timestamp_ntz       the same without an offset
time                ``13:00:00``, with a fraction of up to six digits if there is one
boolean, integers   ``true``, ``-1``
==================  =======================================================================================

A double has the fewest digits that tell it from its neighbours, as in Java 19 and later. Java 17 sometimes writes more. Time
zones are Java's: any year, any of Spark's names for a zone.

In JSON, null fields of an object are left out; nulls in arrays and maps stay. NaN and infinities are strings, decimals numbers,
binary is base64. A map is an object whose keys are the texts of Spark's internal values: a date is its number of days since
1970, a timestamp its microseconds, a time its nanoseconds.
"""

from __future__ import annotations

import base64
import datetime
import re
import zoneinfo
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ..core.errors import Misconfigured, Problem

Numbers = npt.NDArray[np.int64]

_UTC: Final = ("UTC", "GMT", "UT", "Z")
_FIXED: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d)(?::?(\d\d))?)?")
_SECOND: Final = 1_000_000
_EARLY: Final = -6_000_000_000_000_000  # the year 1779, before any zone was introduced
_LATE: Final = 2_114_380_800_000_000  # the year 2037: Arrow knows no change of a clock from there on
_CYCLE: Final = 12_622_780_800 * _SECOND  # 400 years, after which the calendar repeats
_QUARTER: Final = 900 * _SECOND


def offsets(times: Numbers, zone: str) -> Numbers:
    """The offset of ``zone`` from UTC, in seconds, at each of ``times`` (microseconds since 1970).

    Raises :class:`Misconfigured` for a zone that has no region and no offset here.
    """
    fixed = _fixed(zone)
    if fixed is not None:
        return np.full(len(times), fixed, np.int64)
    near = np.clip(times, _EARLY, _LATE)
    try:
        wall = pc.local_timestamp(pa.array(near, pa.timestamp("us", zone)))
    except pa.ArrowInvalid:
        text = f'is "{zone}", which only Java knows; set a region such as Europe/Berlin, or an offset such as +02:00.'
        raise Misconfigured("connectors", [Problem("spark.sql.session.timeZone", text)]) from None
    seconds: Numbers = (wall.cast(pa.int64()).to_numpy() - near) // _SECOND
    late = times >= _LATE
    if late.any():
        seconds[late] = _late(times[late], zone)
    return seconds


def _fixed(zone: str) -> int | None:
    if zone in _UTC:
        return 0
    parts = _FIXED.fullmatch(zone)
    if parts is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in parts.groups()[1:])
    return (hours * 3600 + minutes * 60 + seconds) * (-1 if parts[1] == "-" else 1)


def _late(times: Numbers, zone: str) -> Numbers:
    """Python's rules, which go on for ever; they are asked once for each quarter of an hour."""
    quarters, places = np.unique(((times - _LATE) % _CYCLE + _LATE) // _QUARTER, return_inverse=True)
    region = zoneinfo.ZoneInfo(zone)
    moments = (datetime.datetime.fromtimestamp(quarter * 900, region).utcoffset() for quarter in quarters.tolist())
    return np.array([int(offset.total_seconds()) for offset in moments if offset is not None], np.int64)[places]


_PARTS: Final = r"(?P<sign>-?)(?P<whole>\d+)(?:\.(?P<fraction>\d*))?(?:e(?P<power>[+-]?\d+))?"
_SURROGATE: Final = re.compile(b"\xed[\xa0-\xbf][\x80-\xbf]")
_YEAR: Final = re.compile(r"([+-]?)(\d+)(.*)", re.DOTALL)


def text_of(column: pa.Array) -> pa.Array:
    """The values of ``column`` as strings; null stays null. Raises ``TypeError`` for a type without a text."""
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        return valid_text(column.cast(pa.string()))
    if types.is_floating(kind):
        return _float_text(column)
    if types.is_timestamp(kind):
        return _timestamp_text(column)
    if types.is_date(kind):
        return _date_text(column)
    if types.is_time(kind):
        text = column.cast(pa.time64("us"), safe=False).cast(pa.string())
        return pc.utf8_rtrim(pc.utf8_rtrim(text, characters="0"), characters=".")
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_decimal(kind) or types.is_null(kind):
        return column.cast(pa.string())
    raise TypeError(f"{kind} has no text")


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
    zone = column.type.tz
    times = column.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64()).fill_null(0).to_numpy()
    shift = offsets(times, zone) if zone else np.zeros(1, np.int64)
    text = _iso((times + shift * 1_000_000) // 1000, "ms")
    if zone:
        seconds, places = np.unique(shift, return_inverse=True)
        shown = pa.array([_offset(number) for number in seconds.tolist()], pa.string())
        text = pc.binary_join_element_wise(text, shown.take(places), "")
    return pc.if_else(column.is_valid(), text, None) if column.null_count else text


def _offset(seconds: int) -> str:
    if not seconds:
        return "Z"
    minutes, rest = divmod(abs(seconds), 60)
    text = f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{text}:{rest:02d}" if rest else text


def _date_text(column: pa.Array) -> pa.Array:
    text = _iso(column.cast(pa.date32()).cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64), "D")
    return pc.if_else(column.is_valid(), text, None) if column.null_count else text


def _iso(counts: Numbers, unit: str) -> pa.Array:
    """Days or milliseconds since 1970 as text; years that have no four digits are signed."""
    first, last = (np.datetime64(day).astype(f"datetime64[{unit}]").astype(np.int64) for day in ("0000-01-01", "10000-01-01"))
    odd = (counts < first) | (counts >= last)
    plain = np.where(odd, 0, counts)
    kind = pa.timestamp("ms") if unit == "ms" else pa.date32()
    text = pa.array(plain if unit == "ms" else plain.astype(np.int32)).cast(kind).cast(pa.string())
    if unit == "ms":
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
