"""The sink passes every case of the kit on each database, some by one carrier only; the other one is in ``make soak``."""

from typing import ClassVar

import pytest

from connectors.testing import SinkSuite

from ..marks import STAGES, marked
from .contexts import (
    AtLeastOnceContext,
    DuckDbContext,
    DuckDbRouted,
    DuckDbTotals,
    MariaDbContext,
    MariaDbRouted,
    MariaDbTotals,
    PostgresContext,
    PostgresRouted,
    PostgresTotals,
    PreparedContext,
    PreparedMariaDbContext,
    SqliteContext,
    SqliteRouted,
    SqliteTotals,
    UpsertContext,
)


class FewerKills(SinkSuite):
    """To open a database a hundred times costs more than it tells."""

    seeds, starts = 3, 10


@marked(STAGES, pytest.mark.soak)
class TestPostgres(FewerKills):
    context = PostgresContext


class TestPrepared(FewerKills):
    context = PreparedContext


class TestSqlite(FewerKills):
    context = SqliteContext


@marked(STAGES, pytest.mark.soak)
class TestDuckDb(FewerKills):
    class context(DuckDbContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


@marked(STAGES, pytest.mark.soak)
class TestMariaDb(FewerKills):
    class context(MariaDbContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


@marked(STAGES, pytest.mark.soak)
@pytest.mark.soak
class TestPreparedMariaDb(FewerKills):
    class context(PreparedMariaDbContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


class TestUpsert(FewerKills):
    class context(UpsertContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


class TestAtLeastOnce(FewerKills):
    class context(AtLeastOnceContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


class TestStatementOfOnesOwn(FewerKills):
    class context(PostgresTotals):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


class TestTablesThatColumnsName(FewerKills):
    class context(PostgresRouted):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


@pytest.mark.soak
class TestTablesThatColumnsNameByFormat(FewerKills):
    class context(PostgresRouted):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


@pytest.mark.soak
class TestTablesThatColumnsNameInSqlite(FewerKills):
    context = SqliteRouted


@pytest.mark.soak
class TestTablesThatColumnsNameInDuckDb(FewerKills):
    class context(DuckDbRouted):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


@pytest.mark.soak
class TestTablesThatColumnsNameInMariaDb(FewerKills):
    class context(MariaDbRouted):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


@pytest.mark.soak
class TestStatementOfOnesOwnByForeachBatch(FewerKills):
    class context(PostgresTotals):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


@pytest.mark.soak
class TestStatementOfOnesOwnOnSqlite(FewerKills):
    context = SqliteTotals


@pytest.mark.soak
class TestStatementOfOnesOwnOnDuckDb(FewerKills):
    class context(DuckDbTotals):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


@pytest.mark.soak
class TestStatementOfOnesOwnOnMariaDb(FewerKills):
    class context(MariaDbTotals):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


@pytest.mark.soak
class TestDuckDbByFormat(FewerKills):
    class context(DuckDbContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


@pytest.mark.soak
class TestMariaDbByForeachBatch(FewerKills):
    class context(MariaDbContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


@pytest.mark.soak
class TestPreparedMariaDbByForeachBatch(FewerKills):
    class context(PreparedMariaDbContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)
