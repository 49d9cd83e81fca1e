"""The sink on Spark: the cases of the kit, a batch that one task sends, and drivers that are killed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from connectors.core import Batch
from connectors.spark.foreach_batch import ForeachBatch
from connectors.systems.kafka import KafkaSink
from connectors.testing import SinkContext
from connectors.testing.kills import Kills
from connectors.testing.spark_query import SparkQuery
from connectors.testing.spark_suites import SparkSinkSuite

from .forgetful import ForgetfulDirect, ForgetfulStaged
from .sink_contexts import DirectContext, KafkaContext, consumed

Targets = Sequence[tuple[type[SinkContext], str]]


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


KILLED: Targets = ((DirectContext, "foreach_batch"), (KafkaContext, "format"), (KafkaContext, "foreach_batch"))
FORGETFUL: Targets = ((ForgetfulDirect, "foreach_batch"), (ForgetfulStaged, "format"))
RESCALES = (1, 2, 3, 5, 2, 1)


@dataclass
class Rescaled(Kills):
    """Each start has another parallelism, in turns."""

    scales: Iterator[int] = field(default_factory=lambda: itertools.cycle(RESCALES))

    def _start(self, queries: Sequence[SparkQuery], rows: int, parallelism: int, what: str) -> Any:
        return super()._start(queries, rows, next(self.scales), what)


def _kills(folder: Path, seed: int, kinds: Targets = KILLED) -> Rescaled:
    targets: dict[str, tuple[SinkContext, str]] = {}
    for kind, carrier in kinds:
        name = f"{kind.__name__}_{carrier}"
        (folder / name / "target").mkdir(parents=True)
        targets[name] = (kind(folder / name / "target"), carrier)
    return Rescaled(folder, targets, seed=seed)


def test_killed_drivers_lose_and_double_nothing(tmp_path: Path) -> None:
    kills = _kills(tmp_path, seed=5)
    kills.run(2)
    assert any("killed" in round_ for round_ in kills.told), kills.told


@pytest.mark.soak
def test_killed_drivers_are_seen_to_double_what_a_sink_without_memory_writes(tmp_path: Path) -> None:
    """The control: both drivers of this seed die after a commit and before the query knows of it."""
    kills = _kills(tmp_path, seed=113, kinds=FORGETFUL)
    with pytest.raises(AssertionError, match="duplicated"):
        kills.run(2)
    assert all("killed" in round_ for round_ in kills.told), kills.told


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
