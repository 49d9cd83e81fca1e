"""Databases as the suites see them: one table without a key, plain inserts."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import adbc_driver_postgresql.dbapi  # noqa: F401 - before the suites fork, so that not every child must load it
import pyarrow as pa
import pytest

from connectors.core import Guarantee
from connectors.ground.state import digest
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.connection import Connection
from connectors.testing import SinkContext
from connectors.testing.servers import MariaDbServer, MySqlServer, PostgresServer
from tests.servers import optional, required


class DatabaseContext(SinkContext):
    """A table of its own in some database. ``extra`` are more options, ``body`` its columns."""

    most_leftovers = 4
    sink = JdbcSink
    body: ClassVar[str] = "id BIGINT, name VARCHAR(100)"
    extra: ClassVar[dict[str, str]] = {}
    own_schema: ClassVar[str] = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.table = f"t_{uuid.uuid4().hex[:12]}"
        self.home = folder.with_name(f"{folder.name}-database")  # the suites make the folder itself
        self.home.mkdir(parents=True)
        self.make()

    def make(self) -> None:
        """Makes the table; in a schema of its own where many tests share a server, since the ledger is beside it."""
        if self.own_schema:
            self.run(self.own_schema.format(f"s_{self.table}"))
            self.table = f"s_{self.table}.{self.table}"
        self.run(f"CREATE TABLE {self.table} ({self.body})")

    def address(self) -> dict[str, str]:
        raise NotImplementedError

    def options(self) -> dict[str, str]:
        return {**self.address(), "dbtable": self.table, "retry.initialBackoff": "10ms", **self.extra}

    def connect(self) -> Connection:
        return JdbcSink.of({**self.address(), "dbtable": "any"}).dialect().connect()

    def run(self, sql: str) -> None:
        with contextlib.closing(self.connect()) as connection:
            connection.execute(sql)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(self.connect()) as connection:
            return connection.rows(sql)

    def rows(self) -> list[dict[str, Any]]:
        return [{"id": number, "name": name} for number, name in self.query(f"SELECT id, name FROM {self.table}")]

    def close(self) -> None:
        self.run(f"DROP TABLE {self.table}")


class InOneFile(DatabaseContext):
    """A database in a file: its staging is a folder beside it."""

    def leftovers(self) -> list[str]:
        return sorted(stage.name for stage in self.home.glob("**/stage/*"))


class PostgresContext(DatabaseContext):
    own_schema = "CREATE SCHEMA {0}"
    extra: ClassVar[dict[str, str]] = {"commit": "batch"}

    def leftovers(self) -> list[str] | None:
        schema = self.table.split(".")[0]
        stages = "SELECT tablename FROM pg_tables WHERE schemaname = '{}' AND tablename LIKE 'cst%'"
        return sorted(name for (name,) in self.query(stages.format(schema)))

    def address(self) -> dict[str, str]:
        server = required(PostgresServer)
        return {"url": server.jdbc, "user": server.user}


class SqliteContext(InOneFile):
    def address(self) -> dict[str, str]:
        return {"url": f"jdbc:sqlite:{self.home.absolute()}/target.db"}


class DuckDbContext(InOneFile):
    def address(self) -> dict[str, str]:
        return {"url": f"jdbc:duckdb:{self.home.absolute()}/target.duckdb"}


class MariaDbContext(DatabaseContext):
    own_schema = "CREATE DATABASE {0}"

    def address(self) -> dict[str, str]:
        server = optional(MariaDbServer)
        return {"url": server.jdbc, "user": server.user, "password": server.password}


class MySqlContext(DatabaseContext):
    own_schema = "CREATE DATABASE {0}"

    def address(self) -> dict[str, str]:
        server = optional(MySqlServer)
        return {"url": server.jdbc, "user": server.user, "password": server.password}


class Preparing(DatabaseContext):
    """Tasks prepare, the driver commits."""

    extra: ClassVar[dict[str, str]] = {"commit": "prepared"}

    def prepared(self) -> list[str]:
        """The names of the sink's prepared transactions."""
        with contextlib.closing(self.connect()) as connection:
            prefix = f"connectors-{digest(JdbcSink.of(self.options()).sink_id())}-"
            return sorted(connection.dialect.prepared(connection, prefix))

    def leftovers(self) -> list[str]:
        return self.prepared()

    def close(self) -> None:
        """What a refused run has prepared would keep the table from being dropped."""
        with contextlib.closing(self.connect()) as connection:
            for name in self.prepared():
                connection.dialect.rollback_prepared(connection, name)
        super().close()


