"""Writing Avro: the values of an Arrow type by a schema. A type that no schema's values can be is refused at once."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ..ground.clients import client_library
from ..ground.columns import in_numbers, is_binary, is_text
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
        self._numbers = in_numbers(kind)

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
        if name in _WHOLE and pa.types.is_integer(kind):
            return partial(_whole, _WHOLE[name], path, name)
        if name in ("record", "error"):
            return self._record(part["fields"], kind, path)
        if name == "array":
            item = self._nullable(part["items"], kind.value_type, path)
            return lambda values: [item(value) for value in values]
        if name == "map":
            item = self._nullable(part["values"], kind.item_type, path)
            return lambda pairs: {key: item(value) for key, value in pairs}
        return _SCALED.get(part.get("logicalType", "").removeprefix("local-"), _same) if pa.types.is_timestamp(kind) else _same

    def _record(self, fields: list[Any], kind: pa.DataType, path: str) -> _Conversion:
        types = {field.name: field.type for field in fields_of(kind)}
        if unknown := types.keys() - {field["name"] for field in fields}:
            raise ValueError(f"{f'{path}.{min(unknown)}'.lstrip('.')} is no field of the Avro schema")
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
            (field.name, self._branch(branch, field.type, f"{path}.{field.name}".lstrip(".")))
            for field, branch in zip(fields_of(kind), parts, strict=True)
        ]
        return lambda row: next((convert(row[key]) for key, convert in members if row[key] is not None), None)

    def _branch(self, part: Any, kind: pa.DataType, path: str) -> _Conversion:
        """The conversion to a branch of a union, by its name: fastavro would take the first branch that has a value like it."""
        convert, name = self._conversion(part, kind, path), self._branch_name(part)
        return lambda value: (name, convert(value))

    def _branch_name(self, part: Any) -> str:
        part = self._schema.resolved(part)
        return self._branch_name(part["type"]) if isinstance(part["type"], dict) else str(part.get("name", part["type"]))

    def _first_branch(self, parts: list[Any], kind: pa.DataType, path: str) -> _Conversion:
        """The conversion to the first branch that takes ``kind``; of a number to the first one that takes the value."""
        conversions: list[_Conversion] = []
        for part in parts:
            try:
                conversions.append((self._branch if _is_number(kind) else self._conversion)(part, kind, path))
            except ValueError as wrong:
                refusal = wrong
        if not conversions:
            raise refusal
        return partial(_first, conversions) if _is_number(kind) else conversions[0]


def _same(value: Any) -> Any:
    return value


def _whole(fit: range, path: str, name: str, value: int) -> int:
    if value not in fit:
        raise ValueError(f"{path or 'the column'} is {value}, which has no exact form as {name}")
    return value


def _first(conversions: Sequence[_Conversion], value: Any) -> Any:
    """The value by the first of ``conversions`` that takes it."""
    for convert in conversions[:-1]:
        with contextlib.suppress(ValueError):
            return convert(value)
    return conversions[-1](value)


_SCALED: Final[dict[str, _Conversion]] = {
    "timestamp-millis": lambda micros: micros // 1000,
    "timestamp-nanos": lambda micros: micros * 1000,
}
_WHOLE: Final = {
    "int": range(-(2**31), 2**31),
    "float": range(-(2**24), 2**24 + 1),
    "double": range(-(2**53), 2**53 + 1),
}
"""The whole numbers that a type of Avro has exactly."""


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _has_bytes(kind: pa.DataType) -> bool:
    return bool(is_binary(kind) or pa.types.is_decimal(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


_WRITABLE: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "boolean": pa.types.is_boolean,
    "int": lambda kind: pa.types.is_integer(kind) or pa.types.is_date32(kind),
    "long": lambda kind: pa.types.is_integer(kind) or pa.types.is_timestamp(kind),
    "float": lambda kind: pa.types.is_integer(kind) or pa.types.is_float32(kind),
    "double": _is_number,
    **dict.fromkeys(("string", "enum"), is_text),
    **dict.fromkeys(("bytes", "fixed"), _has_bytes),
    **dict.fromkeys(("record", "error"), pa.types.is_struct),
    "array": _is_list,
    "map": pa.types.is_map,
}
"""The Arrow types of which at least some values can be written as each type of Avro."""
