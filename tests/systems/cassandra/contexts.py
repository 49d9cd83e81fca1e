"""Cassandra on this machine, as the suites see it: a table of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from connectors.core import Guarantee
from connectors.systems.cassandra import CassandraSink, CassandraSource
from connectors.testing import SinkContext, SourceContext
from connectors.testing.servers import CassandraServer
from tests.servers import required

KEYSPACE = "tests"


class Tables:
    """Tables on the server of the tests. None is dropped: that takes a second, and the server goes with them."""

    def __init__(self) -> None:
        self.server = required(CassandraServer)

    @cached_property
    def keyspace(self) -> str:
        return self.server.keyspace(KEYSPACE)

    def make(self, columns: str, more: str = "") -> str:
        """The name of a new table."""
        name = f"t_{uuid.uuid4().hex[:12]}"
        self.execute(f"create table {self.keyspace}.{name} ({columns}) {more}")
        return name

    def execute(self, statement: str, *values: Any) -> list[Any]:
        return list(self.server.client.execute(statement, values or None))

    def options(self, table: str) -> dict[str, str]:
        return {**self.server.options, "keyspace": self.keyspace, "table": table, "retry.initialBackoff": "10ms"}


class RowsContext(SourceContext):
    """A table of partitions of three rows each, of which a page has two."""

    source = CassandraSource
    schema = pa.schema([("device", pa.int32()), ("at", pa.int64()), ("name", pa.string())])
    unordered = "a ring has no order of writing"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tables = Tables()
        self.table = self.tables.make("device int, at bigint, name text, primary key (device, at)")
        self.count = 0

    def options(self) -> dict[str, str]:
        return {**self.tables.options(self.table), "fetchSize": "2"}

    def write(self, count: int) -> list[dict[str, Any]]:
        numbers = range(self.count, self.count + count)
        self.count += count
        rows = [{"device": number // 3, "at": number, "name": f"row {number}"} for number in numbers]
        insert = self.tables.server.client.prepare(f"insert into {KEYSPACE}.{self.table} (device, at, name) values (?, ?, ?)")
        for row in rows:
            self.tables.server.client.execute(insert, row)
        return rows


class TableContext(SinkContext):
    """A table by the id of its rows."""

    sink = CassandraSink
    guarantee = Guarantee.IDEMPOTENT
    columns: ClassVar[str] = "id bigint primary key, name text"
    extra: ClassVar[Mapping[str, str]] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tables = Tables()
        self.table = self.tables.make(self.columns)

    def options(self) -> dict[str, str]:
        return {**self.tables.options(self.table), "batch.maxRecords": "4", **self.extra}

    def rows(self) -> list[dict[str, Any]]:
        return [dict(row._asdict()) for row in self.tables.execute(f"select * from {KEYSPACE}.{self.table}")]


class PartitionsContext(TableContext):
    """One partition, whose rows go together, each as of its own time."""

    schema = pa.schema([("part", pa.int32()), ("id", pa.int64()), ("name", pa.string()), ("written", pa.int64())])
    select = ("1 AS part", "value AS id", "concat('row ', value) AS name", "value AS written")
    columns = "part int, id bigint, name text, primary key (part, id)"
    extra: ClassVar = {"orderColumn": "written"}

    def row(self, number: int) -> dict[str, Any]:
        return {"part": 1, "id": number, "name": f"row {number}", "written": number}

    def rows(self) -> list[dict[str, Any]]:
        return [{**row, "written": row["id"]} for row in super().rows()]
