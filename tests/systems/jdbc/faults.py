"""A batch of two tasks, staged without Spark in tables without a key."""

from __future__ import annotations

from typing import Any

from connectors.core import Batch
from connectors.core.writing import stage
from connectors.systems.jdbc import JdbcSink

from .contexts import DatabaseContext, MariaDbContext, PostgresContext, PreparedContext, PreparedMariaDbContext
from .test_operations import rows

BATCH = rows((1, "a", 1), (2, "b", 2)), rows((3, "c", 3))
EXPECTED = [(1, "a", 1), (2, "b", 2), (3, "c", 3)]


class Keyless(PostgresContext):
    body = "id BIGINT, name TEXT, n INTEGER"


class KeylessOnMariaDb(MariaDbContext):
    body = "id BIGINT, name VARCHAR(100), n INTEGER"


class Prepare(PreparedContext):
    body = "id BIGINT, name TEXT, n INTEGER"


class PrepareOnMariaDb(PreparedMariaDbContext):
    body = "id BIGINT, name VARCHAR(100), n INTEGER"


def sink_of(database: DatabaseContext, **options: str) -> JdbcSink:
    return JdbcSink.of({**database.options(), **options})


def staged(sink: JdbcSink, batch: Batch) -> list[Any]:
    return [stage(sink, batch, part.schema, index, iter([part])) for index, part in enumerate(BATCH)]


def batch_of(sink: JdbcSink, number: int = 0, run: str = "") -> Batch:
    return Batch(sink.sink_id(), "11111111-query", number, run=run)
