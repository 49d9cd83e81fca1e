"""The transforms of types and shapes: Cast and Flatten."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Column, Records
from ..config import ConfigDef, non_empty
from ..data import Schema, Type
from ..errors import ConfigException, DataException
from ..json_data import milliseconds
from .base import REPLACE_NULL, SideTransform, children, replaces_null, struct_column, with_default

_NAMES: Final = {
    "int8": Type.INT8,
    "int16": Type.INT16,
    "int32": Type.INT32,
    "int64": Type.INT64,
    "float32": Type.FLOAT32,
    "float64": Type.FLOAT64,
    "boolean": Type.BOOLEAN,
    "string": Type.STRING,
}
_BITS: Final = {Type.INT8: 8, Type.INT16: 16, Type.INT32: 32, Type.INT64: 64}


class Cast(SideTransform):
    """Changes the types of fields, ``spec`` ``age:int32,note:string``, or of the whole key or value, ``int64``."""

    needs = "cast types"

    def config(self) -> ConfigDef:
        definition = ConfigDef().define(
            "spec", "LIST", importance="HIGH", documentation="field:type, … or a type", validator=non_empty
        )
        return replaces_null(definition)

    def configure(self, values: Mapping[str, Any]) -> None:
        self._fields: dict[str, Type] = {}
        self._whole: Type | None = None
        self._replaces: bool = values[REPLACE_NULL]
        for entry in values["spec"]:
            field, colon, name = entry.rpartition(":")
            if name.strip().lower() not in _NAMES:
                raise ConfigException(f"Unsupported cast type in {entry}; there are {', '.join(_NAMES)}")
            if colon:
                self._fields[field.strip()] = _NAMES[name.strip().lower()]
            else:
                self._whole = _NAMES[name.strip().lower()]
        if self._whole is not None and self._fields:
            raise ConfigException(
                "Cast transformations that specify a type to cast the entire value to may ONLY specify a single cast"
            )

    def column(self, records: Records, column: Column) -> Column:
        if self._whole is None:
            return super().column(records, column)
        if column.schema is None:
            return Column(None, [None if value is None else cast_value(value, self._whole) for value in column.data])
        return Column(_as(column.schema, self._whole), _cast(column.data, column.schema, self._whole))

    def map(self, records: Records, place: int, value: dict[str, Any]) -> Any:
        out = dict(value)
        for name, kind in self._fields.items():
            if out.get(name) is not None:
                out[name] = cast_value(out[name], kind)
        return out

    def struct(self, records: Records, schema: Schema, data: pa.Array) -> Column:
        fields = []
        for field, array in children(schema, data):
            kind = self._fields.get(field.name)
            if kind is None:
                fields.append((field.name, field.schema, array))
            else:
                filled = with_default(field, array, self._replaces)
                fields.append((field.name, _as(field.schema, kind), _cast(filled, field.schema, kind)))
        return struct_column(schema, fields, data)


def _as(schema: Schema, kind: Type) -> Schema:
    default = cast_value(schema.default, kind) if schema.has_default and schema.default is not None else None
    return Schema(kind, schema.optional, default, schema.has_default, doc=schema.doc)


def _cast(array: pa.Array, schema: Schema, kind: Type) -> pa.Array:
    """A column as ``kind``: at once, where Arrow does it as Java would, else value by value."""
    target = Schema(kind).arrow()
    if array.type == target:
        return array
    is_number = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    if is_number and not schema.logical and kind in _BITS and pa.types.is_integer(array.type):
        return pc.cast(array, target, safe=False)  # as Java narrows: the lower bits
    if is_number and not schema.logical and kind in (Type.FLOAT32, Type.FLOAT64):
        return pc.cast(array, target, safe=False)
    if pa.types.is_integer(array.type) and not schema.logical and kind is Type.STRING:
        return array.cast(pa.string())
    return pa.array([None if value is None else cast_value(value, kind) for value in array.to_pylist()], target)


def cast_value(value: Any, kind: Type) -> Any:
    """One value as ``kind``, as Connect casts it. Raises :class:`DataException`."""
    if isinstance(value, datetime.datetime):
        value = milliseconds(value)
    elif isinstance(value, datetime.date):
        value = (value - datetime.date(1970, 1, 1)).days
    elif isinstance(value, datetime.time):
        value = ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000
    try:
        if kind in _BITS:
            return _whole(value, _BITS[kind])
        if kind in (Type.FLOAT32, Type.FLOAT64):
            return float(value)
        if kind is Type.BOOLEAN:
            return value.strip().lower() == "true" if isinstance(value, str) else bool(value)
    except (TypeError, ValueError):
        raise DataException(f"Value ({value!r}) was out of range or no {kind.name}") from None
    if isinstance(value, (dict, list, bytes)):
        raise DataException(f"Unexpected type in Cast transformation: {type(value).__name__}")
    return (
        str(value).lower()
        if isinstance(value, bool)
        else format(value, "f")
        if isinstance(value, Decimal)
        else str(value)
    )


def _whole(value: Any, bits: int) -> int:
    """A whole number of ``bits``. Text must fit; a number is narrowed as Java narrows it."""
    if isinstance(value, str):
        number = int(value)
        if not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise ValueError
        return number
    number = int(value)
    if isinstance(value, float):
        return max(-(1 << bits - 1), min((1 << bits - 1) - 1, number))
    return (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


class Flatten(SideTransform):
    """Makes nested structs, or maps without schema, one level; names are joined by ``delimiter``."""

    needs = "flattening"

    def config(self) -> ConfigDef:
        return ConfigDef().define("delimiter", "STRING", ".", "MEDIUM", "between the names of levels")

    def configure(self, values: Mapping[str, Any]) -> None:
        self._delimiter: str = values["delimiter"]

    def map(self, records: Records, place: int, value: dict[str, Any]) -> Any:
        out: dict[str, Any] = {}
        self._flatten(value, "", out)
        return out

    def _flatten(self, value: dict[str, Any], prefix: str, out: dict[str, Any]) -> None:
        for name, item in value.items():
            path = f"{prefix}{self._delimiter}{name}" if prefix else name
            if isinstance(item, dict):
                self._flatten(item, path, out)
            elif isinstance(item, list):
                raise DataException(
                    f"Flatten transformation does not support list for record without schemas (for field {path})."
                )
            else:
                out[path] = item

    def struct(self, records: Records, schema: Schema, data: pa.Array) -> Column:
        return struct_column(schema, self._fields(schema, data, "", schema.optional), data)

    def _fields(
        self, schema: Schema, data: pa.Array, prefix: str, optional: bool
    ) -> list[tuple[str, Schema, pa.Array]]:
        out = []
        for field, array in children(schema, data):
            path = f"{prefix}{self._delimiter}{field.name}" if prefix else field.name
            is_optional = optional or field.schema.optional
            if field.schema.type is Type.STRUCT:
                out += self._fields(field.schema, array, path, is_optional)
            else:
                out.append((path, replace(field.schema, optional=is_optional), array))
        return out
