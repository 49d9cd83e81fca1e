"""What can be compared with what: numbers with numbers, text with text. Spark would try to cast, and fail at a row."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import types


def kind_of_value(value: Any) -> str:
    """``number``, ``text``, ``true or false`` or ``date or time``: what can be compared; else the type's name."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float, decimal.Decimal)):
        return "number"
    if isinstance(value, str):
        return "text"
    return "date or time" if isinstance(value, datetime.date) else type(value).__name__


def kind_of_column(column: types.DataType) -> str:
    """The same words for a column's type."""
    if isinstance(column, types.NumericType):
        return "number"
    if isinstance(column, (types.StringType, types.CharType, types.VarcharType)):
        return "text"
    if isinstance(column, types.BooleanType):
        return "true or false"
    if isinstance(column, (types.DateType, types.TimestampType, types.TimestampNTZType)):
        return "date or time"
    return column.simpleString()


def not_comparable(values: Sequence[Any]) -> str:
    """Why ``values`` cannot be compared with one column; empty when they can."""
    if any(isinstance(value, decimal.Decimal) and not value.is_finite() for value in values):
        return "has a decimal that is not finite; Spark's decimals always are"
    kinds = {kind_of_value(value) for value in values}
    unknown = kinds - {"number", "text", "true or false", "date or time"}
    if unknown:
        return f"takes numbers, text, booleans, dates and times; got {', '.join(sorted(unknown))}"
    return f"mixes {' with '.join(sorted(kinds))}; give values of one kind" if len(kinds) > 1 else ""


def unlike_column(column: types.StructField, value: Any) -> Iterator[str]:
    """Why ``column`` cannot be compared with ``value``; nothing when it can."""
    expected, found = kind_of_value(value), kind_of_column(column.dataType)
    if expected != found:
        yield f'compares {expected}, but column "{column.name}" is {column.dataType.simpleString()}'
