"""Values of a Python driver as Arrow columns: as they are where that is possible, else one by one."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from ...core.errors import Poison

_REFUSED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError, TypeError, ArithmeticError)


def as_arrow(cells: Sequence[Any], kind: pa.DataType, name: str = "") -> pa.Array:
    """A column of ``cells`` as ``kind``. Raises :class:`Poison`, naming the column, for one that is no such value."""
    try:
        return pa.array(cells, kind)
    except _REFUSED:
        pass
    try:
        return _converted(cells, kind)
    except _REFUSED as wrong:
        text = f'the column "{name}" is read as {kind}, and a value of it is none: {wrong}'
        raise Poison(text, way_out="give the column another type, such as string, by .schema(…)") from None


def _converted(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    convert = _converter(kind)
    values = [None if cell is None else convert(cell) for cell in cells]
    if pa.types.is_temporal(kind) and any(isinstance(value, str) for value in values):
        texts = [None if value is None else str(value) for value in values]
        return pa.array(texts, pa.string()).cast(kind)
    return pa.array(values, kind)


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_string(kind):
        return _text
    if pa.types.is_binary(kind):
        return lambda cell: cell.encode() if isinstance(cell, str) else bytes(cell)
    if pa.types.is_boolean(kind):
        return _truth
    if pa.types.is_decimal(kind):
        return lambda cell: Decimal(str(cell)).quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    if pa.types.is_integer(kind):
        return _whole
    if pa.types.is_floating(kind):
        return float
    return _moment if pa.types.is_timestamp(kind) else _day


_EXACT = Context(prec=76)


def _text(cell: Any) -> str:
    return cell.decode() if isinstance(cell, bytes) else str(cell)


def _truth(cell: Any) -> bool:
    if cell in (0, 1):
        return bool(cell)
    raise ValueError(f"{cell!r} is neither 0 nor 1")


def _whole(cell: Any) -> int:
    if int(cell) == float(cell):
        return int(cell)
    raise ValueError(f"{cell!r} is no whole number")


def _moment(cell: Any) -> Any:
    """Text is read by Arrow; a number is a Unix time, in seconds, as SQLite's functions have it."""
    if isinstance(cell, (int, float)):
        return datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=cell)
    return cell


def _day(cell: Any) -> Any:
    return cell.date() if isinstance(cell, datetime.datetime) else cell
