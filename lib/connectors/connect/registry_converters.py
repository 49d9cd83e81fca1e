"""Converters with a schema registry: Avro, JSON Schema, Protobuf, under the names of Confluent's classes.

Settings: ``schema.registry.url``, ``basic.auth.user.info`` (``user:password``). Subjects are ``<topic>-key`` and
``<topic>-value``. Protobuf takes its message from a descriptor set: ``descriptor.file``, ``message.name``.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import Transient
from ..formats import AvroFormat, FormatSettings, ProtobufFormat
from ..formats.avro import AvroSchema
from ..formats.base import Decoded
from ..formats.protobuf import protobuf_message
from ..formats.registry import Framing, RegisteredSchema, UnknownSchema, registry_of
from .arrow_data import schema_of
from .columns import Column
from .config import ConfigDef
from .converters import Converter
from .data import DATE, DECIMAL, TIME, TIMESTAMP, Field, Schema, Type
from .errors import DataException, RetriableException
from .json_data import JsonReader, JsonWriter

_HEADER: Final = 5


class RegistryConverter(Converter):
    """What converters with a registry have in common: settings, subjects, runs of records of one schema id."""

    kind: ClassVar[str]

    def config(self) -> ConfigDef:
        return (
            ConfigDef()
            .define("schema.registry.url", "STRING", importance="HIGH", documentation="the registry")
            .define("basic.auth.user.info", "PASSWORD", None, "MEDIUM", "user:password")
            .define("basic.auth.credentials.source", "STRING", "USER_INFO", "LOW", "accepted")
            .define("auto.register.schemas", "BOOLEAN", True, "LOW", "accepted; new schemas are registered")
            .define("enhanced.avro.schema.support", "BOOLEAN", False, "LOW", "accepted")
            .define("schemas.cache.config", "INT", 1000, "LOW", "accepted")
            .define("descriptor.file", "STRING", None, "MEDIUM", "Protobuf: a descriptor set")
            .define("message.name", "STRING", None, "MEDIUM", "Protobuf: the message's full name")
        )

    def configure(self, configs: Mapping[str, str], is_key: bool) -> None:
        values = self.config().parse(configs)
        user, _, password = (values["basic.auth.user.info"] or "").partition(":")
        self._side = "key" if is_key else "value"
        self._settings = FormatSettings(
            descriptor_file=values["descriptor.file"],
            message_name=values["message.name"],
            registry_url=values["schema.registry.url"],
            registry_user=user or None,
            registry_password=password or None,
        )
        self._schemas: dict[int, Schema] = {}

    def from_connect(self, topic: str, column: Column) -> pa.Array:
        if column.schema is None:
            if all(value is None for value in column.data):
                return pa.nulls(len(column), pa.binary())
            raise DataException(f"{type(self).__name__} needs a schema, and the records of {topic} have none")
        settings = replace(self._settings, subject=f"{topic}-{self._side}")
        try:
            return self.encoded(column.schema, column.data, settings)
        except Transient as outage:
            raise RetriableException(str(outage)) from outage
        except (ValueError, pa.ArrowException) as wrong:
            raise DataException(f"{topic}: {wrong}") from wrong

    def to_connect(self, topic: str, data: pa.Array) -> Iterator[tuple[int, int, Column]]:
        numbers = [_number(record) for record in data.to_pylist()]
        first = 0
        while first < len(numbers):
            end = first + 1
            while end < len(numbers) and numbers[end] in (numbers[first], None):
                end += 1
            number = numbers[first]
            if number is None:
                while end < len(numbers) and numbers[end] is None:
                    end += 1
                yield first, end - first, Column(None, [None] * (end - first))
            else:
                yield first, end - first, self._read(number, data.slice(first, end - first))
            first = end

    def _read(self, number: int, data: pa.Array) -> Column:
        try:
            if number not in self._schemas:
                self._schemas[number] = self.schema(registry_of(self._settings).schema(number))
            return self.decoded(self._schemas[number], data)
        except UnknownSchema as unknown:
            raise DataException(str(unknown)) from None
        except Transient as outage:
            raise RetriableException(str(outage)) from outage

    @abstractmethod
    def encoded(self, schema: Schema, data: pa.Array, settings: FormatSettings) -> pa.Array:
        """The framed bytes of ``data``."""

    @abstractmethod
    def schema(self, registered: RegisteredSchema) -> Schema:
        """The schema of Connect of a registered one."""

    @abstractmethod
    def decoded(self, schema: Schema, data: pa.Array) -> Column:
        """The values of framed records of one schema id."""


def _number(record: bytes | None) -> int | None:
    """The schema id of a framed record."""
    if record is None:
        return None
    if len(record) < _HEADER or record[0] != 0:
        raise DataException("Unknown magic byte: the record has no frame of a schema registry")
    return int.from_bytes(record[1:_HEADER], "big")


def _checked(decoded: Decoded, schema: Schema) -> Column:
    if decoded.bad:
        raise DataException(decoded.bad[0].error)
    return Column(schema, decoded.values)


class AvroConverter(RegistryConverter):
    """``io.confluent.connect.avro.AvroConverter``: structs as Avro records."""

    kind = "AVRO"

    def encoded(self, schema: Schema, data: pa.Array, settings: FormatSettings) -> pa.Array:
        rows, inner, text = data, schema, avro_text(schema)
        if schema.type is not Type.STRUCT:  # a record of one field: its body is that of the field
            inner = Schema(Type.STRUCT, fields=(Field("value", 0, schema),))
            rows = pa.StructArray.from_arrays([data], fields=list(inner.arrow()))
        kind = _in_microseconds(inner.arrow())
        bodies = AvroFormat(kind, FormatSettings(avro_schema=avro_text(inner))).encode(rows.cast(kind))
        framed = Framing(settings).encode(bodies, text, self.kind)
        return framed if not data.null_count else pc.if_else(data.is_valid(), framed, None)

    def schema(self, registered: RegisteredSchema) -> Schema:
        parsed = AvroSchema(registered.text, registered.references)
        root = json.loads(registered.text)
        name = None
        if isinstance(root, dict) and root.get("type") == "record" and root["name"] != "ConnectDefault":
            name = f"{root['namespace']}.{root['name']}" if root.get("namespace") else root["name"]
        return schema_of(parsed.type, name=name)

    def decoded(self, schema: Schema, data: pa.Array) -> Column:
        if schema.type is Type.STRUCT:
            decoded = AvroFormat(_in_microseconds(schema.arrow()), self._settings).decode(data)
            return _checked(Decoded(decoded.values.cast(schema.arrow()), decoded.bad), schema)
        kind = pa.struct([("value", schema.arrow())])
        number = _number(next(record for record in data.to_pylist() if record is not None))
        assert number is not None
        text = json.dumps(
            {"type": "record", "name": "single", "fields": [{"name": "value", "type": json.loads(self._text(number))}]}
        )
        bodies = pa.array([None if record is None else record[_HEADER:] for record in data.to_pylist()], pa.binary())
        decoded = AvroFormat(kind, FormatSettings(avro_schema=text)).decode(bodies)
        return _checked(Decoded(decoded.values.flatten()[0], decoded.bad), schema)

    def _text(self, number: int) -> str:
        return registry_of(self._settings).schema(number).text


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """``kind`` with times as the formats have them."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct(
            [(kind.field(place).name, _in_microseconds(kind.field(place).type)) for place in range(kind.num_fields)]
        )
    if pa.types.is_list(kind):
        return pa.list_(_in_microseconds(kind.value_type))
    return pa.map_(kind.key_type, _in_microseconds(kind.item_type)) if pa.types.is_map(kind) else kind


