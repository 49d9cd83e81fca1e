"""Avro: bodies of records, alone or in the frame of a schema registry.

A schema is read and checked, as Arrow types, or derived from Arrow types. The reader makes Arrow columns by a tree of nodes
(:mod:`.avro_nodes`), one for each part of the writer's schema; the writer (:mod:`.avro_writer`) is fastavro's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ..ground.clients import client_library
from ..ground.errors import Misconfigured, Problem
from .avro_nodes import ListNode, MapNode, MembersNode, Node, RecordNode, Records, TextNode, UnionNode, fits, leaf
from .avro_writer import INSTALL, AvroWriter
from .base import BadRecord, Decoded, Format, FormatSettings, fields_of, present, spread
from .registry import framed_by

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
        fastavro = client_library("fastavro", INSTALL, connector="connectors")
        wrong_schema = (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType)
        self.names: dict[str, Any] = {}
        try:
            for schema in (*references, text):
                parsed = fastavro.parse_schema(json.loads(schema), named_schemas=self.names, _force=True)
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
        members = [kind for kind in types if not pa.types.is_null(kind)]
        if len(members) <= 1:
            return members[0] if members else pa.null()
        if set(members) <= {pa.int32(), pa.int64()}:
            return pa.int64()
        if set(members) <= {pa.float32(), pa.float64()}:
            return pa.float64()
        return pa.struct([(f"member{number}", kind) for number, kind in enumerate(members)])


def derived(kind: pa.DataType, *, null_first: bool) -> str:
    """The Avro schema of an Arrow type. Every value may be null.

    Spark's ``to_avro`` puts null last in its unions, which matters to the bytes; where a schema is registered, null comes
    first and is the default, so that a column may be added later.
    """
    return json.dumps(_SchemaDeriver(null_first).schema(kind, "topLevelRecord"))


class _SchemaDeriver:
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
            fixed = {"type": "fixed", "name": f"{name}_fixed", "size": size, "logicalType": "decimal"}
            return {**fixed, "precision": kind.precision, "scale": kind.scale}
        return _leaf(kind)

    def _field(self, field: pa.Field, name: str) -> Any:
        try:
            schema = {"name": field.name, "type": self._nullable(field.type, f"{name}_{field.name}")}
        except ValueError as wrong:
            raise ValueError(f"{field.name}: {wrong}") from None
        return {**schema, "default": None} if self.null_first else schema

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
        "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
        "bytes": lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
    }
    for name, test in tests.items():
        if test(kind):
            return name
    raise ValueError(f"Avro has no type for {kind}")


def _bytes_for(precision: int) -> int:
    """The fewest bytes that hold every whole number of so many digits, with its sign."""
    return (int(10**precision).bit_length() + 8) // 8


class AvroReader:
    """Reads records that were written with one schema as ``kind``. Raises ``ValueError`` if they cannot be read so.

    Fields are matched by name, or by an alias that ``reader`` has. What the writer lacks is null, or the default of
    ``reader``; what ``kind`` lacks is passed over; a number is read as a wider one.
    """

    def __init__(self, writer: AvroSchema, kind: pa.DataType, reader: AvroSchema | None = None) -> None:
        self.kind = kind
        self.root = _Compiler(writer, reader).node(writer.root, kind, "", reader.root if reader else None)

    def decode(self, column: pa.Array) -> Decoded:
        """The values of ``column`` (binary, without nulls)."""
        if not len(column):
            return Decoded(pa.nulls(0, self.kind))
        records = Records(column)
        cursor = records.cursor()
        values = self.root.read(cursor)
        cursor.fail(cursor.at < cursor.end, "has more bytes than its schema")
        if not records.errors:
            return Decoded(values)
        good = np.flatnonzero(~records.failed)
        values = spread(values.take(pa.array(good)), pa.array(~records.failed))
        return Decoded(values, [BadRecord(row, why) for row, why in sorted(records.errors.items())])


class _Compiler:
    """Makes the tree of nodes for a writer's schema."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema | None) -> None:
        self.writer = writer
        self.reader = reader

    def node(self, schema: Any, want: pa.DataType | None, path: str, reader: Any = None) -> Node:
        schema = self.writer.resolved(schema)
        if isinstance(schema, list):
            return self._union(schema, want, path, reader)
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.node(kind, want, path, reader)
        if kind in ("record", "error"):
            return self._record(schema, want, path, reader)
        if kind == "array":
            fits(want is None or pa.types.is_list(want) or pa.types.is_large_list(want), kind, want, path)
            items = self._reader_part(reader, kind).get("items")
            item = self.node(schema["items"], want.value_type if want is not None else None, path, items)
            return ListNode(want, path, item)
        if kind == "map":
            fits(want is None or pa.types.is_map(want), kind, want, path)
            inner = (want.key_type, want.item_type) if want is not None else (None, None)
            values = self.node(schema["values"], inner[1], path, self._reader_part(reader, kind).get("values"))
            return MapNode(want, path, TextNode(inner[0], path), values)
        return leaf(kind, schema, want, path)

    def _record(self, schema: Any, want: pa.DataType | None, path: str, reader: Any) -> Node:
        fits(want is None or pa.types.is_struct(want), "record", want, path)
        types = {field.name: field.type for field in fields_of(want)} if want is not None else {}
        readers = {field["name"]: field for field in self._reader_part(reader, schema["type"]).get("fields", ())}
        own = {field["name"] for field in schema["fields"]}
        renamed = {
            alias: name for name, field in readers.items() if name not in own for alias in field.get("aliases", ())
        }
        inner = []
        for field in schema["fields"]:
            name = renamed.get(field["name"], field["name"])
            reads = readers.get(name, {}).get("type")
            inner.append((name, self.node(field["type"], types.get(name), f"{path}.{name}" if path else name, reads)))
        written = {name for name, _ in inner}
        missing = ((name, field) for name, field in readers.items() if name not in written and "default" in field)
        defaults = {name: self._default(field["type"], field["default"]) for name, field in missing}
        return RecordNode(want, path, inner, defaults)

    def _default(self, part: Any, value: Any) -> Any:
        """A default of the reader's schema, which is JSON, as Arrow takes it."""
        assert self.reader is not None
        part = self.reader.resolved(part)
        if value is None:
            return None
        if isinstance(part, list):
            return self._default(next(each for each in part if each != "null"), value)
        kind, logical = part["type"], part.get("logicalType", "")
        if isinstance(kind, (dict, list)):
            return self._default(kind, value)
        if kind in ("record", "error"):
            return {f["name"]: self._default(f["type"], value.get(f["name"], f.get("default"))) for f in part["fields"]}
        if kind == "array":
            return [self._default(part["items"], item) for item in value]
        if kind == "map":
            return [(key, self._default(part["values"], item)) for key, item in value.items()]
        if kind in ("bytes", "fixed"):
            raw = value.encode("latin-1")  # JSON has bytes as text of the same code points
            unscaled = int.from_bytes(raw, "big", signed=True)
            return Decimal(f"{unscaled}E-{part.get('scale', 0)}") if logical == "decimal" else raw
        return value * 1000 if logical.endswith("timestamp-millis") else value

    def _reader_part(self, reader: Any, kind: str) -> dict[str, Any]:
        """The part of the reader's schema that reads a record, an array or a map; empty if it has none, or several."""
        if reader is None or self.reader is None:
            return {}
        reader = self.reader.resolved(reader)
        if isinstance(reader, dict) and isinstance(reader["type"], (dict, list)):
            return self._reader_part(reader["type"], kind)
        branches = [self.reader.resolved(each) for each in (reader if isinstance(reader, list) else [reader])]
        parts = [branch for branch in branches if isinstance(branch, dict) and branch["type"] == kind]
        return parts[0] if len(parts) == 1 else {}

    def _union(self, branches: list[Any], want: pa.DataType | None, path: str, reader: Any) -> Node:
        resolved = [self.writer.resolved(branch) for branch in branches]
        parts = [branch for branch in resolved if isinstance(branch, list) or branch["type"] != "null"]
        members = len(parts) > 1 and _member_names(want) == [f"member{n}" for n in range(len(parts))]
        nodes: list[Node | None] = []
        for branch in resolved:
            if branch not in parts:
                nodes.append(None)
                continue
            inner = fields_of(want)[parts.index(branch)].type if members else want
            nodes.append(self.node(branch, inner, path, reader))
        return MembersNode(want, path, nodes) if members else UnionNode(want, path, nodes)


