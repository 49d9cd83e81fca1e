"""Rolling, the source and avro on Spark."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

import connectors
from connectors.core import Batch
from connectors.systems.files.rolling import source_offsets
from connectors.testing.spark_suites import SparkSourceSuite
from tests.source_names import stream_reader

from .helpers import read, visible
from .test_source import FilesSourceContext


class TestParquet(SparkSourceSuite):
    context = FilesSourceContext


def numbers(spark: Any, end: int, reader: Any = None) -> Any:
    rows = (reader or spark.readStream).format("connectors.sequence").option("end", end).option("maxRowsPerTrigger", 10).load()
    return rows.selectExpr("value AS id", "value % 2 AS odd")


def sealed() -> None:
    """Waits for the threads that seal after the end of a query."""
    for thread in threading.enumerate():
        if thread.name == "connectors.files":
            thread.join(30)


def test_a_query_that_ends_by_itself_leaves_one_file_in_each_folder(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write = connectors.foreach_batch("files", path=str(out), rolling="policy", partitionBy="odd")
    for end in (40, 60, 60):  # the last run finds nothing new
        query = numbers(spark, end).writeStream.foreachBatch(write).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        sealed()
        assert read(out) == list(range(1, min(end, 60) + 1))
        assert len(visible(out)) == (2 if end == 40 else 4)
    assert {row["odd"] for row in spark.read.parquet(str(out)).collect()} == {0, 1}
    assert all(len(pq.ParquetFile(file).schema_arrow.names) == 1 for file in visible(out))


def test_a_query_that_is_stopped_leaves_its_parts_hidden_for_the_next_run(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for ends, expected in ((False, []), (True, list(range(1, 31)))):
        write = connectors.foreach_batch("files", path=str(out), rolling="policy")
        writer = numbers(spark, 30).writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        if ends:
            # Spark has finished all batches before: the new run replays the last one, and is told of no other.
            newest = max((tmp_path / "checkpoint/commits").glob("[0-9]*"), key=lambda file: int(file.name))
            newest.unlink()
            newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
        query = writer.trigger(availableNow=True).start() if ends else writer.trigger(processingTime="100 milliseconds").start()
        if ends:
            query.awaitTermination()
        else:
            query.processAllAvailable()
            query.stop()
        sealed()
        assert read(out) == expected


def test_avro_comes_back_as_it_went(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql("SELECT id, cast(id AS string) AS name, named_struct('a', id) AS nested FROM range(100)")
    for number in range(2):
        writer = frame.write.format("connectors.files").mode("append").option("fileFormat", "avro")
        writer.option("path", str(tmp_path / "out")).option("txnAppId", "once").option("txnVersion", number).save()
    table = spark.read.format("connectors.files").option("fileFormat", "avro").option("path", str(tmp_path / "out")).load()
    assert table.schema.simpleString() == "struct<id:bigint,name:string,nested:struct<a:bigint>>"
    assert sorted(table.collect()) == sorted(frame.union(frame).collect())


@pytest.mark.parametrize("source_name", [None, "digits"], ids=["sequence", "named"])
def test_the_ledger_tells_where_the_files_end_in_the_source(spark: Any, tmp_path: Path, source_name: str | None) -> None:
    out = tmp_path / "out"
    write = connectors.foreach_batch("files", path=str(out))
    for end in (30, 45):
        with stream_reader(spark, source_name) as reader:
            query = numbers(spark, end, reader).writeStream.foreachBatch(write).trigger(availableNow=True)
            query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            query.awaitTermination()
        (entry,) = source_offsets(str(out)).values()
        logged = (tmp_path / f"checkpoint/offsets/{entry['batch']}").read_text().splitlines()[-1]
        offset = json.loads(logged.removeprefix(f"{source_name}:"))
        assert entry["offsets"] == ({source_name: offset} if source_name else [offset])
        assert read(out) == list(range(1, end + 1))
    assert list(source_offsets(str(out))) == [query.id]


def test_the_ledger_tells_the_offsets_of_each_query_that_uses_one_function(tmp_path: Path) -> None:
    """Two queries may start at one moment: the sink hears of the second one before the first one has staged."""

    class Run(SimpleNamespace):
        def offsets(self, batch: int) -> list[Any]:
            return [self.id, batch]

    sink = connectors.foreach_batch("files", path=str(tmp_path)).sink
    both, offsets = threading.Barrier(2), {}

    def stage(sink: Any, frame: Any, batch: Batch, found: Any) -> list[Any]:
        offsets[batch.query] = found
        return []

    def write(query: str) -> None:
        sink.watch(lambda: Run(id=query))
        both.wait(10)
        sink.stage_frame(SimpleNamespace(columns=["id"]), Batch("files", query, 3))

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr("connectors.systems.files.spark_writer.stage_with_spark", stage)
        list(threads.map(write, ["a", "b"]))
    assert offsets == {"a": ["a", 3], "b": ["b", 3]}


def test_avro_is_divided_into_folders_by_tasks(spark: Any, tmp_path: Path) -> None:
    write = connectors.foreach_batch("files", path=str(tmp_path / "out"), fileFormat="avro", partitionBy="odd")
    query = numbers(spark, 10).writeStream.foreachBatch(write).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    reader = spark.read.format("connectors.files").option("recursiveFileLookup", "true").option("fileFormat", "avro")
    rows = reader.option("path", str(tmp_path / "out")).load().collect()
    assert sorted((row.id, row.odd) for row in rows) == [(number, str(number % 2)) for number in range(1, 11)]
