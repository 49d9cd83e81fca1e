"""HDFS on Spark: staged by Spark's own writers and committed by its own client in ``foreach_batch``, else by WebHDFS."""

from __future__ import annotations

import json
from typing import Any

import pytest

import connectors
from connectors.core import Batch
from connectors.spark.foreach_batch import ForeachBatch
from connectors.systems.files import FilesSink
from connectors.testing.spark_suites import SparkSinkSuite

from .contexts import HdfsContext
from .test_hdfs import Target

pytestmark = [pytest.mark.spark, pytest.mark.server]


class TestHdfsOnSpark(SparkSinkSuite):
    context = HdfsContext


def test_foreach_batch_needs_no_webhdfs_and_writes_what_it_reads_itself(spark: Any) -> None:
    at = Target()
    nowhere = json.dumps({"port": 9})
    frame = spark.range(10).selectExpr("id", "id % 2 AS odd")
    for number in range(2):
        options = {"path": at.path, "storageOptions": nowhere, "partitionBy": "odd", "fileFormat": "json"}
        sink = FilesSink.of({**options, "onLostLedger": "notWritten"})
        for _ in range(2):
            ForeachBatch(sink).write(frame, Batch(sink.sink_id(), "q", number))  # type: ignore[arg-type]
    read = spark.read.json(at.path)
    assert sorted(row.id for row in read.collect()) == sorted([*range(10)] * 2)
    assert {row.odd for row in read.collect()} == {0, 1}


@pytest.mark.soak
def test_a_folder_is_read_and_written_by_formats_through_webhdfs(spark: Any) -> None:
    at = Target()
    storage = json.dumps(at.server.storage)
    out = spark.range(20).write.format("connectors.files").mode("append").option("storageOptions", storage)
    out.option("path", f"{at.path}/one").save()
    read = spark.read.format("connectors.files").option("storageOptions", storage).option("path", f"{at.path}/one").load()
    assert sorted(row.id for row in read.collect()) == list(range(20))


def test_rolling_seals_by_sparks_client_at_the_end_of_the_query(spark: Any, tmp_path: Any) -> None:
    from .test_on_spark import numbers, sealed

    at = Target()
    write = connectors.foreach_batch("files", path=at.path, rolling="policy", storageOptions=json.dumps({"port": 9}))
    query = numbers(spark, 30).writeStream.foreachBatch(write).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    sealed()
    assert len([file for file in at.all() if not file.startswith(".")]) == 1
    assert sorted(row.id for row in spark.read.parquet(at.path).collect()) == list(range(1, 31))
