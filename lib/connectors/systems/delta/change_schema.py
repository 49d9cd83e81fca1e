"""The schema that Connect's JSON carries, as columns of Spark: how a field is read out of JSON, and what it becomes.

Databases have types that JSON lacks; Connect and Debezium mark them by the name of a schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from ...ground.errors import Fatal

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
DAYS: Final = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
MILLIS: Final = ("io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp")
MICROS: Final = "io.debezium.time.MicroTimestamp"
NANOS: Final = "io.debezium.time.NanoTimestamp"
ZONED: Final = "io.debezium.time.ZonedTimestamp"
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
PRECISION: Final = "connect.decimal.precision"
"""The parameter with the number of digits of a decimal, where it is limited."""
_VARIABLE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"
"""A ``numeric`` without precision: each value has a scale of its own."""
_FREE_SCALE: Final = 18
"""The digits behind the point of a column for such numbers, of 38 in all."""
_LAST_MICROS, _FIRST_MICROS = 253402300799999999, -62135596800000000
"""PostgreSQL's ``infinity`` and ``-infinity`` in microseconds, as ``connectors.jdbc`` reads them: 9999-12-31 and 0001-01-01."""
_INFINITY: Final = {
    "ms": (9223372036825200, -9223372036832400),
    "us": (9223372036825200000, -9223372036832400000),
    "ns": ((1 << 63) - 1, -(1 << 63)),
}
"""The numbers that Debezium writes for ``infinity`` and ``-infinity``, by unit of time."""
_EARLIEST_TIME_IN_ARRAY: Final = "+292269055-12-0"
"""The beginning of the ``-infinity`` of a ``timestamptz[]``: PostgreSQL's driver gives Debezium a time for it."""
_INFINITE_DAYS: Final = (-2147472692, -2147472691)
_LATEST_IN_ARRAY: Final = (-623_000_000, -622_000_000)
_EARLIEST_IN_ARRAY: Final = (-626_000_000, -625_000_000)
"""Between which days the ``infinity`` and ``-infinity`` of a ``date[]`` lie: PostgreSQL has no date so early."""
_NUMBER_IN_JSON: Final = r'(?s)\G((?:[^"\d-]++|-(?!\d)|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+)(-?\d[\d.eE+-]*+)'
"""A pattern of what stands before a number in JSON, texts as a whole, and of the number. No part goes back, so a long record
needs no deep stack."""
_NUMBER: Final = r"^-?\d*(?:\.(\d*?)0*)?(?:[eE]([+-]?\d+))?$"
"""A number, its digits behind the point but for zeros at the end, and its exponent."""
_ZERO: Final = r"^-?[0.]+([eE]|$)"


@dataclass(frozen=True)
class Cell:
    """A value as it was ``read``, and as it was read with its ``exact`` type."""

    read: Column
    exact: Column | None = None

    @property
    def text(self) -> Column:
        """The value as JSON without a schema has it, with a number as it is written."""
        return self.read if self.exact is None else self.exact

    def part(self, get: Callable[[Column], Column]) -> Cell:
        """The part that ``get`` takes of both."""
        return Cell(get(self.read), None if self.exact is None else get(self.exact))


@dataclass(frozen=True)
class ChangeColumn:
    """A column of a table: its ``name``, the type that its JSON is ``read`` as, and the ``type`` that it gets.

    ``default`` is the JSON of the value that rows have which are older than the column, if the log tells one.
    ``needs_fill``: what those rows have, only the user knows.
    """

    name: str
    read: DataType
    type: DataType
    convert: Callable[[Cell], Column]
    default: Any = None
    exact: DataType | None = None
    """The type as which the JSON is read a second time: the first read rounds numbers."""
    needs_fill: bool = False

    def filled(self, json_value: Any) -> Column:
        """The value that the user gives in ``json_value``: JSON as Spark reads it for the column's type."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        text = F.lit(json.dumps({"v": json_value}))
        return F.from_json(text, StructType().add("v", self.type), {"mode": "FAILFAST"})["v"]

    def value_of(self, json_value: Any) -> Column:
        """The value that ``json_value``, as a record has it, stands for."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        if self.exact is not None and isinstance(json_value, (int, Decimal)):
            return F.lit(Decimal(json_value)).cast(self.type)
        text = F.lit(json.dumps({"v": json_value}, default=float))

        def read(kind: DataType) -> Column:
            return F.from_json(text, StructType().add("v", kind), {"mode": "FAILFAST"})["v"]

        return self.convert(Cell(read(self.read), read(self.exact) if self.exact is not None else None)).cast(self.type)


