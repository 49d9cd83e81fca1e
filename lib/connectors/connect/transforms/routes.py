"""The transforms of topics and headers, and Filter: RegexRouter, InsertHeader, DropHeaders, HeaderFrom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow_data import from_arrow
from ..columns import Column, Records
from ..config import ConfigDef, non_empty, valid_string
from ..data import Schema, Type
from ..errors import ConfigException, DataException
from ..value_text import value_of
from .base import REPLACE_NULL, SideTransform, Transform, as_map, children, replaces_null, struct_column, with_default


class Filter(Transform):
    """Drops every record that it gets: those for which its predicate is true."""

    def apply(self, records: Records) -> Records:
        return records.take([])


class RegexRouter(Transform):
    """Gives a new topic to records whose topic matches ``regex`` as a whole; ``replacement`` takes groups as ``$1``."""

    def config(self) -> ConfigDef:
        return (
            ConfigDef()
            .define("regex", "STRING", importance="HIGH", documentation="the pattern of topics", validator=_pattern)
            .define("replacement", "STRING", importance="HIGH", documentation="the new topic")
        )

    def configure(self, values: Mapping[str, Any]) -> None:
        self._regex = re.compile(_java_groups(values["regex"]))
        self._replacement = re.sub(r"\$(\d+)|\$\{(\w+)\}", lambda m: f"\\g<{m[1] or m[2]}>", values["replacement"])

    def apply(self, records: Records) -> Records:
        names = pc.unique(records.topic).to_pylist()
        routes = {name: self._route(name) for name in names}
        if all(name == route for name, route in routes.items()):
            return records
        if len(names) == 1:
            return replace(records, topic=pa.repeat(routes[names[0]], len(records)))
        return replace(records, topic=pa.array([routes[name] for name in records.topic.to_pylist()], pa.string()))

    def _route(self, topic: str) -> str:
        match = self._regex.fullmatch(topic)
        return match.expand(self._replacement) if match else topic


def _pattern(name: str, value: Any) -> None:
    try:
        re.compile(_java_groups(value))
    except re.error as wrong:
        raise ConfigException(f"must be a regular expression ({wrong})") from None


def _java_groups(pattern: str) -> str:
    """Java's named groups as Python's."""
    return re.sub(r"\(\?<([A-Za-z]\w*)>", r"(?P<\1>", pattern)


class InsertHeader(Transform):
    """Adds a header with a fixed value, which is read as the default converter reads headers."""

    def config(self) -> ConfigDef:
        return (
            ConfigDef()
            .define("header", "STRING", importance="HIGH", documentation="the name of the header", validator=non_empty)
            .define("value.literal", "STRING", importance="HIGH", documentation="its value", validator=non_empty)
        )

    def configure(self, values: Mapping[str, Any]) -> None:
        self._header: str = values["header"]
        self._schema, self._value = value_of(values["value.literal"])

    def apply(self, records: Records) -> Records:
        return replace(
            records, headers=[headers.add(self._header, self._value, self._schema) for headers in records.header_list()]
        )


class DropHeaders(Transform):
    """Removes headers by name."""

    def config(self) -> ConfigDef:
        return ConfigDef().define("headers", "LIST", importance="HIGH", documentation="the names", validator=non_empty)

    def configure(self, values: Mapping[str, Any]) -> None:
        self._headers: list[str] = values["headers"]

    def apply(self, records: Records) -> Records:
        if records.headers is None:
            return records
        headers = records.header_list()
        for record in headers:
            for name in self._headers:
                record.remove(name)
        return replace(records, headers=headers)


class HeaderFrom(SideTransform):
    """Copies, or moves, fields of the key or value into headers."""

    needs = "header from"

    def config(self) -> ConfigDef:
        definition = (
            ConfigDef()
            .define("fields", "LIST", importance="HIGH", documentation="the fields", validator=non_empty)
            .define("headers", "LIST", importance="HIGH", documentation="the header of each field", validator=non_empty)
            .define(
                "operation",
                "STRING",
                importance="HIGH",
                documentation="copy or move",
                validator=valid_string("copy", "move"),
            )
        )
        return replaces_null(definition)

    def configure(self, values: Mapping[str, Any]) -> None:
        self._fields: list[str] = values["fields"]
        self._headers: list[str] = values["headers"]
        self._moves = values["operation"] == "move"
        self._replaces: bool = values[REPLACE_NULL]
        if len(self._fields) != len(self._headers):
            raise ConfigException("fields and headers must have the same number of elements")

    def apply(self, records: Records) -> Records:
        column = records.key if self.side == "Key" else records.value
        headers = records.header_list()
        if column.schema is None:
            after = Column(None, [self._from_map(value, headers[place]) for place, value in enumerate(column.data)])
        elif column.schema.type is Type.STRUCT:
            after = self._from_struct(column.schema, column.data, headers)
        else:
            raise DataException(f"Only Struct objects supported for [{self.needs}], found: {column.schema.type.name}")
        moved = replace(records, headers=headers)
        return replace(moved, key=after) if self.side == "Key" else replace(moved, value=after)

    def _from_map(self, value: Any, headers: Any) -> Any:
        if value is None:
            return None
        fields = dict(as_map(value, self.needs))
        for name, header in zip(self._fields, self._headers, strict=True):
            item = fields.pop(name, None) if self._moves else fields.get(name)
            headers.add(header, item)
        return fields

    def _from_struct(self, schema: Schema, data: pa.Array, headers: list[Any]) -> Column:
        arrays = {field.name: (field, array) for field, array in children(schema, data)}
        for name, header in zip(self._fields, self._headers, strict=True):
            if name not in arrays:
                raise DataException(f"Field does not exist: {name}")
            field, array = arrays[name]
            for place, value in enumerate(from_arrow(with_default(field, array, self._replaces), field.schema)):
                headers[place].add(header, value, field.schema)
        if not self._moves:
            return Column(schema, data)
        rest = [(field.name, field.schema, array) for field, array in arrays.values() if field.name not in self._fields]
        return struct_column(schema, rest, data)
