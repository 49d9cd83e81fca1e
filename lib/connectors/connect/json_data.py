"""Connect's data as JSON: schemas, envelopes, logical types, as ``JsonConverter`` of Kafka writes and reads them."""

from __future__ import annotations

import base64
import datetime
import math
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .arrow_data import from_arrow
from .data import DATE, DECIMAL, TIME, TIMESTAMP, Field, Schema, Struct, Type, plain
from .errors import DataException
from .json_text import exactly_parsed_json, json_bytes, json_number, parsed_json

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_DAY: Final = datetime.date(1970, 1, 1)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_WIDE: Final = Context(prec=1000)
"""Decimals are moved and cut without rounding: Python's own context has 28 digits."""
_LONG_NUMBER: Final = re.compile(rb"[\d.]{17}")
"""More digits than a float keeps."""
_SAFE: Final = r'["\\\x00-\x1f]'


def schema_json(schema: Schema) -> dict[str, Any]:
    """A schema as Connect writes it into an envelope."""
    shown: dict[str, Any] = {"type": schema.type.value}
    if schema.type is Type.STRUCT:
        shown["fields"] = [{**schema_json(field.schema), "field": field.name} for field in schema.fields]
    if schema.type is Type.ARRAY and schema.value_schema:
        shown["items"] = schema_json(schema.value_schema)
    if schema.type is Type.MAP and schema.key_schema and schema.value_schema:
        shown["keys"], shown["values"] = schema_json(schema.key_schema), schema_json(schema.value_schema)
    shown["optional"] = schema.optional
    for name in ("name", "version", "doc"):
        if (value := getattr(schema, name)) is not None:
            shown[name] = value
    if schema.parameters:
        shown["parameters"] = dict(schema.parameters)
    if schema.has_default:
        shown["default"] = _json_of(schema, numeric=False)(schema.default)
    return shown


def schema_from(shown: Any) -> Schema:
    """The schema of its JSON. Raises :class:`DataException`."""
    if not isinstance(shown, Mapping) or "type" not in shown:
        raise DataException(f"a schema in JSON is an object with a type, not {shown!r}")
    try:
        type = Type({"float32": "float", "float64": "double"}.get(shown["type"], shown["type"]))
    except ValueError:
        raise DataException(f'"{shown["type"]}" is no type of Connect') from None
    fields = tuple(
        Field(inner["field"], index, schema_from(inner)) for index, inner in enumerate(shown.get("fields", ()))
    )
    schema = Schema(
        type,
        bool(shown.get("optional", False)),
        name=shown.get("name"),
        version=shown.get("version"),
        doc=shown.get("doc"),
        parameters=tuple(sorted(shown.get("parameters", {}).items())),
        fields=fields,
        key_schema=schema_from(shown["keys"]) if "keys" in shown else None,
        value_schema=schema_from(shown[{Type.ARRAY: "items"}.get(type, "values")])
        if type in (Type.ARRAY, Type.MAP)
        else None,
    )
    if shown.get("default") is None:
        return schema
    from dataclasses import replace

    return replace(schema, default=value_from(schema, shown["default"]), has_default=True)


class JsonWriter:
    """Writes values as JSON. ``envelope`` puts the schema beside each; ``numeric`` writes decimals as numbers."""

    def __init__(self, *, numeric: bool, envelope: bool) -> None:
        self._numeric = numeric
        self._envelope = envelope
        self._known: dict[Schema, tuple[bytes, Callable[[Any], Any]]] = {}

    def write(self, schema: Schema | None, data: Any) -> pa.Array:
        """The JSON of each value, as binary. Without envelope, null is a null record, as Connect has it."""
        if schema is None:
            return self._schemaless(data)
        if not self._envelope and schema.type is Type.STRING:
            return _quoted(data)
        head, write = self._parts(schema)
        try:
            values = from_arrow(data, schema)
            bodies: list[bytes | None] = [None if value is None else json_bytes(write(value)) for value in values]
        except TypeError as wrong:
            raise DataException(f"{schema.title()}: {wrong}") from None
        if self._envelope:
            bodies = [head + (body or b"null") + b"}" for body in bodies]
        return pa.array(bodies, pa.binary())

    def _parts(self, schema: Schema) -> tuple[bytes, Callable[[Any], Any]]:
        """The bytes before a payload, and the function that writes one: made once per schema."""
        if schema not in self._known:
            head = b'{"schema":' + json_bytes(schema_json(schema)) + b',"payload":'
            self._known[schema] = head, _json_of(schema, numeric=self._numeric)
        return self._known[schema]

    def _schemaless(self, values: Any) -> pa.Array:
        bodies = [None if value is None else json_bytes(_plain_json(value)) for value in values]
        if self._envelope:
            bodies = [None if body is None else b'{"schema":null,"payload":' + body + b"}" for body in bodies]
        return pa.array(bodies, pa.binary())