def columns_of_type(schema: StructType) -> list[ChangeColumn]:
    """The columns of a schema of Spark, for JSON that carries none. Their ``exact`` is the JSON with its numbers as texts."""
    return [_plain_column(field.name, field.dataType) for field in schema]


def numbers_as_texts(text: Column) -> Column:
    """JSON with quotes around each number outside of texts: Spark reads a number as a double where it wants a text."""
    from pyspark.sql import functions as F

    return F.regexp_replace(text, _NUMBER_IN_JSON, '$1"$2"')


def _plain_column(name: str, kind: DataType) -> ChangeColumn:
    from pyspark.sql import functions as F
    from pyspark.sql.types import (
        ArrayType,
        DateType,
        DecimalType,
        MapType,
        StringType,
        StructType,
        TimestampNTZType,
        TimestampType,
        VariantType,
    )

    def column(read: DataType, convert: Callable[[Cell], Column]) -> ChangeColumn:
        return ChangeColumn(name, read, kind, convert, exact=_text_type(kind))

    if isinstance(kind, ArrayType):
        item = _plain_column(name, kind.elementType)
        return column(ArrayType(item.read), lambda cell: _each(item, cell))
    if isinstance(kind, MapType):
        value = _plain_column(name, kind.valueType)
        return column(
            MapType(kind.keyType, value.read),
            lambda cell: F.map_from_arrays(F.map_keys(cell.read), _each(value, cell.part(F.map_values))),
        )
    if isinstance(kind, StructType):
        fields = {field.name: _plain_column(f"{name}.{field.name}", field.dataType) for field in kind}
        read = StructType()
        for own, field in fields.items():
            read = read.add(own, field.read)
        return column(read, lambda cell: _struct(fields, cell))
    if isinstance(kind, DecimalType):  # as a decimal, Spark would round what does not fit
        return column(StringType(), lambda cell: _plain_decimal(name, kind, cell.text))
    if isinstance(kind, StringType):
        return column(kind, lambda cell: _plain_text(name, cell))
    if isinstance(kind, (DateType, TimestampType, TimestampNTZType)):  # Spark would take a number for seconds
        return ChangeColumn(name, VariantType(), kind, lambda cell: _plain_time(name, kind, cell.read))
    return ChangeColumn(name, kind, kind, _as_it_is)


def _text_type(kind: DataType) -> DataType:
    """``kind`` with texts in place of all simple types."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(_text_type(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _text_type(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _text_type(field.dataType)) for field in kind])
    return StringType()


def fields_of(schema: str) -> list[Mapping[str, Any]]:
    """The fields of the JSON text of a struct schema."""
    parsed = json.loads(schema, parse_float=Decimal)
    if parsed.get("type") != "struct":
        raise Fatal(f"a change must be a struct; its schema is {schema[:200]}", connector="connectors.connect.merge")
    return list(parsed["fields"])


def column_of(field: Mapping[str, Any]) -> ChangeColumn:
    """The column of a field of a Connect schema, without what rows have that are older."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        DateType,
        DecimalType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
        VariantType,
    )

    name, label = str(field["field"]), field.get("name")

    def column(
        read: DataType, kind: DataType, convert: Callable[[Cell], Column], exact: DataType | None = None
    ) -> ChangeColumn:
        return ChangeColumn(name, read, kind, convert, exact=exact)

    if label in DAYS:
        return column(IntegerType(), DateType(), _date)
    if label in MILLIS:
        return column(LongType(), TimestampType(), lambda cell: _time(cell, "ms", F.timestamp_millis(cell.read)))
    if label == MICROS:
        return column(LongType(), TimestampType(), lambda cell: _time(cell, "us", F.timestamp_micros(cell.read)))
    if label == NANOS:
        return column(LongType(), TimestampType(), lambda cell: _time(cell, "ns", F.timestamp_micros(_micros(cell.read))))
    if label == ZONED:
        return column(StringType(), TimestampType(), _zoned)
    if label == DECIMAL:
        parameters = field.get("parameters") or {}
        precision, scale = int(parameters.get(PRECISION, 38)), int(parameters.get("scale", 0))
        precision, scale = max(precision - min(scale, 0), scale), max(scale, 0)  # numeric(3,-2), numeric(3,5)
        kind = DecimalType(min(38, precision), min(38, scale))
        return column(VariantType(), kind, lambda cell: _decimal(name, kind, cell), exact=kind)
    if label == _VARIABLE_DECIMAL:
        free = StructType().add("scale", IntegerType()).add("value", StringType())
        return column(free, DecimalType(38, _FREE_SCALE), lambda cell: _free_decimal(name, cell.read))
    if field["type"] == "bytes":
        return column(StringType(), BinaryType(), lambda cell: F.unbase64(cell.read))
    if field["type"] == "array":
        item = column_of({**field["items"], "field": name})
        exact = ArrayType(item.exact) if item.exact is not None else None
        return column(ArrayType(item.read), ArrayType(item.type), lambda cell: _each(item, cell), exact)
    kind = _type(field)
    return column(kind, kind, _as_it_is)


