"""The rounds of a proof: in each, one fault strikes while the pipeline reads new rows.

What a fault may lead to is written here. A run that fails is started again, as a scheduler does; only the rows decide.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connectors.core.epoch_source import EpochLogSource, EpochSource
from connectors.core.sink import Sink
from connectors.ground import machine
from connectors.systems import sink_class, source_class
from connectors.testing.faults import ACKNOWLEDGEMENT_POINTS, EPOCH_POINTS, Action, FailureInjector, Point

from ..pipeline_sources import SOURCES
from .driver import Driver, Task
from .subject import Subject

FAULTS: Final[Mapping[str, str]] = {
    "driver": "kill -9 of the driver and its JVM, where a batch stands at a point of its protocol, or at any moment",
    "executor": "kill -9 of an executor in the middle of a task; the driver goes on",
    "sink-commit": "the sink's commit fails before it has an effect",
    "lost-answer": "a call, or the commit, has its effect, and the answer does not arrive",
    "network": "calls to the systems fail for a while",
    "second-driver": "a driver stands still in its commit, a second one runs the same pipeline, then the first wakes up",
    "older-checkpoint": "the checkpoint is replaced by the one of a run before",
}
"""What each fault is."""
_SCALES: Final = (2, 1, 3)
"""The cores of the drivers of the rounds, in turn."""
_BEFORE: Final = (Point.COMMIT_BEFORE, Point.TASK_STAGED)
_AFTER: Final = (Point.PUBLISHED, Point.COMMIT_AFTER, Point.RECORDED)
_ROWS: Final = (Point.READ_ROW, Point.TASK_ROW)
_CALLS: Final = 12
"""A fault of a call strikes one of so many first calls of a process."""
_PASSES: Final = 6
"""A batch has two to four sinks, and a round has about three batches. One of changes has one sink, and a round may have one."""
_LATEST_KILL: Final = 25.0
"""Seconds after its start at which a driver that passes no chosen point is killed."""
_HOLD_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Outcome:
    """The end of a round: the fault, how it struck, how the runs ended, and when (seconds since the proof began)."""

    number: int
    fault: str
    what: str
    struck: bool
    start: float
    end: float
    rows: int
    """The rows that were in the source."""

    def __str__(self) -> str:
        return f"{self.fault}: {self.what}"


class Rounds:
    """Runs the pipeline of ``subject`` in rounds whose faults depend on ``seed`` alone."""

    def __init__(
        self, subject: Subject, faults: Sequence[str], seed: int, batch_rows: int, *, unprotected: bool, since: float
    ) -> None:
        self.subject, self.faults, self.since = subject, faults, since
        self._chance = random.Random(seed)
        self._batch_rows, self._unprotected = batch_rows, unprotected
        self._injector = FailureInjector(subject.folder / "faults")
        self._log = subject.folder / "drivers.log"
        self._points = _points(subject)
        self._few = max(batch_rows // 4, 1)
        """Rows that a task has, whatever its share of a batch is."""
        self._has_struck = False
        """True if this round has broken something without the injector."""
        self._drivers: list[Driver] = []

    def run(self, number: int, rows: int) -> Outcome:
        """Lets the next fault strike; ``rows`` are in the source."""
        fault = self.faults[number % len(self.faults)] if number < len(self.faults) else self._chance.choice(self.faults)
        methods: dict[str, Callable[[int], str]] = {
            "driver": self._driver, "executor": self._executor, "sink-commit": self._sink_commit,
            "lost-answer": self._lost_answer, "network": self._network, "second-driver": self._second_driver,
            "older-checkpoint": self._older_checkpoint,
        }  # fmt: skip
        start, struck = machine.monotonic() - self.since, self._injector.struck()
        self._has_struck = False
        what = methods[fault](_SCALES[number % len(_SCALES)])
        is_struck = self._has_struck or self._injector.struck() > struck
        self._injector.disarm()
        return Outcome(number, fault, what, is_struck, start, machine.monotonic() - self.since, rows)

    def finish(self) -> str:
        """Runs the pipeline without faults until it ends well; returns the error of a pipeline that does not."""
        self._injector.disarm()
        self._injector.clear_victims()
        for _ in range(3):
            driver = self._start(2)
            code = driver.wait()
            if code == 0:
                return ""
            driver.kill()
        return driver.error() if code is not None else "the run does not end"

    def end(self) -> None:
        """Kills the drivers that still run, such as one that stands still in its commit."""
        for driver in self._drivers:
            if driver.process.poll() is None:
                driver.kill()

    def _driver(self, cores: int) -> str:
        if self._chance.random() < 0.7:
            point = self._chance.choice(self._points)
            self._arm(point, Action.KILL)
            driver = self._start(cores)
            code = driver.wait()
            return self._end(driver, code, f"killed where {point.value}")
        driver, seconds = self._start(cores), self._chance.uniform(6.0, _LATEST_KILL)
        code = driver.wait(seconds)
        if code is not None:
            return self._end(driver, code, f"to be killed after {seconds:.1f} s")
        driver.kill()
        self._has_struck = True
        return f"killed {seconds:.1f} s after its start, at any moment"

    def _executor(self, cores: int) -> str:
        point = self._chance.choice([point for point in _ROWS if point in self._points])
        self._arm(point, Action.KILL_EXECUTOR)
        driver = self._start(cores, "local-cluster[2,1,1024]")
        return self._end(driver, driver.wait(), f"killed where {point.value}")

    def _sink_commit(self, cores: int) -> str:
        point = self._chance.choice([point for point in _BEFORE if point in self._points] or [Point.READ_ROW])
        self._arm(point, Action.RAISE)
        driver = self._start(cores)
        return self._end(driver, driver.wait(), f"an error where {point.value}")

    def _lost_answer(self, cores: int) -> str:
        points = [point for point in _AFTER if point in self._points]
        is_commit = bool(points) and (self.subject.is_merged or self._chance.random() < 0.5)  # Debezium calls by itself
        point = self._chance.choice(points) if is_commit else Point.CALL_AFTER
        self._arm(point, Action.RAISE if is_commit else Action.OUTAGE)
        driver = self._start(cores)
        return self._end(driver, driver.wait(), f"an error where {point.value}")

    def _network(self, cores: int) -> str:
        times, call = self._chance.randrange(2, 9), self._chance.randrange(1, _CALLS)
        self._injector.arm(Point.CALL_BEFORE, Action.OUTAGE, times=times, row=call)
        driver = self._start(cores)
        return self._end(driver, driver.wait(), f"{times} calls fail from call {call} on")

    def _second_driver(self, cores: int) -> str:
        points = [point for point in (*_BEFORE, *_AFTER) if point in self._points and point is not Point.TASK_STAGED]
        point = self._chance.choice(points or [Point.READ_ROW])
        (self._injector.folder / "released").unlink(missing_ok=True)
        held = len(self._injector.held())
        self._arm(point, Action.HOLD)
        first = self._start(cores)
        until = machine.monotonic() + _HOLD_SECONDS
        while len(self._injector.held()) == held and first.process.poll() is None and machine.monotonic() < until:
            machine.sleep(0.05)
        self._injector.disarm()
        second = self._start(cores)
        second_end = self._end(second, second.wait(), "a second driver")
        self._injector.release()
        return f"{second_end}; {self._end(first, first.wait(), f'the first stood where {point.value}')}"

    def _older_checkpoint(self, cores: int) -> str:
        state = self.subject.folder / "state" / self.subject.state_name("out")
        checkpoint, older, newer = state / "checkpoint", self.subject.folder / "older", self.subject.folder / "newer"
        _copy(checkpoint, older)
        between = self._start(cores)
        end = self._end(between, between.wait(), "a run")
        if not older.exists() or _batches(checkpoint) == _batches(older):
            return f"{end}, and there is no older checkpoint"
        _copy(checkpoint, newer)
        _copy(older, checkpoint)
        self._has_struck = True
        driver = self._start(cores)
        code = driver.wait()
        what = self._end(driver, code, "the run after it")
        if code != 0:
            _copy(newer, checkpoint)
            what += "; the newer checkpoint is back"
        return what

    def _arm(self, point: Point, action: Action) -> None:
        """Arms a fault for a row, for a call, or for one of the first times that a sink is at ``point``."""
        passes = 1 if self.subject.is_merged else _PASSES
        most = self._few if point in _ROWS else _CALLS if point is Point.CALL_AFTER else passes
        self._injector.arm(point, action, row=self._chance.randrange(1, most + 1))

    def _start(self, cores: int, master: str = "") -> Driver:
        parameters = self.subject.parameters("out", self._batch_rows)
        faults = str(self._injector.folder)
        master = master or f"local[{cores},4]"
        notebook = str(self.subject.notebook.absolute())
        task = Task(notebook, parameters, faults, self.subject.systems, master, self._unprotected)
        self._drivers.append(Driver(task, self._log))
        return self._drivers[-1]

    @staticmethod
    def _end(driver: Driver, code: int | None, what: str) -> str:
        if code is None:
            driver.kill()
            return f"{what}; it did not end, and was killed"
        if code == 0:
            return f"{what}; it ended well"
        driver.kill()
        return what if code < 0 else f"{what}; it failed: {driver.error()[:300]}"


def _points(subject: Subject) -> tuple[Point, ...]:
    """The points that the pipeline passes."""
    if subject.is_copy:  # Spark itself replaces the target
        return (Point.READ_ROW,)
    points = [Point.TASK_ROW, Point.COMMIT_BEFORE, Point.COMMIT_AFTER]
    if subject.source_end.system != "delta":
        kind = source_class(SOURCES[subject.source_end.system].format)
        points += [Point.READ_ROW]
        if issubclass(kind, EpochLogSource):
            points += [p for p in EPOCH_POINTS if issubclass(kind, EpochSource) or p not in ACKNOWLEDGEMENT_POINTS]
    if sink_class(subject.end.format).ledger is not Sink.ledger:
        points += [Point.TASK_STAGED, Point.RECORDED, Point.PUBLISHED]
    return tuple(points)


def _batches(checkpoint: Path) -> set[str]:
    return {str(file.relative_to(checkpoint)) for part in ("offsets", "commits") for file in checkpoint.glob(f"**/{part}/*")}


def _copy(folder: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    if folder.exists():
        shutil.copytree(folder, to)
