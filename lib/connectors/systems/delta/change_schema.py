"""The schema that Connect's JSON carries, as columns of Spark: how a field is read out of JSON, and what it becomes.

Databases have types that JSON lacks; Connect and Debezium mark them by the name of a schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...core.errors import Fatal

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_SIMPLE: Final = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "float32": "float",
    "double": "double",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
}
_DAYS: Final = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_MILLIS: Final = ("io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp")
_MICROS: Final = "io.debezium.time.MicroTimestamp"
_NANOS: Final = "io.debezium.time.NanoTimestamp"
_ZONED: Final = "io.debezium.time.ZonedTimestamp"
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"


@dataclass(frozen=True)
class Cell:
    """A value as it was ``read``, and as it was read with its ``exact`` type."""

    read: Column
    exact: Column | None = None


@dataclass(frozen=True)
class ChangeColumn:
    """A column of a table: its ``name``, the type that its JSON is ``read`` as, and the ``type`` that it gets."""

    name: str
    read: DataType
    type: DataType
    convert: Callable[[Cell], Column]
    default: Any = None
    exact: DataType | None = None
    """The type as which the JSON is read a second time: the first read rounds numbers."""


def columns_of(fields: list[Mapping[str, Any]]) -> list[ChangeColumn]:
    """The columns of the fields of a Connect schema."""
    return [_column(field) for field in fields]


def columns_of_type(kind: StructType) -> list[ChangeColumn]:
    """The columns of a schema of Spark, for JSON that carries none."""
    return [ChangeColumn(field.name, field.dataType, field.dataType, _as_it_is) for field in kind]


def fields_of(schema: str) -> list[Mapping[str, Any]]:
    """The fields of the JSON text of a struct schema."""
    parsed = json.loads(schema)
    if parsed.get("type") != "struct":
        raise Fatal(f"a change must be a struct; its schema is {schema[:200]}", connector="connectors.connect.merge")
    return list(parsed["fields"])


def _column(field: Mapping[str, Any]) -> ChangeColumn:
    from pyspark.sql import functions as F
    from pyspark.sql.types import (
        BinaryType,
        DateType,
        DecimalType,
        IntegerType,
        LongType,
        StringType,
        TimestampType,
        VariantType,
    )

    name, label = str(field["field"]), field.get("name")
    if label in _DAYS:
        return ChangeColumn(name, IntegerType(), DateType(), lambda cell: F.date_from_unix_date(cell.read))
    if label in _MILLIS:
        return ChangeColumn(name, LongType(), TimestampType(), lambda cell: F.timestamp_millis(cell.read))
    if label == _MICROS:
        return ChangeColumn(name, LongType(), TimestampType(), lambda cell: F.timestamp_micros(cell.read))
    if label == _NANOS:
        return ChangeColumn(name, LongType(), TimestampType(), lambda cell: F.timestamp_micros(F.floor(cell.read / 1000)))
    if label == _ZONED:
        return ChangeColumn(name, StringType(), TimestampType(), lambda cell: cell.read.cast("timestamp"))
    if label == _DECIMAL:
        parameters = field.get("parameters") or {}
        kind = DecimalType(min(38, int(parameters.get("connect.decimal.precision", 38))), int(parameters.get("scale", 0)))
        return ChangeColumn(name, VariantType(), kind, lambda cell: _decimal(kind, cell), exact=kind)
    if field["type"] == "bytes":
        return ChangeColumn(name, StringType(), BinaryType(), lambda cell: F.unbase64(cell.read))
    kind = _type(field)
    return ChangeColumn(name, kind, kind, _as_it_is, field.get("default"))


def _as_it_is(cell: Cell) -> Column:
    return cell.read


def _type(schema: Mapping[str, Any]) -> Any:
    """The type of a field that is as JSON has it, and of what is nested in one."""
    from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

    kind = schema["type"]
    if kind in _SIMPLE:
        return DataType.fromDDL(_SIMPLE[kind])
    if kind == "array":
        return ArrayType(_type(schema["items"]))
    if kind == "map":
        return MapType(_type(schema["keys"]), _type(schema["values"]))
    if kind == "struct":
        struct = StructType()
        for field in schema["fields"]:
            struct = struct.add(field["field"], _type(field))
        return struct
    return StringType()


def _decimal(kind: Any, cell: Cell) -> Column:
    """A decimal that is a number in JSON, or base64 of its unscaled bytes, as the converter's ``decimal.format`` has it.

    Base64 may have digits alone, so only the type of the JSON tells which one it is, and a variant keeps that type.
    """
    from pyspark.sql import functions as F

    is_base64 = F.schema_of_variant(cell.read) == "STRING"
    content = F.unbase64(F.when(is_base64, F.variant_get(cell.read, "$", "string")))

    def byte(index: Column) -> Column:
        return F.conv(F.hex(F.substring(content, index, 1)), 16, 10).cast("decimal(38,0)")

    steps = F.sequence(F.lit(1), F.length(content))
    zero, whole = F.lit(0).cast("decimal(38,0)"), "decimal(38,0)"
    unsigned = F.aggregate(F.transform(steps, byte), zero, lambda sum, digit: (sum * 256 + digit).cast(whole))
    range_of = F.aggregate(steps, F.lit(1).cast(whole), lambda product, _: (product * 256).cast(whole))
    is_negative = byte(F.lit(1)) >= 128
    signed = F.when(is_negative, (unsigned - range_of).cast(whole)).otherwise(unsigned)
    digits = F.lpad(F.abs(signed).cast("string"), 40, "0")
    point = F.concat(F.when(signed < 0, "-").otherwise(""), F.substring(digits, 1, 40 - kind.scale), F.lit("."))
    exact = F.concat(point, F.substring(digits, 41 - kind.scale, max(1, kind.scale)) if kind.scale else F.lit("0"))
    return F.when(is_base64, exact.cast(kind)).otherwise(cell.exact)
