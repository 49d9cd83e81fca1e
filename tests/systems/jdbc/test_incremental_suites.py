"""A table as a stream passes every case of the kit, by ids, by times, and by both."""

from __future__ import annotations

import pytest

from connectors.testing import SourceSuite

from . import incremental_contexts as contexts


class TestPostgresById(SourceSuite):
    context = contexts.PostgresById


@pytest.mark.soak
class TestPostgresByTime(SourceSuite):
    context = contexts.PostgresByTime


class TestPostgresByBoth(SourceSuite):
    context = contexts.PostgresByBoth


@pytest.mark.soak
class TestSqliteById(SourceSuite):
    context = contexts.SqliteById


class TestSqliteByTime(SourceSuite):
    context = contexts.SqliteByTime


@pytest.mark.soak
class TestSqliteByBoth(SourceSuite):
    context = contexts.SqliteByBoth


@pytest.mark.soak
class TestDuckDbById(SourceSuite):
    context = contexts.DuckDbById


@pytest.mark.soak
class TestDuckDbByBoth(SourceSuite):
    context = contexts.DuckDbByBoth


class TestTables(SourceSuite):
    context = contexts.TablesContext


@pytest.mark.soak
class TestTablesOfMariaDb(SourceSuite):
    context = contexts.MariaDbTables


@pytest.mark.soak
class TestTablesOfPostgres(SourceSuite):
    context = contexts.PostgresTables
