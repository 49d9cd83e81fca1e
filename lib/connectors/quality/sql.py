"""Spark SQL text from Python values, so that a check reads the same wherever it is used: a filter, a report, a log."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from typing import Any

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\u0000"}


def quoted(column: str) -> str:
    """A column's name as Spark SQL reads it, whatever characters it has."""
    return "`" + column.replace("`", "``") + "`"


def literal(value: Any) -> str:
    """A typed literal of Spark SQL, without loss: decimals stay decimals, and a date does not become text.

    A ``datetime`` with a zone is that instant; one without is read in the session's time zone, as in Spark SQL.
    Raises ``TypeError`` for a type that has no literal.
    """
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value!r}D" if math.isfinite(value) else f"double('{value}')"
    if isinstance(value, decimal.Decimal):
        return f"{value:f}BD"
    if isinstance(value, str):
        return "'" + re.sub(r"[\\'\n\r\t\0]", lambda found: _ESCAPES[found[0]], value) + "'"
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value.isoformat()}'"
    raise TypeError(f"{type(value).__name__} has no literal in Spark SQL")
