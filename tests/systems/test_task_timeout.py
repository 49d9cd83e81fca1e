"""``taskTimeout``: a task that never answers does not stop a query for ever, and its late answer changes nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Misconfigured
from connectors.systems.files import FilesSink
from connectors.testing import FailureInjector, same_records
from connectors.testing.faults import Action, Point
from connectors.testing.spark_suites import spark_query

from .files.contexts import FilesContext


def test_a_timeout_is_a_duration() -> None:
    assert FilesSink.of({"path": "/data"}).values["taskTimeout"] is None
    assert FilesSink.of({"path": "/data", "taskTimeout": "5m"}).values["taskTimeout"] == 300
    with pytest.raises(Misconfigured, match="taskTimeout"):
        FilesSink.of({"path": "/data", "taskTimeout": "soon"})


@pytest.mark.spark
def test_a_task_that_never_answers_is_given_up_and_its_batch_is_tried_again(spark: Any, tmp_path: Path) -> None:
    target = FilesContext(tmp_path / "target")
    target.folder.mkdir()
    query = spark_query(target, tmp_path, "foreach_batch")
    query.sink_options.update({"taskTimeout": "8s", "retry.initialBackoff": "100ms", "fileFormat": "avro"})
    injector = FailureInjector(query.faults)
    injector.arm(Point.TASK_ROW, Action.HOLD)
    began = time.monotonic()
    query.run(spark)
    assert injector.struck() == 1
    assert time.monotonic() - began >= 8
    injector.release()
    rows = spark.read.format("connectors.files").option("fileFormat", "avro").load(str(target.folder)).collect()
    same_records([target.row(number) for number in range(1, 31)], rows)


@pytest.mark.spark
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
