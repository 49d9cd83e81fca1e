"""Connect's data model: schemas, structs and logical types, and what they are in Arrow."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal as PyDecimal
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, Final

import pyarrow as pa

from .errors import DataException, SchemaBuilderException, SchemaException


class Type(str, Enum):
    """The types of Connect, each with the name that it has in JSON."""

    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float"
    FLOAT64 = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    BYTES = "bytes"
    ARRAY = "array"
    MAP = "map"
    STRUCT = "struct"


_RANGES: Final = {Type.INT8: 8, Type.INT16: 16, Type.INT32: 32, Type.INT64: 64}
_PYTHON: Final[Mapping[Type, tuple[type, ...]]] = {
    **dict.fromkeys(_RANGES, (int,)),
    Type.FLOAT32: (float, int),
    Type.FLOAT64: (float, int),
    Type.BOOLEAN: (bool,),
    Type.STRING: (str,),
    Type.BYTES: (bytes, bytearray, memoryview),
    Type.ARRAY: (list, tuple),
    Type.MAP: (dict,),
}
ARROW_TYPES: Final = {
    Type.INT8: pa.int8(),
    Type.INT16: pa.int16(),
    Type.INT32: pa.int32(),
    Type.INT64: pa.int64(),
    Type.FLOAT32: pa.float32(),
    Type.FLOAT64: pa.float64(),
    Type.BOOLEAN: pa.bool_(),
    Type.STRING: pa.string(),
    Type.BYTES: pa.binary(),
}
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
DATE: Final = "org.apache.kafka.connect.data.Date"
TIME: Final = "org.apache.kafka.connect.data.Time"
TIMESTAMP: Final = "org.apache.kafka.connect.data.Timestamp"
_LOGICAL_PYTHON: Final[Mapping[str, tuple[type, ...]]] = {
    DECIMAL: (PyDecimal,),
    DATE: (datetime.date,),
    TIME: (datetime.time,),
    TIMESTAMP: (datetime.datetime,),
}


@dataclass(frozen=True)
class Field:
    """A field of a struct schema: its ``name``, its place (``index``) and its ``schema``."""

    name: str
    index: int
    schema: Schema


@dataclass(frozen=True)
class Schema:
    """The type of a key, a value, a header or a part of one. Immutable; equal schemas are equal in everything.

    Made by :class:`SchemaBuilder`, or one of the constants ``Schema.STRING_SCHEMA``, ``Schema.OPTIONAL_INT32_SCHEMA`` …
    ``default`` is used for a field that a struct lacks; ``has_default`` tells a default of ``None`` from none.
    """

    type: Type
    optional: bool = False
    default: Any = None
    has_default: bool = False
    name: str | None = None
    version: int | None = None
    doc: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    fields: tuple[Field, ...] = ()
    key_schema: Schema | None = None
    value_schema: Schema | None = None

    INT8_SCHEMA: ClassVar[Schema]
    INT16_SCHEMA: ClassVar[Schema]
    INT32_SCHEMA: ClassVar[Schema]
    INT64_SCHEMA: ClassVar[Schema]
    INT_SCHEMA: ClassVar[Schema]
    FLOAT32_SCHEMA: ClassVar[Schema]
    FLOAT64_SCHEMA: ClassVar[Schema]
    BOOLEAN_SCHEMA: ClassVar[Schema]
    STRING_SCHEMA: ClassVar[Schema]
    BYTES_SCHEMA: ClassVar[Schema]
    OPTIONAL_INT8_SCHEMA: ClassVar[Schema]
    OPTIONAL_INT16_SCHEMA: ClassVar[Schema]
    OPTIONAL_INT32_SCHEMA: ClassVar[Schema]
    OPTIONAL_INT64_SCHEMA: ClassVar[Schema]
    OPTIONAL_FLOAT32_SCHEMA: ClassVar[Schema]
    OPTIONAL_FLOAT64_SCHEMA: ClassVar[Schema]
    OPTIONAL_BOOLEAN_SCHEMA: ClassVar[Schema]
    OPTIONAL_STRING_SCHEMA: ClassVar[Schema]
    OPTIONAL_BYTES_SCHEMA: ClassVar[Schema]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(
            (self.type, self.optional, self.name, self.version, self.fields, self.key_schema, self.value_schema)
        )

    @cached_property
    def by_name(self) -> Mapping[str, Field]:
        """The fields of a struct schema by their names."""
        return {field.name: field for field in self.fields}

    @property
    def logical(self) -> str | None:
        """The name of a logical type that the library knows."""
        return self.name if self.name in _LOGICAL_PYTHON else None

    def field(self, name: str) -> Field:
        """The field ``name``. Raises :class:`DataException` where there is none."""
        if name not in self.by_name:
            known = ", ".join(self.by_name) or "none"
            raise DataException(f'{self.title()} has no field "{name}"; it has {known}')
        return self.by_name[name]

    def parameter(self, name: str) -> str | None:
        return dict(self.parameters).get(name)

    def title(self) -> str:
        """The name of the schema in messages: ``Schema{com.example.Person:STRUCT}``, as in Connect."""
        return f"Schema{{{self.name}:{self.type.name}}}" if self.name else f"Schema{{{self.type.name}}}"

    def validate(self, value: Any, path: str = "") -> None:
        """Raises :class:`DataException` for a value that this schema does not have; it names field, schema and value."""
        at = f'field "{path}": ' if path else ""
        if value is None:
            if not (self.optional or self.has_default):
                raise DataException(f"{at}null is no value of {self.title()}, which is required")
            return
        if self.type is Type.STRUCT:
            if not isinstance(value, Struct):
                raise DataException(f"{at}{type(value).__name__} is no value of {self.title()}; it must be a Struct")
            if value.schema != self:
                raise DataException(f"{at}a struct of {value.schema.title()} is no value of {self.title()}")
            return
        if not self._has_kind(value):
            raise DataException(f"{at}{value!r} ({type(value).__name__}) is no value of {self.title()}")
        if self.type in _RANGES and not self.logical and not _fits(value, _RANGES[self.type]):
            raise DataException(f"{at}{value} is out of the range of {self.title()}")
        if self.type is Type.ARRAY and self.value_schema:
            for item in value:
                self.value_schema.validate(item, f"{path}[]")
        if self.type is Type.MAP and self.value_schema and self.key_schema:
            for key, item in value.items():
                self.key_schema.validate(key, f"{path}{{key}}")
                self.value_schema.validate(item, f"{path}{{{key}}}")

    def _has_kind(self, value: object) -> bool:
        expected = _LOGICAL_PYTHON.get(self.name or "", _PYTHON[self.type])
        return isinstance(value, expected) and (bool in expected or not isinstance(value, bool))

    def arrow(self) -> pa.DataType:
        """The Arrow type of the schema's values."""
        return self._arrow

    @cached_property
    def _arrow(self) -> pa.DataType:
        if self.type is Type.STRUCT:
            return pa.struct([pa.field(field.name, field.schema.arrow()) for field in self.fields])
        if self.type is Type.ARRAY:
            return pa.list_(self.value_schema.arrow() if self.value_schema else pa.string())
        if self.type is Type.MAP:
            assert self.key_schema is not None
            assert self.value_schema is not None
            return pa.map_(self.key_schema.arrow(), self.value_schema.arrow())
        if self.name == DECIMAL:
            return pa.decimal128(38, int(self.parameter("scale") or 0))
        return _LOGICAL_ARROW.get(self.name or "", ARROW_TYPES[self.type])