class JsonReader:
    """Reads JSON as values. With ``envelope`` each brings its schema; ``content`` is the schema of all, as JSON text."""

    def __init__(self, envelope: bool, content: str | None = None) -> None:
        self._envelope = envelope and not content
        self._schema = schema_from(parsed_json(content)) if content else None

    def read(self, body: bytes | None) -> tuple[Schema | None, Any]:
        """Schema and value of ``body``. Raises :class:`DataException` for what is no JSON, or no envelope."""
        if body is None:
            return self._schema, None
        try:
            value = parsed_json(body)
        except ValueError as wrong:
            raise DataException(
                f"Converting byte[] to Kafka Connect data failed due to serialization error: {wrong}"
            ) from None
        if self._schema is not None:
            if _LONG_NUMBER.search(body) and has_decimal(self._schema):
                value = exactly_parsed_json(body)
            return self._schema, value_from(self._schema, value)
        if not self._envelope:
            return None, value
        if not isinstance(value, dict) or set(value) != {"schema", "payload"}:
            raise DataException(
                'JsonConverter with schemas.enable requires "schema" and "payload" fields and may not contain additional '
                "fields. If you are trying to deserialize plain JSON data, set schemas.enable=false in your converter "
                "configuration."
            )
        if value["schema"] is None:
            return None, value["payload"]
        schema = _known_schema(json_bytes(value["schema"]))
        if _LONG_NUMBER.search(body) and has_decimal(schema):
            value = exactly_parsed_json(body)
        return schema, value_from(schema, value["payload"])


@lru_cache(maxsize=1000)
def _known_schema(text: bytes) -> Schema:
    return schema_from(parsed_json(text))


@lru_cache(maxsize=1000)
def has_decimal(schema: Schema) -> bool:
    """Whether values of ``schema`` hold decimals."""
    inner = [*(field.schema for field in schema.fields), schema.key_schema, schema.value_schema]
    return schema.name == DECIMAL or any(has_decimal(part) for part in inner if part is not None)


def value_from(schema: Schema, value: Any) -> Any:
    """The value of ``schema`` that JSON holds. Raises :class:`DataException` for another kind of value."""
    if value is None:
        if schema.has_default:
            return schema.default
        if schema.optional:
            return None
        raise DataException(f"null is no value of {schema.title()}, which is required")
    if schema.name == DECIMAL:
        scale = int(schema.parameter("scale") or 0)
        if isinstance(value, str):
            return Decimal(int.from_bytes(base64.b64decode(value), "big", signed=True)).scaleb(-scale, _WIDE)
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-scale), context=_WIDE)
    if schema.logical:
        return _TIMES[schema.logical](int(value))
    if schema.type is Type.STRUCT:
        if not isinstance(value, dict):
            raise DataException(f"{value!r} is no value of {schema.title()}")
        struct = Struct(schema)
        struct._values = [value_from(field.schema, value.get(field.name)) for field in schema.fields]
        return struct
    if schema.type is Type.ARRAY and isinstance(value, list) and schema.value_schema:
        return [value_from(schema.value_schema, item) for item in value]
    if schema.type is Type.MAP and schema.key_schema and schema.value_schema:
        pairs = value.items() if isinstance(value, dict) else value
        return {value_from(schema.key_schema, key): value_from(schema.value_schema, item) for key, item in pairs}
    if schema.type is Type.BYTES:
        return base64.b64decode(value)
    if schema.type in (Type.FLOAT32, Type.FLOAT64) and isinstance(value, (int, float, Decimal)):
        return float(value)
    schema.validate(value)
    return value


