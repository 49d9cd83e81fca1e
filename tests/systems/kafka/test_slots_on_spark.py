"""Slots on Spark: the cases of the kit, rows by their keys, and queries that cannot have slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors import foreach_batch
from connectors.core import Batch, Misconfigured
from connectors.spark.foreach_batch import ForeachBatch
from connectors.systems.kafka import KafkaSink
from connectors.testing.spark_suites import SparkSinkSuite

from .sink_contexts import DirectContext, consumed
from .slot_contexts import SlotsContext


@pytest.mark.soak
class TestSlots(SparkSinkSuite):
    context = SlotsContext


@pytest.fixture
def target(tmp_path: Path) -> SlotsContext:
    (tmp_path / "target").mkdir()
    return SlotsContext(tmp_path / "target")


def write(target: DirectContext, frame: Any, number: int = 0, **more: str) -> None:
    ForeachBatch(KafkaSink.of({**target.options(), **more})).write(frame, Batch(target.topic, "query", number))


def test_records_of_one_key_stay_in_order_and_rows_without_a_key_are_written(spark: Any, target: SlotsContext) -> None:
    keyed = "IF(id % 4 = 0, NULL, CAST(id % 4 AS string)) AS key"
    write(target, spark.range(0, 400, 1, 1).selectExpr(keyed, "CAST(id AS string) AS value"))
    numbers_by_key: dict[Any, list[int]] = {}
    for message in consumed(target.server.bootstrap, target.topic):
        numbers_by_key.setdefault(message.key(), []).append(int(message.value()))
    assert sorted(number for numbers in numbers_by_key.values() for number in numbers) == list(range(400))
    assert all(numbers_by_key[key] == sorted(numbers_by_key[key]) for key in (b"1", b"2", b"3"))
    write(target, spark.range(0).selectExpr(keyed, "'v' AS value"), 1)
    write(target, spark.range(5).selectExpr(keyed, "'v' AS value"), 2, slots="1")
    write(target, spark.range(5).selectExpr(keyed, "'v' AS value"), 3, slots="1")
    assert len(list(consumed(target.server.bootstrap, target.topic))) == 410


@pytest.mark.parametrize("random", ["uuid()", "CAST(rand() AS string)"])
def test_a_frame_that_is_known_to_be_another_when_it_runs_again_is_refused(
    spark: Any, target: SlotsContext, random: str
) -> None:
    frame = spark.range(5).selectExpr(f"{random} AS key", "'v' AS value")
    with pytest.raises(Misconfigured, match=r"slots +above 1 needs a query that gives the same rows"):
        write(target, frame)
    assert target.rows() == []
    write(DirectContext(target.folder), frame)


def test_a_query_that_is_known_to_be_another_when_it_runs_again_is_refused(
    spark: Any, target: SlotsContext, tmp_path: Path
) -> None:
    rows = spark.readStream.format("connectors.sequence").option("end", "5").load()
    rows = rows.selectExpr("uuid() AS key", "'v' AS value")
    writer = rows.writeStream.foreachBatch(foreach_batch("kafka", target.options()))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    with pytest.raises(Exception, match="above 1 needs a query that gives the same rows"):
        writer.start().awaitTermination()


def test_a_key_without_a_hash_is_refused(spark: Any, target: SlotsContext) -> None:
    frame = spark.range(5).selectExpr("map('a', id) AS key", "'v' AS value")
    with pytest.raises(Misconfigured, match=r"slots +above 1 places rows by their key"):
        write(target, frame, **{"key.format": "json"})
