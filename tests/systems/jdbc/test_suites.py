"""The sink passes every case of the kit on each database, and of more kills and both carriers in ``make soak``."""

from typing import ClassVar

import pytest

from connectors.testing import SinkSuite

from .contexts import (
    AtLeastOnceContext,
    DuckDbContext,
    MariaDbContext,
    PostgresContext,
    PreparedContext,
    SqliteContext,
    UpsertContext,
)


class FewerKills(SinkSuite):
    """To open a database a hundred times costs more than it tells."""

    seeds = 3


class TestPostgres(FewerKills):
    context = PostgresContext


class TestPrepared(FewerKills):
    context = PreparedContext


class TestSqlite(FewerKills):
    context = SqliteContext


class TestDuckDb(FewerKills):
    class context(DuckDbContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


class TestMariaDb(FewerKills):
    class context(MariaDbContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


class TestUpsert(FewerKills):
    class context(UpsertContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


class TestAtLeastOnce(FewerKills):
    class context(AtLeastOnceContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


@pytest.mark.soak
class TestPostgresThroughAllKills(SinkSuite):
    context = PostgresContext


@pytest.mark.soak
class TestPreparedThroughAllKills(SinkSuite):
    context = PreparedContext


@pytest.mark.soak
class TestSqliteThroughAllKills(SinkSuite):
    context = SqliteContext


@pytest.mark.soak
class TestDuckDbThroughAllKills(SinkSuite):
    context = DuckDbContext


@pytest.mark.soak
class TestMariaDbThroughAllKills(SinkSuite):
    context = MariaDbContext
