"""The names that Spark's SQL has for Arrow types."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from .base import fields_of

_NAMES: Final = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.duration("us"): "interval day to second",
}


def sql_type(kind: pa.DataType) -> str:
    """The SQL type of an Arrow type. Raises ``ValueError`` when Spark has none."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{quoted(one.name)}: {sql_type(one.type)}' for one in fields_of(kind))}>"
    if pa.types.is_list(kind):
        return f"array<{sql_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{sql_type(kind.key_type)}, {sql_type(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if kind not in _NAMES:
        raise ValueError(f"Spark has no type for {kind}")
    return _NAMES[kind]


def quoted(name: str) -> str:
    """``name`` in backticks, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