_AVRO: Final = {
    Type.INT8: "int",
    Type.INT16: "int",
    Type.INT32: "int",
    Type.INT64: "long",
    Type.FLOAT32: "float",
    Type.FLOAT64: "double",
    Type.BOOLEAN: "boolean",
    Type.STRING: "string",
    Type.BYTES: "bytes",
}


def avro_text(schema: Schema) -> str:
    """The Avro schema of a schema of Connect, as Confluent's converter names things."""
    return json.dumps(_avro(schema, "ConnectDefault"))


def _avro(schema: Schema, name: str) -> Any:
    inner = _avro_type(schema, name)
    return ["null", inner] if schema.optional else inner


def _avro_type(schema: Schema, name: str) -> Any:
    if schema.name == DECIMAL:
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": 38,
            "scale": int(schema.parameter("scale") or 0),
        }
    if schema.name in (DATE, TIME, TIMESTAMP):
        base, logical = {DATE: ("int", "date"), TIME: ("int", "time-millis"), TIMESTAMP: ("long", "timestamp-millis")}[
            schema.name
        ]
        return {"type": base, "logicalType": logical}
    if schema.type is Type.STRUCT:
        namespace, _, last = (schema.name or f"io.confluent.connect.avro.{name}").rpartition(".")
        fields = []
        for field in schema.fields:
            shown: dict[str, Any] = {"name": field.name, "type": _avro(field.schema, f"{last}_{field.name}")}
            if field.schema.optional:
                shown["default"] = None
            elif field.schema.has_default and field.schema.type in _AVRO and not field.schema.logical:
                shown["default"] = field.schema.default
            fields.append(shown)
        return {"type": "record", "name": last, "fields": fields, **({"namespace": namespace} if namespace else {})}
    if schema.type is Type.ARRAY and schema.value_schema:
        return {"type": "array", "items": _avro(schema.value_schema, f"{name}_item")}
    if schema.type is Type.MAP and schema.value_schema:
        if schema.key_schema and schema.key_schema.type is not Type.STRING:
            raise DataException("a map whose keys are no text has no form in Avro here")
        return {"type": "map", "values": _avro(schema.value_schema, f"{name}_value")}
    return _AVRO[schema.type]


