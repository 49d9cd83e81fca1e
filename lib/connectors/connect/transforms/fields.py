"""The transforms of fields: InsertField, ReplaceField, MaskField, ExtractField, HoistField, ValueToKey, SetSchemaMetadata."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from ..arrow_data import to_arrow
from ..columns import Column, Records
from ..config import ConfigDef, non_empty
from ..data import Field, Schema, SchemaBuilder, Type
from ..errors import ConfigException, DataException
from .base import REPLACE_NULL, SideTransform, as_map, children, replaces_null, struct_column, with_default


class HoistField(SideTransform):
    """Puts the whole key or value into one field of a new struct, or map."""

    def config(self) -> ConfigDef:
        return ConfigDef().define("field", "STRING", importance="MEDIUM", documentation="the name of the field")

    def configure(self, values: Mapping[str, Any]) -> None:
        self._field: str = values["field"]

    def column(self, records: Records, column: Column) -> Column:
        if column.schema is None:
            return Column(None, [{self._field: value} for value in column.data])
        schema = Schema(Type.STRUCT, fields=(Field(self._field, 0, column.schema),))
        return Column(schema, pa.StructArray.from_arrays([column.data], fields=list(schema.arrow())))


class ExtractField(SideTransform):
    """Takes one field in place of the whole key or value; with ``field.syntax.version`` V2 a nested one, ``a.b``."""

    needs = "field extraction"

    def config(self) -> ConfigDef:
        definition = (
            ConfigDef()
            .define("field", "STRING", importance="MEDIUM", documentation="the field to take")
            .define("field.syntax.version", "STRING", "V1", "HIGH", "V1: a plain name; V2: a path with dots")
        )
        return replaces_null(definition)

    def configure(self, values: Mapping[str, Any]) -> None:
        version = str(values["field.syntax.version"]).upper()
        self._path = [values["field"]] if version == "V1" else field_path(values["field"])
        self._name: str = values["field"]
        self._replaces: bool = values[REPLACE_NULL]

    def map(self, records: Records, place: int, value: dict[str, Any]) -> Any:
        inner: Any = value
        for name in self._path:
            inner = inner.get(name) if isinstance(inner, dict) else None
        return inner

    def struct(self, records: Records, schema: Schema, data: pa.Array) -> Column:
        for name in self._path:
            if schema.type is not Type.STRUCT or name not in schema.by_name:
                raise DataException(f"Unknown field: {self._name}")
            field = schema.by_name[name]
            data = with_default(field, data.flatten()[field.index], self._replaces)
            schema = field.schema
        return Column(replace(schema, optional=True) if data.null_count else schema, data)


def field_path(text: str) -> list[str]:
    """The steps of a path with dots; a step with dots in it stands in backticks."""
    steps, current, quoted = [], "", False
    for letter in text:
        if letter == "`":
            quoted = not quoted
        elif letter == "." and not quoted:
            steps.append(current)
            current = ""
        else:
            current += letter
    return [*steps, current]


class InsertField(SideTransform):
    """Adds fields: from the record's topic, partition, offset (sinks) and timestamp, or a fixed text.

    A name may end with ``!`` (required) or ``?`` (optional, the default).
    """

    needs = "field insertion"
    _PLACES: Final = ("topic", "partition", "offset", "timestamp", "static")

    def config(self) -> ConfigDef:
        definition = ConfigDef()
        for place in self._PLACES:
            definition.define(f"{place}.field", "STRING", None, "MEDIUM", f"the name of the field for the {place}")
        return replaces_null(definition.define("static.value", "STRING", None, "MEDIUM", "the fixed text"))

    def configure(self, values: Mapping[str, Any]) -> None:
        named = {place: values[f"{place}.field"] for place in self._PLACES if values[f"{place}.field"]}
        if not named:
            raise ConfigException("no field insertion configured")
        if "static" in named and values["static.value"] is None:
            raise ConfigException("static.value is missing; it is the text of static.field")
        self._fields = {place: (name.rstrip("!?"), not name.endswith("!")) for place, name in named.items()}
        self._static: str | None = values["static.value"]

    def map(self, records: Records, place: int, value: dict[str, Any]) -> Any:
        out = dict(value)
        for what, (name, _) in self._fields.items():
            if what == "static":
                out[name] = self._static
            else:
                out[name] = self._source(records, what)[place].as_py()
        return out

    def struct(self, records: Records, schema: Schema, data: pa.Array) -> Column:
        fields = [(field.name, field.schema, array) for field, array in children(schema, data)]
        for what, (name, optional) in self._fields.items():
            array, inner = self._values(records, what)
            fields = [entry for entry in fields if entry[0] != name]
            fields.append((name, replace(inner, optional=optional), array))
        return struct_column(schema, fields, data)

    def _source(self, records: Records, what: str) -> pa.Array:
        if what == "offset":
            if "offset" not in records.extra:
                raise DataException("a record of a source has no offset; offset.field is for sinks")
            return records.extra["offset"]
        return {"topic": records.topic, "partition": records.partition, "timestamp": records.timestamp}[what]

    def _values(self, records: Records, what: str) -> tuple[pa.Array, Schema]:
        if what == "static":
            return pa.repeat(pa.scalar(self._static, pa.string()), len(records)), Schema.STRING_SCHEMA
        array = self._source(records, what)
        if what == "timestamp":
            schema = SchemaBuilder.timestamp().build()
            return array.cast(schema.arrow()), schema
        kinds = {"topic": Schema.STRING_SCHEMA, "partition": Schema.INT32_SCHEMA, "offset": Schema.INT64_SCHEMA}
        return array, kinds[what]


class ReplaceField(SideTransform):
    """Leaves out fields, keeps only some, renames some."""

    needs = "field replacement"

    def config(self) -> ConfigDef:
        definition = (
            ConfigDef()
            .define("exclude", "LIST", [], "MEDIUM", "fields to leave out")
            .define("include", "LIST", [], "MEDIUM", "fields to keep; all, where none is named")
            .define("renames", "LIST", [], "MEDIUM", "old:new, …")
            .define("blacklist", "LIST", None, "LOW", "the former name of exclude")
            .define("whitelist", "LIST", None, "LOW", "the former name of include")
        )
        return replaces_null(definition)

    def configure(self, values: Mapping[str, Any]) -> None:
        self._exclude = set(values["exclude"] or values["blacklist"] or ())
        self._include = set(values["include"] or values["whitelist"] or ())
        self._renames = dict(renames(values["renames"]))
        self._replaces: bool = values[REPLACE_NULL]

    def _keeps(self, name: str) -> bool:
        return name not in self._exclude and (not self._include or name in self._include)

    def map(self, records: Records, place: int, value: dict[str, Any]) -> Any:
        return {self._renames.get(name, name): item for name, item in value.items() if self._keeps(name)}

    def struct(self, records: Records, schema: Schema, data: pa.Array) -> Column:
        fields = [
            (self._renames.get(field.name, field.name), field.schema, with_default(field, array, self._replaces))
            for field, array in children(schema, data)
            if self._keeps(field.name)
        ]
        return struct_column(schema, fields, data)


def renames(pairs: list[str]) -> list[tuple[str, str]]:
    """``old:new`` as pairs. Raises :class:`ConfigException`."""
    out = []
    for pair in pairs:
        old, colon, new = pair.partition(":")
        if not (old and colon and new):
            raise ConfigException(f"Invalid rename mapping: {pair}")
        out.append((old.strip(), new.strip()))
    return out


_ZEROS: Final[Mapping[Type, Any]] = {
    **dict.fromkeys((Type.INT8, Type.INT16, Type.INT32, Type.INT64), 0),
    Type.FLOAT32: 0.0,
    Type.FLOAT64: 0.0,
    Type.BOOLEAN: False,
    Type.STRING: "",
}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class MaskField(SideTransform):
    """Puts an empty value, or ``replacement``, in the place of fields."""

    needs = "mask fields"

    def config(self) -> ConfigDef:
        definition = (
            ConfigDef()
            .define("fields", "LIST", importance="HIGH", documentation="the fields to mask", validator=non_empty)
            .define("replacement", "STRING", None, "LOW", "the value of numbers and texts; without it an empty one")
        )
        return replaces_null(definition)

    def configure(self, values: Mapping[str, Any]) -> None:
        self._fields = set(values["fields"])
        self._replacement: str | None = values["replacement"]
        if self._replacement == "":
            raise ConfigException("replacement must not be empty")

    def map(self, records: Records, place: int, value: dict[str, Any]) -> Any:
        return {name: self._masked(item) if name in self._fields else item for name, item in value.items()}

    def struct(self, records: Records, schema: Schema, data: pa.Array) -> Column:
        fields = []
        for field, array in children(schema, data):
            if field.name in self._fields:
                column = to_arrow([self._masked_of(field.schema)], replace(field.schema, optional=True))
                array = (
                    pa.repeat(column[0], len(data))
                    if not pa.types.is_nested(column.type)
                    else column.take(pa.array([0] * len(data)))
                )
            fields.append((field.name, field.schema, array))
        return struct_column(schema, fields, data)

    def _masked_of(self, schema: Schema) -> Any:
        if self._replacement is not None:
            return self._replaced(schema.type, logical=schema.logical)
        if schema.logical:
            return {
                "Decimal": Decimal(0),
                "Date": _EPOCH.date(),
                "Time": _EPOCH.time(),
                "Timestamp": _EPOCH,
            }[schema.logical.rpartition(".")[2]]
        if schema.type in (Type.ARRAY, Type.MAP):
            return [] if schema.type is Type.ARRAY else {}
        if schema.type not in _ZEROS:
            raise DataException(f"Cannot mask value of type: {schema.type.name}")
        return _ZEROS[schema.type]

    def _masked(self, value: Any) -> Any:
        kinds: list[tuple[type, Type]] = [
            (bool, Type.BOOLEAN),
            (int, Type.INT64),
            (float, Type.FLOAT64),
            (str, Type.STRING),
        ]
        for kind, type_ in kinds:
            if isinstance(value, kind):
                return self._replaced(type_) if self._replacement is not None else _ZEROS[type_]
        if self._replacement is None and isinstance(value, (list, dict)):
            return type(value)()
        if value is None:
            return None
        raise DataException(f"Cannot mask value of type: {type(value).__name__}")

    def _replaced(self, kind: Type, logical: str | None = None) -> Any:
        text = self._replacement
        assert text is not None
        try:
            if kind is Type.STRING:
                return text
            if logical is None and kind.value.startswith("int"):
                return int(text)
            if kind in (Type.FLOAT32, Type.FLOAT64):
                return float(text)
            if logical and logical.endswith("Decimal"):
                return Decimal(text)
        except ValueError:
            raise DataException(f"Unable to convert {text} to {kind.name}") from None
        raise DataException(f"Cannot mask value of type {kind.name} with custom replacement value.")


class ValueToKey(SideTransform):
    """Makes a new key of fields of the value."""

    needs = "copying fields from value to key"

    def config(self) -> ConfigDef:
        definition = ConfigDef().define(
            "fields", "LIST", importance="HIGH", documentation="fields of the value", validator=non_empty
        )
        return replaces_null(definition)

    def configure(self, values: Mapping[str, Any]) -> None:
        self._fields: list[str] = values["fields"]
        self._replaces: bool = values[REPLACE_NULL]

    def apply(self, records: Records) -> Records:
        value = records.value
        if value.schema is None:
            maps = [as_map(item, self.needs) for item in value.data]
            return replace(
                records, key=Column(None, [{name: item.get(name) for name in self._fields} for item in maps])
            )
        if value.schema.type is not Type.STRUCT:
            raise DataException(f"Only Struct objects supported for [{self.needs}], found: {value.schema.type.name}")
        if value.data.null_count:
            raise DataException(f"Only Struct objects supported for [{self.needs}], found: null")
        fields, arrays = [], []
        for index, name in enumerate(self._fields):
            if name not in value.schema.by_name:
                raise DataException(f"Field does not exist: {name}")
            field = value.schema.by_name[name]
            fields.append(Field(name, index, field.schema))
            arrays.append(with_default(field, value.data.flatten()[field.index], self._replaces))
        schema = Schema(Type.STRUCT, fields=tuple(fields))
        return replace(records, key=Column(schema, pa.StructArray.from_arrays(arrays, fields=list(schema.arrow()))))


class SetSchemaMetadata(SideTransform):
    """Gives the schema a name and a version; values stay as they are."""

    def config(self) -> ConfigDef:
        definition = (
            ConfigDef()
            .define("schema.name", "STRING", None, "HIGH", "the name")
            .define("schema.version", "INT", None, "HIGH", "the version")
        )
        return replaces_null(definition)

    def configure(self, values: Mapping[str, Any]) -> None:
        self._name: str | None = values["schema.name"]
        self._version: int | None = values["schema.version"]
        if self._name is None and self._version is None:
            raise ConfigException("Neither schema name nor version configured")

    def column(self, records: Records, column: Column) -> Column:
        if column.schema is None:
            if all(value is None for value in column.data):
                return column
            raise DataException("Schema required for [updating schema metadata]")
        schema = column.schema
        return Column(
            replace(schema, name=self._name or schema.name, version=self._version or schema.version), column.data
        )
