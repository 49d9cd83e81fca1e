"""The text of values, a whole column at a time: the one that Spark's writers of json and csv give them.

==================  =======================================================================================
float, double       as Java has them: ``1.0``, ``0.001``, ``9.99E-4``, ``1.0E7``, ``NaN``, ``-Infinity``
decimal             with its whole scale; tiny ones with an exponent, such as ``0E-18``
date                ``2025-01-31``, ``-0044-03-15``, ``+12345-06-07``
timestamp           milliseconds and the offset: ``2025-01-31T13:00:00.123+01:00``, in the zone of its Arrow type
timestamp_ntz       the same without an offset
time                ``13:00:00``, with a fraction of up to six digits if there is one
boolean, integers   ``true``, ``-1``
==================  =======================================================================================

A double has the fewest digits that tell it from its neighbours, as in Java 19 and later. Java 17 sometimes writes more.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from .local_times import Numbers, offsets

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
    found = pc.binary_join_element_wise(start, ".", rest, "E", exponent, "")
    tiny = finite & (np.abs(numbers) < (1e-43 if numbers.dtype == np.float32 else 1e-321))
    found = _replaced(found, tiny, pa.array([_tiny(number) for number in numbers[tiny]], pa.string()))
    return _replaced(found, ~finite, pa.array([_word(number) for number in numbers[~finite]], pa.string()))


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
        shown = pa.array([_offset(each) for each in seconds.tolist()], pa.string())
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
    return _replaced(text, odd, pa.array([_signed(each) for each in far.tolist()], pa.string()))


def _signed(text: str) -> str:
    """Numpy's ``-044-03-15`` and ``12345-06-07`` as Java has them."""
    sign, year, rest = _YEAR.fullmatch(text).groups()  # type: ignore[union-attr]
    return f"{sign or '+'}{int(year):04d}{rest}"


def _replaced(text: pa.Array, mask: npt.NDArray[np.bool_], texts: pa.Array) -> pa.Array:
    return pc.replace_with_mask(text, pa.array(mask), texts) if len(texts) else text
