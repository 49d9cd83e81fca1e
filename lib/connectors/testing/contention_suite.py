"""Runs that meet at one target at the same time, without Spark; a part of :class:`~connectors.testing.sink_suite.SinkSuite`."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from .faults import Action, Point
from .kill_suite import KillSuite
from .sink_writing import BATCH, Writing

_SECONDS = 60.0


class Run:
    """A run of a query in a process of its own, which stands still when it comes to ``point``, or has ended before.

    ``how`` goes to :meth:`~connectors.testing.sink_writing.Writing.engine`.
    """

    def __init__(self, writing: Writing, point: Point, **how: Any) -> None:
        self.injector = writing.injector
        self.injector.arm(point, Action.HOLD)
        engine = writing.engine(**how)
        self.process = multiprocessing.get_context("fork").Process(target=engine.run)
        self.process.start()
        until = time.monotonic() + _SECONDS
        while self.process.is_alive() and not self.injector.held():
            assert time.monotonic() < until, f"the run did not come to where {point.value}"
            time.sleep(0.005)

    def code(self) -> int:
        """The exit code of the run: 0, or 1 after an exception."""
        self.process.join(_SECONDS)
        ended = self.process.exitcode
        if ended is None:
            self.process.kill()
            raise AssertionError("the run hangs")
        return ended


def end(*runs: Run) -> list[int]:
    """Lets ``runs`` go on, all at once, and returns their exit codes."""
    for run in runs:
        run.injector.release()
    return [run.code() for run in runs]


class ContentionSuite(KillSuite):
    """The cases. A subclass sets ``context``."""

    def test_two_queries_write_to_one_target_at_the_same_time(self, writing: Writing, tmp_path: Path) -> None:
        other = type(writing)(writing.target, tmp_path / "other", writing.carrier)
        left = Run(writing, Point.TASK_STAGED, last=20, sinkId="left")
        right = Run(other, Point.TASK_STAGED, first=21, sinkId="right")
        assert writing.injector.held(), "the first run ended before it was released"
        assert end(left, right) == [0, 0]
        writing.expect()

    @pytest.mark.parametrize("point", [Point.COMMIT_BEFORE, Point.RECORDED])
    def test_of_two_runs_of_one_query_at_the_same_time_one_wins(
        self, writing: Writing, tmp_path: Path, point: Point
    ) -> None:
        if point not in writing.points():
            pytest.skip("a batch of this sink does not pass the point")
        writing.engine(last=BATCH).run()
        twin = type(writing)(writing.target, tmp_path / "twin", writing.carrier)
        shutil.copytree(writing.checkpoint, twin.checkpoint)
        codes = end(Run(writing, point), Run(twin, point))
        assert 0 in codes, "neither run came to its end"
        writing.expect()