def _fits(number: int, bits: int) -> bool:
    return -(1 << bits - 1) <= number < 1 << bits - 1


_LOGICAL_ARROW: Final[Mapping[str, pa.DataType]] = {
    DATE: pa.date32(),
    TIME: pa.time32("ms"),
    TIMESTAMP: pa.timestamp("ms", tz="UTC"),
}


def require_schema(expected: Schema, actual: Schema | None, what: str = "a value") -> None:
    """Raises :class:`SchemaException`, which names both schemas, unless ``actual`` is ``expected`` but for names and docs.

    A sink task calls it before it writes what does not fit the target. Fields are compared by name, with their types; a field
    that ``actual`` lacks must be optional or have a default.
    """
    if actual is None or (difference := _difference(expected, actual)):
        description = "no schema" if actual is None else f"{described(actual)}: {difference}"
        raise SchemaException(f"{what} must have the schema {described(expected)}, and has {description}")


def described(schema: Schema) -> str:
    """A schema with its fields, for messages: ``Schema{person:STRUCT}(name: STRING, age: INT32)``."""
    if schema.type is not Type.STRUCT:
        return schema.title()
    fields = (f"{field.name}: {field.schema.name or field.schema.type.name}" for field in schema.fields)
    return f"{schema.title()}({', '.join(fields)})"


