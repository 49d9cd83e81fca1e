"""The functions with which a user writes checks. :class:`~connectors.quality.Checks` validates all arguments together."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from .row_checks import Between, Expression, InSet, Matches, NotNull, listed
from .set_checks import Fresh, RowCount, Unique


def not_null(column: str, *, name: str = "") -> NotNull:
    """No value is null. NaN and the empty string are values."""
    return NotNull(name or f"not_null({column})", (column,))


def between(column: str, low: Any = None, high: Any = None, *, name: str = "") -> Between:
    """``low <= value <= high``, both included; either bound may be left out. NaN never passes.

    Bounds are numbers, text, dates or times, like the column. A ``datetime`` without zone is in the session's.
    """
    bounds = ", ".join(str(bound) for bound in (low, high)) if high is not None else f"{low}"
    return Between(name or f"between({column}, {bounds})", (column,), low, high)


def in_set(column: str, values: Iterable[Any], *, name: str = "") -> InSet:
    """The value is one of ``values``: numbers, text, booleans, dates or times. NaN equals NaN, as in Spark."""
    if isinstance(values, (set, frozenset)):
        values = sorted(values, key=repr)  # The name must not change from run to run.
    members = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else ()
    return InSet(name or f"in_set({column}, {listed(members)})", (column,), members)


def matches(column: str, pattern: str, *, name: str = "") -> Matches:
    r"""The whole text matches the regular expression ``pattern``, in Java's syntax, which is Spark's.

    ``matches("code", "[A-Z]{2}")`` refuses ``AAx``. To match a part of the text, write ``.*AA.*``
    (``(?s).*AA.*`` if the text has line breaks).
    """
    return Matches(name or f"matches({column}, {pattern})", (column,), pattern)


def expression(sql: str, *, name: str = "") -> Expression:
    """Your own predicate in Spark SQL over the columns of one row; a row for which it is null passes."""
    return Expression(name or str(sql), (), sql)


def unique(*columns: str, name: str = "") -> Unique:
    """No value, or no combination of several columns, occurs twice. A row with a null in ``columns`` passes."""
    return Unique(name or f"unique({', '.join(map(str, columns))})", columns)


def row_count(min: int | None = 1, max: int | None = None, *, name: str = "") -> RowCount:
    """At least ``min`` (1) and at most ``max`` (no limit) rows. Only ``min=0`` lets an empty output pass."""
    limits = [f"{key}={value}" for key, value in (("min", min), ("max", max)) if value is not None]
    return RowCount(name or f"row_count({', '.join(limits)})", (), min, max)


def fresh(column: str, within: str | float, *, as_of: datetime.datetime | None = None, name: str = "") -> Fresh:
    """The newest time or date in ``column`` is at most ``within`` old: ``15 minutes``, ``1 day``, or seconds.

    The age is measured at the moment of :meth:`Checks.validate`, or at ``as_of`` (with a zone). Times without zone
    are in the session's. A column with nulls only passes, and so does a time in the future.
    """
    return Fresh(name or f"fresh({column}, {within})", (column,), within, as_of)
