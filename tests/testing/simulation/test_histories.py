"""Histories of the library's own protocols: many seeds, each of which a person can repeat."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from connectors.testing.simulation.adversary import Move
from connectors.testing.simulation.history import check, run, shrunk
from connectors.testing.simulation.scheduler import EPOCH, Fault, Scheduler
from connectors.testing.simulation.worlds import WORLDS

SEEDS = 12


@pytest.mark.parametrize("world", WORLDS)
def test_no_history_loses_or_doubles_a_row(world: str) -> None:
    check(world, range(1, SEEDS + 1))


@pytest.mark.soak
@pytest.mark.parametrize("world", WORLDS)
def test_no_history_of_many_loses_or_doubles_a_row(world: str) -> None:
    first = int(os.environ.get("SEED", "1000"))
    check(world, range(first, first + int(os.environ.get("SEEDS", "2000")) // len(WORLDS)))


def test_a_seed_gives_the_same_history_in_any_process() -> None:
    seeds = {"queue-files": 7, "shards-database": 11}
    here = [_digest(world, seed) for world, seed in seeds.items()]
    code = f"from {__name__} import _digest\nprint([_digest(world, seed) for world, seed in {seeds!r}.items()])"
    for hashes in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert there.stdout.strip() == str(here)


@pytest.mark.soak
def test_a_history_without_the_protection_of_the_ledger_is_told_in_few_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    from connectors.core import epochs

    monkeypatch.setattr(epochs.EpochLog, "known_ids", lambda *_: epochs._NO_IDS)
    history = next(one for seed in range(1, 50) if (one := run("queue-database", seed)).fault)
    assert "doubled" in history.fault
    short = shrunk(history)
    assert short.fault
    assert 0 < short.moves.total() <= history.moves.total()
    assert history.command().endswith(f"queue-database {history.seed}")
    assert "batch" in short.text()


def test_a_move_that_is_not_wanted_never_happens() -> None:
    histories = [run("queue-database", seed, moves=[Move.KILL, Move.PAUSE]) for seed in range(1, 6)]
    assert {move for history in histories for move in history.moves} == {Move.KILL, Move.PAUSE}


def test_ten_minutes_cost_nothing_and_a_wait_without_end_is_a_fault() -> None:
    scheduler, times = Scheduler(1), list[float]()

    def work() -> None:
        scheduler.sleep(600.0)
        times.append(scheduler.time() - EPOCH)

    with scheduler.installed():
        scheduler.run(work)
    assert 600.0 <= times[0] < 601.0

    scheduler = Scheduler(1)
    with scheduler.installed(), pytest.raises(Fault, match="every thread waits"):
        scheduler.run(lambda: scheduler.event().wait())


def test_a_process_that_is_killed_reaches_the_world_no_more() -> None:
    scheduler, done = Scheduler(3), list[str]()

    def work() -> None:
        try:
            scheduler.sleep(10.0)
            done.append("slept")
        finally:
            scheduler.step()
            done.append("cleaned up")

    def kill() -> None:
        victim = scheduler.spawn("victim", work)
        scheduler.sleep(1.0)
        scheduler.kill(victim.process)
        victim.join()

    with scheduler.installed():
        scheduler.run(kill)
    assert done == []


def _digest(world: str, seed: int) -> str:
    return hashlib.sha256(run(world, seed).text().encode()).hexdigest()
