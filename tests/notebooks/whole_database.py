"""The tables of a database, and those that were merged from it, to be compared."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from connectors.testing.demo_servers import WholeDatabase
from tests.delta_log import delta

Tables = dict[str, list[dict[str, Any]]]


def database_tables(own: WholeDatabase, schema: str) -> Tables:
    """The rows of each table of a schema."""
    with own.connect() as database:
        names = [name for (name,) in database.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,))]
        cursor = database.cursor(row_factory=psycopg.rows.dict_row)
        return {name: in_order(cursor.execute(f"SELECT * FROM {schema}.{name}").fetchall()) for name in names}


def sqlite_tables(file: Path) -> Tables:
    """The rows of each table of an SQLite file."""
    with closing(sqlite3.connect(file)) as database:
        database.row_factory = sqlite3.Row
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: in_order([dict(row) for row in database.execute(f"SELECT * FROM {name}")]) for name in names}


def delta_tables(folder: Path) -> Tables:
    """The rows of each table that was written to ``folder``."""
    names = [log.parent.name for log in folder.glob("*/_delta_log") if not log.parent.name.startswith("_")]
    followed = [name for name in names if not name.endswith("_deleted")]
    tables = {name: delta(folder / name) for name in followed}
    own = {name: [column for column in table.column_names if column != "_position"] for name, table in tables.items()}
    return {name: in_order(table.select(own[name]).to_pylist()) for name, table in tables.items()}


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """``rows`` by their values, with times as texts in UTC."""
    for row in rows:
        times = {name: value for name, value in row.items() if isinstance(value, datetime.datetime)}
        utc = {name: value.astimezone(datetime.timezone.utc) if value.tzinfo else value for name, value in times.items()}
        row.update({name: value.strftime("%F %T.%f") for name, value in utc.items()})
    return sorted(rows, key=lambda row: str([row[name] for name in sorted(row)]))
