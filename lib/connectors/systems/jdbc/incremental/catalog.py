"""The tables of a database and their columns, in one statement however many there are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..connection import Connection
from ..dialects import Table

OURS: Final = re.compile("connectors_|cst_[0-9a-f]{8}_[0-9a-f]{12}_[0-9a-f]{8}_[0-9a-f]{24}")
"""Tables that begin so are the library's own: ledgers and stages."""


@dataclass(frozen=True)
class Listed:
    """A table: its ``columns`` as pairs of name and type, its primary key, and an ``oid`` where the database gives one.

    ``stored`` is false for a view, whose rows do not tell which transaction wrote them. A query has no ``table``, and what
    stands after FROM is its ``source``.
    """

    table: Table | None
    columns: tuple[tuple[str, str], ...]
    primary: tuple[str, ...] = ()
    not_null: frozenset[str] = frozenset()
    oid: int | None = None
    stored: bool = True
    source: str = ""

    def type_of(self, column: str) -> str | None:
        return dict(self.columns).get(column)


_POSTGRESQL: Final = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       coalesce(a.attnum = ANY (i.indkey::int2[]), false), c.oid::bigint, c.relkind IN ('r', 'p')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE {wanted} ORDER BY c.relname, a.attnum
"""
_SQLITE: Final = """
SELECT m.name, p.name, p.type, p."notnull", p.pk > 0, NULL, m.type = 'table'
FROM sqlite_master m JOIN pragma_table_info(m.name) p
WHERE {wanted} AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY m.name, p.cid
"""
_DUCKDB: Final = """
SELECT c.table_name, c.column_name, c.data_type, NOT c.is_nullable,
       coalesce(list_contains(k.constraint_column_names, c.column_name), false), c.table_oid, t.table_oid IS NOT NULL
FROM duckdb_columns() c
LEFT JOIN duckdb_tables() t ON t.table_oid = c.table_oid AND t.database_oid = c.database_oid AND t.schema_oid = c.schema_oid
LEFT JOIN duckdb_constraints() k ON k.table_oid = c.table_oid AND k.database_oid = c.database_oid
     AND k.constraint_type = 'PRIMARY KEY'
WHERE c.database_name = current_database() AND NOT c.internal AND {wanted} ORDER BY c.table_name, c.column_index
"""
_MARIADB: Final = """
SELECT c.table_name, c.column_name, c.column_type, c.is_nullable = 'NO', c.column_key = 'PRI', NULL, t.table_type = 'BASE TABLE'
FROM information_schema.columns c
JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name
WHERE {wanted} ORDER BY c.table_name, c.ordinal_position
"""
_ALL: Final = {
    "postgresql": (_POSTGRESQL, "n.nspname = current_schema() AND c.relkind IN ('r', 'p') AND NOT c.relispartition"),
    "sqlite": (_SQLITE, "m.type = 'table'"),
    "duckdb": (_DUCKDB, "c.schema_name = current_schema() AND t.table_oid IS NOT NULL"),
    "mariadb": (_MARIADB, "c.table_schema = database() AND t.table_type = 'BASE TABLE'"),
}


def listed(connection: Connection) -> dict[str, Listed]:
    """The tables of the default schema by their names; no views, and none of the library's own."""
    statement, wanted = _ALL[connection.dialect.system]
    found = connection.rows(statement.format(wanted=wanted))
    return {name: one for name, one in _grouped(found, "").items() if not OURS.match(name)}


def looked_up(connection: Connection, table: Table) -> Listed | None:
    """One table or view; ``None`` if there is none."""
    one = connection.dialect.placeholder
    values: list[Any] = [table.name, *([table.schema] if table.schema else [])]
    schema = one if table.schema else None
    wanted = {
        "postgresql": f"c.relname = {one} AND " + (f"n.nspname = {one}" if schema else "pg_table_is_visible(c.oid)"),
        "sqlite": f"m.name = {one} COLLATE NOCASE",
        "duckdb": f"c.table_name = {one} AND c.schema_name = {schema or 'current_schema()'}",
        "mariadb": f"c.table_name = {one} AND c.table_schema = {schema or 'database()'}",
    }[connection.dialect.system]
    if connection.dialect.system == "sqlite":
        del values[1:]
    statement, _ = _ALL[connection.dialect.system]
    if "%" in one:
        statement = statement.replace("%'", "%%'")
    found = _grouped(connection.rows(statement.format(wanted=wanted), values), table.schema)
    return next(iter(found.values()), None)


def _grouped(rows: Sequence[Sequence[Any]], schema: str) -> dict[str, Listed]:
    columns: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        columns.setdefault(row[0], []).append(row)
    return {
        name: Listed(
            Table(name, schema),
            tuple((row[1], row[2]) for row in told),
            tuple(row[1] for row in told if row[4]),
            frozenset(row[1] for row in told if row[3]),
            told[0][5],
            bool(told[0][6]),
        )
        for name, told in columns.items()
    }
