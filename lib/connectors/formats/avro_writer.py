"""Writing Avro: the values of an Arrow type by a schema. A type that no schema's values can be is refused at once."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ..ground.clients import client_library
from ..ground.columns import is_binary, is_text
from .base import fields_of

if TYPE_CHECKING:
    from .avro import AvroSchema

INSTALL: Final = "'fastavro>=1.9'"
_Conversion = Callable[[Any], Any]


class AvroWriter:
    """Writes values of ``kind`` with one schema. Raises ``ValueError`` for a value that the schema has no room for.

    The constructor raises it, too, if the schema has no room for any value. A field that ``kind`` lacks is written with its
    default, else as null.
    """

    def __init__(self, schema: AvroSchema, kind: pa.DataType) -> None:
        self._library = client_library("fastavro", INSTALL, connector="connectors")
        self._names: set[str] = set()
        self._schema = schema
        self._parsed = self._library.parse_schema(self._physical(schema.root), _force=True)
        self._convert = self._conversion(schema.root, kind, "")
        self._numbers = _in_numbers(kind)

    def encode(self, values: pa.Array) -> pa.Array:
        rows = values.cast(self._numbers).to_pylist()
        return pa.array([None if row is None else self._body(row) for row in rows], pa.binary())

    def _body(self, row: Any) -> bytes:
        out = io.BytesIO()
        try:
            self._library.schemaless_writer(out, self._parsed, self._convert(row))
        except (TypeError, OverflowError, AttributeError, KeyError) as wrong:
            raise ValueError(f"cannot be written with its Avro schema: {wrong}") from None
        return out.getvalue()

    def _physical(self, part: Any) -> Any:
        """``part`` with times as numbers: Python's own times end with the year 9999."""
        part = self._schema.resolved(part)
        if isinstance(part, list):
            return [self._physical(branch) for branch in part]
        kind = part["type"]
        if isinstance(kind, (dict, list)):
            return self._physical(kind)
        if part.get("name") in self._names:
            return part["name"]
        physical = {key: value for key, value in part.items() if not key.startswith("__")}
        if "name" in part:
            self._names.add(part["name"])
        if physical.get("logicalType") != "decimal":
            physical.pop("logicalType", None)
        if kind in ("record", "error"):
            physical["fields"] = [
                {"name": field["name"], "type": self._physical(field["type"])} for field in part["fields"]
            ]
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            physical[inner] = self._physical(part[inner])
        return physical

    def _conversion(self, part: Any, kind: pa.DataType, path: str) -> _Conversion:
        """The function that turns a value of Arrow into the value that fastavro takes."""
        part = self._schema.resolved(part)
        if isinstance(part, list):
            return self._union(part, kind, path)
        name = part["type"]
        if isinstance(name, (dict, list)):
            return self._conversion(name, kind, path)
        if name in _WRITABLE and not _WRITABLE[name](kind):
            raise ValueError(f"{path or 'the column'} is {kind}, and cannot be written as {name}")
        if name in ("record", "error"):
            return self._record(part["fields"], kind, path)
        if name == "array":
            item = self._nullable(part["items"], kind.value_type, path)
            return lambda values: [item(value) for value in values]
        if name == "map":
            item = self._nullable(part["values"], kind.item_type, path)
            return lambda pairs: {key: item(value) for key, value in pairs}
        return _milliseconds if part.get("logicalType", "").endswith("timestamp-millis") else _same

    def _record(self, fields: list[Any], kind: pa.DataType, path: str) -> _Conversion:
        types = {field.name: field.type for field in fields_of(kind)}
        inner: list[tuple[str, _Conversion]] = []
        missing: dict[str, Any] = {}
        for field in fields:
            name = field["name"]
            where = f"{path}.{name}".lstrip(".")
            if name in types:
                inner.append((name, self._nullable(field["type"], types[name], where)))
            elif "default" in field:
                missing[name] = self._default(field["type"], field["default"])
            elif self._takes_null(field["type"]):
                missing[name] = None
            else:
                raise ValueError(f"no column is its field {where}, which has no default and takes no null")
        return lambda row: {**missing, **{name: convert(row[name]) for name, convert in inner}}

    def _nullable(self, part: Any, kind: pa.DataType, path: str) -> _Conversion:
        """:meth:`_conversion`, which null passes by. A default is the readers' affair."""
        if self._takes_null(part):
            convert = _same if pa.types.is_null(kind) else self._conversion(part, kind, path)
            return lambda value: None if value is None else convert(value)
        convert = self._conversion(part, kind, path)

        def present(value: Any) -> Any:
            if value is None:
                raise ValueError(f"{path} is null, which its Avro schema does not take")
            return convert(value)

        return present

    def _takes_null(self, part: Any) -> bool:
        part = self._schema.resolved(part)
        if isinstance(part, list):
            return any(map(self._takes_null, part))
        kind = part["type"]
        return self._takes_null(kind) if isinstance(kind, (dict, list)) else bool(kind == "null")

    def _default(self, part: Any, value: Any) -> Any:
        """A default as fastavro takes it: in JSON, bytes are text of the same code points."""
        part = self._schema.resolved(part)
        if isinstance(part, list):
            return self._default(part[0], value)
        kind = part["type"]
        if isinstance(kind, (dict, list)):
            return self._default(kind, value)
        if kind in ("record", "error"):
            return {f["name"]: self._default(f["type"], value.get(f["name"], f.get("default"))) for f in part["fields"]}
        return value.encode("latin-1") if kind in ("bytes", "fixed") else value

    def _union(self, branches: list[Any], kind: pa.DataType, path: str) -> _Conversion:
        resolved = map(self._schema.resolved, branches)
        parts = [branch for branch in resolved if isinstance(branch, list) or branch["type"] != "null"]
        if not parts:
            return _same
        if len(parts) == 1:
            return self._conversion(parts[0], kind, path)
        if not pa.types.is_struct(kind):
            return self._first_branch(parts, kind, path)
        members = [
            (field.name, self._conversion(branch, field.type, f"{path}.{field.name}".lstrip(".")))
            for field, branch in zip(fields_of(kind), parts, strict=True)
        ]
        return lambda row: next((convert(row[key]) for key, convert in members if row[key] is not None), None)

    def _first_branch(self, parts: list[Any], kind: pa.DataType, path: str) -> _Conversion:
        """The conversion to the first branch that takes ``kind``."""
        refusal: ValueError | None = None
        for part in parts:
            try:
                return self._conversion(part, kind, path)
            except ValueError as wrong:
                refusal = wrong
        raise refusal or ValueError(f"{path} has a union without branches")


def _same(value: Any) -> Any:
    return value


def _milliseconds(value: int) -> int:
    return value // 1000


def _is_number(kind: pa.DataType) -> bool:
    """True for types whose values Python writes as numbers: times and dates too, see :func:`_in_numbers`."""
    tests = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(kind) for test in (*tests, pa.types.is_timestamp, pa.types.is_date32, pa.types.is_time))


def _has_bytes(kind: pa.DataType) -> bool:
    return bool(is_binary(kind) or pa.types.is_decimal(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


_WRITABLE: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    **dict.fromkeys(("boolean", "int", "long", "float", "double"), _is_number),
    **dict.fromkeys(("string", "enum"), is_text),
    **dict.fromkeys(("bytes", "fixed"), _has_bytes),
    **dict.fromkeys(("record", "error"), pa.types.is_struct),
    "array": _is_list,
    "map": pa.types.is_map,
}
"""The Arrow types of which at least some values can be written as each type of Avro."""


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
