"""The sink passes every case of the kit on each database, some by one carrier only; the other one is in ``make soak``."""

from pathlib import Path
from typing import ClassVar

import pytest

from connectors.core import CommitRefused, Misconfigured
from connectors.core.ledger import app_query
from connectors.core.sink import Batch
from connectors.core.writing import stage
from connectors.testing import SinkContext, SinkSuite
from connectors.testing.faults import Point
from connectors.testing.sink_cases import HeldRun, SinkQuery, release

from ..marks import STAGES, marked
from .contexts import (
    AtLeastOnceContext,
    DuckDbContext,
    MariaDbContext,
    PostgresContext,
    PreparedContext,
    PreparedMariaDbContext,
    SqliteContext,
    TaskContext,
    TaskMariaDbContext,
    UpsertContext,
)
from .dealing import DealtWriting


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


class TaskSuite(FewerKills):
    """Rows are dealt out as ``foreach_batch`` does it; other ways to write are refused."""

    @pytest.fixture
    def query(self, target: SinkContext, tmp_path: Path) -> SinkQuery:
        return DealtWriting(target, tmp_path, "foreach_batch")

    def test_a_batch_write_is_whole_and_repeats_when_run_again(self, target: SinkContext) -> None:
        sink = target.sink.of(target.options())
        with pytest.raises(Misconfigured, match="task needs foreach_batch"):
            stage(sink, Batch(sink.sink_id(), app_query("nightly"), 0), target.schema, 0, iter([]))

    def test_a_batch_write_with_a_transaction_name_is_written_once(self, target: SinkContext) -> None:
        pytest.skip("no batch writes")

    def test_a_query_that_wakes_after_the_first_commit_of_another_stops(self, query: SinkQuery, tmp_path: Path) -> None:
        """What tasks have written stays: the claim comes before them, and the other query is the one that stops."""
        late = HeldRun(query, Point.COMMIT_BEFORE)
        with pytest.raises(CommitRefused, match="onNewQuery"):
            type(query)(query.target, tmp_path / "other", query.carrier).engine().run()
        assert release(late) == [0]
        query.expect()


class TestTask(TaskSuite):
    context = TaskContext


class TestUpsert(FewerKills):
    class context(UpsertContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


class TestAtLeastOnce(FewerKills):
    class context(AtLeastOnceContext):  # noqa: N801
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


@pytest.mark.soak
class TestTaskMariaDb(TaskSuite):
    context = TaskMariaDbContext
