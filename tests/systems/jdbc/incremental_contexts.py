"""Databases as the suites of a source see them: one table that grows."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.source import JdbcSource
from connectors.testing import SourceContext

from .contexts import DatabaseContext, DuckDbContext, MariaDbContext, PostgresContext, SqliteContext

BEGIN = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
MOMENT: dict[type[DatabaseContext], str] = {
    PostgresContext: "timestamptz", SqliteContext: "DATETIME", DuckDbContext: "TIMESTAMPTZ", MariaDbContext: "DATETIME(6)",
}  # fmt: skip


class StreamContext(SourceContext):
    """A table of ``database``, read in ``mode``. ``alike`` rows in a row have the same time."""

    source = JdbcSource
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("changed", pa.timestamp("us", "UTC"))])
    database: ClassVar[type[DatabaseContext]]
    mode: ClassVar[Mapping[str, str]] = {"incremental": "incrementing", "incrementingColumn": "id"}
    alike: ClassVar[int] = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        kind = self.database
        body = f"id BIGINT, name VARCHAR(100), changed {MOMENT[kind]}"
        self.target: DatabaseContext = type("Target", (kind,), {"body": body})(folder.with_name("target"))
        self.written = 0

    def options(self) -> dict[str, str]:
        return {**self.target.address(), "dbtable": self.target.table, "retry.initialBackoff": "10ms", **self.mode}

    def write(self, count: int) -> list[dict[str, Any]]:
        first = self.written + 1
        self.written += count
        rows = [{"id": n, "name": f"row {n}", "changed": self.moment(n)} for n in range(first, first + count)]
        values = ", ".join(f"({row['id']}, '{row['name']}', '{self.stamp(row['changed'])}')" for row in rows)
        self.target.run(f"INSERT INTO {self.target.table} VALUES {values}")
        return rows

    def moment(self, number: int) -> datetime.datetime:
        steps = number // self.alike
        return BEGIN + datetime.timedelta(seconds=steps, microseconds=steps)

    def stamp(self, moment: datetime.datetime) -> str:
        text = moment.strftime("%Y-%m-%d %H:%M:%S.%f")
        return text if self.database in (SqliteContext, MariaDbContext) else text + "+00"

    def close(self) -> None:
        self.target.close()


class WithoutTimes(StreamContext):
    """By a query, without the column that JSON would round."""

    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])

    def options(self) -> dict[str, str]:
        return {**super().options(), "dbtable": f"(SELECT id, name FROM {self.target.table}) AS rows_of_it"}

    def write(self, count: int) -> list[dict[str, Any]]:
        return [{"id": row["id"], "name": row["name"]} for row in super().write(count)]


BY_TIME = {"incremental": "timestamp", "timestampColumns": "changed"}
BY_BOTH = {**BY_TIME, "incremental": "timestamp+incrementing", "incrementingColumn": "id"}


class PostgresById(StreamContext):
    database = PostgresContext


class PostgresStream(WithoutTimes, PostgresById):
    """What survives a way through JSON."""


class PostgresByTime(StreamContext):
    database, mode = PostgresContext, BY_TIME


class PostgresByBoth(StreamContext):
    database, mode, alike = PostgresContext, BY_BOTH, 3


class SqliteById(StreamContext):
    database = SqliteContext


class SqliteByTime(StreamContext):
    database, mode = SqliteContext, BY_TIME


class SqliteByBoth(StreamContext):
    database, mode, alike = SqliteContext, BY_BOTH, 3


class DuckDbById(StreamContext):
    database = DuckDbContext


class DuckDbByBoth(StreamContext):
    database, mode, alike = DuckDbContext, BY_BOTH, 3


class TablesContext(SourceContext):
    """Three tables of one database, in a stream of JSON."""

    source = JdbcSource
    schema = pa.schema([("table", pa.string()), ("row", pa.string())])
    names = ("customers", "orders", "products")

    database: ClassVar[type[DatabaseContext]] = SqliteContext

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.target = self.database(folder.with_name("target"))
        self.target.close()
        for name in self.names:
            self.run(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, name VARCHAR(100))")
        self.written = 0

    def address(self) -> dict[str, str]:
        return self.target.address()

    def run(self, sql: str) -> None:
        with contextlib.closing(JdbcSink.of({**self.address(), "dbtable": "any"}).dialect().connect()) as connection:
            connection.execute(sql)

    def options(self) -> dict[str, str]:
        return {**self.address(), "tables": ".*", "retry.initialBackoff": "10ms"}

    def write(self, count: int) -> list[dict[str, Any]]:
        numbers = range(self.written + 1, self.written + count + 1)
        self.written += count
        rows = []
        for n in numbers:
            name = self.names[n % 3]
            self.run(f"INSERT INTO {name} VALUES ({n}, 'row {n}')")
            rows.append({"table": name, "row": f'{{"id":{n},"name":"row {n}"}}'})
        return rows

    def partition(self, row: Mapping[str, Any]) -> str:
        return str(row["table"])


class PostgresTables(TablesContext):
    """In a schema of its own, which is the first in the search path."""

    database = PostgresContext

    def address(self) -> dict[str, str]:
        address = self.target.address()
        return {**address, "url": f"{address['url']}?options=-csearch_path%3D{self.target.table.split('.')[0]}"}


class MariaDbTables(TablesContext):
    """In a database of its own."""

    database = MariaDbContext

    def address(self) -> dict[str, str]:
        address = self.target.address()
        return {**address, "url": f"{address['url'].rsplit('/', 1)[0]}/{self.target.table.split('.')[0]}"}
