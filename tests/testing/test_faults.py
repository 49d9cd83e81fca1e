"""Faults strike where, when and as often as they were armed, in whichever process comes by."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from connectors.core import FrameCommitter, Transient
from connectors.systems.kafka import KafkaSink
from connectors.testing import Action, FailureInjector, Injected, Point, in_a_child
from connectors.testing.faults import faulty_sink

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def injector(tmp_path: Path) -> FailureInjector:
    return FailureInjector(tmp_path / "faults")


def strikes(injector: FailureInjector, point: Point, passes: int, row: int = 0) -> int:
    struck = 0
    for _ in range(passes):
        try:
            injector.reach(point, row)
        except Injected:
            struck += 1
    return struck


def test_nothing_strikes_unless_it_is_armed(injector: FailureInjector) -> None:
    assert strikes(injector, Point.TASK_ROW, 5) == 0
    assert injector.struck() == 0


@pytest.mark.parametrize("times", [1, 3])
def test_a_fault_strikes_as_often_as_it_was_armed(injector: FailureInjector, times: int) -> None:
    injector.arm(Point.TASK_ROW, times=times)
    assert strikes(injector, Point.TASK_STAGED, 10) == 0
    assert injector.armed(Point.TASK_ROW)
    assert strikes(injector, Point.TASK_ROW, 10) == times == injector.struck()
    assert not injector.armed(Point.TASK_ROW)


def _storm(folder: Path, start: Any, _: int) -> int:
    start.wait()
    return strikes(FailureInjector(folder), Point.TASK_ROW, 20)


@pytest.mark.parametrize("times", [1, 5])
def test_a_fault_strikes_as_often_as_it_was_armed_over_many_processes(injector: FailureInjector, times: int) -> None:
    injector.arm(Point.TASK_ROW, times=times)
    with FORK.Manager() as manager, FORK.Pool(6) as pool:
        start = manager.Barrier(6)
        struck = pool.starmap(_storm, [(injector.folder, start, number) for number in range(6)], chunksize=1)
    assert sum(struck) == times == injector.struck()


def test_a_fault_waits_for_its_row(injector: FailureInjector) -> None:
    injector.arm(Point.READ_ROW, row=5)
    assert strikes(injector, Point.READ_ROW, 3, row=4) == 0
    assert strikes(injector, Point.READ_ROW, 3, row=7) == 1


def test_an_outage_is_transient_and_short(injector: FailureInjector) -> None:
    injector.arm(Point.READ_ROW, Action.OUTAGE)
    with pytest.raises(Transient) as caught:
        injector.reach(Point.READ_ROW)
    assert caught.value.retry_after is not None
    assert caught.value.retry_after < 1


def test_a_choice_follows_from_its_seed(tmp_path: Path) -> None:
    def chosen(seed: int, name: str) -> tuple[Point, list[str]]:
        injector = FailureInjector(tmp_path / f"{name}-{seed}")
        point = injector.arm_one_of(seed, tuple(Point), 10)
        return point, [file.read_text() for file in injector.folder.iterdir()]

    first = [chosen(seed, "first") for seed in range(40)]
    assert [chosen(seed, "again") for seed in range(40)] == first
    assert {point for point, _ in first} == set(Point)
    assert all(len(faults) == 1 and "KILL" in faults[0] for _, faults in first)


def test_a_kill_really_kills(injector: FailureInjector, tmp_path: Path) -> None:
    injector.arm(Point.RECORDED, Action.KILL)
    after = tmp_path / "after"

    def work() -> None:
        try:
            injector.reach(Point.RECORDED)
        finally:  # what no process does that is killed for real
            after.touch()

    assert in_a_child(work) == -signal.SIGKILL
    assert not after.exists()
    assert injector.struck() == 1
    assert in_a_child(work) == 0


def test_a_kill_strikes_the_named_victims_first(injector: FailureInjector) -> None:
    victim = FORK.Process(target=time.sleep, args=(60,))
    victim.start()
    assert victim.pid is not None
    injector.set_victims(victim.pid)
    injector.arm(Point.TASK_ROW, Action.KILL)
    assert in_a_child(lambda: injector.reach(Point.TASK_ROW)) == -signal.SIGKILL
    victim.join(30)
    assert victim.exitcode == -signal.SIGKILL


def test_a_held_process_stands_still_until_it_is_released(injector: FailureInjector, tmp_path: Path) -> None:
    injector.arm(Point.COMMIT_BEFORE, Action.HOLD)
    after = tmp_path / "after"

    def work() -> None:
        injector.reach(Point.COMMIT_BEFORE)
        after.touch()

    zombie = FORK.Process(target=work)
    zombie.start()
    deadline = time.monotonic() + 30
    while not injector.struck() and time.monotonic() < deadline:
        time.sleep(0.005)
    zombie.join(0.2)
    assert zombie.is_alive()
    assert not after.exists()
    injector.release()
    zombie.join(30)
    assert zombie.exitcode == 0
    assert after.exists()


def test_a_committer_with_faults_says_of_itself_what_the_true_one_does(injector: FailureInjector) -> None:
    options = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "transactionalIdPrefix": "t"}
    committer = faulty_sink(KafkaSink, injector).of(options).committer()
    assert isinstance(committer, FrameCommitter)
    assert (committer.counts_rows, committer.records_claims) == (True, True)


def test_what_has_not_struck_can_be_disarmed(injector: FailureInjector) -> None:
    injector.arm(Point.TASK_ROW, times=2)
    assert strikes(injector, Point.TASK_ROW, 1) == 1
    injector.disarm()
    assert strikes(injector, Point.TASK_ROW, 5) == 0
    assert injector.struck() == 1


def test_a_child_tells_how_it_ended(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError("oops")

    parent = os.getpid()
    assert in_a_child(lambda: None) == 0
    assert in_a_child(fail) == 1
    assert "oops" in capfd.readouterr().err
    assert os.getpid() == parent


def test_a_fault_can_strike_the_second_time_that_a_process_is_at_a_point(tmp_path: Path) -> None:
    injector = FailureInjector(tmp_path)
    injector.arm(Point.COMMIT_BEFORE, row=2)
    injector.reach(Point.COMMIT_BEFORE)
    injector.reach(Point.COMMIT_AFTER)
    with pytest.raises(Injected):
        injector.reach(Point.COMMIT_BEFORE)