def _difference(expected: Schema, actual: Schema, path: str = "") -> str:
    """The first way in which ``actual`` does not fit; empty where it does."""
    if (expected.type, expected.logical) != (actual.type, actual.logical):
        return f"{path or 'the value'} is {actual.logical or actual.type.name}, not {expected.logical or expected.type.name}"
    for field in expected.fields:
        at = f"{path}.{field.name}" if path else field.name
        if field.name not in actual.by_name:
            if not (field.schema.optional or field.schema.has_default):
                return f"{at} is missing"
        elif difference := _difference(field.schema, actual.by_name[field.name].schema, at):
            return difference
    return next(
        (f"{path}.{name}".lstrip(".") + " is not expected" for name in actual.by_name if name not in expected.by_name),
        "",
    )


class SchemaBuilder:
    """Builds a :class:`Schema` step by step; each step returns the builder, and setting something twice is an error.

    ::

        PERSON = (
            SchemaBuilder.struct().name("com.example.Person")
            .field("name", Schema.STRING_SCHEMA)
            .field("age", Schema.INT32_SCHEMA)
            .field("admin", SchemaBuilder.bool().default_value(False).build())
            .build()
        )
    """

    def __init__(self, type: Type, key_schema: Schema | None = None, value_schema: Schema | None = None) -> None:
        self._schema = Schema(type, key_schema=key_schema, value_schema=value_schema)
        self._set: set[str] = set()

    @classmethod
    def struct(cls) -> SchemaBuilder:
        return cls(Type.STRUCT)

    @classmethod
    def array(cls, value_schema: Schema) -> SchemaBuilder:
        return cls(Type.ARRAY, value_schema=value_schema)

    @classmethod
    def map(cls, key_schema: Schema, value_schema: Schema) -> SchemaBuilder:
        return cls(Type.MAP, key_schema, value_schema)

    @classmethod
    def int8(cls) -> SchemaBuilder:
        return cls(Type.INT8)

    @classmethod
    def int16(cls) -> SchemaBuilder:
        return cls(Type.INT16)

    @classmethod
    def int32(cls) -> SchemaBuilder:
        return cls(Type.INT32)

    @classmethod
    def int64(cls) -> SchemaBuilder:
        return cls(Type.INT64)

    @classmethod
    def float32(cls) -> SchemaBuilder:
        return cls(Type.FLOAT32)

    @classmethod
    def float64(cls) -> SchemaBuilder:
        return cls(Type.FLOAT64)

    @classmethod
    def bool(cls) -> SchemaBuilder:
        return cls(Type.BOOLEAN)

    @classmethod
    def string(cls) -> SchemaBuilder:
        return cls(Type.STRING)

    @classmethod
    def bytes(cls) -> SchemaBuilder:
        return cls(Type.BYTES)

    @classmethod
    def decimal(cls, scale: int) -> SchemaBuilder:
        """Connect's logical type Decimal: unscaled bytes with a fixed ``scale``."""
        return cls(Type.BYTES).name(DECIMAL).version(1).parameter("scale", str(scale))

    @classmethod
    def date(cls) -> SchemaBuilder:
        return cls(Type.INT32).name(DATE).version(1)

    @classmethod
    def time(cls) -> SchemaBuilder:
        return cls(Type.INT32).name(TIME).version(1)

    @classmethod
    def timestamp(cls) -> SchemaBuilder:
        return cls(Type.INT64).name(TIMESTAMP).version(1)

    def optional(self) -> SchemaBuilder:
        return self._with("optional", optional=True)

    def required(self) -> SchemaBuilder:
        return self._with("optional", optional=False)

    def default_value(self, value: Any) -> SchemaBuilder:
        """The value of a field that a struct lacks. Raises :class:`SchemaBuilderException` if the type does not have it."""
        try:
            replace(self._schema, optional=True).validate(value)
        except DataException as wrong:
            raise SchemaBuilderException(f"invalid default: {wrong}") from None
        return self._with("default", default=value, has_default=True)

    def name(self, name: str) -> SchemaBuilder:
        return self._with("name", name=name)

    def version(self, version: int) -> SchemaBuilder:
        return self._with("version", version=version)

    def doc(self, doc: str) -> SchemaBuilder:
        return self._with("doc", doc=doc)

    def parameter(self, name: str, value: str) -> SchemaBuilder:
        self._schema = replace(self._schema, parameters=(*self._schema.parameters, (name, value)))
        return self

    def field(self, name: str, schema: Schema | SchemaBuilder) -> SchemaBuilder:
        """Adds a field of a struct, behind the others."""
        if self._schema.type is not Type.STRUCT:
            raise SchemaBuilderException(f"only a struct has fields, not {self._schema.title()}")
        if not name:
            raise SchemaBuilderException("a field needs a name")
        if name in self._schema.by_name:
            raise SchemaBuilderException(f'the field "{name}" is there already')
        inner = schema.build() if isinstance(schema, SchemaBuilder) else schema
        added = Field(name, len(self._schema.fields), inner)
        self._schema = replace(self._schema, fields=(*self._schema.fields, added))
        return self

    def build(self) -> Schema:
        return self._schema

    schema = build

    def _with(self, what: str, **changes: Any) -> SchemaBuilder:
        if what in self._set:
            raise SchemaBuilderException(f"{what} is set already")
        self._set.add(what)
        self._schema = replace(self._schema, **changes)
        return self


