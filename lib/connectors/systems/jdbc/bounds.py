"""Where to cut a table, asked of its database: at quantiles of the column, so that skew makes no partition large.

On PostgreSQL the quantiles are those of a sample of pages, which reads no more of a large table than of a small one; of a
table that is not large, of a query or a view they are exact. Other databases number the rows in the column's order.
Either way the values come back in the database's own order, with its own rules for text.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from ...core.errors import Fatal, Misconfigured, Problem
from ...core.options import Values
from ...core.sharing import split_count
from .connection import Connection
from .dialects import Column, Dialect
from .dialects.postgresql import PostgreSql
from .ranges import Range, distinct, even_cuts, positions, ranges
from .selecting import NAME, Selected

_SAMPLED_PAGES: Final = 128
"""Pages of a sample per partition: rows of a page lie together, and so many pages keep a partition within half of its size."""
_LEAST_SPLIT: Final = 10 << 20
_DEFAULT_TASKS: Final = 2
"""Where a database estimates no size."""


def planned(connection: Connection, values: Values, selected: Selected) -> list[Range]:
    """The ranges to read ``selected`` in; a single one that has no ends if it is not to be cut."""
    column = _column(connection, values, selected)
    if column is None:
        return [Range()]
    parts = values["numPartitions"] or _parts(connection, values, selected)
    if parts == 1:
        return [Range()]
    if values["lowerBound"] is not None:
        cuts = _even(values, column, parts)
    else:
        try:
            cuts = _quantiles(connection, selected, column, parts)
        except Fatal as refused:
            raise Misconfigured(NAME, [Problem("partitionColumn", f"cannot be put in order: {refused.message}")]) from None
    if any(isinstance(cut, bytes) for cut in cuts):
        text = f'names "{column.name}", which holds bytes; choose a column of numbers, text, dates or times.'
        raise Misconfigured(NAME, [Problem("partitionColumn", text)])
    return ranges(column.name, column.sql, cuts)


def _column(connection: Connection, values: Values, selected: Selected) -> Column | None:
    """The column to cut by: the one that is named, else for several partitions a key of the table that is one column."""
    if values["partitionColumn"]:
        return selected.wanted("partitionColumn", values["partitionColumn"])
    if selected.table is None or (values["numPartitions"] or 1) == 1:
        return None
    keys = [next(iter(key)) for key in connection.dialect.unique_keys(connection, selected.table) if len(key) == 1]
    return selected.column(keys[0]) if keys else None


def _even(values: Values, column: Column, parts: int) -> list[Any]:
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


def _quantiles(connection: Connection, selected: Selected, column: Column, parts: int) -> list[Any]:
    if isinstance(connection.dialect, PostgreSql):
        return _sampled(connection, selected, column, parts)
    dialect, name = connection.dialect, connection.dialect.quote(column.name)
    ((count,),) = connection.rows(f"SELECT count({name}) FROM {selected.source}")
    if not count:
        return []
    numbers = ", ".join(map(str, positions(count, parts)))
    numbered = f"SELECT {name} AS k, row_number() OVER (ORDER BY {name}) AS n FROM {selected.source} WHERE {name} IS NOT NULL"
    sql = f"SELECT {_shown(dialect, column)} FROM ({numbered}) connectors_numbered WHERE n IN ({numbers}) ORDER BY n"
    return distinct(value for (value,) in connection.rows(sql))


def _shown(dialect: Dialect, column: Column) -> str:
    """``k`` in a form that can be compared with the column again: text, except for numbers and where types are loose."""
    kind = column.kind
    if dialect.system == "sqlite" or (kind is not None and (pa.types.is_integer(kind) or pa.types.is_floating(kind))):
        return "k"
    return "CAST(k AS CHAR)" if dialect.system == "mariadb" else "CAST(k AS VARCHAR)"


def _sampled(connection: Connection, selected: Selected, column: Column, parts: int) -> list[Any]:
    name = connection.dialect.quote(column.name)
    # a little more than the fraction is the row after it, with which the next range begins
    fractions = ", ".join(f"{part / parts + (1e-9 if part else 0):.12f}" for part in range(parts))
    quantiles = f"percentile_disc(ARRAY[{fractions}]) WITHIN GROUP (ORDER BY {name})"
    source = f"{selected.source}{_sample(connection, selected, parts)}"
    ((found,),) = connection.rows(f"SELECT CAST({quantiles} AS text[]) FROM {source}")
    return distinct(value for value in found or [] if value is not None)


def _sample(connection: Connection, selected: Selected, parts: int) -> str:
    dialect = connection.dialect
    pages = dialect.pages(connection, selected.table) if isinstance(dialect, PostgreSql) and selected.table else 0
    share = 100.0 * _SAMPLED_PAGES * parts / pages if pages else 100.0
    return f" TABLESAMPLE SYSTEM ({share:.9f})" if share < 50 else ""


def _parts(connection: Connection, values: Values, selected: Selected) -> int:
    """As many partitions as keep each below ``maxSplitMemorySize``, by the size that the database estimates without reading."""
    size = connection.dialect.size(connection, selected.table, selected.source, selected.columns)
    return _DEFAULT_TASKS if size is None else split_count(size, values["maxSplitMemorySize"], _LEAST_SPLIT)
