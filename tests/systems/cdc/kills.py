"""What can end a run of a query that follows a database: kills at a point or at any moment, errors, clean ends."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from connectors.testing.environments import CLUSTER
from connectors.testing.faults import Action, FailureInjector, Point
from tests.systems.cdc.driver import Driver, DriverDied
from tests.systems.cdc.shop import child_jvms, parent_of

SOURCE: Final = "source"
_SOURCE_POINTS: Final = (Point.EPOCH_RECEIVED, Point.EPOCH_RECORDED, Point.READ_ROW)
_SINK_POINTS: Final = (Point.COMMIT_BEFORE, Point.COMMIT_AFTER, Point.BATCH_DONE)
_LONGEST: Final = 90.0
_JVM_SECONDS: Final = 60.0


@dataclass
class Target:
    """A query that runs: its driver, the name of its connector, and the folder with its checkpoint and failure injectors."""

    driver: Driver
    connector: str
    folder: Path
    tables: list[str]
    environment: str

    def injector(self, part: str) -> FailureInjector:
        return FailureInjector(self.folder / "faults" / part)

    def has_ended(self) -> bool:
        """True if the query has ended, of itself or by a kill."""
        try:
            return self.driver.wait(0.1) is not None
        except DriverDied:
            return True

    def epochs(self) -> int:
        """The number of epochs that Spark knows of."""
        return sum(file.name.isdigit() for file in (self.folder / "checkpoint" / "offsets").glob("*"))


@dataclass(frozen=True)
class Outcome:
    """What a kill has done: ``ends`` is true where the query must be started again, ``error`` is what it said."""

    text: str
    ends: bool
    error: str = ""


Kill = Callable[[Target, random.Random], Outcome]


def driver_at_a_moment(target: Target, chance: random.Random) -> Outcome:
    delay = _pause(target, chance)
    target.driver.kill()
    return Outcome(f"driver killed {delay}", ends=True)


def driver_at_a_point(target: Target, chance: random.Random) -> Outcome:
    """The whole driver dies where one of its processes reaches a point."""
    part, point, row = _point(target, chance)
    injector = target.injector(part)
    before = injector.struck()
    injector.set_victims(*target.driver.pids)
    injector.arm(point, Action.KILL, row=row)
    _until(lambda: target.has_ended() or not target.driver.is_alive())
    injector.disarm()
    reached = not target.driver.is_alive() or injector.struck() > before
    if reached:
        target.driver.kill()  # what may be left of it
    text = f"driver killed where {point.value} ({part})"
    return Outcome(text if reached else f"not reached: {text}", ends=reached)


def planner_at_a_moment(target: Target, chance: random.Random) -> Outcome:
    delay = _pause(target, chance)
    jvm = _jvm(target)
    if jvm is None:
        return Outcome("not reached: no JVM to find the planner by", ends=False)
    _kill(parent_of(jvm))
    return _ended(f"planner killed {delay}", target)


def planner_at_a_point(target: Target, chance: random.Random) -> Outcome:
    point = chance.choice((Point.EPOCH_RECEIVED, Point.EPOCH_RECORDED))
    reached = _strike(target, SOURCE, point, Action.KILL)
    text = f"planner killed where {point.value}"
    return _ended(text, target) if reached else Outcome(f"not reached: {text}", ends=False)


def jvm(target: Target, chance: random.Random) -> Outcome:
    """The connector's JVM, once or twice; the query goes on with another one."""
    times = chance.choice((1, 1, 2))
    delays = []
    for _ in range(times):
        delays.append(_pause(target, chance))
        if (process := _jvm(target)) is not None:
            _kill(process)
    return Outcome(f"JVM killed {' and '.join(delays)}", ends=False)


def task(target: Target, chance: random.Random) -> Outcome:
    """A task that reads an epoch: its Python worker, or with real executors its whole executor."""
    action = Action.KILL_EXECUTOR if target.environment == CLUSTER else Action.KILL
    row = chance.choice((1, 20, 90))
    reached = _strike(target, SOURCE, Point.READ_ROW, action, row)
    text = f"task killed at row {row}"
    return Outcome(text if reached else f"not reached: {text}", ends=False)


def error_at_a_point(target: Target, chance: random.Random) -> Outcome:
    """The query fails and its driver goes on."""
    part, point, row = _point(target, chance, but=Point.READ_ROW)
    reached = _strike(target, part, point, Action.RAISE, row)
    text = f"error where {point.value} ({part})"
    return _ended(text, target) if reached else Outcome(f"not reached: {text}", ends=False)


def stop(target: Target, chance: random.Random) -> Outcome:
    delay = _pause(target, chance)
    error = target.driver.stop()
    return Outcome(f"stopped {delay}", True, error)


KILLS: Final[dict[Kill, float]] = {
    driver_at_a_moment: 2.0,
    driver_at_a_point: 3.0,
    planner_at_a_moment: 2.0,
    planner_at_a_point: 2.0,
    jvm: 3.0,
    task: 1.5,
    error_at_a_point: 1.5,
    stop: 2.0,
}
"""Kills of a query that runs on and on, with their weights. The natural end of a run is an affair of the rounds."""


def gone(connector: str, seconds: float = _JVM_SECONDS) -> bool:
    """True as soon as the connector has no JVM any more."""
    return _until(lambda: not child_jvms(connector), seconds)


def _point(target: Target, chance: random.Random, but: Point | None = None) -> tuple[str, Point, int]:
    """A part of the query, a point that it passes, and a row of it."""
    points = [(SOURCE, point) for point in _SOURCE_POINTS if point is not but]
    points += [(table, point) for table in target.tables for point in _SINK_POINTS]
    part, point = chance.choice(points)
    return part, point, chance.choice((1, 30, 90)) if point is Point.READ_ROW else 0


def _strike(target: Target, part: str, point: Point, action: Action, row: int = 0) -> bool:
    """Lets ``action`` strike the process that reaches ``point``, and it alone."""
    injector = target.injector(part)
    injector.clear_victims()
    before = injector.struck()
    injector.arm(point, action, row=row)
    _until(lambda: injector.struck() > before or target.has_ended())
    injector.disarm()
    return injector.struck() > before


def _pause(target: Target, chance: random.Random) -> str:
    """Waits for the connector, mostly also for some epochs, and then a moment. Returns what it has waited for."""
    epochs, delay = chance.choice((0, 1, 1, 2, 4)), chance.uniform(0.0, 2.0) * chance.randrange(3)
    before = target.epochs()
    _until(lambda: _jvm(target) is not None)
    _until(lambda: target.epochs() >= before + epochs or target.has_ended(), _LONGEST / 3)
    time.sleep(delay)
    return f"after {target.epochs() - before} epochs and {delay:.1f} s"


def _jvm(target: Target) -> int | None:
    return next(iter(child_jvms(target.connector)), None)


def _ended(text: str, target: Target) -> Outcome:
    """The outcome of a kill by which the query fails; a query that goes on is left to itself."""
    try:
        error = target.driver.wait(_LONGEST)
    except DriverDied:
        return Outcome(f"{text}, and the driver has died, too", ends=True)
    if error is None:
        return Outcome(f"{text}, and the query goes on", ends=False)
    return Outcome(text, True, error)


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _until(condition: Callable[[], Any], seconds: float = _LONGEST) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.03)
    return True