class PreparedContext(Preparing, PostgresContext):
    pass


class PreparedMariaDbContext(Preparing, MariaDbContext):
    pass


class PreparedMySqlContext(Preparing, MySqlContext):
    pass


class UpsertContext(PostgresContext):
    """Straight into the table: a replay writes the same keys again."""

    body = "id BIGINT PRIMARY KEY, name VARCHAR(100)"
    guarantee = Guarantee.IDEMPOTENT
    extra: ClassVar[dict[str, str]] = {"guarantee": "idempotent", "operation": "upsert", "keyColumns": "id"}

    def leftovers(self) -> None:
        return None


class Totals(DatabaseContext):
    """A statement of the user's own, which counts how often it ran for a row: a row that comes twice is there twice."""

    body = "id BIGINT PRIMARY KEY, name VARCHAR(100), n INTEGER"
    again: ClassVar[str] = "ON CONFLICT (id) DO UPDATE SET n = totals.n + 1"
    alias: ClassVar[str] = " AS totals"

    def options(self) -> dict[str, str]:
        values = f"(id, name, n) VALUES ({{id}}, {{name}}, 1) {self.again}"
        return {**super().options(), "statement": f"INSERT INTO {self.table}{self.alias} {values}"}

    def rows(self) -> list[dict[str, Any]]:
        counts = self.query(f"SELECT id, name, n FROM {self.table}")
        return [{"id": number, "name": name} for number, name, count in counts for _ in range(count)]


class PostgresTotals(Totals, PostgresContext):
    pass


class SqliteTotals(Totals, SqliteContext):
    pass


class DuckDbTotals(Totals, DuckDbContext):
    pass


class MariaDbTotals(Totals, MariaDbContext):
    again = "ON DUPLICATE KEY UPDATE n = n + 1"
    alias = ""


class MySqlTotals(MariaDbTotals):
    address = MySqlContext.address


class Routed(DatabaseContext):
    """Three tables, by the remainder of the number; the first batch with a row of one makes it."""

    schema = DatabaseContext.schema.append(pa.field("region", pa.int64()))
    select = (*DatabaseContext.select, "value % 3 AS region")

    def options(self) -> dict[str, str]:
        return {**super().options(), "dbtable": f"{self.table}_{{region}}", "createTable": "true"}

    def row(self, number: int) -> dict[str, Any]:
        return {**super().row(number), "region": number % 3}

    def tables(self) -> list[str]:
        """The tables that there are."""
        schema, _, name = self.table.rpartition(".")
        with contextlib.closing(self.connect()) as connection:
            found = connection.dialect.tables(connection, schema, f"{name}_")
        return [f"{schema}.{table}" if schema else table for table in sorted(found)]

    def rows(self) -> list[dict[str, Any]]:
        cells = [row for table in self.tables() for row in self.query(f"SELECT id, name, region FROM {table}")]
        return [dict(zip(("id", "name", "region"), row, strict=True)) for row in cells]

    def close(self) -> None:
        for table in self.tables():
            self.run(f"DROP TABLE {table}")
        super().close()


class PostgresRouted(Routed, PostgresContext):
    pass


class SqliteRouted(Routed, SqliteContext):
    pass


class DuckDbRouted(Routed, DuckDbContext):
    pass


class MariaDbRouted(Routed, MariaDbContext):
    pass


class MySqlRouted(Routed, MySqlContext):
    pass


class AtLeastOnceContext(PostgresContext):
    guarantee = Guarantee.AT_LEAST_ONCE
    extra: ClassVar[dict[str, str]] = {"guarantee": "at-least-once"}

    def leftovers(self) -> None:
        return None


def table_in(**kinds: type[DatabaseContext]) -> Any:
    """A fixture that gives a fresh table of each of ``kinds``, by the names that tests then carry."""

    @pytest.fixture(params=kinds.values(), ids=kinds)
    def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseContext]:
        with contextlib.closing(request.param(tmp_path / "target")) as database:
            yield database

    return table
