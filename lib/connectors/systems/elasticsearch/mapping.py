"""What the columns are when nobody says: the mapping of the index, as Spark's SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...core.formats.sql import quoted

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
    found: dict[str, str] = {}
    for index, told in mappings.items():
        for name, kind in _fields(told["mappings"].get("properties", {})).items():
            if found.setdefault(name, kind) != kind:
                raise ValueError(f'the field "{name}" is {found[name]} in one index and {kind} in {index}')
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in found.items())


def _fields(properties: Mapping[str, Any]) -> dict[str, str]:
    return {name: _kind(name, told) for name, told in properties.items() if told.get("type") != "alias"}


def _kind(name: str, told: Mapping[str, Any]) -> str:
    if "properties" in told:
        inner = ", ".join(f"{quoted(field)}: {kind}" for field, kind in _fields(told["properties"]).items())
        return f"array<struct<{inner}>>" if told.get("type") == "nested" else f"struct<{inner}>"
    kind = told.get("type", "object")
    if kind not in _TYPES:
        raise ValueError(f'the field "{name}" is {kind}, for which there is no column')
    return _TYPES[kind]
