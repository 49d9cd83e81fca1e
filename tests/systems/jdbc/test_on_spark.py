"""The sink on Spark: the cases of the kit, drivers that are killed, batch writes, and update mode."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

import connectors
from connectors.testing import SinkContext, same_records
from connectors.testing.kills import Kills
from connectors.testing.spark_suites import SparkSinkSuite

from .contexts import DuckDbContext, MariaDbContext, PostgresContext, PreparedContext, SqliteContext


class TestPostgres(SparkSinkSuite):
    class context(PostgresContext):  # noqa: N801
        extra: ClassVar[dict[str, str]] = {}


class TestSqlite(SparkSinkSuite):
    class context(SqliteContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


@pytest.mark.soak
class TestBatch(SparkSinkSuite):
    context = PostgresContext


@pytest.mark.soak
class TestDuckDb(SparkSinkSuite):
    context = DuckDbContext


@pytest.mark.soak
class TestMariaDb(SparkSinkSuite):
    context = MariaDbContext


KILLED = (
    (PostgresContext, "foreach_batch"),
    (PreparedContext, "format"),
    (SqliteContext, "foreach_batch"),
    (DuckDbContext, "format"),
)


def _kills(folder: Path, seed: int) -> Kills:
    targets: dict[str, tuple[SinkContext, str]] = {}
    for kind, carrier in KILLED:
        name = f"{kind.__name__}_{carrier}"
        (folder / name).mkdir(parents=True)
        targets[name] = (kind(folder / name / "target"), carrier)
    return Kills(folder, targets, seed=seed)


def _close(kills: Kills) -> None:
    for target, _ in kills.targets.values():
        with contextlib.suppress(Exception):
            target.close()


def test_killed_drivers_lose_and_double_no_row(tmp_path: Path) -> None:
    kills = _kills(tmp_path, 3)
    kills.run(2)
    assert any("killed" in round_ for round_ in kills.told), kills.told
    _close(kills)


@pytest.mark.soak
def test_many_killed_drivers_lose_and_double_no_row(tmp_path: Path) -> None:
    kills = _kills(tmp_path, int(os.environ.get("SEED", "1")))
    kills.run(int(os.environ.get("KILLS", "100")))
    _close(kills)


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
