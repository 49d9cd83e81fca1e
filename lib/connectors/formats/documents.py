"""Rows as JSON documents, made column by column.

Numbers and text are as they are, times ISO 8601, decimals with every digit, binary base64, a map an object. Nulls stay: a
partial update must be able to empty a field. JSON has no NaN and no infinity: a row with one is a bad row.
"""

from __future__ import annotations

import base64
import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ..core.errors import Poison


def documents(rows: pa.RecordBatch, json: Any) -> list[bytes | Poison]:
    """The document of each row; ``json`` is the module ``orjson``."""
    names = rows.schema.names
    columns = [cells(column, json) for column in rows.columns]

    def plain(value: Any) -> Any:
        return _plain(value, json)

    dumps = json.dumps
    bodies = [dumps(dict(zip(names, row, strict=True)), default=plain) for row in zip(*columns, strict=True)]
    for name, column in zip(names, rows.columns, strict=True):
        for place in _not_finite(column):
            bodies[place] = Poison(f'the column "{name}" is not a number that JSON has (NaN or infinity)')
    return bodies


def cells(column: pa.Array, json: Any) -> list[Any]:
    """The values of a column, as the JSON library takes them."""
    kind = column.type
    if types.is_timestamp(kind) or types.is_date(kind):
        return list(times(column).to_pylist())
    if types.is_decimal(kind):
        texts = column.cast(pa.string()).to_pylist()
        return [None if text is None else json.Fragment(format(Decimal(text), "f")) for text in texts]
    if types.is_string(kind) or (types.is_primitive(kind) and column.null_count == 0 and not types.is_temporal(kind)):
        return list(column.to_numpy(zero_copy_only=False).tolist())  # several times as fast as to_pylist
    return [_objects(value, kind) for value in column.to_pylist()] if _has_map(kind) else list(column.to_pylist())


def times(column: pa.Array) -> pa.Array:
    """Dates and times as text; a time with a zone in UTC with ``Z``, one without as it is."""
    if types.is_date(column.type):
        return pc.strftime(column, format="%Y-%m-%d")
    zoned = column.type.tz is not None
    utc = column.cast(pa.timestamp(column.type.unit, "UTC")) if zoned else column
    return pc.strftime(utc, format="%Y-%m-%dT%H:%M:%SZ" if zoned else "%Y-%m-%dT%H:%M:%S")


def _plain(value: Any, json: Any) -> Any:
    """What the JSON library lacks, inside nested values."""
    if isinstance(value, Decimal):
        return json.Fragment(format(value, "f"))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _has_map(kind: pa.DataType) -> bool:
    return types.is_map(kind) or any(_has_map(child) for child in _children(kind))


def _children(kind: pa.DataType) -> list[pa.DataType]:
    if types.is_nested(kind):
        return [kind.field(place).type for place in range(kind.num_fields)]
    return []


def _objects(value: Any, kind: pa.DataType) -> Any:
    """``value`` with its maps, which Arrow gives as pairs, as objects."""
    if value is None:
        return None
    if types.is_map(kind):
        return {_key(key): _objects(item, kind.item_type) for key, item in value}
    if types.is_struct(kind):
        return {field.name: _objects(value[field.name], field.type) for field in kind}
    if types.is_list(kind) or types.is_large_list(kind):
        return [_objects(item, kind.value_type) for item in value]
    return value


def _key(key: Any) -> str:
    return key.isoformat() if isinstance(key, (datetime.date, datetime.datetime)) else str(key)


def _not_finite(column: pa.Array) -> list[int]:
    """The rows with NaN or infinity in them."""
    if types.is_floating(column.type):
        return list(pc.indices_nonzero(pc.invert(pc.fill_null(pc.is_finite(column), True))).to_pylist())
    if not _within(column.type, types.is_floating):
        return []
    return [place for place, value in enumerate(column.to_pylist()) if _has_odd_number(value)]


def _within(kind: pa.DataType, condition: Callable[[pa.DataType], bool]) -> bool:
    return condition(kind) or any(_within(child, condition) for child in _children(kind))


def _has_odd_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(_has_odd_number(item) for item in inner)
