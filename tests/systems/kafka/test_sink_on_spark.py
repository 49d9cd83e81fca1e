"""The sink on Spark: the cases of the kit, a batch that one task sends, and the control of the kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Observation
from pyspark.sql import functions as F

from connectors.core import Batch, Transient
from connectors.spark.foreach_batch import ForeachBatch
from connectors.systems.kafka import KafkaSink, committer
from connectors.systems.kafka.session import KafkaSession
from connectors.systems.kafka.transactions import NoteTransaction
from connectors.testing.spark_suites import SparkSinkSuite, spark_query

from ..pipelines import Pipeline, Pipelines, killed
from .forgetful import ForgetfulDirect, ForgetfulStaged
from .sink_contexts import AtLeastOnceContext, DirectContext, KafkaContext, TaskContext, consumed


class TestDirect(SparkSinkSuite):
    context = DirectContext


@pytest.mark.soak
class TestByTask(SparkSinkSuite):
    context = TaskContext


@pytest.mark.soak
class TestStaged(SparkSinkSuite):
    class context(KafkaContext):  # noqa: N801
        carriers = ("format",)


@pytest.mark.soak
class TestStagedByForeachBatch(SparkSinkSuite):
    class context(KafkaContext):  # noqa: N801
        carriers = ("foreach_batch",)


@pytest.mark.parametrize("kind", [DirectContext, TaskContext])
def test_bad_rows_of_a_batch_in_one_transaction_are_set_aside(spark: Any, tmp_path: Path, kind: type[DirectContext]) -> None:
    (tmp_path / "target").mkdir()
    target = kind(tmp_path / "target")
    letters = {"errors": "deadLetter", "deadLetterPath": str(tmp_path / "letters")}
    frame = spark.range(20).selectExpr("CAST(id AS string) AS key", "'v' AS value", "IF(id = 7, 9, 0) AS partition")
    ForeachBatch(target.sink.of({**target.options(), **letters})).write(frame, Batch(target.topic, "query", 0))
    assert len(target.rows()) == 19
    (letter,) = [letter for file in (tmp_path / "letters").glob("*.parquet") for letter in pq.read_table(file).to_pylist()]
    assert "no partition 9" in letter["error"]


def test_small_batches_are_sent_by_the_driver_and_its_session_stays(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session in a worker is fenced by that of the next batch, which another worker has, and to open one takes longer."""
    (tmp_path / "target").mkdir()
    target = DirectContext(tmp_path / "target")
    opened, frames, answers, run_tasks = [], [], [], committer._run
    monkeypatch.setattr(KafkaSession, "_connect", lambda self: opened.append(self.settings))

    def run(frame: Any, send: Any) -> Any:
        frames.append(frame)
        answers.extend(given := run_tasks(frame, send))
        return given

    monkeypatch.setattr(committer, "_run", run)
    sink = ForeachBatch(KafkaSink.of(target.options()))
    sizes = [10, 10, 0, 10, 20_000, 10, 10]
    sessions, stages = [], []
    for number, rows in enumerate(sizes):
        frame = spark.range(rows).selectExpr(f"concat('{number}-', id) AS key", "repeat('x', 100) AS value").repartition(3)
        frames.clear()
        sink.write(frame, Batch(target.topic, "query", number))
        sessions.append(len([settings for settings in opened if not settings.is_note]))
        stages.append(["own" if tasks is frame else "one" for tasks in frames])
    keys = sorted(row["key"] for row in target.rows())
    assert keys == sorted(f"{number}-{row}" for number, rows in enumerate(sizes) for row in range(rows))
    assert sessions == [1, 1, 1, 1, 1, 2, 2]  # a task sends the large batch, and with it shuts the driver's session out
    assert stages == [["one"], ["own"], ["own"], ["own"], ["own", "one"], ["one"], ["own"]]
    assert answers.count(([], True)) == 3  # tasks that have more keep their rows: all of them at once may be too many


