"""SQLite: a file with one writer. Times and decimals are text there."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from ....ground.errors import ConnectorError, Fatal
from ..connection import Connection
from .base import Dialect
from .tables import Column, Table, ascii_lower, grouped_keys

_SAMPLE = 1000
"""The number of rows that determine the type of a column without a declared type."""
_KINDS = {frozenset({"integer"}): pa.int64(), frozenset({"blob"}): pa.binary()}


class Sqlite(Dialect):
    """SQLite 3.33 and later (UPDATE … FROM)."""

    name = system = "sqlite"
    begin = "BEGIN IMMEDIATE"
    placeholder = "?"
    one_writer = True
    plain_values = True
    refuses_nan = True
    text_type = ""
    types = {  # noqa: RUF012
        "bool": "BOOLEAN", "int8": "SMALLINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT", "float32": "FLOAT",
        "float64": "DOUBLE", "decimal": "TEXT", "string": "TEXT", "binary": "BLOB", "date": "DATE", "timestamp": "DATETIME",
        "timestamp_ntz": "DATETIME", "json": "TEXT",
    }  # fmt: skip

    def open(self) -> Any:
        raw = sqlite3.connect(self.address.database, timeout=self.timeout, isolation_level=None)
        raw.execute("PRAGMA foreign_keys = ON")
        return raw

    def open_to_read(self) -> Any:
        """Opens the file read-only: otherwise SQLite would create a missing file."""
        self.check_file()
        return sqlite3.connect(f"file:{quote(self.address.database)}?mode=ro", self.timeout, isolation_level=None, uri=True)

    def table_key(self, name: str) -> str:
        return ascii_lower(name)

    def takes_name(self, name: str) -> bool:
        return "\0" not in name and not ascii_lower(name).startswith("sqlite_")

    def columns(self, connection: Connection, table: Table) -> list[Column]:
        sql = 'SELECT name, type, "notnull", dflt_value IS NOT NULL FROM pragma_table_xinfo(?, ?) WHERE hidden = 0'
        rows = connection.rows(sql, [table.name, table.schema or "main"])
        return [Column(name, sql, _declared(sql), not required, bool(default)) for name, sql, required, default in rows]

    def unique_keys(self, connection: Connection, table: Table) -> list[frozenset[str]]:
        schema = table.schema or "main"
        primary = connection.rows("SELECT '', name FROM pragma_table_xinfo(?, ?) WHERE pk > 0", [table.name, schema])
        sql = (
            "SELECT i.name, c.name FROM pragma_index_list(?, ?) i, pragma_index_info(i.name, ?) c "
            'WHERE i."unique" AND NOT i.partial'
        )
        return grouped_keys([*primary, *connection.rows(sql, [table.name, schema, schema])])

    def tables(self, connection: Connection, schema: str, prefix: str) -> list[str]:
        sql = f"SELECT name FROM {self.quote(schema or 'main')}.sqlite_master WHERE type = 'table'"
        return [name for (name,) in connection.rows(sql) if name.startswith(prefix)]

    def described(self, connection: Connection, source: str) -> list[Column]:
        """As in the base class, by declared types, which a view of a query still has; else by a column's first values."""
        connection.execute("DROP VIEW IF EXISTS temp.connectors_view")
        connection.execute(f"CREATE TEMP VIEW connectors_view AS SELECT * FROM {source}")
        types = connection.rows("SELECT name, type FROM pragma_table_info('connectors_view')")
        columns = [Column(name, sql, _declared(sql) if sql else self._sampled(connection, name)) for name, sql in types]
        connection.execute("DROP VIEW temp.connectors_view")
        return columns

    def size(self, connection: Connection, table: Table | None, source: str, columns: Sequence[Column]) -> int | None:
        """The size of the file, all that SQLite knows; for a table at most a page for each row."""
        counts = "SELECT * FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        ((pages, free, page_bytes),) = connection.rows(counts)
        size = (int(pages) - int(free)) * int(page_bytes)
        with contextlib.suppress(Fatal):  # queries, views and tables WITHOUT ROWID have no rowid
            ((rows,),) = connection.rows(f"SELECT max(rowid) FROM {self.table(table)}") if table else [(None,)]
            return min(size, int(rows) * int(page_bytes)) if rows else size
        return size

    def _sampled(self, connection: Connection, name: str) -> pa.DataType | None:
        sample = f"SELECT {self.quote(name)} AS v FROM temp.connectors_view LIMIT {_SAMPLE}"
        types = {kind for (kind,) in connection.rows(f"SELECT DISTINCT typeof(v) FROM ({sample}) WHERE v IS NOT NULL")}
        if "real" in types and types <= {"real", "integer"}:
            return pa.float64()
        return _KINDS.get(frozenset(types))

    def bound(self, placeholder: str, sql: str) -> str:
        return placeholder  # SQLite compares values by their own types

    def ordered(self, expression: str, staged: pa.DataType) -> str:
        return f"CAST({expression} AS NUMERIC)" if pa.types.is_decimal(staged) else expression

    def errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)

    def judge(self, error: Exception) -> ConnectorError:
        if isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError)):
            return self.poison(error)
        busy = ("locked", "busy", "disk i/o error", "unable to open database file")
        if isinstance(error, sqlite3.OperationalError) and any(reason in str(error).lower() for reason in busy):
            return self.transient(error)
        return self.fatal(error)

    def refused(self, error: Exception) -> ConnectorError:
        return self.judge(error)


def _declared(sql: str) -> pa.DataType | None:
    """The Arrow type for a column declared as ``sql``. An integer of any name may have 64 bits."""
    name = sql.upper()
    if match := re.fullmatch(r"(?:DECIMAL|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", name):
        return pa.decimal128(int(match[1]), int(match[2] or 0)) if int(match[1]) <= 38 else None
    first = re.split(r"[\s(]", name)[0]
    known = {
        "BOOLEAN": pa.bool_(), "BOOL": pa.bool_(), "SMALLINT": pa.int16(), "DATE": pa.date32(), "DATETIME": pa.timestamp("us"),
        "TIMESTAMP": pa.timestamp("us"), "BLOB": pa.binary(), "DECIMAL": pa.decimal128(38, 18),
        "NUMERIC": pa.decimal128(38, 18),
    }  # fmt: skip
    if first in known:
        return known[first]
    if "INT" in first:
        return pa.int64()
    return pa.float64() if any(part in first for part in ("REAL", "FLOA", "DOUB")) else pa.string()
