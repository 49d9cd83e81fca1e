"""Converters: keys and values of a schema to bytes, and back, whole columns at a time.

Names are Connect's (``org.apache.kafka.connect.json.JsonConverter``); a converter of one's own is a subclass of
:class:`Converter`, or of :class:`RecordConverter` which takes one value at a time, named by its dotted name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..ground.errors import Problem
from .columns import Column
from .config import ConfigDef
from .data import Schema, Struct, Type
from .errors import DataException
from .json_data import JsonReader, JsonWriter
from .plugins import named_class
from .records import Header
from .value_text import text_of, value_of


class Converter(ABC):
    """Makes bytes of keys or values, and back."""

    def configure(self, configs: Mapping[str, str], is_key: bool) -> None:  # noqa: B027 - a hook, not a duty
        """Takes its settings, without the prefix ``key.converter.`` or ``value.converter.``."""

    def config(self) -> ConfigDef:
        return ConfigDef()

    @abstractmethod
    def from_connect(self, topic: str, column: Column) -> pa.Array:
        """The bytes of each value (binary; null for none). Raises :class:`DataException` for one that has no bytes."""

    @abstractmethod
    def to_connect(self, topic: str, data: pa.Array) -> Iterator[tuple[int, int, Column]]:
        """The values of ``data``, as runs of one schema: first place, count, values. Raises :class:`DataException`."""


class RecordConverter(Converter):
    """A converter of one's own, one value at a time."""

    @abstractmethod
    def from_connect_data(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """The bytes of ``value``."""

    @abstractmethod
    def to_connect_data(self, topic: str, value: bytes | None) -> tuple[Schema | None, Any]:
        """Schema and value of bytes."""

    def from_connect(self, topic: str, column: Column) -> pa.Array:
        return pa.array([self.from_connect_data(topic, column.schema, value) for value in column.values()], pa.binary())

    def to_connect(self, topic: str, data: pa.Array) -> Iterator[tuple[int, int, Column]]:
        yield from runs([self.to_connect_data(topic, value) for value in data.to_pylist()])


def runs(pairs: Sequence[tuple[Schema | None, Any]]) -> Iterator[tuple[int, int, Column]]:
    """Values with their schemas, as runs of one schema."""
    first = 0
    while first < len(pairs):
        schema, end = pairs[first][0], first + 1
        while end < len(pairs) and pairs[end][0] == schema:
            end += 1
        yield first, end - first, Column.of(schema, [value for _, value in pairs[first:end]])
        first = end


class StringConverter(Converter):
    """Text; what is not text as Java's ``toString`` has it."""

    def from_connect(self, topic: str, column: Column) -> pa.Array:
        if column.schema is not None and column.schema.type is Type.STRING:
            return column.data.cast(pa.binary())
        if column.schema is not None and column.schema.type.value.startswith("int") and not column.schema.logical:
            return column.data.cast(pa.string()).cast(pa.binary())
        return pa.array([None if value is None else _text(value).encode() for value in column.values()], pa.binary())

    def to_connect(self, topic: str, data: pa.Array) -> Iterator[tuple[int, int, Column]]:
        try:
            text = data.cast(pa.string())
            text.validate(full=True)
        except pa.ArrowInvalid:
            raise DataException("the bytes are no UTF-8 text") from None
        yield 0, len(data), Column(Schema.OPTIONAL_STRING_SCHEMA, text)


class SimpleHeaderConverter(RecordConverter):
    """Text of any value; numbers, booleans, times, lists and maps come back as such. The converter of headers, by default."""

    def from_connect_data(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        return None if value is None else text_of(value, schema).encode()

    def to_connect_data(self, topic: str, value: bytes | None) -> tuple[Schema | None, Any]:
        if value is None:
            return None, None
        try:
            return value_of(value.decode(errors="replace"))
        except RecursionError:  # where Java has no stack left, it gives the bytes
            return Schema.BYTES_SCHEMA, value


class ByteArrayConverter(Converter):
    """The bytes as they are."""

    def from_connect(self, topic: str, column: Column) -> pa.Array:
        if column.schema is not None and column.schema.type is not Type.BYTES:
            raise DataException(f"ByteArrayConverter takes bytes, and this is {column.schema.title()}")
        if column.schema is not None and not column.schema.logical:
            return column.data.cast(pa.binary())
        values = column.values()
        for value in values:
            if value is not None and not isinstance(value, (bytes, bytearray, memoryview)):
                raise DataException(f"ByteArrayConverter takes bytes, not {type(value).__name__}")
        return pa.array(values, pa.binary())

    def to_connect(self, topic: str, data: pa.Array) -> Iterator[tuple[int, int, Column]]:
        yield 0, len(data), Column(Schema.OPTIONAL_BYTES_SCHEMA, data.cast(pa.binary()))


class NumberConverter(Converter):
    """A number in big-endian bytes, as Kafka's serializers write it; a subclass names type and layout."""

    type: ClassVar[Type]
    code: ClassVar[str]

    def from_connect(self, topic: str, column: Column) -> pa.Array:
        import struct

        if column.schema is not None and column.schema.type is not self.type:
            raise DataException(f"{type(self).__name__} takes {self.type.name}, and this is {column.schema.title()}")
        try:
            pack = struct.Struct(self.code).pack
            return pa.array([None if value is None else pack(value) for value in column.values()], pa.binary())
        except struct.error as wrong:
            raise DataException(f"{type(self).__name__}: {wrong}") from None

    def to_connect(self, topic: str, data: pa.Array) -> Iterator[tuple[int, int, Column]]:
        import struct

        try:
            unpack = struct.Struct(self.code).unpack
            values = [None if value is None else unpack(value)[0] for value in data.to_pylist()]
        except struct.error as wrong:
            raise DataException(f"{type(self).__name__}: {wrong}") from None
        yield 0, len(data), Column.of(Schema(self.type, optional=True), values)


class ShortConverter(NumberConverter):
    type, code = Type.INT16, ">h"


class IntegerConverter(NumberConverter):
    type, code = Type.INT32, ">i"


class LongConverter(NumberConverter):
    type, code = Type.INT64, ">q"


class FloatConverter(NumberConverter):
    type, code = Type.FLOAT32, ">f"


class DoubleConverter(NumberConverter):
    type, code = Type.FLOAT64, ">d"


class BooleanConverter(NumberConverter):
    type, code = Type.BOOLEAN, ">?"


class JsonConverter(Converter):
    """JSON; with ``schemas.enable`` in an envelope of ``schema`` and ``payload``."""

    def config(self) -> ConfigDef:
        return (
            ConfigDef()
            .define("schemas.enable", "BOOLEAN", True, "HIGH", "an envelope with the schema around each value")
            .define(
                "schemas.cache.size", "INT", 1000, "HIGH", "accepted; the library keeps the schemas that it has met"
            )
            .define("decimal.format", "STRING", "BASE64", "LOW", "how decimals are written: BASE64 or NUMERIC")
            .define(
                "replace.null.with.default", "BOOLEAN", True, "LOW", "null in a field with a default is the default"
            )
            .define("schema.content", "STRING", None, "MEDIUM", "the schema of all values, where they come without one")
        )

    def configure(self, configs: Mapping[str, str], is_key: bool) -> None:
        values = self.config().parse(configs)
        self.schemas_enable: bool = values["schemas.enable"]
        self._writer = JsonWriter(
            numeric=str(values["decimal.format"]).upper() == "NUMERIC", envelope=self.schemas_enable
        )
        self._reader = JsonReader(self.schemas_enable, values["schema.content"])

    def from_connect(self, topic: str, column: Column) -> pa.Array:
        return self._writer.write(column.schema, column.data)

    def to_connect(self, topic: str, data: pa.Array) -> Iterator[tuple[int, int, Column]]:
        yield from runs([self._reader.read(value) for value in data.to_pylist()])


_KAFKA: Final = "org.apache.kafka.connect"
CONVERTERS: Final[dict[str, Callable[[], Converter]]] = {
    f"{_KAFKA}.storage.StringConverter": StringConverter,
    f"{_KAFKA}.storage.SimpleHeaderConverter": SimpleHeaderConverter,
    f"{_KAFKA}.json.JsonConverter": JsonConverter,
    f"{_KAFKA}.converters.ByteArrayConverter": ByteArrayConverter,
    f"{_KAFKA}.converters.ShortConverter": ShortConverter,
    f"{_KAFKA}.converters.IntegerConverter": IntegerConverter,
    f"{_KAFKA}.converters.LongConverter": LongConverter,
    f"{_KAFKA}.converters.FloatConverter": FloatConverter,
    f"{_KAFKA}.converters.DoubleConverter": DoubleConverter,
    f"{_KAFKA}.converters.BooleanConverter": BooleanConverter,
}
"""Converters by the names of Connect's classes."""
_REGISTRY: Final = ("Avro", "JsonSchema", "Protobuf")
"""Parts of the names of converters with a schema registry, which only Java connectors have."""
DEFAULT_CONVERTER: Final = f"{_KAFKA}.json.JsonConverter"
"""The converter of keys and values where the user names none: plain JSON, without schemas."""


def converter_of(properties: Mapping[str, str], side: str) -> Converter:
    """The converter of ``side``: key, value or header. Raises ``ValueError`` with a sentence for a class that is none."""
    prefix = f"{side}.converter"
    name = properties.get(prefix)
    settings = {key[len(prefix) + 1 :]: value for key, value in properties.items() if key.startswith(f"{prefix}.")}
    if name is None:
        name = DEFAULT_CONVERTER if side != "header" else f"{_KAFKA}.storage.SimpleHeaderConverter"
        settings.setdefault("schemas.enable", "false")
    converter = _converter(name)
    converter.configure(settings, side == "key")
    return converter


def header_bytes(converter: Converter, header: Header) -> bytes | None:
    """The bytes of a header's value."""
    if isinstance(converter, RecordConverter):
        return converter.from_connect_data("", header.schema, header.value)
    value: bytes | None = converter.from_connect("", Column.of(header.schema, [header.value]))[0].as_py()
    return value


def header_of(converter: Converter, topic: str, key: str, data: bytes | None) -> Header:
    """The header with these bytes as its value."""
    if isinstance(converter, RecordConverter):
        schema, value = converter.to_connect_data(topic, data)
    else:
        ((_, _, column),) = converter.to_connect(topic, pa.array([data], pa.binary()))
        schema, (value,) = column.schema, column.values()
    return Header(key, value, schema)


def converter_problems(properties: Mapping[str, str]) -> Iterator[Problem]:
    """The problems of the converters of a configuration."""
    for side in ("key", "value", "header"):
        prefix = f"{side}.converter"
        if prefix not in properties:
            continue
        try:
            converter = _converter(properties[prefix])
        except ValueError as wrong:
            yield Problem(prefix, str(wrong))
            continue
        settings = {key[len(prefix) + 1 :]: value for key, value in properties.items() if key.startswith(f"{prefix}.")}
        problems = list(converter.config().problems(settings, f"{prefix}."))
        yield from problems
        if not problems:
            try:
                converter.configure(settings, side == "key")
            except Exception as wrong:
                yield Problem(prefix, f"{wrong}")


def _converter(name: str) -> Converter:
    for full, make in CONVERTERS.items():  # Connect accepts JsonConverter, and Json, too
        if name in (full, last := full.rpartition(".")[2], last.removesuffix("Converter")):
            return make()
    try:
        kind = named_class(name)
    except ImportError:
        known = ", ".join(sorted(kind.rpartition(".")[2] for kind in CONVERTERS))
        text = f'"{name}" is no converter that is here; there are {known}, and Python classes by their dotted name.'
        if any(part in name for part in _REGISTRY):
            text += (
                " With a schema registry, read or write columns by connectors.kafka (value.format=avro, json or protobuf and "
                "schemaRegistry.url), or take the Java connector (pluginPath or pluginPackages)."
            )
        raise ValueError(text) from None
    if not (isinstance(kind, type) and issubclass(kind, Converter)):
        raise ValueError(f'"{name}" is no Converter')
    converter: Converter = kind()
    return converter


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Struct):
        shown = ",".join(f"{field.name}={_text(value.get(field.name))}" for field in value.schema.fields)
        return f"Struct{{{shown}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_text(item)}" for key, item in value.items()) + "}"
    return "null" if value is None else str(value)


def converted(converter: Converter, topics: pa.Array, column: Column) -> pa.Array:
    """The bytes of ``column``, topic by topic, since a converter may know a schema by its topic."""
    if column.schema is None and column.data.count(None) == len(column):
        return pa.nulls(len(column), pa.binary())
    names = pc.unique(topics).to_pylist()
    if len(names) <= 1:
        return converter.from_connect(names[0] if names else "", column)
    places = topics.to_pylist()
    out: list[Any] = [None] * len(column)
    for name in names:
        at = [place for place, topic in enumerate(places) if topic == name]
        for place, value in zip(at, converter.from_connect(name, column.take(at)).to_pylist(), strict=True):
            out[place] = value
    return pa.array(out, pa.binary())
