"""Sinks in processes that are killed, without Spark; a part of :class:`~connectors.testing.sink_suite.SinkSuite`.

Inherit it alone for many more schedules of kills::

    class TestBuffered(KillSuite):
        context = BufferedContext
        seeds = 100
"""

from __future__ import annotations

import multiprocessing
import random
import time
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from .contexts import SinkContext
from .engine import in_a_child
from .forgetful_disk import ForgetfulDisk
from .sink_cases import SinkCases
from .sink_writing import ROWS, Writing


class KillSuite(SinkCases):
    """The cases. A subclass sets ``context``; each of ``seeds`` is a schedule of up to three kills for each carrier."""

    seeds: ClassVar[int] = 12

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Gives the case of killed runs its seeds."""
        if "seed" in metafunc.fixturenames:
            metafunc.parametrize("seed", range(self.seeds))

    @pytest.fixture
    def writing(self, target: SinkContext, tmp_path: Path, carrier: str) -> Writing:
        return Writing(target, tmp_path, carrier)

    def test_a_killed_run_is_finished_by_the_next_ones(self, writing: Writing, seed: int) -> None:
        chance = random.Random(f"{self.context.__name__} {writing.carrier} {seed}")
        for _ in range(3):
            writing.injector.arm_one_of(chance.randrange(1 << 30), writing.points(), rows=2)
            engine = writing.engine(tasks=chance.randint(1, 4))
            code = in_a_child(engine.run)
            assert code in (0, -9), f"the run ended with {code}"
        writing.injector.disarm()
        writing.engine().run()
        assert writing.injector.struck() >= 1
        writing.expect()

    def test_a_power_failure_at_any_moment_loses_and_doubles_nothing(self, writing: Writing, tmp_path: Path, seed: int) -> None:
        if not writing.target.disks():
            pytest.skip("the target is no folder of this machine")
        chance = random.Random(f"{self.context.__name__} {writing.carrier} {seed}")
        for number in range(3):
            disk = ForgetfulDisk(writing.target.disks()[0], tmp_path / f"disk {number}", chance.randrange(100))
            disk.start()
            engine = writing.engine(tasks=chance.randint(1, 3))
            assert in_a_child(partial(disk.run, engine.run)) in (0, -9)
            disk.fail(chance)
        writing.engine().run()
        writing.expect()

    def test_a_run_killed_at_any_moment_is_finished_by_the_next(self, writing: Writing) -> None:
        chance = random.Random(self.context.__name__)
        fork = multiprocessing.get_context("fork")
        for _ in range(3):
            child = fork.Process(target=writing.engine(last=ROWS).run)
            child.start()
            time.sleep(chance.uniform(0.0, 0.15))  # any moment: this is the case
            child.kill()
            child.join()
        writing.engine().run()
        writing.expect()
