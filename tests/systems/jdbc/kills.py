"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from connectors.testing.sink_cases import SinkQuery

from ..pipelines import CopyContext, Pipeline, Pipelines
from . import contexts as jdbc
from .incremental_contexts import PostgresStream, PostgresTables

PIPELINES: Pipelines = {
    "PostgreSQL by foreach_batch": Pipeline(jdbc.PostgresContext, "foreach_batch"),
    "PostgreSQL, prepared": Pipeline(jdbc.PreparedContext, "format"),
    "PostgreSQL, a statement of one's own": Pipeline(jdbc.PostgresTotals, "foreach_batch"),
    "SQLite by foreach_batch": Pipeline(jdbc.SqliteContext, "foreach_batch"),
    "DuckDB": Pipeline(jdbc.DuckDbContext, "format"),
    "copy of a table": Pipeline(CopyContext, "format", PostgresStream),
    "copy of tables": Pipeline(CopyContext, "format", PostgresTables),
}
QUICK = ("PostgreSQL, prepared",)
SCHEDULES = {
    jdbc.PostgresContext: SinkQuery,
    jdbc.PostgresTotals: SinkQuery,
    jdbc.PreparedContext: SinkQuery,
    jdbc.SqliteContext: SinkQuery,
    jdbc.DuckDbContext: SinkQuery,
    jdbc.MariaDbContext: SinkQuery,
    jdbc.PreparedMariaDbContext: SinkQuery,
}
