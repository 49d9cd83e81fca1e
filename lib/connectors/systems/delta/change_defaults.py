"""What a change log tells of the rows that are older than a new column: the default that it was added with, or nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from .change_schema import DAYS, DECIMAL, MICROS, MILLIS, NANOS, PRECISION, ZONED, ChangeColumn, column_of

_PLACEHOLDERS: Final = (
    *((label, 0) for label in (*DAYS, *MILLIS, MICROS, NANOS)),
    (ZONED, "1970-01-01T00:00:00.000000Z"),
    (ZONED, "1970-01-01T00:00:00Z"),
    ("io.debezium.time.IsoDate", "1970-01-01Z"),
    ("io.debezium.time.IsoTimestamp", "1970-01-01T00:00:00Z"),
    ("io.debezium.data.Uuid", "00000000-0000-0000-0000-000000000000"),
    *((label, days) for label in DAYS for days in (169560311, -170999002)),
    (MICROS, -9223372036853775810),
)
"""Defaults that Debezium writes in place of an expression such as ``now()``, whose value in older rows it does not know, and of
PostgreSQL's ``infinity``."""
_BITS: Final = "io.debezium.data.Bits"
_SILENT: Final = ("array", "bytes", "map", "struct")
"""The types whose defaults Debezium does not tell of PostgreSQL, but for ``bit`` and for decimals with a precision."""
_SILENT_TEXTS: Final = ("io.debezium.time.ZonedTime", "io.debezium.data.Ltree", "io.debezium.data.Tsvector")
_CHOICES: Final = ("io.debezium.data.Enum", "io.debezium.data.EnumSet")
_UNCLEAR: Final = re.compile(r"""''|""|\\|^[Nn]'|^(?i:true|false)$| $""")
"""Texts that need not be the value as they stand: two quotes, a backslash, the mark of a character set, another word for 1, a
space at the end, which a ``char`` does not keep."""


def columns_of(fields: list[Mapping[str, Any]], *, is_postgres: bool | None) -> list[ChangeColumn]:
    """The columns of the fields of a Connect schema, of PostgreSQL or of another database; ``None`` if that is not known."""
    return [_with_default(field, is_postgres) for field in fields]


def _with_default(field: Mapping[str, Any], is_postgres: bool | None) -> ChangeColumn:
    needs_fill = (
        (field.get("name"), field.get("default")) in _PLACEHOLDERS
        or (field.get("optional") is False and "default" not in field)
        or (is_postgres is not False and _is_silent(field))
        or (is_postgres is not True and _is_unclear(field))
    )
    return replace(column_of(field), default=None if needs_fill else field.get("default"), needs_fill=needs_fill)


def _is_silent(field: Mapping[str, Any]) -> bool:
    """True for a field without a default whose type may have one all the same. A decimal without precision is ``money``."""
    label = field.get("name")
    if "default" in field or label == _BITS:
        return False
    if label == DECIMAL:
        return PRECISION not in (field.get("parameters") or {})
    return field["type"] in _SILENT or label in _SILENT_TEXTS


def _is_unclear(field: Mapping[str, Any]) -> bool:
    """True for a default that only the statement explains: it is told as SQL has it between quotes, not decoded."""
    label, default = field.get("name"), field.get("default")
    if field["type"] == "bytes":
        return default is not None and label is None
    if field["type"] != "string" or not default:
        return False
    if label in _CHOICES:  # the database takes them in any case and order, and keeps its own
        words = [default] if label == _CHOICES[0] else default.split(",")
        if words != [word for word in (field.get("parameters") or {}).get("allowed", default).split(",") if word in words]:
            return True
    return _UNCLEAR.search(default) is not None
