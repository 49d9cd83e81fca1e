"""The index that each row goes to, and the columns of an index."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ...formats.base import quoted
from ...ground.options import Text

_TYPES: Final = {
    **dict.fromkeys(("keyword", "text", "constant_keyword", "wildcard", "match_only_text", "ip", "version"), "string"),
    **dict.fromkeys(("double", "scaled_float"), "double"),
    **dict.fromkeys(("float", "half_float"), "float"),
    **dict.fromkeys(("date", "date_nanos"), "timestamp"),
    "boolean": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "unsigned_long": "decimal(20,0)",
    "binary": "binary",
}

_DIGITS_ALONE: Final = re.compile("basic_date|basic_ordinal_date|(strict_)?year|[yuMdDHmsS]+")
"""The formats of times that a document may have as a number, which is no time since 1970."""


def columns(mappings: Mapping[str, Any]) -> str:
    """The columns of all the indices that an answer to ``_mapping`` names.

    Raises ``ValueError`` with a field that has no type of its own here, or another one in another index.
    """
    kinds: dict[str, str] = {}
    for index, answer in mappings.items():
        for name, kind in _fields(answer["mappings"].get("properties", {})).items():
            if kinds.setdefault(name, kind) != kind:
                raise ValueError(f'the field "{name}" is {kinds[name]} in one index and {kind} in {index}')
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in kinds.items())


def _fields(properties: Mapping[str, Any]) -> dict[str, str]:
    return {name: _kind(name, mapping) for name, mapping in properties.items() if mapping.get("type") != "alias"}


def _kind(name: str, mapping: Mapping[str, Any]) -> str:
    if "properties" in mapping:
        inner = ", ".join(f"{quoted(field)}: {kind}" for field, kind in _fields(mapping["properties"]).items())
        return f"array<struct<{inner}>>" if mapping.get("type") == "nested" else f"struct<{inner}>"
    kind = mapping.get("type", "object")
    if "epoch_second" in mapping.get("format", ""):
        raise ValueError(f'the field "{name}" has times in seconds, and a timestamp would be read from milliseconds')
    if any(_DIGITS_ALONE.fullmatch(form) for form in mapping.get("format", "").split("||")):
        text = f'the field "{name}" has times in the form {mapping["format"]}'
        raise ValueError(f"{text}, and a timestamp would be read from milliseconds")
    if kind not in _TYPES:
        raise ValueError(f'the field "{name}" is {kind}, for which there is no column')
    return _TYPES[kind]


_PLACE: Final = re.compile(r"\{([^{}|]+)(?:\|([^{}]+))?\}")
_LETTERS: Final = {"yyyy": "%Y", "yy": "%y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "DDD": "%j", "ww": "%V"}


@dataclass(frozen=True)
class NamePart:
    """A piece of a name: ``text``, or a ``column``, which is a time if there is a ``pattern`` (strftime's)."""

    text: str = ""
    column: str = ""
    pattern: str = ""


@dataclass(frozen=True)
class IndexName:
    """A name, or a template of one."""

    parts: Sequence[NamePart]

    @classmethod
    def of(cls, text: str) -> IndexName:
        """Raises ``ValueError`` with a phrase after "must be" for a pattern that is not known."""
        parts, last = [], 0
        for place in _PLACE.finditer(text):
            parts.append(NamePart(text=text[last : place.start()]))
            parts.append(NamePart(column=place[1].strip(), pattern=_strftime(place[2]) if place[2] else ""))
            last = place.end()
        parts.append(NamePart(text=text[last:]))
        if any(mark in part.text for part in parts for mark in "{}"):
            raise ValueError('a name, or a template such as "logs-{timestamp|yyyy-MM-dd}"')
        return cls([part for part in parts if part.text or part.column])

    @property
    def constant(self) -> str | None:
        """The name, if it is the same for all rows."""
        return "".join(part.text for part in self.parts) if not self.columns() else None

    def columns(self) -> list[NamePart]:
        return [part for part in self.parts if part.column]

    def of_rows(self, rows: pa.RecordBatch) -> list[str | None]:
        """The name for each row; null where a column of it is null."""
        columns = [_texts(rows.column(part.column), part.pattern) if part.column else part.text for part in self.parts]
        return list(pc.binary_join_element_wise(*columns, "", null_handling="emit_null").to_pylist())


class IndexTemplate(Text):
    """An option for an :class:`IndexName`."""

    def parse(self, text: str) -> str:
        IndexName.of(text)
        return text

    def columns(self, value: Any) -> Sequence[str]:
        return [part.column for part in IndexName.of(value).columns()]


def _texts(column: pa.Array, pattern: str) -> pa.Array:
    if not pattern:
        return column.cast(pa.string())
    zoned = types.is_timestamp(column.type) and column.type.tz is not None
    return pc.strftime(column.cast(pa.timestamp(column.type.unit, "UTC")) if zoned else column, format=pattern)


def _strftime(pattern: str) -> str:
    """Java's letters as strftime's."""
    strftime = ""
    for run in re.findall(r"([A-Za-z])(\1*)|([^A-Za-z]+)", pattern):
        letters = run[0] + run[1]
        if letters and letters not in _LETTERS:
            known = ", ".join(_LETTERS)
            raise ValueError(f'a name whose dates are made of {known}; got "{letters}" in "{pattern}"')
        strftime += _LETTERS[letters] if letters else run[2].replace("%", "%%")
    return strftime
