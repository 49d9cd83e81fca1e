"""The selection to read: a table or a query, its columns, and SELECTs over it whose values are never in their text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...ground.errors import Fatal, Misconfigured, Poison, Problem
from ...ground.options import Values
from .connection import Connection
from .dialects import Column, Dialect, Table
from .target import column_called, table_of

NAME = "connectors.jdbc"
_QUERY = re.compile(r"\s*\((?P<query>.*)\)\s*(?:as\s+)?(?P<alias>\"(?:[^\"]|\"\")+\"|`(?:[^`]|``)+`|\w+)?\s*", re.S | re.I)


@dataclass(frozen=True)
class Value:
    """A value in a statement; ``sql`` is the type to cast it to (``""``: no cast)."""

    value: Any
    sql: str = ""


Clause = tuple["str | Value", ...]
"""A piece of SQL: text and bound values. Join pieces with ``+``."""


def clause(*parts: str | Value) -> Clause:
    return parts


def join_clauses(clauses: Iterable[Clause], word: str) -> Clause:
    """``clauses`` with ``word`` (such as ``" AND "``) between them."""
    result: Clause = ()
    for part in clauses:
        result += ((word,) if result else ()) + part
    return result


def render_clause(parts: Clause, mark: Callable[[int, Value], str]) -> tuple[str, list[Any]]:
    """The text and the values; ``mark`` returns the placeholder for the value with a number (from 0)."""
    text, values = "", list[Any]()
    for part in parts:
        if isinstance(part, Value):
            text += mark(len(values), part)
            values.append(part.value)
        else:
            text += part
    return text, values


def rows_of(connection: Connection, parts: Clause) -> list[tuple[Any, ...]]:
    """The rows of a small statement, through the connection's own driver."""
    dialect = connection.dialect
    escape = "%" in dialect.placeholder
    if escape and any(isinstance(part, Value) for part in parts):
        parts = tuple(part.replace("%", "%%") if isinstance(part, str) else part for part in parts)
    sql, values = render_clause(parts, lambda _, value: dialect.bound(dialect.placeholder, value.sql))
    return connection.rows(sql, values)


@dataclass(frozen=True)
class Selection:
    """A table or query: ``source`` is the text after FROM, ``columns`` are the database's. ``table`` is set for a table."""

    source: str
    columns: tuple[Column, ...]
    table: Table | None = None

    def column(self, name: str) -> Column | None:
        """The column called ``name``; in another case only if there is one such."""
        return column_called(name, self.columns)

    def require_column(self, option: str, name: str) -> Column:
        """The column called ``name``. Raises :class:`Misconfigured`, which names ``option``, if there is none."""
        column = self.column(name)
        if column is None:
            listing = ", ".join(column.name for column in self.columns)
            raise Misconfigured(NAME, [Problem(option, f'names "{name}", but the columns are {listing}.')])
        return column


def check_selection(values: Values) -> list[Problem]:
    """The problem of ``dbtable`` or ``query``."""
    if values["query"] is not None:
        return [] if values["query"].strip() else [Problem("query", "must be a SELECT statement; it is empty.")]
    if not values["dbtable"]:
        return []
    try:
        source_of(values)
    except ValueError as wrong:
        return [Problem("dbtable", f"must be {wrong}.")]
    return []


def source_of(values: Values, dialect: Dialect | None = None) -> tuple[Table | None, str]:
    """The table, or the text of the query. Raises ``ValueError`` for a ``dbtable`` that is neither."""
    text = values["query"] if values["query"] is not None else values["dbtable"]
    if values["query"] is None:
        inside = _QUERY.fullmatch(text)
        if not inside:
            try:
                return table_of(text, dialect), ""
            except ValueError as wrong:
                raise ValueError(f"{wrong}; or a query in parentheses with an alias") from None
        text = inside["query"]
    return None, text.strip().rstrip(";").rstrip()


def read_selection(values: Values, connection: Connection) -> Selection:
    """The present selection of ``dbtable`` or ``query``. Raises :class:`Misconfigured` if the database has none."""
    dialect = connection.dialect
    table, query = source_of(values, dialect)
    # the line breaks end a comment at the end of the query
    source = dialect.table(table) if table else f"(\n{query}\n) {dialect.quote('connectors_query')}"
    option = "query" if values["query"] is not None else "dbtable"
    try:
        columns = dialect.described(connection, source)
    except (Fatal, Poison) as refused:
        raise Misconfigured(NAME, [Problem(option, f"cannot be read: {refused.message}")]) from None
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        text = f"gives several columns the same name ({', '.join(twice)}); name each by AS."
        raise Misconfigured(NAME, [Problem(option, text)])
    return Selection(source, tuple(columns), table)


def select(source: str, expressions: Sequence[str], where: Clause = (), order: str = "") -> Clause:
    """``SELECT expressions FROM source WHERE … ORDER BY …``."""
    head = f"SELECT {', '.join(expressions) or '1'} FROM {source}"
    return (head,) + ((" WHERE ", *where) if where else ()) + ((f" ORDER BY {order}",) if order else ())
