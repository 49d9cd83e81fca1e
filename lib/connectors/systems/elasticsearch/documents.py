"""Documents: rows as JSON, the index that each row goes to, and the columns of an index.

JSON is made column by column: numbers and text as they are, times as ISO 8601, decimals with every digit, binary as base64, a
map as an object. Nulls stay: a partial update must be able to empty a field, and a search treats null as missing anyway. JSON
has no NaN and no infinity: a row with one is a bad row.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ...core import Poison
from ...formats.base import quoted

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


def documents(rows: pa.RecordBatch, json: Any) -> list[bytes | Poison]:
    """The document of each row; ``json`` is the module ``orjson``."""
    names = rows.schema.names
    columns = [cells(column, json) for column in rows.columns]

    def plain(value: Any) -> Any:
        return _plain(value, json)

    dumps = json.dumps
    bodies = [dumps(dict(zip(names, row, strict=True)), default=plain) for row in zip(*columns, strict=True)]
    for name, column in zip(names, rows.columns, strict=True):
        for place in _not_finite(column):
            bodies[place] = Poison(f'the column "{name}" is not a number that JSON has (NaN or infinity)')
    return bodies


def cells(column: pa.Array, json: Any) -> list[Any]:
    """The values of a column, as the JSON library takes them."""
    kind = column.type
    if types.is_timestamp(kind) or types.is_date(kind):
        return list(times(column).to_pylist())
    if types.is_decimal(kind):
        texts = column.cast(pa.string()).to_pylist()
        return [None if text is None else json.Fragment(format(Decimal(text), "f")) for text in texts]
    if types.is_string(kind) or (types.is_primitive(kind) and column.null_count == 0 and not types.is_temporal(kind)):
        return list(column.to_numpy(zero_copy_only=False).tolist())  # several times as fast as to_pylist
    return [_objects(value, kind) for value in column.to_pylist()] if _has_map(kind) else list(column.to_pylist())


def times(column: pa.Array) -> pa.Array:
    """Dates and times as text; a time with a zone in UTC with ``Z``, one without as it is."""
    if types.is_date(column.type):
        return pc.strftime(column, format="%Y-%m-%d")
    zoned = column.type.tz is not None
    utc = column.cast(pa.timestamp(column.type.unit, "UTC")) if zoned else column
    return pc.strftime(utc, format="%Y-%m-%dT%H:%M:%SZ" if zoned else "%Y-%m-%dT%H:%M:%S")


def _plain(value: Any, json: Any) -> Any:
    """What the JSON library lacks, inside nested values."""
    if isinstance(value, Decimal):
        return json.Fragment(format(value, "f"))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _has_map(kind: pa.DataType) -> bool:
    return types.is_map(kind) or any(_has_map(child) for child in _children(kind))


def _children(kind: pa.DataType) -> list[pa.DataType]:
    if types.is_nested(kind):
        return [kind.field(place).type for place in range(kind.num_fields)]
    return []


def _objects(value: Any, kind: pa.DataType) -> Any:
    """``value`` with its maps, which Arrow gives as pairs, as objects."""
    if value is None:
        return None
    if types.is_map(kind):
        return {_key(key): _objects(item, kind.item_type) for key, item in value}
    if types.is_struct(kind):
        return {field.name: _objects(value[field.name], field.type) for field in kind}
    if types.is_list(kind) or types.is_large_list(kind):
        return [_objects(item, kind.value_type) for item in value]
    return value


def _key(key: Any) -> str:
    return key.isoformat() if isinstance(key, (datetime.date, datetime.datetime)) else str(key)


def _not_finite(column: pa.Array) -> list[int]:
    """The rows with NaN or infinity in them."""
    if types.is_floating(column.type):
        return list(pc.indices_nonzero(pc.invert(pc.fill_null(pc.is_finite(column), True))).to_pylist())
    if not _within(column.type, types.is_floating):
        return []
    return [place for place, value in enumerate(column.to_pylist()) if _has_odd_number(value)]


def _within(kind: pa.DataType, condition: Callable[[pa.DataType], bool]) -> bool:
    return condition(kind) or any(_within(child, condition) for child in _children(kind))


def _has_odd_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(_has_odd_number(item) for item in inner)
