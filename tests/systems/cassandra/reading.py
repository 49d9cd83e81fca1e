"""Sources over the tables of a test, and what they read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from connectors.core import Split
from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.systems.cassandra import CassandraSource

from .contexts import Tables


def source_of(tables: Tables, table: str, **options: str) -> CassandraSource:
    source = CassandraSource.of({**tables.options(table), **options})
    assert isinstance(source, CassandraSource)
    return source


def query_of(tables: Tables, query: str, **options: str) -> CassandraSource:
    known = {name: value for name, value in tables.options("").items() if name != "table"}
    source = CassandraSource.of({**known, "query": query, **options})
    assert isinstance(source, CassandraSource)
    return source


def read(source: CassandraSource, schema: pa.Schema) -> list[dict[str, Any]]:
    parts = Planner(source).whole()
    return [row for part in parts for batch in read_slice(source, part, schema) for row in batch.to_pylist()]


def splits(source: CassandraSource) -> list[Split]:
    planner = Planner(source)
    return [split for part in planner.whole() for split in planner.enumerator.splits_of(part)]