@pytest.mark.parametrize("length", ["2147483632", "60", "0"])
def test_rows_that_an_observation_counts_are_computed_once(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    """Also where Spark shows a part of the plan only."""
    (tmp_path / "target").mkdir()
    target, frames, run_tasks = DirectContext(tmp_path / "target"), [], committer._run
    sink = ForeachBatch(KafkaSink.of(target.options()))
    sink.write(spark.range(1).selectExpr("'x' AS value"), Batch(target.topic, "query", 0))
    monkeypatch.setattr(committer, "_run", lambda frame, send: frames.append(frame) or run_tasks(frame, send))
    observation = Observation()
    observed = spark.range(20_000).observe(observation, F.count(F.lit(1)).alias("rows"))
    frame = observed.selectExpr("repeat('x', 100) AS value").where("value > 'a'").where("value > 'b'").where("value > 'c'")
    spark.conf.set("spark.sql.maxPlanStringLength", length)
    try:
        sink.write(frame, Batch(target.topic, "query", 1))
    finally:
        spark.conf.unset("spark.sql.maxPlanStringLength")
    assert len(frames) == 1
    assert observation.get == {"rows": 20_000}


def test_a_stream_by_format_stages_in_its_checkpoint_unless_it_is_told_where(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target = KafkaContext(tmp_path / "target")
    query = spark_query(target, tmp_path, "format")
    query.sink_options.pop("stagingLocation")
    query.run(spark)
    assert len(target.rows()) == 30
    assert (tmp_path / "checkpoint" / "staging" / ".connectors").is_dir()


def test_an_empty_batch_that_one_task_would_send_opens_no_transaction(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target = DirectContext(tmp_path / "target")
    sink = ForeachBatch(KafkaSink.of(target.options()))
    empty = spark.range(0).selectExpr("CAST(id AS string) AS key", "'v' AS value")
    for number in range(2):
        sink.write(empty, Batch(target.topic, "query", number))
    assert list(consumed(target.server.bootstrap, target.topic, isolation="read_uncommitted")) == []
    sink.write(spark.range(5).selectExpr("CAST(id AS string) AS key", "'v' AS value"), Batch(target.topic, "query", 2))
    assert len(target.rows()) == 5


def test_an_empty_batch_whose_record_meets_an_outage_is_tried_again(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "target").mkdir()
    target, commit, lost = DirectContext(tmp_path / "target"), NoteTransaction.commit, list[str]()

    def lose_an_answer(self: NoteTransaction) -> float:
        seconds = commit(self)
        if not lost:
            lost.append("answer")
            raise Transient("no answer")
        return seconds

    monkeypatch.setattr(NoteTransaction, "commit", lose_an_answer)
    sink = ForeachBatch(KafkaSink.of(target.options()))
    for number in range(3):
        sink.write(spark.range(0).selectExpr("'v' AS value"), Batch(target.topic, "query", number))
    last = sink.sink.committer().last("query")
    assert (lost, last.batch) == (["answer"], 2)


def _refusal(spark: Any, folder: Path, columns: list[str], **options: str) -> str:
    """What a user reads of a query by ``format`` that its sink refuses, up to the plan that Spark adds."""
    rows = spark.readStream.format("connectors.sequence").option("end", 5).load().selectExpr(*columns)
    writer = rows.writeStream.format("connectors.kafka").options(**options).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    with pytest.raises(StreamingQueryException) as ended:
        query.awaitTermination()
    message, own = (str(error).partition("=== Streaming Query")[0] for error in (ended.value, query.exception()))
    assert own.partition(": ")[2].splitlines()[0] in message
    return message


def test_a_stream_without_a_topic_says_so_before_its_first_task(spark: Any, tmp_path: Path) -> None:
    """All that is wrong with the columns is one error, and no broker is asked."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "transactionalIdPrefix": "x"}
    message = _refusal(spark, tmp_path, ["value AS number"], **options)
    assert "Failed to initialize" in message
    assert "connectors.kafka cannot start; 2 problems" in message
    assert 'give it by .option("topic", …); or make a column topic' in message


def test_a_batch_write_without_a_folder_to_stage_in_says_so_before_its_first_task(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(5).selectExpr("CAST(id AS string) AS value")
    writer = rows.write.format("connectors.kafka").mode("append").option("kafka.bootstrap.servers", "127.0.0.1:1")
    with pytest.raises(AnalysisException, match=r"connectors.kafka cannot start; 2 problems(?s:.*)stagingLocation +missing"):
        writer.option("transactionalIdPrefix", "x").save()


@pytest.mark.soak
def test_what_a_commit_refuses_reaches_the_user_though_its_abort_fails_too(spark: Any, tmp_path: Path) -> None:
    """Neither of them can look the topic up."""
    (tmp_path / "target").mkdir()
    target = KafkaContext(tmp_path / "target")
    options = {**target.options(), "topic": "no-such-topic"}
    message = _refusal(spark, tmp_path, ["CAST(value AS string) AS value"], **options)
    assert '"no-such-topic" does not exist in this cluster' in message
    assert "Writing job failed" not in message


def test_what_a_task_refuses_reaches_the_user_without_a_traceback(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target = AtLeastOnceContext(tmp_path / "target")
    columns = ["CAST(value AS string) AS value", "9 AS partition"]
    message = _refusal(spark, tmp_path, columns, **target.options())
    assert "connectors.ground.errors.Poison: connectors.kafka, batch 0" in message
    assert "no partition 9" in message
    assert "Traceback" not in message


FORGETFUL: Pipelines = {
    "Kafka by foreach_batch": Pipeline(ForgetfulDirect, "foreach_batch"),
    "Kafka": Pipeline(ForgetfulStaged, "format"),
}


@pytest.mark.soak
def test_killed_drivers_are_seen_to_double_what_a_sink_without_memory_writes(tmp_path: Path) -> None:
    """The control: both drivers of this seed die after a commit and before the query knows of it."""
    with killed(FORGETFUL, tmp_path, seed=64) as kills, pytest.raises(AssertionError, match="duplicated"):
        kills.run(2)
    assert all("killed" in line for line in kills.report), kills.report
