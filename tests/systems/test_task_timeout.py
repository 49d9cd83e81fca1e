"""``taskTimeout``: a task that never answers does not stop a query for ever, and its late answer changes nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from connectors import metrics
from connectors.core import Misconfigured
from connectors.spark.formats import format_of
from connectors.systems.files import FilesSink
from connectors.testing import FailureInjector, same_records
from connectors.testing.faults import Action, Point, faulty_sink
from connectors.testing.spark_suites import spark_query

from .files.contexts import FilesContext


def test_a_timeout_is_a_duration() -> None:
    assert FilesSink.of({"path": "/data"}).values["taskTimeout"] is None
    assert FilesSink.of({"path": "/data", "taskTimeout": "5m"}).values["taskTimeout"] == 300
    with pytest.raises(Misconfigured, match="taskTimeout"):
        FilesSink.of({"path": "/data", "taskTimeout": "soon"})


@pytest.mark.spark
@pytest.mark.parametrize(("carrier", "seconds"), [pytest.param("foreach_batch", 8, marks=pytest.mark.soak), ("format", 3)])
def test_a_task_that_never_answers_is_given_up_and_its_batch_is_tried_again(
    spark: Any, tmp_path: Path, carrier: str, seconds: int
) -> None:
    target = FilesContext(tmp_path / "target")
    target.folder.mkdir()
    query = spark_query(target, tmp_path, carrier)
    query.sink_options.update({"taskTimeout": f"{seconds}s", "retry.initialBackoff": "100ms", "fileFormat": "avro"})
    injector = FailureInjector(query.faults)
    injector.arm(Point.TASK_ROW, Action.HOLD)
    began = time.monotonic()
    query.run(spark)
    assert injector.struck() == 1
    assert time.monotonic() - began >= seconds
    injector.release()
    rows = spark.read.format("connectors.files").option("fileFormat", "avro").load(str(target.folder)).collect()
    same_records([target.row(number) for number in range(1, 31)], rows)


@pytest.mark.spark
def test_a_task_that_is_given_up_by_format_is_named_in_the_table(spark: Any, tmp_path: Path) -> None:
    target = FilesContext(tmp_path / "target")
    target.folder.mkdir()
    injector = FailureInjector(tmp_path / "faults")
    spark.dataSource.register(format_of("silent_files", None, faulty_sink(FilesSink, injector)))
    injector.arm(Point.TASK_ROW, Action.HOLD, times=2)
    rows = spark.readStream.format("connectors.sequence").options(end=10, numPartitions=1).load()
    options = {"path": str(target.folder), "fileFormat": "avro", "taskTimeout": "5s"}
    writer = rows.writeStream.format("connectors.silent_files").options(**options)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        table = metrics.table(query)
        until = time.monotonic() + 60
        while table["waiting_for"].isna().all() and time.monotonic() < until:
            table = metrics.table(query)
        assert table["waiting_for"].dropna().tolist() == [
            "a task that gave no sign for 5 s (taskTimeout) was ended; it is tried again"
        ]
    finally:
        query.stop()


@pytest.mark.spark
@pytest.mark.soak
def test_tasks_that_end_one_by_one_are_no_silence(spark: Any, tmp_path: Path) -> None:
    import connectors
    from connectors.core import Batch

    def slow(rows: Any) -> Any:
        time.sleep(3)
        yield from rows

    frame = spark.range(0, 8, 1, 8).mapInArrow(slow, "id long")
    sink = connectors.foreach_batch("files", {"path": str(tmp_path), "taskTimeout": "10s", "retry.maxRetries": "0"})
    spark.sparkContext.setJobGroup("a run", "a batch of 8 tasks, two at a time")
    try:
        sink.write(frame, Batch("s", "q", 0))  # type: ignore[attr-defined]
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path)).collect()) == list(range(8))
