"""Failures that only real executors have. Every row is compared; staged files are in a folder that executors share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Guarantee
from connectors.testing import Action, FailureInjector, Point, SinkContext, same_records
from connectors.testing.environments import Environment
from connectors.testing.spark_query import SparkQuery
from connectors.testing.spark_suites import ROWS, spark_query
from tests.systems.reference_contexts import BufferedContext, FilesContext, LinesContext

pytestmark = pytest.mark.environments("cluster")
TARGETS = [
    pytest.param((BufferedContext, "foreach_batch"), id="buffered-foreach_batch"),
    pytest.param((BufferedContext, "format"), id="buffered-format"),
    pytest.param((FilesContext, "foreach_batch"), id="files-foreach_batch", marks=pytest.mark.soak),
    pytest.param((LinesContext, "format"), id="file_stream-format", marks=pytest.mark.soak),
]
every_target = pytest.mark.parametrize("writing", TARGETS, indirect=True)


class Writing:
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
def writing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Writing]:
    made = Writing(*request.param, tmp_path)
    yield made
    made.injector.release()
    made.target.close()


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
    environment: Environment, writing: Writing, point: Point
) -> None:
    before = set(environment.executors())
    writing.injector.arm(point, Action.KILL_EXECUTOR, row=1 if point is Point.TASK_ROW else 0)
    writing.query.run(environment.spark)
    assert writing.injector.struck() == 1
    assert not all(alive(pid) for pid in before)
    writing.expect_every_row_once()


@pytest.mark.essential
@pytest.mark.parametrize("writing", TARGETS[:1], indirect=True)
def test_executors_lost_between_staging_and_commit_do_not_matter(environment: Environment, writing: Writing) -> None:
    before = environment.executors()
    writing.injector.end_executors(*before)
    writing.injector.arm(Point.COMMIT_BEFORE, Action.KILL_EXECUTOR)
    writing.query.run(environment.spark)
    assert writing.injector.struck() == 1
    assert not any(alive(pid) for pid in before)
    writing.expect_every_row_once()


@pytest.mark.soak
@every_target
def test_an_executor_that_is_decommissioned_in_mid_batch_loses_nothing(environment: Environment, writing: Writing) -> None:
    leaving = environment.executors()[0]
    writing.injector.arm(Point.TASK_ROW, Action.HOLD, row=1)
    running = writing.query.start(environment.spark)
    wait_until(writing.injector.held)
    os.kill(leaving, signal.SIGPWR)
    wait_until(lambda: not running.isActive or not alive(leaving) or _released(writing), 60)
    running.awaitTermination()
    assert not alive(leaving)
    writing.expect_every_row_once()


def _released(writing: Writing) -> bool:
    writing.injector.release()
    return True
