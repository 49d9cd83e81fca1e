"""SQLite: a file with one writer. Times and decimals are text there."""

from __future__ import annotations

import sqlite3
from typing import Any

from ....core.errors import ConnectorError
from .base import SqlAlchemyDialect


class Sqlite(SqlAlchemyDialect):
    """SQLite 3.33 and later (UPDATE … FROM)."""

    name = "sqlite"
    driver = "sqlite"
    begin = "BEGIN IMMEDIATE"
    placeholder = "?"
    one_writer = True
    plain_values = True
    types = {  # noqa: RUF012
        "bool": "BOOLEAN", "int8": "SMALLINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT", "float32": "FLOAT",
        "float64": "DOUBLE", "decimal": "TEXT", "string": "TEXT", "binary": "BLOB", "date": "DATE", "timestamp": "DATETIME",
        "timestamp_ntz": "DATETIME", "json": "TEXT",
    }  # fmt: skip

    def open(self) -> Any:
        raw = sqlite3.connect(self.address.database, timeout=self.timeout, isolation_level=None)
        raw.execute("PRAGMA foreign_keys = ON")
        return raw

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
