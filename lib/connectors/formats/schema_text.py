"""The problems of columns written as SQL text, such as ``id long, name string``.

Spark reports a problem of the whole text that a source hands it, whose option and columns the user has never seen. Only what
is surely wrong is found here: a column without a type, and a type that has no such name in Spark.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, Final

_TYPES: Final = (
    "boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real", "double", "date",
    "timestamp", "timestamp_ntz", "timestamp_ltz", "time", "string", "char", "character", "varchar", "binary", "decimal", "dec",
    "numeric", "void", "interval", "array", "struct", "map", "variant", "geography", "geometry",
)  # fmt: skip
_COLUMN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|[^\s:,<>()`]+)\s*:?\s*(.*)", re.DOTALL)
_TYPE: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:<(.*)>)?", re.DOTALL)
_REST: Final = re.compile(r"(?:\s*\([^)]*\))?\s*(\w+)")
_AFTER_TYPE: Final = ("not", "comment", "collate", "default", "generated")
_LONG_TYPES: Final = ("interval", "timestamp", "time")
"""Types whose names may have several words."""
_QUOTED: Final = re.compile(r"`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")


def wrong_columns(text: str) -> Iterator[str]:
    """The problems of the columns of ``text``, a phrase each."""
    if not text.strip():
        yield "names no column"
    for column in _split(text) if text.strip() else ():
        match = _COLUMN.fullmatch(column)
        if match is None:
            yield f'has "{column.strip()}" where a column and its type are expected'
        elif not match[2].strip():
            yield f'has the column "{match[1]}" without a type'
        else:
            yield from _wrong_type(match[1], match[2])


def names_in(text: str) -> dict[str, Any]:
    """The names of the columns of ``text``, each with those of its fields if it is a struct; else with none."""
    names: dict[str, Any] = {}
    for column in _split(text):
        if match := _COLUMN.fullmatch(column):
            kind = _TYPE.match(match[2])
            is_struct = kind is not None and kind[1].lower() == "struct" and kind[2]
            names[match[1].strip("`").replace("``", "`")] = names_in(kind[2]) if kind and is_struct else {}
    return names


def _wrong_type(column: str, text: str) -> Iterator[str]:
    match = _TYPE.match(text)
    name = match[1].lower() if match else text.strip()
    if match is None or name not in _TYPES:
        close = difflib.get_close_matches(name, _TYPES, n=1)
        hint = f'; did you mean "{close[0]}"?' if close else ""
        yield f'has the column "{column}" of the type "{name}", which Spark does not have{hint}'
    elif name not in _LONG_TYPES and (rest := _REST.match(text[match.end() :])) and rest[1].lower() not in _AFTER_TYPE:
        yield f'has "{rest[1]}" after the type of "{column}"; is a comma missing?'
    elif name == "struct" and match[2]:
        yield from wrong_columns(match[2])
    elif name in ("array", "map") and match[2]:
        for part in _split(match[2]):
            yield from _wrong_type(column, part)


def _split(text: str) -> Iterator[str]:
    """The parts of ``text`` between commas that are in no brackets and no quotes."""
    plain = _QUOTED.sub(lambda quoted: "q" * len(quoted[0]), text)
    depth = begin = 0
    for at, sign in enumerate(plain):
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and not depth:
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]