def _struct(fields: Mapping[str, ChangeColumn], cell: Cell) -> Column:
    """A struct whose ``fields`` are converted."""
    from pyspark.sql import functions as F

    def value(name: str, field: ChangeColumn) -> Column:
        return field.convert(cell.part(lambda struct: struct.getField(name))).cast(field.type).alias(name)

    return F.when(cell.read.isNotNull(), F.struct(*(value(name, field) for name, field in fields.items())))


def _each(item: ChangeColumn, cell: Cell) -> Column:
    """An array whose elements are converted as ``item``."""
    from pyspark.sql import functions as F

    exact_kind = item.exact
    if cell.exact is None or exact_kind is None:
        return F.transform(cell.read, lambda read: item.convert(Cell(read)).cast(item.type))
    # Where elements are base64, the exact read of the array is null as a whole.
    exact = F.coalesce(cell.exact, F.transform(cell.read, lambda _: F.lit(None).cast(exact_kind)))
    return F.zip_with(cell.read, exact, lambda read, exact: item.convert(Cell(read, exact)).cast(item.type))


def _date(cell: Cell) -> Column:
    from pyspark.sql import functions as F

    last, first = (F.lit(micros // 86_400_000_000) for micros in (_LAST_MICROS, _FIRST_MICROS))
    latest, earliest = _INFINITE_DAYS
    is_latest = (cell.read == latest) | cell.read.between(*_LATEST_IN_ARRAY)
    is_earliest = (cell.read == earliest) | cell.read.between(*_EARLIEST_IN_ARRAY)
    days = F.when(is_latest, last).when(is_earliest, first).otherwise(cell.read)
    return F.date_from_unix_date(days.cast("int"))


def _time(cell: Cell, unit: str, time: Column) -> Column:
    from pyspark.sql import functions as F

    latest, earliest = _INFINITY[unit]
    time = F.when(cell.read <= earliest, F.timestamp_micros(F.lit(_FIRST_MICROS))).otherwise(time)
    return F.when(cell.read >= latest, F.timestamp_micros(F.lit(_LAST_MICROS))).otherwise(time)


def _micros(nanos: Column) -> Column:
    """Whole microseconds: a quotient would go through a double."""
    from pyspark.sql import functions as F

    return ((nanos - F.pmod(nanos, F.lit(1000))).cast("decimal(20,0)") / 1000).cast("bigint")


def _zoned(cell: Cell) -> Column:
    from pyspark.sql import functions as F

    latest, earliest = (F.timestamp_micros(F.lit(micros)) for micros in (_LAST_MICROS, _FIRST_MICROS))
    is_earliest = (cell.read == "-infinity") | cell.read.startswith(_EARLIEST_TIME_IN_ARRAY)
    time = F.when(is_earliest, earliest).otherwise(cell.read.cast("timestamp"))
    return F.when(cell.read == "infinity", latest).otherwise(time)


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


def _decimal(name: str, kind: Any, cell: Cell) -> Column:
    """A decimal that is a number in JSON, or base64 of its unscaled bytes, as the converter's ``decimal.format`` has it.

    Base64 may have digits alone, so only the type of the JSON tells which one it is, and a variant keeps that type.
    """
    from pyspark.sql import functions as F

    is_base64 = F.schema_of_variant(cell.read) == "STRING"
    base64 = F.when(is_base64, F.variant_get(cell.read, "$", "string"))
    digits, is_negative = _unscaled(F.when(F.octet_length(F.unbase64(base64)) <= 16, base64))
    number = F.when(is_base64, _with_point(digits, is_negative, F.lit(kind.scale)).try_cast(kind)).otherwise(cell.exact)
    message = F.lit(
        f"column {name}: a value does not fit {kind.simpleString()}, the widest decimal of its scale; "
        "set decimal.handling.mode=string"
    )
    is_null = cell.read.isNull() | (F.schema_of_variant(cell.read) == "VOID")
    return F.when(is_null | number.isNotNull(), number).otherwise(F.raise_error(message))


def _plain_decimal(name: str, kind: Any, text: Column) -> Column:
    """A number of JSON without a schema, from its own text; one that would be rounded is an error."""
    from pyspark.sql import functions as F

    number = text.try_cast(kind)
    exponent = F.coalesce(F.regexp_extract(text, _NUMBER, 2).try_cast("int"), F.lit(0))
    digits_behind_point = F.length(F.regexp_extract(text, _NUMBER, 1)) - exponent
    is_kept = text.rlike(_NUMBER) & (text.rlike(_ZERO) | (digits_behind_point <= kind.scale))
    message = F.concat(F.lit(f"column {name}: "), text, F.lit(f" does not fit {kind.simpleString()}, its type in schema"))
    return F.when(text.isNull() | (number.isNotNull() & is_kept), number).otherwise(F.raise_error(message))


def _plain_text(name: str, cell: Cell) -> Column:
    """A text, a number as it is written, or JSON whose numbers keep their digits; other JSON is an error."""
    from pyspark.sql import functions as F

    is_nested = (cell.read != cell.text) & cell.read.rlike(r"^[\[{]")
    message = F.concat(
        F.lit(f"column {name}: Spark would round a number of "), cell.read,
        F.lit("; name the fields and their types in schema, such as STRUCT<price: DECIMAL(38,2)>"),
    )  # fmt: skip
    nested = F.when(numbers_as_texts(cell.read) == cell.text, cell.read).otherwise(F.raise_error(message))
    return F.when(is_nested, nested).otherwise(cell.text)


def _plain_time(name: str, kind: Any, value: Column) -> Column:
    """A time or date that JSON without a schema has as text; a number, whose unit nobody tells, is an error."""
    from pyspark.sql import functions as F

    text = F.variant_get(value, "$", "string")
    message = F.concat(
        F.lit(f"column {name}: "), text, F.lit(f" is no text, as {kind.simpleString()}, its type in schema, needs it. Let "),
        F.lit("the values carry schemas, set time.precision.mode=isostring, or name a type of numbers and convert it later."),
    )  # fmt: skip
    return F.when(text.isNull() | (F.schema_of_variant(value) == "STRING"), text.cast(kind)).otherwise(F.raise_error(message))


def _free_decimal(name: str, value: Column) -> Column:
    """A number that brings its own scale, in a column of one scale; what does not fit is an error."""
    from pyspark.sql import functions as F

    digits, is_negative = _unscaled(value["value"])
    text = _with_point(digits, is_negative, value["scale"])
    kind = f"decimal(38,{_FREE_SCALE})"
    number = text.try_cast(kind)
    is_exact = F.length(F.rtrim(F.substring_index(text, ".", -1), F.lit("0"))) <= _FREE_SCALE
    message = F.concat(
        F.lit(f"column {name}: "), text, F.lit(f" does not fit {kind}, which a numeric without precision becomes. "),
        F.lit("Set decimal.handling.mode=string, or give the column a precision."),
    )  # fmt: skip
    return F.when(value.isNull() | (number.isNotNull() & is_exact), number).otherwise(F.raise_error(message))


def _unscaled(base64: Column) -> tuple[Column, Column]:
    """The digits of the whole number whose bytes are ``base64``, and whether it is negative."""
    from pyspark.sql import functions as F

    content = F.unbase64(base64)

    def byte(index: Column) -> Column:
        return F.conv(F.hex(F.substring(content, index, 1)), 16, 10).cast(whole)

    whole = "decimal(38,0)"
    is_negative = byte(F.lit(1)) >= 128

    def magnitude(index: Column) -> Column:
        return F.when(is_negative, 255 - byte(index)).otherwise(byte(index)).cast(whole)

    steps = F.sequence(F.lit(1), F.length(content))
    zero = F.lit(0).cast(whole)
    total = F.aggregate(F.transform(steps, magnitude), zero, lambda sum, digit: (sum * 256 + digit).cast(whole))
    return (total + F.when(is_negative, 1).otherwise(0)).cast(whole).cast("string"), is_negative


def _with_point(digits: Column, is_negative: Column, scale: Column) -> Column:
    """The text of a number with these ``digits``, of which ``scale`` are behind the point."""
    from pyspark.sql import functions as F

    padded = F.concat(digits, F.repeat(F.lit("0"), F.greatest(-scale, F.lit(0))))
    behind = F.greatest(scale, F.lit(0))
    padded = F.lpad(padded, F.greatest(F.length(padded), behind + 1), F.lit("0"))
    front = F.length(padded) - behind
    sign = F.when(is_negative, "-").otherwise("")
    return F.concat(sign, F.substring(padded, F.lit(1), front), F.lit("."), F.substring(padded, front + 1, behind + 1))
