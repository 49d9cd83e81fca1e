"""A hundred schedules of kills for each way in which a sink commits exactly once, without Spark: ``make soak``.

Each kills a run up to three times, at points that its seed draws and with another number of tasks each time, and then
compares every row. Whole drivers on Spark are killed in :mod:`.test_kills`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.testing import SinkContext
from connectors.testing.sink_cases import KillSuite, SinkQuery

from .elasticsearch.contexts import IndexContext
from .files import contexts as files
from .jdbc import contexts as jdbc
from .jdbc.dealing import DealtWriting
from .kafka.sink_contexts import KafkaContext
from .kafka.slot_contexts import StagedSlotsContext
from .reference_contexts import BufferedContext, FilesContext, LinesContext

pytestmark = pytest.mark.soak


class Schedules(KillSuite):
    seeds = 100


class TestBuffered(Schedules):
    context = BufferedContext


class TestLines(Schedules):
    context = LinesContext


class TestFiles(Schedules):
    context = FilesContext


class TestRollingFiles(Schedules):
    context = files.RollingContext


class TestRollingBuckets(Schedules):
    context = files.BucketedContext


class TestSealingAtEachCommit(Schedules):
    context = files.SealingContext


class TestS3(Schedules):
    context = files.S3Context


class TestRollingS3(Schedules):
    context = files.RollingS3Context


class TestHdfs(Schedules):
    context = files.HdfsContext


class TestRollingHdfs(Schedules):
    context = files.RollingHdfsContext


class TestPostgres(Schedules):
    context = jdbc.PostgresContext


class TestPostgresPrepared(Schedules):
    context = jdbc.PreparedContext


class TestPostgresTaskByTask(Schedules):
    context = jdbc.TaskContext

    @pytest.fixture
    def query(self, target: SinkContext, tmp_path: Path) -> SinkQuery:
        return DealtWriting(target, tmp_path, "foreach_batch")


class TestSqlite(Schedules):
    context = jdbc.SqliteContext


class TestDuckDb(Schedules):
    context = jdbc.DuckDbContext


class TestMariaDb(Schedules):
    context = jdbc.MariaDbContext


class TestMariaDbPrepared(Schedules):
    context = jdbc.PreparedMariaDbContext


class TestKafka(Schedules):
    context = KafkaContext


class TestKafkaInSlots(Schedules):
    context = StagedSlotsContext


class TestSearch(Schedules):
    context = IndexContext
