"""Writes Arrow values as Avro bodies, by fastavro."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from .avro_schema import INSTALL, AvroSchema
from .base import fields_of, library

_Change = Callable[[Any], Any]


class AvroWriter:
    """Writes values of ``kind`` with one schema. Raises ``ValueError`` for a value that the schema has no room for."""

    def __init__(self, schema: AvroSchema, kind: pa.DataType) -> None:
        self._library = library("fastavro", INSTALL)
        self._names: set[str] = set()
        self._schema = schema
        self._parsed = self._library.parse_schema(self._physical(schema.root), _force=True)
        self._change = self._changed(schema.root, kind)
        self._numbers = _in_numbers(kind)

    def encode(self, values: pa.Array) -> pa.Array:
        rows = values.cast(self._numbers).to_pylist()
        return pa.array([None if row is None else self._body(row) for row in rows], pa.binary())

    def _body(self, row: Any) -> bytes:
        out = io.BytesIO()
        try:
            self._library.schemaless_writer(out, self._parsed, self._change(row))
        except (TypeError, OverflowError, AttributeError, KeyError) as wrong:
            raise ValueError(f"cannot be written with its Avro schema: {wrong}") from None
        return out.getvalue()

    def _physical(self, part: Any) -> Any:
        """``part`` with times as the numbers that they are, so that no time is too far away for Python."""
        part = self._schema.resolved(part)
        if isinstance(part, list):
            return [self._physical(branch) for branch in part]
        kind = part["type"]
        if isinstance(kind, (dict, list)):
            return self._physical(kind)
        if part.get("name") in self._names:
            return part["name"]
        made = {key: value for key, value in part.items() if not key.startswith("__")}
        if "name" in part:
            self._names.add(part["name"])
        if made.get("logicalType") != "decimal":
            made.pop("logicalType", None)
        if kind in ("record", "error"):
            made["fields"] = [{"name": one["name"], "type": self._physical(one["type"])} for one in part["fields"]]
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            made[inner] = self._physical(part[inner])
        return made

    def _changed(self, part: Any, kind: pa.DataType) -> _Change:
        """What makes of a value of Arrow the one that fastavro takes."""
        part = self._schema.resolved(part)
        if isinstance(part, list):
            return self._union(part, kind)
        name = part["type"]
        if isinstance(name, (dict, list)):
            return self._changed(name, kind)
        if name in ("record", "error") and pa.types.is_struct(kind):
            types = {field.name: field.type for field in fields_of(kind)}
            inner = [
                (one["name"], self._changed(one["type"], types[one["name"]]), one.get("default"))
                for one in part["fields"]
                if one["name"] in types
            ]
            return lambda row: {key: _kept(change, row[key], default) for key, change, default in inner}
        if name == "array":
            item = self._changed(part["items"], kind.value_type)
            return lambda items: [_kept(item, one) for one in items]
        if name == "map":
            value = self._changed(part["values"], kind.item_type)
            return lambda pairs: {key: _kept(value, one) for key, one in pairs}
        return _milliseconds if part.get("logicalType", "").endswith("timestamp-millis") else _same

    def _union(self, branches: list[Any], kind: pa.DataType) -> _Change:
        some = [one for one in map(self._schema.resolved, branches) if isinstance(one, list) or one["type"] != "null"]
        if not some:
            return _same
        if len(some) == 1 or not pa.types.is_struct(kind):
            return self._changed(some[0], kind)
        members = [
            (field.name, self._changed(branch, field.type)) for field, branch in zip(fields_of(kind), some, strict=True)
        ]
        return lambda row: next((change(row[key]) for key, change in members if row[key] is not None), None)


def _same(value: Any) -> Any:
    return value


def _milliseconds(value: int) -> int:
    return value // 1000


def _kept(change: _Change, value: Any, default: Any = None) -> Any:
    return default if value is None else change(value)


def _in_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _in_numbers(field.type)) for field in fields_of(kind)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_in_numbers(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_numbers(kind.item_type))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind
