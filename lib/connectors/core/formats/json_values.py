"""JSON values of Arrow types: what Arrow's reader can read itself, and how Python reads and writes the rest."""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .base import fields_of

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf, "INF": math.inf}
_FRACTION = re.compile(r"(\.\d{6})\d+")
_PLAIN = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{6})?)Z?", re.ASCII)
_EPOCH = datetime.datetime(1970, 1, 1)
_ZONE = re.compile(r"[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$")
_Reader = Callable[[Any], Any]


def readable(kind: pa.DataType) -> pa.DataType | None:
    """The type as which Arrow's JSON reader can read ``kind``, to be :func:`refined`; ``None`` if it cannot."""
    if pa.types.is_struct(kind):
        inner = [(field.name, readable(field.type)) for field in fields_of(kind)]
        return None if any(one is None for _, one in inner) else pa.struct(inner)
    if pa.types.is_list(kind):
        item = readable(kind.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_map(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return None
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return pa.string()
    known = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_float64, pa.types.is_decimal, pa.types.is_timestamp)
    text = (pa.types.is_string, pa.types.is_large_string)
    return kind if any(test(kind) for test in (*known, *text)) else None


def refined(values: pa.Array, kind: pa.DataType | None = None) -> pa.Array:
    """``values`` as ``kind``; without one, with times as text, as they are written."""
    return values.cast(kind if kind is not None else _written(values.type))


def _written(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _written(field.type)) for field in fields_of(kind)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_written(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_written(kind.key_type), _written(kind.item_type))
    return pa.string() if pa.types.is_temporal(kind) and not pa.types.is_duration(kind) else kind


def parsed(text: str) -> Any:
    """What a JSON text holds, with fractions as decimals. Raises ``ValueError`` for what is no JSON."""
    try:
        return json.loads(text, parse_float=Decimal, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object has a key twice")
    return made


def reader(kind: pa.DataType, path: str = "") -> _Reader:
    """What makes a value of ``kind`` of a parsed one; it raises ``ValueError`` that names the field and what is there."""
    if pa.types.is_struct(kind):
        inner = [(field.name, reader(field.type, _at(path, field.name))) for field in fields_of(kind)]
        return _checked(dict, "an object", path, lambda value: {name: read(value.get(name)) for name, read in inner})
    if pa.types.is_map(kind):
        key, item = partial(_key, kind=kind.key_type), reader(kind.item_type, path)
        return _checked(dict, "an object", path, lambda value: [(key(name), item(one)) for name, one in value.items()])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        one = reader(kind.value_type, path)
        return _checked(list, "a list", path, lambda value: [one(each) for each in value])
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
    if pa.types.is_floating(kind):
        return "a number", _float
    if pa.types.is_decimal(kind):
        return f"a number that fits {kind}", lambda value: pa.scalar(_decimal(value), kind).as_py()
    if pa.types.is_timestamp(kind):
        return "a timestamp such as 2024-01-31T12:00:00Z", lambda value: _timestamp(value, kind)
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return "a date such as 2024-01-31" if pa.types.is_date(kind) else "a time such as 12:00:00", (
            lambda value: pa.scalar(_of(value, str)).cast(kind).value
        )
    if pa.types.is_duration(kind):
        return "a whole number", lambda value: _of(value, int)
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
    return (
        _text(key) if pa.types.is_string(kind) or pa.types.is_large_string(kind) else pa.scalar(key).cast(kind).as_py()
    )


def _wrong(value: Any, what: str, path: str) -> ValueError:
    got = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    return ValueError(f"field {path}: must be {what}; got {got}" if path else f"must be {what}; got {got}")


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def to_text(kind: pa.DataType) -> Callable[[Any], str]:
    """A function that writes a value of ``kind``, with times already as text."""
    if pa.types.is_struct(kind):
        inner = [
            (field.name, json.dumps(field.name, ensure_ascii=False), to_text(field.type)) for field in fields_of(kind)
        ]
        return lambda row: (
            "{" + ",".join(f"{key}:{write(row[name])}" for name, key, write in inner if row[name] is not None) + "}"
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = to_text(kind.value_type)
        return lambda items: "[" + ",".join("null" if one is None else item(one) for one in items) + "]"
    if pa.types.is_map(kind):
        return _map_text(to_text(kind.item_type))
    return _leaf_text(kind)


def _map_text(item: Callable[[Any], str]) -> Callable[[Any], str]:
    def write(pairs: Any) -> str:
        made = (f"{_quoted(_key_text(key))}:{'null' if one is None else item(one)}" for key, one in pairs)
        return "{" + ",".join(made) + "}"

    return write


def _key_text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _leaf_text(kind: pa.DataType) -> Callable[[Any], str]:
    if pa.types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if pa.types.is_floating(kind):
        return _float_text
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_integer(kind):
        return str
    if pa.types.is_timestamp(kind):
        return lambda text: _quoted(text.replace(" ", "T", 1))
    if pa.types.is_duration(kind):
        return lambda value: str(value // value.resolution)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: '"' + base64.b64encode(value).decode() + '"'
    return _quoted


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else f'"{"-" if value < 0 else ""}Infinity"'