class JsonSchemaConverter(RegistryConverter):
    """``io.confluent.connect.json.JsonSchemaConverter``: JSON with a JSON Schema in the registry."""

    kind = "JSON"

    def configure(self, configs: Mapping[str, str], is_key: bool) -> None:
        super().configure(configs, is_key)
        self._writer = JsonWriter(numeric=True, envelope=False)

    def encoded(self, schema: Schema, data: pa.Array, settings: FormatSettings) -> pa.Array:
        return Framing(settings).encode(self._writer.write(schema, data), json.dumps(json_schema(schema)), self.kind)

    def schema(self, registered: RegisteredSchema) -> Schema:
        return from_json_schema(json.loads(registered.text))

    def decoded(self, schema: Schema, data: pa.Array) -> Column:
        optional = replace(schema, optional=True)
        reader = JsonReader.of(optional)
        bodies = [None if record is None else record[_HEADER:] for record in data.to_pylist()]
        return Column.of(optional, [reader.read(body)[1] for body in bodies])


_JSON: Final = {
    **dict.fromkeys((Type.INT8, Type.INT16, Type.INT32, Type.INT64), "integer"),
    Type.FLOAT32: "number",
    Type.FLOAT64: "number",
    Type.BOOLEAN: "boolean",
    Type.STRING: "string",
    Type.BYTES: "string",
}


def json_schema(schema: Schema) -> dict[str, Any]:
    """The JSON Schema of a schema, with Confluent's hints (``connect.type``, ``connect.index``)."""
    shown: dict[str, Any] = {}
    if schema.name:
        shown["title"] = schema.name
    if schema.parameters:
        shown["connect.parameters"] = dict(schema.parameters)
    if schema.has_default and schema.type in _JSON and not schema.logical:
        shown["default"] = schema.default
    if schema.type is Type.STRUCT:
        properties = {
            field.name: {**json_schema(field.schema), "connect.index": field.index} for field in schema.fields
        }
        shown |= {"type": "object", "properties": properties}
    elif schema.type is Type.ARRAY and schema.value_schema:
        shown |= {"type": "array", "items": json_schema(schema.value_schema)}
    elif schema.type is Type.MAP and schema.value_schema:
        shown |= {"type": "object", "connect.type": "map", "additionalProperties": json_schema(schema.value_schema)}
    elif schema.name == DECIMAL:
        shown |= {"type": "number", "connect.type": "bytes"}
    else:
        names = {Type.FLOAT32: "float32", Type.FLOAT64: "float64"}
        shown |= {"type": _JSON[schema.type], "connect.type": names.get(schema.type, schema.type.value)}
    return {"oneOf": [{"type": "null"}, shown]} if schema.optional else shown


def from_json_schema(shown: Mapping[str, Any]) -> Schema:
    """The schema of a JSON Schema. Raises :class:`DataException` for a form that has none in Connect."""
    if "oneOf" in shown:
        others = [inner for inner in shown["oneOf"] if inner.get("type") != "null"]
        if len(others) != 1:
            raise DataException("a JSON Schema with several alternatives has no one schema in Connect")
        return replace(from_json_schema(others[0]), optional=len(others) < len(shown["oneOf"]))
    kind = shown.get("connect.type")
    named: dict[str, Any] = {
        "name": shown.get("title"),
        "parameters": tuple(sorted(shown.get("connect.parameters", {}).items())),
    }
    if shown.get("type") == "object" and (kind == "map" or "properties" not in shown):
        inner = from_json_schema(shown.get("additionalProperties") or {"type": "string"})
        return Schema(Type.MAP, key_schema=Schema.STRING_SCHEMA, value_schema=inner, **named)
    if shown.get("type") == "object":
        ordered = sorted(shown["properties"].items(), key=lambda item: item[1].get("connect.index", 0))
        fields = tuple(Field(name, index, from_json_schema(inner)) for index, (name, inner) in enumerate(ordered))
        return Schema(Type.STRUCT, fields=fields, **named)
    if shown.get("type") == "array":
        return Schema(Type.ARRAY, value_schema=from_json_schema(shown["items"]), **named)
    plain = {"integer": Type.INT64, "number": Type.FLOAT64, "string": Type.STRING, "boolean": Type.BOOLEAN}
    names = {"float32": Type.FLOAT32, "float64": Type.FLOAT64}
    try:
        type_ = names.get(str(kind)) or (Type(kind) if kind else plain[shown["type"]])
    except (KeyError, ValueError):
        raise DataException(f"the JSON Schema {json.dumps(dict(shown))[:200]} has no schema in Connect") from None
    default = shown.get("default")
    return Schema(type_, default=default, has_default=default is not None, **named)


class ProtobufConverter(RegistryConverter):
    """``io.confluent.connect.protobuf.ProtobufConverter``: messages of a descriptor set."""

    kind = "PROTOBUF"

    def encoded(self, schema: Schema, data: pa.Array, settings: FormatSettings) -> pa.Array:
        return ProtobufFormat(schema.arrow(), settings).encode(data)

    def schema(self, registered: RegisteredSchema) -> Schema:
        return schema_of(protobuf_message(self._settings).type, name=self._settings.message_name)

    def decoded(self, schema: Schema, data: pa.Array) -> Column:
        return _checked(ProtobufFormat(schema.arrow(), self._settings).decode(data), schema)