class Struct:
    """A value of a struct schema. :meth:`put` checks each value; a field that was not put has its default."""

    __slots__ = ("_values", "schema")

    def __init__(self, schema: Schema) -> None:
        if schema.type is not Type.STRUCT:
            raise DataException(f"a struct needs a struct schema, not {schema.title()}")
        self.schema = schema
        self._values: list[Any] = [None] * len(schema.fields)

    @classmethod
    def of(cls, schema: Schema, values: Mapping[str, Any]) -> Struct:
        """A struct with ``values`` by name, each of them checked."""
        struct = cls(schema)
        for name, value in values.items():
            struct.put(name, value)
        return struct

    def put(self, name: str, value: Any) -> Struct:
        """Sets a field. Raises :class:`DataException` for an unknown one, or a value that its schema does not have."""
        target = self.schema.field(name)
        target.schema.validate(value, name)
        self._values[target.index] = value
        return self

    def get(self, name: str) -> Any:
        """The value of a field, else its default."""
        target = self.schema.field(name)
        value = self._values[target.index]
        return target.schema.default if value is None and target.schema.has_default else value

    __getitem__ = get
    __setitem__ = put

    def get_without_default(self, name: str) -> Any:
        return self._values[self.schema.field(name).index]

    def validate(self) -> None:
        """Raises :class:`DataException` if a required field without a default has no value."""
        for target in self.schema.fields:
            target.schema.validate(self._values[target.index], target.name)

    def to_dict(self) -> dict[str, Any]:
        """The struct, and those inside it, as dictionaries with defaults filled in."""
        return {target.name: plain(self.get(target.name)) for target in self.schema.fields}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Struct) and self.schema == other.schema and self._values == other._values

    def __hash__(self) -> int:
        return hash((self.schema, repr(self._values)))

    def __repr__(self) -> str:
        shown = ",".join(f"{target.name}={self.get(target.name)}" for target in self.schema.fields)
        return f"Struct{{{shown}}}"


def plain(value: Any) -> Any:
    """``value`` with dictionaries in place of structs."""
    if isinstance(value, Struct):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


for _type in (_type for _type in Type if _type in ARROW_TYPES):
    _label = {"float": "FLOAT32", "double": "FLOAT64"}.get(_type.value, _type.value.upper())
    setattr(Schema, f"{_label}_SCHEMA", Schema(_type))
    setattr(Schema, f"OPTIONAL_{_label}_SCHEMA", Schema(_type, optional=True))
Schema.INT_SCHEMA = Schema.INT32_SCHEMA
