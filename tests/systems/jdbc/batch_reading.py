"""A batch read of ``connectors.jdbc`` without Spark, as its tasks do it, and the databases that the tests read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.core.source import Slice
from connectors.systems.jdbc import JdbcSource
from connectors.systems.jdbc.rows import columns_schema
from connectors.systems.jdbc.selection import read_selection

from .contexts import DatabaseContext, DuckDbContext, MariaDbContext, PostgresContext, SqliteContext

DATABASES = [PostgresContext, SqliteContext, DuckDbContext, MariaDbContext]
NAMES = [kind.__name__.removesuffix("Context").lower() for kind in DATABASES]


class BatchRead:
    """One ``load()`` and what is done with it."""

    def __init__(self, options: dict[str, Any], schema: pa.Schema | None = None) -> None:
        self.source: Any = JdbcSource.of(options)
        self.schema = schema or self.own_schema()

    def own_schema(self) -> pa.Schema:
        with contextlib.closing(self.source.dialect().connect_to_read()) as connection:
            return columns_schema(
                read_selection(self.source.values, connection), ntz=self.source.values["preferTimestampNTZ"]
            )

    def parts(self) -> list[Slice]:
        with contextlib.closing(Planner(self.source)) as planner:
            return list(planner.whole())

    def batches(self, part: Slice) -> Iterator[pa.RecordBatch]:
        return read_slice(self.source, part, self.schema)

    def sizes(self) -> list[int]:
        """How many rows each partition has."""
        return [sum(batch.num_rows for batch in self.batches(part)) for part in self.parts()]

    def rows(self) -> list[dict[str, Any]]:
        return [row for part in self.parts() for batch in self.batches(part) for row in batch.to_pylist()]


def table_of(kind: type[DatabaseContext], columns: str, folder: Path) -> DatabaseContext:
    """A new table with these columns."""

    class Context(kind):  # type: ignore[valid-type, misc]
        body = columns

    context: DatabaseContext = Context(folder / "t")
    return context


def source_options(context: DatabaseContext, **more: Any) -> dict[str, Any]:
    return {**context.address(), "dbtable": context.table, "retry.initialBackoff": "10ms", **more}


def read(context: DatabaseContext, schema: pa.Schema | None = None, **more: Any) -> BatchRead:
    options = source_options(context, **more)
    if "query" in more:
        del options["dbtable"]
    return BatchRead(options, schema)


@pytest.fixture(params=DATABASES, ids=NAMES)
def numbers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseContext]:
    """A table of each database with the ids 1 to 50."""
    with contextlib.closing(table_of(request.param, "id BIGINT PRIMARY KEY, name VARCHAR(100)", tmp_path)) as table:
        fill(table, [(number, f"'row {number}'") for number in range(1, 51)])
        yield table


def fill(context: DatabaseContext, rows: list[tuple[Any, ...]], table: str = "") -> None:
    """Inserts rows whose values are SQL."""
    for first in range(0, len(rows), 1000):
        values = ", ".join(f"({', '.join(map(str, row))})" for row in rows[first : first + 1000])
        context.run(f"INSERT INTO {table or context.table} VALUES {values}")
