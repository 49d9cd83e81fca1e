"""Reads Avro records as Arrow columns: a tree of nodes, one for each part of the writer's schema, made once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from .avro_cursor import Records
from .avro_leaves import Node, TextNode, fits, leaf
from .avro_parts import ListNode, MapNode, MembersNode, RecordNode, UnionNode
from .avro_schema import AvroSchema
from .base import BadRecord, Decoded, fields_of, spread


class AvroReader:
    """Reads records that were written with one schema as ``kind``. Raises ``ValueError`` if they cannot be read so.

    Fields are matched by name. What the writer lacks is null, or the default of ``reader``; what ``kind`` lacks is
    passed over; a number is read as a wider one.
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
            item = self.node(schema["items"], want.value_type if want is not None else None, path)
            return ListNode(want, path, item)
        if kind == "map":
            fits(want is None or pa.types.is_map(want), kind, want, path)
            inner = (want.key_type, want.item_type) if want is not None else (None, None)
            return MapNode(want, path, TextNode(inner[0], path), self.node(schema["values"], inner[1], path))
        return leaf(kind, schema, want, path)

    def _record(self, schema: Any, want: pa.DataType | None, path: str, reader: Any) -> Node:
        fits(want is None or pa.types.is_struct(want), "record", want, path)
        wanted = {field.name: field.type for field in fields_of(want)} if want is not None else {}
        readers = {field["name"]: field for field in self._fields(reader)}
        inner = []
        for field in schema["fields"]:
            name, reads = field["name"], readers.get(field["name"], {}).get("type")
            inner.append((name, self.node(field["type"], wanted.get(name), f"{path}.{name}" if path else name, reads)))
        written = {name for name, _ in inner}
        defaults = {name: one["default"] for name, one in readers.items() if "default" in one and name not in written}
        return RecordNode(want, path, inner, defaults)

    def _fields(self, reader: Any) -> list[Any]:
        if reader is None or self.reader is None:
            return []
        reader = self.reader.resolved(reader)
        if isinstance(reader, list):
            records = [one for one in map(self.reader.resolved, reader) if isinstance(one, dict) and "fields" in one]
            reader = records[0] if len(records) == 1 else {}
        return list(reader.get("fields", []))

    def _union(self, branches: list[Any], want: pa.DataType | None, path: str, reader: Any) -> Node:
        resolved = [self.writer.resolved(branch) for branch in branches]
        some = [branch for branch in resolved if isinstance(branch, list) or branch["type"] != "null"]
        members = len(some) > 1 and _member_names(want) == [f"member{n}" for n in range(len(some))]
        nodes: list[Node | None] = []
        for branch in resolved:
            if branch not in some:
                nodes.append(None)
                continue
            inner = fields_of(want)[some.index(branch)].type if members else want
            nodes.append(self.node(branch, inner, path, reader))
        return MembersNode(want, path, nodes) if members else UnionNode(want, path, nodes)


def _member_names(want: pa.DataType | None) -> list[str]:
    return [field.name for field in fields_of(want)] if want is not None and pa.types.is_struct(want) else []
