"""The sink on Spark: the cases of the kit, batch writes, and update mode."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import connectors
from connectors.core import Batch
from connectors.core.ledger import app_query
from connectors.core.writing import stage
from connectors.systems.jdbc import JdbcSink
from connectors.testing import same_records
from connectors.testing.servers import PostgresServer
from connectors.testing.spark_suites import SparkSinkSuite

from .contexts import (
    DuckDbContext,
    MariaDbContext,
    PostgresContext,
    PostgresTotals,
    PreparedContext,
    PreparedMariaDbContext,
    SqliteContext,
)


class TestPostgres(SparkSinkSuite):
    class context(PostgresContext):  # noqa: N801
        extra: ClassVar[dict[str, str]] = {}


class TestSqlite(SparkSinkSuite):
    class context(SqliteContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


class TestPrepared(SparkSinkSuite):
    context = PreparedContext


@pytest.mark.soak
class TestStatementOfOnesOwn(SparkSinkSuite):
    context = PostgresTotals


@pytest.mark.soak
class TestPreparedMariaDb(SparkSinkSuite):
    context = PreparedMariaDbContext


@pytest.mark.soak
class TestDuckDb(SparkSinkSuite):
    context = DuckDbContext


@pytest.mark.soak
class TestMariaDb(SparkSinkSuite):
    context = MariaDbContext


def test_an_aggregate_in_update_mode_is_upserted(spark: Any, tmp_path: Path) -> None:
    class Stats(PostgresContext):
        body = "user_id BIGINT PRIMARY KEY, event_count BIGINT"

    with contextlib.closing(Stats(tmp_path / "target")) as target:
        upsert = {**target.options(), "operation": "upsert", "keyColumns": "user_id"}
        sequence = spark.readStream.format("connectors.sequence").option("maxRowsPerTrigger", 10)
        for end in (20, 30):
            users = sequence.option("end", end).load().selectExpr("value % 3 AS user_id")
            counts = users.groupBy("user_id").count().withColumnRenamed("count", "event_count")
            stream = counts.writeStream.outputMode("update")
            stream = stream.foreachBatch(connectors.foreach_batch("jdbc", upsert)).trigger(availableNow=True)
            stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        assert sorted(target.query(f"SELECT * FROM {target.table}")) == [(0, 10), (1, 10), (2, 10)]


def test_a_batch_write_that_is_run_again_drops_what_dead_runs_have_prepared(spark: Any) -> None:
    """Else three of them would have used up all that the server has."""
    with PostgresServer(max_prepared_transactions="3") as server:
        options = {"url": server.jdbc, "user": server.user, "dbtable": "t", "createTable": "true", "commit": "prepared",
                   "txnAppId": "nightly", "txnVersion": "1"}  # fmt: skip
        sink = JdbcSink.of(options)
        dead = Batch(sink.sink_id(), app_query("nightly"), 1, run="a run that died")
        rows = pa.RecordBatch.from_pydict({"id": pa.array([1, 2], pa.int64())})
        for task in range(2):
            stage(sink, dead, rows.schema, task, iter([rows]))
        for _ in range(2):
            frame = spark.range(0, 10, 1, 2)
            frame.write.format("connectors.jdbc").options(**options).mode("append").save()
        with contextlib.closing(sink.dialect().connect()) as connection:
            assert sorted(connection.rows("SELECT id FROM t")) == [(number,) for number in range(10)]
            assert connection.rows("SELECT gid FROM pg_prepared_xacts") == []


def test_a_batch_write_that_fails_leaves_no_staging_table(spark: Any, tmp_path: Path) -> None:
    """Its last row is refused when others are in the database."""
    with contextlib.closing(PostgresContext(tmp_path / "target")) as target:
        name = "if(id < 59999, repeat('x', 40), decode(unhex('00'), 'UTF-8')) AS name"
        frame = spark.range(0, 60_000, 1, 1).selectExpr("id", name)
        with pytest.raises(Exception, match="zero byte"):
            frame.write.format("connectors.jdbc").options(**target.options()).mode("append").save()
        assert (target.leftovers(), target.rows()) == ([], [])


def test_an_overwrite_replaces_and_the_plan_shows_no_password(spark: Any, tmp_path: Path) -> None:
    with contextlib.closing(SqliteContext(tmp_path / "target")) as target:
        for first in (1, 100):
            frame = spark.range(first, first + 5).selectExpr("id", "concat('row ', id) AS name")
            frame.write.format("connectors.jdbc").options(**target.options()).mode("overwrite").save()
        same_records([target.row(number) for number in range(100, 105)], target.rows())
    secret = "correct horse"
    frame = spark.range(1).selectExpr("id", "'x' AS name").write.format("connectors.jdbc").mode("append")
    with pytest.raises(Exception, match=r"connectors\.jdbc") as wrong:
        frame.options(url=f"postgresql://u:{secret}@127.0.0.1:1/d", dbtable="t", password=secret, colour="red").save()
    assert secret not in str(wrong.value)