def _member_names(want: pa.DataType | None) -> list[str]:
    return [field.name for field in fields_of(want)] if want is not None and pa.types.is_struct(want) else []


class AvroFormat(Format):
    """One Avro body a record, without a file's header.

    The schema of the writer is looked up by its id in ``schemaRegistry.url``; without a registry it is
    ``value.avroSchema``, or the one that Spark's ``to_avro`` makes of ``schema``.
    """

    name = "avro"
    needs_schema = True

    def __init__(self, kind: pa.DataType, settings: FormatSettings | None = None) -> None:
        super().__init__(kind, settings)
        self._framing = framed_by(self.settings)
        text = self.settings.avro_schema
        self._user_schema = avro_schema(text) if text is not None else None
        self._readers: dict[int, AvroReader | ValueError] = {}
        self._plain: AvroReader | None = None
        self._writer: AvroWriter | None = None

    def decode(self, records: pa.Array) -> Decoded:
        if self._framing is not None:
            return self._framing.decode(records, self._framed, self.kind)
        if self._plain is None:
            try:
                self._plain = AvroReader(self._schema(null_first=False), self.kind)
            except ValueError as wrong:
                raise Misconfigured(
                    "connectors", [Problem("schema", f"does not fit the Avro schema: {wrong}.")]
                ) from None
        return present(self._plain.decode, records.cast(pa.binary()))

    def check_encode(self) -> None:
        self._record_writer()

    def encode(self, values: pa.Array) -> pa.Array:
        bodies = self._record_writer().encode(values)
        if self._framing is None:
            return bodies
        return self._framing.encode(bodies, self.settings.avro_schema or derived(self.kind, null_first=True), "AVRO")

    def _record_writer(self) -> AvroWriter:
        if self._writer is None:
            self._writer = AvroWriter(self._schema(null_first=self._framing is not None), self.kind)
        return self._writer

    def _schema(self, *, null_first: bool) -> AvroSchema:
        return self._user_schema or AvroSchema(derived(self.kind, null_first=null_first))

    def _framed(self, number: int, bodies: pa.Array) -> Decoded:
        if number not in self._readers:
            self._readers[number] = self._new_reader(number)
        reader = self._readers[number]
        if isinstance(reader, ValueError):
            bad = [BadRecord(index, f"schema {number}: {reader}", type(reader).__name__) for index in range(len(bodies))]
            return Decoded(pa.nulls(len(bodies), self.kind), bad)
        return present(reader.decode, bodies)

    def _new_reader(self, number: int) -> AvroReader | ValueError:
        assert self._framing is not None
        schema = self._framing.schema(number)
        if schema.kind != "AVRO":
            return ValueError(f"is of {schema.kind}, not of AVRO")
        try:
            return AvroReader(AvroSchema(schema.text, schema.references), self.kind, self._user_schema)
        except ValueError as wrong:
            return wrong


def avro_schema(text: str, option: str = "value.avroSchema") -> AvroSchema:
    """The schema that a user set. Raises :class:`Misconfigured` when it is none."""
    try:
        return AvroSchema(text)
    except ValueError as wrong:
        raise Misconfigured("connectors", [Problem(option, f"{wrong}.")]) from None
