"""The base classes of checks, and Python values as Spark SQL text, the same in a filter, a report and a log.

A *row check* has a predicate that is true, false or null for each row; null passes, as in SQL's ``CHECK``. A *set check*
judges all rows together (uniqueness, number, age), so it cannot quarantine a single row.

Checks compare numbers with numbers and text with text: Spark would cast other pairs, and fail at some row.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import DataFrame, types
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation



_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\u0000"}


def quoted(column: str) -> str:
    """A column's name quoted for Spark SQL, whatever characters it has."""
    return "`" + column.replace("`", "``") + "`"


def literal(value: Any) -> str:
    """A typed literal of Spark SQL, without loss: decimals stay decimals, and a date does not become text.

    A ``datetime`` with a zone is that instant; one without is in the session's time zone, as in Spark SQL.
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
        return "'" + re.sub(r"[\\'\n\r\t\0]", lambda match: _ESCAPES[match[0]], value) + "'"
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value.isoformat()}'"
    raise TypeError(f"{type(value).__name__} has no literal in Spark SQL")


def kind_of_value(value: Any) -> str:
    """``number``, ``text``, ``true or false`` or ``date or time`` for values that can be compared; else the type's name."""
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
    """Why ``values`` cannot be compared with one column; empty if they can."""
    if any(isinstance(value, decimal.Decimal) and not value.is_finite() for value in values):
        return "has a decimal that is not finite; Spark's decimals always are"
    kinds = {kind_of_value(value) for value in values}
    unknown = kinds - {"number", "text", "true or false", "date or time"}
    if unknown:
        return f"takes numbers, text, booleans, dates and times; got {', '.join(sorted(unknown))}"
    return f"mixes {' with '.join(sorted(kinds))}; give values of one kind" if len(kinds) > 1 else ""


def unlike_column(column: types.StructField, value: Any) -> Iterator[str]:
    """Why ``column`` cannot be compared with ``value``; nothing if it can."""
    expected = kind_of_value(value)
    if expected != kind_of_column(column.dataType):
        yield f'compares {expected}, but column "{column.name}" is {column.dataType.simpleString()}'


_SHOWN_COLUMNS = 8


@dataclass(frozen=True)
class Check:
    """The base class of all checks: a ``name``, unique among its :class:`Checks`, and the ``columns`` that it reads."""

    name: str
    columns: tuple[str, ...] = ()

    is_row_check: ClassVar[bool] = False

    @property
    def meaning(self) -> str:
        """One plain sentence for the report."""
        raise NotImplementedError

    def problems(self) -> Iterator[str]:
        """The problems of the arguments; needs no data."""
        for column in self.columns:
            if not isinstance(column, str) or not column:
                yield f"a column is given by its name; got {column!r}"
            elif "`" in column:
                yield "has a backtick in a column's name, which Great Expectations cannot read; rename the column"

    def misfits(self, df: DataFrame) -> Iterator[str]:
        """Why the check does not fit ``df``, whose columns exist, in phrases; by default none."""
        return iter(())

    def expectation(self) -> Expectation:
        """The same check for Great Expectations."""
        raise NotImplementedError

    def sample(self, df: DataFrame, rows: int) -> DataFrame | None:
        """A few rows that show what is wrong; None if no row could."""
        return None

    @property
    def _labels(self) -> dict[str, Any]:
        return {"description": self.meaning, "meta": {"check": self.name}}


@dataclass(frozen=True)
class RowCheck(Check):
    """A check of single rows."""

    is_row_check: ClassVar[bool] = True

    @property
    def predicate(self) -> str:
        """Spark SQL that is true or null for a good row."""
        raise NotImplementedError

    @property
    def failed(self) -> str:
        """Spark SQL that is true for a row that fails, and false or null for every other."""
        return f"NOT ({self.predicate})"

    def expectation(self) -> Expectation:
        from .expectations import ExpectNoRowToFail

        return ExpectNoRowToFail(failing=f"count_if({self.failed})", **self._labels)

    def sample(self, df: DataFrame, rows: int) -> DataFrame | None:
        shown = [*self._read_columns(df.columns), *df.columns]
        columns = list(dict.fromkeys(shown))[:_SHOWN_COLUMNS]
        return df.where(sf.expr(self.failed)).select(*map(quoted, columns)).limit(rows)

    def _read_columns(self, existing: Sequence[str]) -> Sequence[str]:
        return self.columns
