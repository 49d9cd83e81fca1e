"""Avro schemas: read and checked, as Arrow types, and made from Arrow types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from .base import fields_of, library

INSTALL: Final = "fastavro>=1.9"
_PRIMITIVE: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


class AvroSchema:
    """A schema and the named types in it. Raises ``ValueError`` for what is no Avro schema, or is recursive."""

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        fastavro = library("fastavro", INSTALL)
        wrong_schema = (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType)
        self.names: dict[str, Any] = {}
        try:
            for one in (*references, text):
                parsed = fastavro.parse_schema(json.loads(one), named_schemas=self.names, _force=True)
        except (*wrong_schema, ValueError, TypeError, KeyError) as wrong:
            raise ValueError(f"not an Avro schema: {wrong}") from None
        self.root = parsed
        self.type = self.arrow(parsed)

    def resolved(self, schema: Any) -> Any:
        """``schema``, or the named type that it stands for."""
        while isinstance(schema, str) and schema in self.names:
            schema = self.names[schema]
        return {"type": schema} if isinstance(schema, str) else schema

    def arrow(self, schema: Any, within: tuple[str, ...] = ()) -> pa.DataType:
        """The Arrow type of ``schema``, as Spark's ``from_avro`` has it."""
        schema = self.resolved(schema)
        if isinstance(schema, list):
            return self._union(schema, within)
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.arrow(kind, within)
        if kind in ("record", "error"):
            if schema["name"] in within:
                raise ValueError(f"{schema['name']} contains itself; columns cannot")
            inner = (*within, schema["name"])
            return pa.struct([(field["name"], self.arrow(field["type"], inner)) for field in schema["fields"]])
        if kind == "array":
            return pa.list_(self.arrow(schema["items"], within))
        if kind == "map":
            return pa.map_(pa.string(), self.arrow(schema["values"], within))
        if schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        return _LOGICAL.get((kind, schema.get("logicalType", "")), _PRIMITIVE[kind])

    def _union(self, branches: list[Any], within: tuple[str, ...]) -> pa.DataType:
        types = [self.arrow(branch, within) for branch in branches]
        some = [one for one in types if not pa.types.is_null(one)]
        if len(some) <= 1:
            return some[0] if some else pa.null()
        if set(some) <= {pa.int32(), pa.int64()}:
            return pa.int64()
        if set(some) <= {pa.float32(), pa.float64()}:
            return pa.float64()
        return pa.struct([(f"member{number}", one) for number, one in enumerate(some)])


def derived(kind: pa.DataType, *, null_first: bool) -> str:
    """The Avro schema of an Arrow type. Every value may be null.

    Spark's ``to_avro`` puts null last in its unions, which matters to the bytes; where a schema is registered, null comes
    first and is the default, so that a column may be added later.
    """
    return json.dumps(_Deriving(null_first).schema(kind, "topLevelRecord"))


class _Deriving:
    def __init__(self, null_first: bool) -> None:
        self.null_first = null_first

    def schema(self, kind: pa.DataType, name: str) -> Any:
        if pa.types.is_struct(kind):
            return {"type": "record", "name": name, "fields": [self._field(field, name) for field in fields_of(kind)]}
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return {"type": "array", "items": self._nullable(kind.value_type, f"{name}_item")}
        if pa.types.is_map(kind):
            return {"type": "map", "values": self._nullable(kind.item_type, f"{name}_value")}
        if pa.types.is_decimal(kind):
            size = _bytes_for(kind.precision)
            made = {"type": "fixed", "name": f"{name}_fixed", "size": size, "logicalType": "decimal"}
            return {**made, "precision": kind.precision, "scale": kind.scale}
        return _leaf(kind)

    def _field(self, field: pa.Field, name: str) -> Any:
        made = {"name": field.name, "type": self._nullable(field.type, f"{name}_{field.name}")}
        return {**made, "default": None} if self.null_first else made

    def _nullable(self, kind: pa.DataType, name: str) -> Any:
        schema = self.schema(kind, name)
        if schema == "null":
            return schema
        return ["null", schema] if self.null_first else [schema, "null"]


def _leaf(kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_int64(kind) or pa.types.is_uint32(kind):
        return "long"
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return "int"
    tests = {
        "null": pa.types.is_null,
        "boolean": pa.types.is_boolean,
        "float": pa.types.is_float32,
        "double": pa.types.is_float64,
        "string": lambda one: pa.types.is_string(one) or pa.types.is_large_string(one),
        "bytes": lambda one: pa.types.is_binary(one) or pa.types.is_large_binary(one),
    }
    for name, test in tests.items():
        if test(kind):
            return name
    raise ValueError(f"Avro has no type for {kind}")


def _bytes_for(precision: int) -> int:
    """The fewest bytes that hold every whole number of so many digits, with its sign."""
    return (int(10**precision).bit_length() + 8) // 8
