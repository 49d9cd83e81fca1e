"""The ranges of a column's values, with cuts between them that prevent large partitions from skew.

The first range has no lower end and the last one no upper end. So each value is in exactly one range, whatever the cuts are
and whatever is written meanwhile or later; NULL is in the first. Cuts only decide on sizes.

On PostgreSQL the cuts are quantiles of a sample of pages, which reads no more of a large table than of a small one. For a
table that is not large, a query or a view they are exact. Other databases number the rows in the column's order. Either
way the values are in the database's own order, with its own rules for text.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from ...core.planning import split_count
from ...core.source import Split
from ...ground.errors import Fatal, Misconfigured, Poison, Problem
from ...ground.options import Values
from .connection import Connection
from .dialects import Column, Dialect
from .selection import NAME, Clause, Selection, Value

_UTC: Final = datetime.timezone.utc
_EPOCH: Final = datetime.datetime(1970, 1, 1)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


@dataclass(frozen=True)
class KeyRange(Split):
    """The rows with ``low`` <= ``column`` < ``high``; ``None`` is no end. ``sql`` is the column's type in the database.

    Without a low end it includes NULL. Without a ``column`` it has all rows, or those of a ``condition`` of the user's.
    """

    column: str = ""
    sql: str = ""
    low: str | int | float | None = None
    high: str | int | float | None = None
    condition: str = ""

    def where(self, quoted: str) -> Clause:
        """The condition for the rows of this range; ``()`` for all rows. ``quoted`` is the column, as SQL."""
        if self.condition:
            return (_in_parentheses(self.condition),)
        if self.low is None and self.high is None:
            return ()
        if self.low is None:
            return ("(", quoted, " < ", Value(self.high, self.sql), " OR ", quoted, " IS NULL)")
        above: Clause = (quoted, " >= ", Value(self.low, self.sql))
        return above if self.high is None else (*above, " AND ", quoted, " < ", Value(self.high, self.sql))


def ranges(column: str, sql: str, cuts: Sequence[str | int | float]) -> list[KeyRange]:
    """The ranges between ``cuts``, which must be ascending and distinct: one more than there are cuts."""
    return [KeyRange(column, sql, low, high) for low, high in zip([None, *cuts], [*cuts, None], strict=True)]


def distinct(candidates: Iterable[Any]) -> list[Any]:
    """``candidates`` in order, without the first value and without repetitions, so that each range has a value."""
    values: list[Any] = []
    for value in candidates:
        if not values or value != values[-1]:
            values.append(value)
    return values[1:]


def cut_rows(count: int, parts: int) -> list[int]:
    """The numbers (from 1) of the rows that begin each of ``parts`` parts of ``count`` ordered rows."""
    parts = max(1, min(parts, count))
    return sorted({count * part // parts + 1 for part in range(parts)}) if count else []


def even_cuts(lower: str, upper: str, parts: int, family: str) -> list[str | int | float]:
    """Cuts in equal steps from ``lower`` to ``upper``, as Spark makes them from its bounds; exact at any size.

    ``family`` is ``number``, ``date`` or ``time``. Raises ``ValueError`` with a phrase that continues "must be".
    """
    low, high = number_of(lower, family), number_of(upper, family)
    if low >= high:
        raise ValueError("below upperBound")
    whole = family != "number" or (low == int(low) and high == int(high))
    steps = min(parts, int(high - low)) if whole else parts
    cuts: list[Any] = []
    for part in range(1, steps):
        cut = low + (high - low) * part / steps if not whole else int(low) + (int(high) - int(low)) * part // steps
        cuts.append(_text(cut, family))
    return cuts


def number_of(text: str, family: str) -> Decimal:
    """A bound as a number: itself, days, or microseconds since 1970."""
    try:
        if family == "date":
            return Decimal((datetime.date.fromisoformat(text.strip()[:10]) - _EPOCH.date()).days)
        if family == "time":
            return Decimal((_moment(text) - _EPOCH) // _MICROSECOND)
        number = Decimal(text.strip())
    except (ValueError, InvalidOperation):
        example = {"date": "a date such as 2024-01-31", "time": "a time such as 2024-01-31 12:00:00"}
        raise ValueError(example.get(family, "a number")) from None
    if not number.is_finite():
        raise ValueError("a finite number")
    return number


def _moment(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    return moment.astimezone(_UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _text(cut: Any, family: str) -> str | int:
    if family == "date":
        return (_EPOCH.date() + datetime.timedelta(days=int(cut))).isoformat()
    if family == "time":
        return (_EPOCH + _MICROSECOND * int(cut)).isoformat(" ", "microseconds")
    return cut if isinstance(cut, int) else format(cut, "f")


_SAMPLED_PAGES: Final = 128
"""The sampled pages per partition. Rows of a page are similar, and so many pages keep a partition within half of its size."""
_LEAST_SPLIT: Final = 10 << 20
_DEFAULT_TASKS: Final = 2
"""The number of partitions if a database estimates no size."""


def plan_ranges(connection: Connection, values: Values, selection: Selection) -> list[KeyRange]:
    """The ranges for a read of ``selection``; a single one without ends if the read is not cut."""
    if values["predicates"]:
        return _by_conditions(connection, values["predicates"], selection)
    column = _column(connection, values, selection)
    if column is None or not connection.dialect.has_order(column):
        return [KeyRange()]
    parts = values["numPartitions"] or _partition_count(connection, values, selection)
    if parts == 1:
        return [KeyRange()]
    if values["lowerBound"] is not None:
        cuts = _even_cuts(values, column, parts)
    else:
        try:
            cuts = _quantiles(connection, selection, column, parts)
        except Fatal as refused:
            raise Misconfigured(NAME, [Problem("partitionColumn", f"cannot be put in order: {refused.message}")]) from None
    if any(isinstance(cut, bytes) for cut in cuts):
        text = f'names "{column.name}", which holds bytes; choose a column of numbers, text, dates or times.'
        raise Misconfigured(NAME, [Problem("partitionColumn", text)])
    return ranges(column.name, column.sql, cuts)


def _by_conditions(connection: Connection, conditions: Sequence[str], selection: Selection) -> list[KeyRange]:
    for condition in conditions:
        try:
            connection.dialect.described(connection, f"{selection.source} WHERE {_in_parentheses(condition)}")
        except (Fatal, Poison) as refused:
            text = f'has the condition "{condition}", which the database refuses: {refused.message}'
            raise Misconfigured(NAME, [Problem("predicates", text)]) from None
    return [KeyRange(condition=condition) for condition in conditions]


def _in_parentheses(condition: str) -> str:
    """``condition`` in parentheses; the line breaks end a comment at its end."""
    return f"(\n{condition}\n)"


def _column(connection: Connection, values: Values, selection: Selection) -> Column | None:
    """The column to cut by: the named one, else for several partitions a key of the table with one column."""
    if values["partitionColumn"]:
        return selection.require_column("partitionColumn", values["partitionColumn"])
    if selection.table is None or (values["numPartitions"] or 1) == 1:
        return None
    keys = [next(iter(key)) for key in connection.dialect.unique_keys(connection, selection.table) if len(key) == 1]
    return selection.column(keys[0]) if keys else None


def _even_cuts(values: Values, column: Column, parts: int) -> list[Any]:
    family = _family(column.kind)
    if not family:
        text = f'cut columns of numbers, dates and times; "{column.name}" is {column.sql}. Leave them out: they are found.'
        raise Misconfigured(NAME, [Problem("lowerBound", f"and upperBound {text}")])
    try:
        return even_cuts(values["lowerBound"], values["upperBound"], parts, family)
    except ValueError as wrong:
        got = f"{values['lowerBound']!r} and {values['upperBound']!r}"
        raise Misconfigured(NAME, [Problem("lowerBound", f"and upperBound must be {wrong}; got {got}.")]) from None


def _family(kind: pa.DataType | None) -> str:
    if kind is None:
        return ""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return "date" if pa.types.is_date(kind) else "time" if pa.types.is_timestamp(kind) else ""


def _quantiles(connection: Connection, selection: Selection, column: Column, parts: int) -> list[Any]:
    if connection.dialect.samples_pages:
        return _sample_quantiles(connection, selection, column, parts)
    dialect, name = connection.dialect, connection.dialect.quote(column.name)
    ((count,),) = connection.rows(f"SELECT count({name}) FROM {selection.source}")
    if not count:
        return []
    numbers = ", ".join(map(str, cut_rows(count, parts)))
    numbered = f"SELECT {name} AS k, row_number() OVER (ORDER BY {name}) AS n FROM {selection.source} WHERE {name} IS NOT NULL"
    sql = f"SELECT {_comparable(dialect, column)} FROM ({numbered}) connectors_numbered WHERE n IN ({numbers}) ORDER BY n"
    return distinct(value for (value,) in connection.rows(sql))


def _comparable(dialect: Dialect, column: Column) -> str:
    """``k`` in a form that can be compared with the column again: text, except for numbers and if types are loose."""
    kind = column.kind
    is_number = kind is not None and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
    return "k" if is_number else dialect.text_of("k")


def _sample_quantiles(connection: Connection, selection: Selection, column: Column, parts: int) -> list[Any]:
    name = connection.dialect.quote(column.name)
    # slightly above the fraction is the row after it, with which the next range begins
    fractions = ", ".join(f"{part / parts + (1e-9 if part else 0):.12f}" for part in range(parts))
    quantiles = f"percentile_disc(ARRAY[{fractions}]) WITHIN GROUP (ORDER BY {name})"
    source = f"{selection.source}{_sample(connection, selection, parts)}"
    ((cuts,),) = connection.rows(f"SELECT CAST({quantiles} AS text[]) FROM {source}")
    return distinct(value for value in cuts or [] if value is not None)


def _sample(connection: Connection, selection: Selection, parts: int) -> str:
    dialect = connection.dialect
    pages = dialect.pages(connection, selection.table) if selection.table else 0
    share = 100.0 * _SAMPLED_PAGES * parts / pages if pages else 100.0
    return f" TABLESAMPLE SYSTEM ({share:.9f})" if share < 50 else ""


def _partition_count(connection: Connection, values: Values, selection: Selection) -> int:
    """The number of partitions that keeps each below ``maxSplitMemorySize``, by the database's estimate without reading."""
    size = connection.dialect.size(connection, selection.table, selection.source, selection.columns)
    return _DEFAULT_TASKS if size is None else split_count(size, values["maxSplitMemorySize"], _LEAST_SPLIT)
