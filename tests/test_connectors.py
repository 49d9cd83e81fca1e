"""The names that a user types first."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import connectors
from connectors.core import Misconfigured, source
from tests.testing.toys import LinesSink


def test_importing_the_library_does_not_need_spark_or_the_systems() -> None:
    assert importlib.util.find_spec("connectors") is not None
    assert connectors.__all__ == sorted(connectors.__all__)


def test_options_may_be_keywords_in_python_style() -> None:
    sink = connectors.foreach_batch("files", path="out", file_format="json").sink  # type: ignore[attr-defined]
    assert (sink.values["path"], sink.values["fileFormat"]) == ("out", "json")


def test_all_that_is_wrong_is_said_before_anything_starts() -> None:
    with pytest.raises(Misconfigured) as wrong:
        connectors.foreach_batch("files", {"fileFromat": "json", "stagingRetention": "soon"})
    assert {problem.option for problem in wrong.value.problems} == {"path", "fileFromat", "stagingRetention"}
    assert 'did you mean "fileFormat"?' in str(wrong.value)


def test_all_that_is_wrong_with_any_of_several_sinks_is_one_error() -> None:
    sinks = [("files", {"fileFromat": "json"}), ("buffered", {"path": "out"}), ("fils", {}), ("jdbc", {"url": "x"})]
    with pytest.raises(Misconfigured) as wrong:
        connectors.foreach_batch(sinks)
    message = str(wrong.value)
    assert re.search(r'sink 1, connectors.files: fileFromat +is no option of this sink; did you mean "fileFormat"', message)
    assert "sink 1, connectors.files: path" in message
    assert "sink 3" in message
    assert "sink 4, connectors.jdbc: dbtable" in message
    assert "sink 2" not in message


def test_a_mistyped_sink_is_told_with_the_one_that_is_meant() -> None:
    with pytest.raises(Misconfigured, match='did you mean "buffered"'):
        connectors.foreach_batch("bufered", {"path": "out"})


def test_a_sink_of_ones_own_is_written_to_by_its_class_and_by_its_name(spark: Any, tmp_path: Path) -> None:
    connectors.register(spark, LinesSink)
    rows = spark.range(3).selectExpr("id", "'x' AS name")
    for number, sink in enumerate((LinesSink, "toy_lines", "connectors.toy_lines")):
        target = tmp_path / str(number)
        stream = spark.readStream.format("connectors.sequence").option("end", 3).load().selectExpr("value AS id")
        writer = stream.writeStream.foreachBatch(connectors.foreach_batch(sink, {"path": str(target)}))
        checkpoint = str(tmp_path / f"checkpoint-{number}")
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        assert spark.read.json(str(target)).count() == rows.count()


def test_several_sinks_are_fed_from_one_batch(spark: Any, tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("left", "right")]
    both = connectors.foreach_batch([("buffered", {"path": folders[0]}), ("files", {"path": folders[1], "fileFormat": "json"})])
    stream = spark.readStream.format("connectors.sequence").option("end", 5).load()
    writer = stream.writeStream.foreachBatch(both).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert [spark.read.json(folder).count() for folder in folders] == [5, 5]


def test_several_sinks_have_options_of_their_own_and_are_at_least_one() -> None:
    with pytest.raises(Misconfigured, match=r"sink .*is an empty list"):
        connectors.foreach_batch([])
    with pytest.raises(Misconfigured, match=r"options .*put fileFormat into the pair"):
        connectors.foreach_batch([("files", {"path": "out"})], file_format="json")


def test_what_a_function_of_foreach_batch_refuses_reaches_the_user_with_a_short_traceback(
    spark: Any, tmp_path: Path
) -> None:
    """Spark puts the whole of it in front of the message."""
    stream = spark.readStream.format("connectors.sequence").option("end", 5).load()
    options = {"url": "postgresql://127.0.0.1:1/x", "dbtable": "t", "retry.maxRetries": 0, "outageTimeout": "0s"}
    writer = stream.writeStream.foreachBatch(connectors.foreach_batch("jdbc", options)).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match=r"connectors\.ground\.errors\.Transient") as ended:
        query.awaitTermination()
    assert str(ended.value).partition("connectors.ground.errors")[0].count("File ") <= 4


@source("ticks_of_test", schema="value long")
def ticks():  # type: ignore[no-untyped-def]
    yield from range(7)


def test_a_function_is_a_source(spark: Any) -> None:
    connectors.register(spark)
    assert spark.read.format("connectors.ticks_of_test").load().count() == 7


def test_a_function_read_by_several_tasks_is_refused(spark: Any) -> None:
    connectors.register(spark)
    with pytest.raises(Exception, match="numPartitions"):
        spark.read.format("connectors.ticks_of_test").option("numPartitions", 2).load()
