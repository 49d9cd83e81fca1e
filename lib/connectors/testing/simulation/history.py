"""Histories: a pipeline of the library's own code against an adversary, and the judgement of what it has written."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...core import epochs, ledger
from ...core.metrics import FOLDER
from ..engine import Checkpoint
from .adversary import Adversary, Move
from .disk import SimulatedDisk
from .engine import SimulatedEngine
from .scheduler import Fault, Scheduler, Thread
from .worlds import Pipeline, World, command_of, name_of, pipeline

_PATIENCE: Final = (5.0, 30.0, 300.0)
_GAPS: Final = (0.0, 1.0, 30.0, 1000.0)
_LONGEST_PAUSE: Final = 1000.0
_RUNS: Final = 12
_UNSEEN: Final = frozenset({Move.COPY, Move.GIVE_UP, Move.DUPLICATE, Move.TWIN, Move.SECOND_DRIVER})
"""After these moves a task that no driver knows of may have leases: a run cannot wait for their end."""


@dataclass
class History:
    """One history: what happened (``timeline``), by how many ``steps``, and what was wrong (``fault``), in words.

    ``moves`` are those that the adversary made; ``count`` has also those that were spared.
    """

    seed: int
    world: World
    timeline: list[str] = field(default_factory=list)
    moves: Counter[Move] = field(default_factory=Counter)
    count: int = 0
    steps: int = 0
    fault: str = ""

    def command(self) -> str:
        """The command, or the call, that repeats it."""
        return command_of(self.world, self.seed)

    def text(self) -> str:
        """The history for people."""
        verdict = self.fault or "nothing lost, nothing doubled"
        return "\n".join([*self.timeline, f"{name_of(self.world)}, seed {self.seed}: {verdict}"])


def run(world: World, seed: int, spared: Collection[int] = (), moves: Collection[Move] = tuple(Move)) -> History:
    """Runs the history of ``seed`` in ``world``."""
    scheduler = Scheduler(seed)
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    before = os.environ.get(FOLDER)
    os.environ[FOLDER] = "off"
    try:
        with scheduler.installed(), _short_histories(seed):
            adversary = Adversary(scheduler, moves=moves, spared=spared)
            disk = SimulatedDisk(folder / "disk", folder / "journal", adversary)
            disk.folder.mkdir()
            disk.start()
            fault = ""
            with pipeline(world, adversary, disk.folder) as ends:
                try:
                    disk.run(lambda: scheduler.run(_Operator(adversary, disk, ends).work))
                except Fault as found:
                    fault = str(found)
            timeline = [event.replace(str(folder), "") for event in scheduler.events]
            fault = fault.replace(str(folder), "")
            return History(seed, world, timeline, adversary.moves, adversary.count, scheduler.count, fault)
    finally:
        if before is None:
            del os.environ[FOLDER]
        else:
            os.environ[FOLDER] = before
        shutil.rmtree(folder)


def shrunk(history: History) -> History:
    """A history of the same seed that is wrong with as few moves as can be left."""
    spared: set[int] = set()
    for number in range(history.count):
        shorter = run(history.world, history.seed, {*spared, number})
        if shorter.fault:
            spared, history = {*spared, number}, shorter
    return history


def check(world: World, seeds: Iterable[int]) -> None:
    """Raises ``AssertionError`` at the first seed whose history is wrong, with what happened in it."""
    for seed in seeds:
        try:
            history = run(world, seed)
        except Exception as error:
            raise AssertionError(f"the context fails, in the history of {command_of(world, seed)}: {error!r}") from error
        assert not history.fault, f"{shrunk(history).text()}\n{history.command()}"


@contextlib.contextmanager
def _short_histories(seed: int) -> Iterator[None]:
    """Inside, logs and ledgers keep few entries, as if many batches had passed."""
    own, chance = (epochs.HISTORY, ledger.HISTORY), random.Random(f"sizes {seed}")
    epochs.HISTORY, ledger.HISTORY = chance.choice((1, 2, 10)), chance.choice((2, 4, 100))  # type: ignore[misc]
    try:
        yield
    finally:
        epochs.HISTORY, ledger.HISTORY = own  # type: ignore[misc]


class _Operator:
    """Starts drivers until all that was published has arrived, as a job's scheduler does; then judges."""

    def __init__(self, adversary: Adversary, disk: SimulatedDisk, pipeline: Pipeline) -> None:
        self._adversary, self._scheduler, self._disk, self._pipeline = adversary, adversary.scheduler, disk, pipeline
        self._chance = random.Random(f"operator {adversary.scheduler.seed}")
        self._carrier = self._chance.choice(pipeline.target.carriers)
        self._measures = self._chance.random() < 0.5
        self._published: Counter[str] = Counter()
        self._drivers = 0
        self._forgotten = -1
        self._errors: list[str] = []

    def work(self) -> None:
        self._publish(self._chance.randrange(1, 8))
        producer = self._scheduler.spawn("producer", self._produce, mortal=False)
        if self._adversary.strikes(Move.TWIN, "the first start"):
            self._start_driver()
        for _ in range(_RUNS):
            self._run_driver()
            if self._adversary.rests and not producer.is_alive():
                break
            self._scheduler.sleep(self._chance.choice(_GAPS))
        self._adversary.rest()
        self._scheduler.note("the adversary rests")
        producer.join()
        if producer.error is not None:
            raise producer.error
        self._scheduler.sleep(2 * _LONGEST_PAUSE)  # whoever stands still goes on, and ends
        self._errors.clear()
        self._publish(3)
        last = self._run_driver(patience=86400.0, available_now=True)
        self._judge()
        if not last.ends_well:
            end = f"says {type(last.error).__name__}: {last.error}" if last.error else "does not end"
            raise Fault(f"all rows have arrived, and the last run, which nobody disturbs, {end}")

    def _publish(self, count: int) -> None:
        rows = self._pipeline.publish(count)
        self._published.update(rows)
        self._scheduler.note(f"published {', '.join(rows)}")

    def _produce(self) -> None:
        for _ in range(self._chance.choice((4, 8, 16))):
            self._scheduler.sleep(self._chance.choice((0.1, 1.0, 10.0, 100.0, 700.0)))
            self._publish(self._chance.randrange(1, 5))

    def _start_driver(self, available_now: bool | None = None) -> Thread:
        self._drivers += 1
        parallelism, chance = self._chance.choice((1, 2, 3)), self._chance.random() < 0.7
        available_now = chance if available_now is None else available_now

        def work() -> None:
            self._scheduler.note(f"starts, {parallelism} readers, {'availableNow' if available_now else 'continuous'}")
            try:
                engine = SimulatedEngine(
                    self._disk.folder / "checkpoint",
                    self._pipeline.origin.source(parallelism),
                    self._pipeline.target.sink(),
                    self._pipeline.origin.schema,
                    self._pipeline.target.convert,
                    carrier=self._carrier,
                    available_now=available_now,
                    adversary=self._adversary,
                    make_source=lambda: self._pipeline.origin.source(parallelism),
                    make_sink=self._pipeline.target.sink,
                    measures=self._measures,
                )
                batches = engine.run()
                self._scheduler.thread.ends_well = available_now
                self._scheduler.note(f"ends after {batches} batches")
            except Exception as error:
                self._errors.append(f"{type(error).__name__}: {error}")
                self._scheduler.note(f"fails: {self._errors[-1][:300]}")
                raise

        return self._scheduler.spawn(f"driver {self._drivers}", work)

    def _run_driver(self, patience: float | None = None, available_now: bool | None = None) -> Thread:
        """One run of the query, until it ends, or for so long that it is replaced; returns its driver."""
        due: Counter[str] = Counter()
        self._restore_power()  # which may have failed between two runs
        if self._scheduler.is_quiet():
            self._forget_batch()
            due += self._published
            self._restore_power()  # which may have failed while the operator looked at the checkpoint
        driver = self._start_driver(available_now)
        driver.join(patience or self._chance.choice(_PATIENCE))
        if driver.is_alive() and not self._adversary.strikes(Move.SECOND_DRIVER, driver.process.name):
            self._scheduler.note(f"{driver.process.name} is ended")
            driver.process.alive = False
            driver.join()
        if self._restore_power():
            return driver
        missing = due - Counter(self._pipeline.target.rows())
        if driver.ends_well and missing and not self._adversary.moves.keys() & _UNSEEN:
            raise Fault(f"{driver.process.name} says SUCCESS without what was there at its start: {_text(missing)}")
        return driver

    def _restore_power(self) -> bool:
        """Whether the power had failed: all processes have ended, and the disk has forgotten."""
        if was_dark := self._disk.is_dark:
            self._scheduler.step()
            self._disk.light()
        return was_dark

    def _forget_batch(self) -> None:
        """An older checkpoint by one batch goes on: by two, or without any, the sink or the source has to stop."""
        checkpoint = Checkpoint(self._disk.folder / "checkpoint")
        newest = checkpoint.planned()
        if newest <= max(0, self._forgotten) or not self._pipeline.keeps_epochs:
            return
        if self._adversary.strikes(Move.OLD_CHECKPOINT, f"without batch {newest}"):
            self._forgotten = newest
            for kind in ("commits", "offsets"):
                checkpoint.storage.delete(f"{kind}/{newest}")

    def _judge(self) -> None:
        rows = Counter(self._pipeline.target.rows())
        if foreign := rows.keys() - self._published.keys():
            raise Fault(f"nobody has published {_text(foreign)}")
        if not self._pipeline.target.repeats() and (doubled := rows - self._published):
            raise Fault(f"doubled: {_text(doubled)}")
        if missing := self._published - rows:
            stops = f"; the last run says {self._errors[-1]}" if self._errors else ", and the last run says SUCCESS"
            raise Fault(f"missing: {_text(missing)}{stops}")


def _text(rows: Collection[str]) -> str:
    return ", ".join(sorted(rows))
