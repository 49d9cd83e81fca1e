"""The sink on Spark: the cases of the kit, a batch that one task sends, and drivers that are killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from connectors.core import Batch
from connectors.spark.foreach_batch import ForeachBatch
from connectors.systems.kafka import KafkaSink
from connectors.testing import SinkContext
from connectors.testing.kills import Kills
from connectors.testing.spark_suites import SparkSinkSuite

from .sink_contexts import DirectContext, KafkaContext, consumed


class TestDirect(SparkSinkSuite):
    context = DirectContext


@pytest.mark.soak
class TestStaged(SparkSinkSuite):
    class context(KafkaContext):  # noqa: N801
        carriers = ("format",)


@pytest.mark.soak
class TestStagedByForeachBatch(SparkSinkSuite):
    class context(KafkaContext):  # noqa: N801
        carriers = ("foreach_batch",)


def test_bad_rows_of_a_batch_that_one_task_sends_are_set_aside(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target = DirectContext(tmp_path / "target")
    letters = {"errors": "deadLetter", "deadLetterPath": str(tmp_path / "letters")}
    frame = spark.range(20).selectExpr("CAST(id AS string) AS key", "'v' AS value", "IF(id = 7, 9, 0) AS partition")
    ForeachBatch(KafkaSink.of({**target.options(), **letters})).write(frame, Batch(target.topic, "query", 0))
    assert len(target.rows()) == 19
    (letter,) = [one for file in (tmp_path / "letters").glob("*.parquet") for one in pq.read_table(file).to_pylist()]
    assert "no partition 9" in letter["error"]


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


KILLED = ((DirectContext, "foreach_batch"), (KafkaContext, "format"), (KafkaContext, "foreach_batch"))


def _kills(folder: Path, seed: int) -> Kills:
    targets: dict[str, tuple[SinkContext, str]] = {}
    for kind, carrier in KILLED:
        name = f"{kind.__name__}_{carrier}"
        (folder / name / "target").mkdir(parents=True)
        targets[name] = (kind(folder / name / "target"), carrier)
    return Kills(folder, targets, seed=seed)


def test_killed_drivers_lose_and_double_nothing(tmp_path: Path) -> None:
    kills = _kills(tmp_path, seed=5)
    kills.run(1)
    assert any("killed" in round_ for round_ in kills.told), kills.told


@pytest.mark.soak
def test_many_killed_drivers_lose_and_double_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = int(os.environ.get("KILLS", "100"))
    kills = _kills(tmp_path, seed=int(os.environ.get("SEED", "1")))
    kills.run(count)
    killed = sum("killed" in round_ for round_ in kills.told)
    with capsys.disabled():
        print(
            f"\n{killed} of {count} drivers killed, {len(KILLED)} topics, {40 * count} rows each: none lost, none doubled"
        )
