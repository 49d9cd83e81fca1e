"""Failures that only real executors have. Every row is compared; staged files are in a folder that executors share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors.core import Guarantee, Source
from connectors.ground.state import digest
from connectors.testing import Action, FailureInjector, Point, SinkContext, SourceContext, faulty_source, same_records
from connectors.testing.driver import SparkQuery
from connectors.testing.environments import Environment
from connectors.testing.spark_suites import ROWS, spark_query
from tests.systems.jdbc import contexts as jdbc
from tests.systems.jdbc.incremental_contexts import PostgresStream, PostgresTables
from tests.systems.kafka import sink_contexts as kafka
from tests.systems.kafka import source_contexts as kafka_source
from tests.systems.kafka.slot_contexts import SlotsContext
from tests.systems.pipelines import CopyContext
from tests.systems.reference_contexts import BufferedContext, FilesContext, LinesContext

pytestmark = pytest.mark.environments("cluster")
TARGETS = [
    pytest.param((BufferedContext, "foreach_batch"), id="buffered-foreach_batch", marks=pytest.mark.soak),
    pytest.param((BufferedContext, "format"), id="buffered-format", marks=pytest.mark.soak),
    pytest.param((FilesContext, "foreach_batch"), id="files-foreach_batch", marks=pytest.mark.soak),
    pytest.param((LinesContext, "format"), id="file_stream-format", marks=pytest.mark.soak),
    pytest.param((kafka.TaskContext, "foreach_batch"), id="kafka-task"),
    pytest.param((kafka.DirectContext, "foreach_batch"), id="kafka-driver", marks=pytest.mark.soak),
    pytest.param((kafka.KafkaContext, "format"), id="kafka-format", marks=pytest.mark.soak),
    pytest.param((SlotsContext, "foreach_batch"), id="kafka-slots", marks=pytest.mark.soak),
    pytest.param((jdbc.PreparedContext, "format"), id="jdbc-prepared-format", marks=pytest.mark.soak),
    pytest.param((jdbc.PostgresContext, "foreach_batch"), id="jdbc-batch-foreach_batch", marks=pytest.mark.soak),
]
SOURCES = [
    pytest.param((kafka_source.KafkaContext, "foreach_batch"), id="kafka"),
    pytest.param((kafka_source.TransactionalContext, "format"), id="kafka-transactions", marks=pytest.mark.soak),
    pytest.param((PostgresStream, "format"), id="jdbc", marks=pytest.mark.soak),
    pytest.param((PostgresTables, "foreach_batch"), id="jdbc-tables", marks=pytest.mark.soak),
]
every_target = pytest.mark.parametrize("case", TARGETS, indirect=True)


class TargetCase:
    """A query into a target, and what breaks it."""

    def __init__(self, kind: type[SinkContext], carrier: str, folder: Path) -> None:
        (folder / "target").mkdir()
        self.target = kind(folder / "target")
        self.query: SparkQuery = spark_query(self.target, folder, carrier)
        self.injector = FailureInjector(self.query.faults)

    def expect_every_row_once(self) -> None:
        assert self.target.guarantee is Guarantee.EXACTLY_ONCE
        same_records([self.target.row(number) for number in range(1, ROWS + 1)], self.target.rows())


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TargetCase]:
    case = TargetCase(*request.param, tmp_path)
    yield case
    case.injector.release()
    case.target.close()


class CopyCase(TargetCase):
    """A query that copies what a system holds to files. Its reader passes :attr:`Point.READ_ROW`."""

    def __init__(self, kind: type[SourceContext], carrier: str, folder: Path) -> None:
        super().__init__(CopyContext, carrier, folder)
        (folder / "system").mkdir()
        self.system = kind(folder / "system")
        self.written = self.system.write(ROWS)
        self.query.source = self.system.source.name
        self.query.source_options = {**self.system.options(), "maxRowsPerTrigger": "20"}
        self.query.select = ["*"]

    def register(self, spark: Any) -> None:
        connectors.register(spark, faulty_source(self.system.source, self.injector))

    def expect_every_row_once(self) -> None:
        same_records(self.written, self.target.rows())


@pytest.fixture
def copy(request: pytest.FixtureRequest, environment: Environment, tmp_path: Path) -> Iterator[CopyCase]:
    copy = CopyCase(*request.param, tmp_path)
    copy.register(environment.spark)
    yield copy
    connectors.register(environment.spark)
    copy.target.close()
    copy.system.close()


def wait_until(what: Callable[[], Any], seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.essential
@every_target
@pytest.mark.parametrize("point", [Point.TASK_ROW, pytest.param(Point.TASK_STAGED, marks=pytest.mark.soak)])
def test_an_executor_killed_in_mid_batch_loses_and_doubles_nothing(
    environment: Environment, case: TargetCase, point: Point
) -> None:
    if point is Point.TASK_STAGED and isinstance(case.target, kafka.DirectContext):
        pytest.skip("no task of this sink stages its rows")
    before = set(environment.executors())
    case.injector.arm(point, Action.KILL_EXECUTOR, row=1 if point is Point.TASK_ROW else 0)
    case.query.run(environment.spark)
    assert case.injector.struck() == 1
    assert not all(alive(pid) for pid in before)
    case.expect_every_row_once()


@pytest.mark.soak
@pytest.mark.essential
@pytest.mark.parametrize("copy", SOURCES, indirect=True)
def test_an_executor_killed_while_it_reads_loses_and_doubles_nothing(environment: Environment, copy: CopyCase) -> None:
    before = set(environment.executors())
    copy.injector.arm(Point.READ_ROW, Action.KILL_EXECUTOR, row=2)
    copy.query.run(environment.spark)
    assert copy.injector.struck() == 1
    assert not all(alive(pid) for pid in before)
    copy.expect_every_row_once()


def acknowledging(kind: type[Source], folder: Path) -> type[Source]:
    """``kind`` as a queue whose reader acknowledges what it reads: a split that was mark is not read again."""

    class Acknowledging(kind):  # type: ignore[valid-type, misc]
        def reader(self, schema: Any) -> Any:
            reader = super().reader(schema)
            read = reader.read

            def read_once(split: Any) -> Any:
                mark = folder / digest(str(split))
                if mark.exists():
                    return iter(())
                mark.touch()
                return read(split)

            reader.read = read_once
            return reader

    return Acknowledging


@pytest.mark.soak
@pytest.mark.parametrize("copy", SOURCES[2:3], indirect=True)
def test_the_case_sees_a_source_that_acknowledges_what_it_reads(
    environment: Environment, copy: CopyCase, tmp_path: Path
) -> None:
    kind = acknowledging(copy.system.source, tmp_path / "system")
    connectors.register(environment.spark, faulty_source(kind, copy.injector))
    copy.injector.arm(Point.READ_ROW, Action.KILL_EXECUTOR, row=2)
    copy.query.run(environment.spark)
    with pytest.raises(AssertionError, match="missing"):
        copy.expect_every_row_once()


@pytest.mark.soak
@pytest.mark.parametrize(
    "case", [pytest.param((kafka.AtLeastOnceContext, "format"), id="at-least-once")], indirect=True
)
def test_the_case_sees_a_sink_that_writes_again(environment: Environment, case: TargetCase) -> None:
    case.injector.arm(Point.TASK_STAGED, Action.KILL_EXECUTOR)
    case.query.run(environment.spark)
    case.target.guarantee = Guarantee.EXACTLY_ONCE  # type: ignore[misc]
    with pytest.raises(AssertionError, match="duplicated"):
        case.expect_every_row_once()


@pytest.mark.soak
@pytest.mark.essential
@pytest.mark.parametrize("case", [pytest.param((BufferedContext, "foreach_batch"), id="buffered")], indirect=True)
def test_executors_lost_between_staging_and_commit_do_not_matter(environment: Environment, case: TargetCase) -> None:
    before = environment.executors()
    case.injector.set_executors(*before)
    case.injector.arm(Point.COMMIT_BEFORE, Action.KILL_EXECUTOR)
    case.query.run(environment.spark)
    assert case.injector.struck() == 1
    assert not any(alive(pid) for pid in before)
    case.expect_every_row_once()


@pytest.mark.soak
@every_target
def test_an_executor_that_is_decommissioned_in_mid_batch_loses_nothing(environment: Environment, case: TargetCase) -> None:
    leaving = environment.executors()[0]
    case.injector.arm(Point.TASK_ROW, Action.HOLD, row=1)
    running = case.query.start(environment.spark)
    wait_until(case.injector.held)
    os.kill(leaving, signal.SIGPWR)
    wait_until(lambda: not running.isActive or not alive(leaving) or _released(case), 60)
    running.awaitTermination()
    assert not alive(leaving)
    case.expect_every_row_once()


def _released(case: TargetCase) -> bool:
    case.injector.release()
    return True
