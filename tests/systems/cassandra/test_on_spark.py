"""The sink and the source on Spark, in every environment that is chosen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors.testing.spark_suites import SparkBatchSuite, SparkSinkSuite

from .contexts import KEYSPACE, PartitionsContext, RowsContext, TableContext, Tables

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.mark.soak  # test_source and the suites have its parts
class TestRowsOnSpark(SparkBatchSuite):
    context = RowsContext


@pytest.mark.soak
class TestTableOnSpark(SparkSinkSuite):
    context = TableContext


@pytest.mark.soak
class TestPartitionsOnSpark(SparkSinkSuite):
    context = PartitionsContext


@pytest.mark.parametrize("carrier", ["foreach_batch", "format", "df.write"])
def test_rows_are_written_as_of_the_time_at_which_the_driver_began_their_batch(
    spark: Any, tmp_path: Path, carrier: str
) -> None:
    from pyspark.sql.functions import udf

    tables = Tables()
    table = tables.make("id bigint primary key, read_at bigint")
    now = udf(lambda _: time.time_ns() // 1000, "bigint")  # in a task, which begins after its batch

    def rows(reader: Any, end: int) -> Any:
        frame = reader.format("connectors.sequence").option("end", end).option("numPartitions", 2).load()
        return frame.select(frame.value.alias("id"), now("value").alias("read_at"))

    options = tables.options(table)
    for end in (10, 20):
        if carrier == "df.write":
            rows(spark.read, end).filter(f"id > {end - 10}").write.format("connectors.cassandra").options(**options).mode(
                "append"
            ).save()
            continue
        writer = rows(spark.readStream, end).writeStream.trigger(availableNow=True)
        if carrier == "foreach_batch":
            writer = writer.foreachBatch(connectors.foreach_batch("cassandra", options))
        else:
            writer = writer.format("connectors.cassandra").options(**options)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    written = tables.execute(f"select id, read_at, writetime(read_at) as time from {KEYSPACE}.{table}")
    assert sorted(row.id for row in written) == list(range(1, 21))
    assert all(row.time < row.read_at for row in written)
    first, second = ([row.time for row in written if (row.id > 10) is later] for later in (False, True))
    assert max(first) - min(first) < 200, "of both tasks"
    assert max(first) < min(second)