_TIMES: Final[Mapping[str, Callable[[int], Any]]] = {
    DATE: lambda days: _DAY + datetime.timedelta(days=days),
    TIME: lambda milliseconds: (_EPOCH + milliseconds * _MILLISECOND).time(),
    TIMESTAMP: lambda milliseconds: _EPOCH + milliseconds * _MILLISECOND,
}


def milliseconds(value: datetime.datetime) -> int:
    """Milliseconds since 1970 of a time, taken as UTC where it has no zone."""
    zoned = value if value.tzinfo else value.replace(tzinfo=datetime.timezone.utc)
    return (zoned - _EPOCH) // _MILLISECOND


def _json_of(schema: Schema, *, numeric: bool) -> Callable[[Any], Any]:
    """A function that makes a value of ``schema`` one that JSON has."""
    inner = _inner_json(schema, numeric=numeric)

    def write(value: Any) -> Any:
        return None if value is None else inner(value)

    return write


def _inner_json(schema: Schema, *, numeric: bool) -> Callable[[Any], Any]:
    if schema.type is Type.STRUCT:
        fields = [(field.name, _json_of(field.schema, numeric=numeric)) for field in schema.fields]
        return lambda struct: {name: write(struct.get(name)) for name, write in fields}
    if schema.type is Type.ARRAY and schema.value_schema:
        item = _json_of(schema.value_schema, numeric=numeric)
        return lambda values: [item(value) for value in values]
    if schema.type is Type.MAP and schema.value_schema and schema.key_schema:
        key, value = _json_of(schema.key_schema, numeric=numeric), _json_of(schema.value_schema, numeric=numeric)
        if schema.key_schema.type is Type.STRING:
            return lambda pairs: {name: value(item) for name, item in pairs.items()}
        return lambda pairs: [[key(name), value(item)] for name, item in pairs.items()]
    if schema.name == DECIMAL:
        return (lambda number: json_number(f"{number:f}")) if numeric else _unscaled
    if schema.name == DATE:
        return lambda day: (day - _DAY).days
    if schema.name == TIME:
        return lambda time: ((time.hour * 60 + time.minute) * 60 + time.second) * 1000 + time.microsecond // 1000
    if schema.name == TIMESTAMP:
        return milliseconds
    if schema.type is Type.BYTES:
        return lambda value: base64.b64encode(value).decode()
    if schema.type in (Type.FLOAT32, Type.FLOAT64):
        return lambda value: value if math.isfinite(value) else str(value)
    return lambda value: value


def _unscaled(number: Decimal) -> str:
    sign, digits, _ = number.as_tuple()
    whole = int("".join(map(str, digits))) * (-1 if sign else 1)
    return base64.b64encode(whole.to_bytes((whole.bit_length() + 8) // 8, "big", signed=True)).decode()


def _plain_json(value: Any) -> Any:
    """``value`` of a record without schema, as JSON has it."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_json(item) for item in value]
    if isinstance(value, datetime.datetime):
        return milliseconds(value)
    if isinstance(value, datetime.date):
        return (value - _DAY).days
    if isinstance(value, Decimal):
        return _unscaled(value)
    if isinstance(value, Struct):
        return _plain_json(plain(value))
    raise DataException(f"{type(value).__name__} has no form in JSON")


def _quoted(text: pa.Array) -> pa.Array:
    """Text as JSON strings: a whole column at once where nothing has to be escaped."""
    if not pc.any(pc.match_substring_regex(text, _SAFE)).as_py():
        return pc.binary_join_element_wise('"', text.cast(pa.string()), '"', "").cast(pa.binary())
    return pa.array([None if value is None else json_bytes(value) for value in text.to_pylist()], pa.binary())
