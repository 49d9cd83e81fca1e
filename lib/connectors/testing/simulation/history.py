"""Histories: a pipeline of the library's own code against an adversary, and the judgement of what it has written."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ...core import epochs, ledger
from ...core.epoch_source import EpochLogSource
from ...core.epochs import EpochLog
from ...core.metrics import FOLDER
from ...core.sink import Sink
from ...core.source import Source
from ..engine import Checkpoint
from .adversary import Adversary, Move
from .disk import RemoteStorage, SimulatedDisk
from .engine import SimulatedEngine
from .models import SCHEMA, Database, DatabaseSink, Queue, QueueSource, Shards, ShardSource
from .scheduler import Fault, Scheduler, Thread

_PATIENCE: Final = (5.0, 30.0, 300.0)
_TIMES: Final = {"maxEpochTime": "2s", "drainTimeout": "3s", "pollInterval": "5s"}
_GAPS: Final = (0.0, 1.0, 30.0, 1000.0)
_LONGEST_PAUSE: Final = 1000.0
_RUNS: Final = 12
_UNSEEN: Final = frozenset({Move.COPY, Move.GIVE_UP, Move.DUPLICATE, Move.TWIN, Move.SECOND_DRIVER})
"""After these moves a task that no driver knows of may have leases: a run cannot wait for their end."""


@dataclass
class Pipeline:
    """A source and a sink in a world: how to make them in a process, how rows come, and what has arrived."""

    source: Callable[..., Source]
    sink: Callable[[], Sink]
    publish: Callable[[list[int]], None]
    rows: Callable[[], Iterable[int]]
    schema: pa.Schema = SCHEMA


World = Callable[[Adversary, Path], Pipeline]
"""Makes a pipeline on the disk of a history."""


@dataclass
class History:
    """One history: what happened (``timeline``), by how many ``steps``, and what was wrong (``fault``), in words.

    ``moves`` are those that the adversary made; ``count`` has also those that were spared.
    """

    seed: int
    world: str
    timeline: list[str] = field(default_factory=list)
    moves: Counter[Move] = field(default_factory=Counter)
    count: int = 0
    steps: int = 0
    fault: str = ""

    def command(self) -> str:
        """The command that repeats it."""
        return f"python -m connectors.testing.simulation {self.world} {self.seed}"

    def text(self) -> str:
        """The history for people."""
        return "\n".join([*self.timeline, f"{self.world}, seed {self.seed}: {self.fault or 'nothing lost, nothing doubled'}"])


def run(world: str, seed: int, spared: Collection[int] = (), moves: Collection[Move] = tuple(Move)) -> History:
    """Runs the history of ``seed`` in a world of :data:`WORLDS`."""
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
            operator = _Operator(adversary, disk, WORLDS[world](adversary, disk.folder))
            fault = ""
            try:
                disk.run(lambda: scheduler.run(operator.work))
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
        self._carrier = self._chance.choice(("foreach_batch", "format"))
        self._measures = self._chance.random() < 0.5
        self._published = 0
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
        self._scheduler.sleep(2 * _LONGEST_PAUSE)  # whoever stands still goes on, and ends
        self._errors.clear()
        self._publish(3)
        self._run_driver(patience=86400.0, available_now=True)
        self._judge()

    def _publish(self, count: int) -> None:
        bodies = list(range(self._published + 1, self._published + count + 1))
        self._published += count
        self._pipeline.publish(bodies)
        self._scheduler.note(f"published {bodies}")

    def _produce(self) -> None:
        for _ in range(self._chance.choice((4, 8, 16))):
            self._scheduler.sleep(self._chance.choice((0.1, 1.0, 10.0, 100.0, 700.0)))
            self._publish(self._chance.randrange(1, 5))

    def _start_driver(self, available_now: bool | None = None) -> Thread:
        self._drivers += 1
        parallelism, chance = self._chance.choice((1, 2, 3)), self._chance.random() < 0.7
        available_now = chance if available_now is None else available_now

        def work() -> None:
            engine = SimulatedEngine(
                self._disk.folder / "checkpoint",
                self._pipeline.source(parallelism),
                self._pipeline.sink(),
                self._pipeline.schema,
                carrier=self._carrier,
                available_now=available_now,
                adversary=self._adversary,
                make_source=lambda: self._pipeline.source(parallelism),
                make_sink=self._pipeline.sink,
                measures=self._measures,
            )
            self._scheduler.note(f"starts, {parallelism} readers, {'availableNow' if available_now else 'continuous'}")
            try:
                batches = engine.run()
                self._scheduler.thread.ends_well = available_now
                self._scheduler.note(f"ends after {batches} batches")
            except Exception as error:
                self._errors.append(f"{type(error).__name__}: {error}")
                self._scheduler.note(f"fails: {self._errors[-1][:300]}")
                raise

        return self._scheduler.spawn(f"driver {self._drivers}", work)

    def _run_driver(self, patience: float | None = None, available_now: bool | None = None) -> None:
        """One run of the query, until it ends, or for so long that it is replaced."""
        if self._scheduler.is_quiet():
            self._forget_batch()
        due = Counter(range(1, self._published + 1)) if self._scheduler.is_quiet() else Counter[int]()
        driver = self._start_driver(available_now)
        driver.join(patience or self._chance.choice(_PATIENCE))
        if driver.is_alive() and not self._adversary.strikes(Move.SECOND_DRIVER, driver.process.name):
            self._scheduler.note(f"{driver.process.name} is ended")
            driver.process.alive = False
            driver.join()
        if self._disk.is_dark:
            self._scheduler.step()
            self._disk.light()
            return
        missing = due - Counter(self._pipeline.rows())
        if driver.ends_well and missing and not self._adversary.moves.keys() & _UNSEEN:
            raise Fault(f"{driver.process.name} says SUCCESS without what was there at its start: {sorted(missing)}")

    def _forget_batch(self) -> None:
        """An older checkpoint by one batch goes on: by two, or without any, the sink or the source has to stop."""
        checkpoint = Checkpoint(self._disk.folder / "checkpoint")
        newest = checkpoint.planned()
        if newest > max(0, self._forgotten) and self._adversary.strikes(Move.OLD_CHECKPOINT, f"without batch {newest}"):
            self._forgotten = newest
            for kind in ("commits", "offsets"):
                checkpoint.storage.delete(f"{kind}/{newest}")

    def _missing(self) -> Counter[int]:
        return Counter(range(1, self._published + 1)) - Counter(self._pipeline.rows())

    def _judge(self) -> None:
        rows = Counter(self._pipeline.rows())
        if doubled := rows - Counter(range(1, self._published + 1)):
            raise Fault(f"doubled: {sorted(doubled)}")
        if missing := self._missing():
            stops = f"; the last run says {self._errors[-1]}" if self._errors else ", and the last run says SUCCESS"
            raise Fault(f"missing: {sorted(missing)}{stops}")


def _options(**options: Any) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}


def _source_kind(model: type[EpochLogSource], adversary: Adversary, **world: Any) -> Any:
    """A source over ``world``, whose epoch log is on the disk, or behind a network."""

    def log(self: EpochLogSource) -> EpochLog:
        return EpochLog(RemoteStorage(self.values["stateLocation"], adversary), self.name)

    is_remote = adversary.chance() < 0.5
    return type(f"{model.__name__}Model", (model,), {**world, **({"log": log} if is_remote else {})})


def _queue_source(adversary: Adversary, folder: Path) -> tuple[Callable[..., Source], Callable[[list[int]], None]]:
    queue = Queue(adversary)
    kind = _source_kind(QueueSource, adversary, queue=queue)
    options = _options(stateLocation=folder / "log", **_TIMES, maxRowsPerTrigger=4, deduplicationWindow="600s")
    return lambda readers: kind.of({**options, "numPartitions": str(readers)}, streaming=True), queue.publish


def _shard_source(adversary: Adversary, folder: Path) -> tuple[Callable[..., Source], Callable[[list[int]], None]]:
    shards = Shards(adversary)
    kind = _source_kind(ShardSource, adversary, shards=shards)
    options = _options(stateLocation=folder / "log", **_TIMES, maxRowsPerTrigger=4)
    return lambda readers: kind.of({**options, "numPartitions": str(readers)}, streaming=True), shards.publish


def _database_sink(adversary: Adversary, folder: Path) -> tuple[Callable[[], Sink], Callable[[], Iterable[int]]]:
    database = Database(adversary)
    kind: Any = type("DatabaseModel", (DatabaseSink,), {"database": database})
    return lambda: kind.of({}), lambda: database.rows


def _files_sink(adversary: Adversary, folder: Path) -> tuple[Callable[[], Sink], Callable[[], Iterable[int]]]:
    import pyarrow.parquet as pq

    from ...systems.files.sink import FilesSink

    path = folder / "files"

    def rows() -> Iterable[int]:
        files = sorted(path.glob("*.parquet"))
        return [value for file in files for value in pq.read_table(file)["value"].to_pylist()]

    return lambda: FilesSink.of({"path": str(path), "fileFormat": "parquet", "sinkId": "files"}), rows


def _world(source: Callable[..., Any], sink: Callable[..., Any]) -> World:
    def make(adversary: Adversary, folder: Path) -> Pipeline:
        make_source, publish = source(adversary, folder)
        make_sink, rows = sink(adversary, folder)
        return Pipeline(make_source, make_sink, publish, rows)

    return make


WORLDS: Final[dict[str, World]] = {
    f"{source}-{sink}": _world(make_source, make_sink)
    for source, make_source in {"queue": _queue_source, "shards": _shard_source}.items()
    for sink, make_sink in {"database": _database_sink, "files": _files_sink}.items()
}
"""The worlds of histories, by name."""
