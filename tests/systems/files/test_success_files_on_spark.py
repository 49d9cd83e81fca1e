"""Success files by each carrier on Spark: the same folders are finished, and Spark's readers pass over the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors.core import Batch
from connectors.spark.foreach_batch import ForeachBatch
from connectors.systems.files import FilesSink

from .helpers import visible
from .test_success_files import DAY, finished

pytestmark = pytest.mark.spark
TIMES = ("2024-03-05 10:00:00", "2024-03-06 00:59:59.999999", "2024-03-06 01:00:00", None)
NTZ = "timestamp_ntz"


def frame(spark: Any, kind: str, *texts: str | None) -> Any:
    """Rows at times, which are in UTC, whatever the session's zone is."""
    rows = spark.createDataFrame([(text,) for text in texts], "id string")
    return rows.selectExpr("id", f"cast(concat(id, '{'' if kind == NTZ else 'Z'}') as {kind}) t")


@pytest.mark.parametrize("zone", ["America/New_York"], indirect=True)
@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("kind", ["timestamp", NTZ])
@pytest.mark.parametrize("carrier", ["foreach_batch", "format"])
def test_both_carriers_finish_the_same_folders(spark: Any, tmp_path: Path, kind: str, carrier: str) -> None:
    def write(number: int, *texts: str | None) -> None:
        if carrier == "format":
            writer = frame(spark, kind, *texts).write.format("connectors.files").options(path=str(tmp_path), **DAY)
            writer.mode("append").save()
        else:
            sink = FilesSink.of({"path": str(tmp_path), **DAY})
            ForeachBatch(sink).write(frame(spark, kind, *texts), Batch(sink.sink_id(), "q", number))
        assert any(".snappy." in file.name for file in visible(tmp_path)) == (carrier == "foreach_batch")

    write(0, TIMES[0])
    write(1, None, TIMES[1])
    write(2)
    write(3, None)
    assert finished(tmp_path) == []
    write(4, TIMES[2], None)
    assert finished(tmp_path) == ["day=2024-03-05"]
    assert spark.read.parquet(str(tmp_path / "day=2024-03-05")).count() == 1
    assert spark.read.parquet(str(tmp_path / "day=*")).count() == 3


def test_dates_and_a_time_that_python_does_not_know_have_buckets_too(spark: Any, tmp_path: Path) -> None:
    sink = FilesSink.of({"path": str(tmp_path), **DAY})
    for number, time in enumerate(["date'2024-03-05'", "timestamp_ntz'+12000-01-01 00:00:00'", "date'2024-03-07'"]):
        ForeachBatch(sink).write(spark.sql(f"SELECT {time} AS t, 'x' AS id"), Batch(sink.sink_id(), "q", number))
        assert finished(tmp_path) == ["day=2024-03-05", "day=2024-03-07"][:number], "a time ahead of the clock counts as now"


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_lines_of_text_have_success_files_too(spark: Any, tmp_path: Path, kind: str) -> None:
    options = {"path": str(tmp_path), "fileFormat": kind, **DAY}
    sink = FilesSink.of(options)
    rows = frame(spark, "timestamp", *TIMES).selectExpr("concat(id, '\\n') id", "t")
    ForeachBatch(sink).write(rows, Batch(sink.sink_id(), "q", 0))
    assert finished(tmp_path) == ["day=2024-03-05"]


@pytest.mark.parametrize("rolling", ["onBatch", "policy"])
def test_a_stream_that_ends_and_starts_again_finishes_each_day_once_it_is_over(
    spark: Any, tmp_path: Path, rolling: str
) -> None:
    target = tmp_path / "target"
    options = {"path": str(target), "rolling": rolling, "rolling.sealAtEnd": "false", **DAY}

    def run(end: int) -> None:
        numbers = spark.readStream.format("connectors.sequence").option("end", end).option("maxRowsPerTrigger", 5).load()
        rows = numbers.selectExpr("cast(value as string) id", "timestamp_seconds(1709596800 + value * 21600) t")
        writer = rows.writeStream.foreachBatch(connectors.foreach_batch("files", options))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    run(4)
    assert finished(target) == []
    run(6)
    assert finished(target) == ["day=2024-03-05"]
    assert spark.read.parquet(str(target / "day=2024-03-05")).count() == 3
    run(21)
    assert finished(target) == [f"day=2024-03-0{day}" for day in range(5, 10)]
    for day in range(6, 10):
        assert spark.read.parquet(str(target / f"day=2024-03-0{day}")).count() == 4
