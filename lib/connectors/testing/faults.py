"""Failure injection: errors, outages and kills at a chosen point of a batch, in the process that reaches it.

A :class:`FailureInjector` stores its faults in a folder that all processes share. Each fault is a file; the process that
reaches its point claims it by an atomic rename. So a fault strikes exactly as often as it was armed, in the driver, in a
planning process or in a task. :func:`faulty_sink` and :func:`faulty_source` make connectors that pass all points.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ..core.batch import Batch, Committable
from ..core.epoch_source import EpochLogSource, EpochSource
from ..core.epochs import EpochLog, Receiver
from ..core.ledger import OWNER, Ledger
from ..core.sink import Committer, FrameCommitter, FrameSink, GlobalCommitter, Sink, SinkWriter
from ..core.source import Source, Split, SplitReader
from ..ground.errors import Transient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Point(str, Enum):
    """The points where a run can break, in the order in which a batch passes them."""

    READ_ROW = "a reader hands on a row"
    TASK_ROW = "a task writes a row"
    TASK_STAGED = "a task has staged its rows and not yet reported"
    COMMIT_BEFORE = "the batch is staged and not yet decided"
    RECORDED = "the batch is decided and not yet published"
    PUBLISHED = "the batch is published, and the ledger does not say so yet"
    COMMIT_AFTER = "the batch is published, and the commit has not yet returned"
    BATCH_DONE = "the sink has committed the batch, and the engine has not yet written so"
    EPOCH_RECEIVED = "a reader has received an epoch's messages, and the epoch log does not have them yet"
    EPOCH_RECORDED = "the epoch log has the messages, and no row was handed on yet"
    EPOCH_COMMITTED = "the engine has committed an epoch, and the system does not know it yet"
    EPOCH_ACKNOWLEDGED = "the system has forgotten the messages, and the epoch log does not say so yet"
    CALL_BEFORE = "a system is about to be called"
    CALL_AFTER = "a system has done what it was asked, and its answer is lost"


ACKNOWLEDGEMENT_POINTS: Final = (Point.EPOCH_COMMITTED, Point.EPOCH_ACKNOWLEDGED)
EPOCH_POINTS: Final = (Point.EPOCH_RECEIVED, Point.EPOCH_RECORDED, *ACKNOWLEDGEMENT_POINTS)
"""The points of a source with an epoch log."""


class Action(str, Enum):
    """The actions of a fault when a run reaches its point."""

    RAISE = "an error"
    OUTAGE = "a transient error, as of a system that is away"
    KILL = "kill -9"
    KILL_EXECUTOR = "kill -9 of the executors that set_executors() names, else of this task's"
    HOLD = "the process stands still until release() is called: a zombie"
    OUTLIVE = "as HOLD, and deaf to the signals by which Spark ends its workers: it outlives its driver"


class Injected(Exception):
    """The error of :attr:`Action.RAISE`."""


class FailureInjector:
    """Arms faults and lets them strike. Every process of the run must reach ``folder``."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._passes = Counter[Point]()

    def arm(self, point: Point, action: Action = Action.RAISE, *, times: int = 1, row: int = 0) -> None:
        """Arms ``action`` for the next ``times`` times that a process reaches ``point``.

        For a row point from ``row`` on; for another from the time on that the process reaches it for the ``row``-th time.
        """
        for _ in range(times):
            fault = {"action": action.name, "row": row}
            (self.folder / f"{uuid.uuid4().hex}.{point.name}").write_text(json.dumps(fault))

    def arm_one_of(self, seed: int, points: tuple[Point, ...], rows: int, action: Action = Action.KILL) -> Point:
        """Arms one fault. Its point, and its row below ``rows``, depend on ``seed`` alone."""
        chance = random.Random(seed)
        point = chance.choice(points)
        self.arm(point, action, row=chance.randrange(rows) if point in (Point.READ_ROW, Point.TASK_ROW) else 0)
        return point

    def disarm(self) -> None:
        """Removes the faults that have not struck."""
        for fault in self.folder.glob("*.*"):
            if fault.suffix[1:] in Point.__members__:
                fault.unlink(missing_ok=True)

    def armed(self, point: Point) -> bool:
        """True while a fault waits at ``point``."""
        return next(self.folder.glob(f"*.{point.name}"), None) is not None

    def struck(self) -> int:
        """The number of faults that have struck."""
        return len(list(self.folder.glob("*.struck")))

    def set_victims(self, *pids: int) -> None:
        """Makes :attr:`Action.KILL` strike these processes, in this order, before the one that reaches the point."""
        self._write_pids("victims", pids)

    def victims(self) -> list[int]:
        """The processes that :meth:`set_victims` names."""
        return self._read_pids("victims")

    def clear_victims(self) -> None:
        """Undoes :meth:`set_victims`."""
        (self.folder / "victims").unlink(missing_ok=True)

    def set_executors(self, *pids: int) -> None:
        """Makes :attr:`Action.KILL_EXECUTOR` strike these processes, for a point that the driver reaches."""
        self._write_pids("executors", pids)

    def held(self) -> list[int]:
        """The processes that :attr:`Action.HOLD` has stopped, including those released since."""
        return [int(file.suffix[1:]) for file in self.folder.glob("held.*")]

    def release(self) -> None:
        """Resumes the processes of :meth:`held`."""
        (self.folder / "released").touch()

    def reach(self, point: Point, row: int = 0) -> None:
        """Called when a connector reaches ``point``: a fault armed for it and for this ``row`` strikes."""
        self._passes[point] += 1
        row = row or self._passes[point]
        for fault in self.folder.glob(f"*.{point.name}"):
            plan = self._claim(fault, row)
            if plan is not None:
                self._strike(point, Action[plan["action"]])
                return

    def _claim(self, fault: Path, row: int) -> dict[str, Any] | None:
        try:
            plan: dict[str, Any] = json.loads(fault.read_text())
            if row < plan["row"]:
                return None
            fault.rename(fault.with_suffix(".struck"))
            return plan
        except FileNotFoundError:  # another process was faster
            return None

    def _strike(self, point: Point, action: Action) -> None:
        if action is Action.RAISE:
            raise Injected(f"injected where {point.value}")
        if action is Action.OUTAGE:
            raise Transient(f"injected outage where {point.value}", retry_after=0.01)
        if action is Action.KILL:
            kill_processes([*self.victims(), os.getpid()])
        if action is Action.KILL_EXECUTOR:
            kill_processes(self._read_pids("executors") or [executor_process()])
        if action is Action.OUTLIVE:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if action in (Action.HOLD, Action.OUTLIVE):
            self._hold()

    def _hold(self) -> None:
        (self.folder / f"held.{os.getpid()}").touch()
        while not (self.folder / "released").exists():
            time.sleep(0.02)

    def _write_pids(self, name: str, pids: Sequence[int]) -> None:
        (self.folder / name).write_text(json.dumps(pids))

    def _read_pids(self, name: str) -> list[int]:
        file = self.folder / name
        return list(json.loads(file.read_text())) if file.exists() else []


def forget_commit(checkpoint: str | os.PathLike[str]) -> None:
    """Removes Spark's commit of the newest batch from a query's checkpoint, so that the next start replays that batch.

    The effect is as if the driver had died after the sink's commit and before Spark's own.
    """
    commits = [file for file in (Path(checkpoint) / "commits").iterdir() if file.name.isdigit()]
    newest = max(commits, key=lambda file: int(file.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def executor_process() -> int:
    """In a task: the process id of the JVM that started this worker; Spark's daemon is between the two."""
    parent = subprocess.run(["ps", "-o", "ppid=", "-p", str(os.getppid())], capture_output=True, text=True, check=True)
    return int(parent.stdout)


def kill_processes(pids: Iterable[int]) -> None:
    """Kills those of the processes that still live (``kill -9``)."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


_POINTS: Final[dict[str, tuple[Point | None, Point | None]]] = {
    "record": (Point.COMMIT_BEFORE, Point.RECORDED),
    "publish": (None, Point.PUBLISHED),
    "mark_published": (None, Point.COMMIT_AFTER),
    "commit": (Point.COMMIT_BEFORE, Point.COMMIT_AFTER),
    "commit_frame": (Point.COMMIT_BEFORE, Point.COMMIT_AFTER),
}
"""For methods of ledgers and committers the points that a batch passes before and after them."""


def faulty_calls(injector: FailureInjector) -> None:
    """Makes all calls of this process that are retried pass :attr:`Point.CALL_BEFORE` and :attr:`Point.CALL_AFTER`.

    They are counted together, so that the row of a fault is the number of a call. Requests of Kafka's native client are not
    among them: it has retries of its own.
    """
    from ..batching.sink import Sending
    from ..ground.retry import RetrySettings

    calls = itertools.count(1)

    def faulty(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            number = next(calls)
            injector.reach(Point.CALL_BEFORE, number)
            answer = work(*arguments)
            injector.reach(Point.CALL_AFTER, number)
            return answer

        return call

    retried, start = RetrySettings.call, Sending.__init__

    def call(self: RetrySettings, work: Callable[[], Any]) -> Any:
        return retried(self, faulty(work))

    def init(self: Sending, flow: Any, send: Callable[..., Any], reject: Any) -> None:
        start(self, flow, faulty(send), reject)

    RetrySettings.call, Sending.__init__ = call, init  # type: ignore[method-assign, assignment]


def faulty_sink(kind: type[Sink], injector: FailureInjector) -> type[Sink]:
    """A subclass of ``kind`` that passes the points of a sink: rows, staging, decision, publication."""

    class FaultySink(kind):  # type: ignore[valid-type, misc]
        def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
            return _FaultyWriter(super().writer(batch, schema, subtask), injector)

        def ledger(self) -> Ledger | None:
            ledger: Ledger | None = _faulty_part(super().ledger(), (Ledger,), injector)
            return ledger

        def committer(self) -> Committer | GlobalCommitter | None:
            kinds = (Committer, FrameCommitter, GlobalCommitter)
            committer: Committer | GlobalCommitter | None = _faulty_part(super().committer(), kinds, injector)
            return committer

    if not (issubclass(kind, FrameSink) and kind.stages_frames):
        return FaultySink

    class FaultyFrameSink(FaultySink):
        def stage_frame(self, frame: DataFrame, batch: Batch) -> list[Committable] | None:
            staged: list[Committable] | None = super().stage_frame(_faulty_frame(frame, injector), batch)
            injector.reach(Point.TASK_STAGED)
            return staged

    return FaultyFrameSink


def faulty_source(kind: type[Source], injector: FailureInjector) -> type[Source]:
    """A subclass of ``kind`` that passes :attr:`Point.READ_ROW`, and the points of its epoch log."""

    class FaultySource(kind):  # type: ignore[valid-type, misc]
        def reader(self, schema: pa.Schema) -> SplitReader[Any]:
            return _FaultyReader(super().reader(schema), injector)

    if not issubclass(kind, EpochLogSource):
        return FaultySource

    class FaultyLogSource(FaultySource):
        def log(self) -> EpochLog:
            log: EpochLog = super().log()
            for name in ("put", "put_manifest"):
                setattr(log, name, _between(Point.EPOCH_RECEIVED, getattr(log, name), Point.EPOCH_RECORDED, injector))
            return log

    if not issubclass(kind, EpochSource):
        return FaultyLogSource

    class FaultyEpochSource(FaultyLogSource):
        def receiver(self, schema: pa.Schema | None) -> Receiver:
            receiver: Receiver = super().receiver(schema)
            acknowledge = _between(Point.EPOCH_COMMITTED, receiver.acknowledge, Point.EPOCH_ACKNOWLEDGED, injector)
            receiver.acknowledge = acknowledge  # type: ignore[method-assign]
            return receiver

    return FaultyEpochSource


def _between(before: Point, method: Callable[..., Any], after: Point, injector: FailureInjector) -> Callable[..., Any]:
    """``method``, wrapped to pass a point before it and one after it."""

    def between(*arguments: Any) -> Any:
        injector.reach(before)
        result = method(*arguments)
        injector.reach(after)
        return result

    return between


def _faulty_part(part: Any, kinds: Sequence[type], injector: FailureInjector) -> Any:
    """Forwards the methods of ``part`` and passes their points; ``None`` if the sink has no such part.

    The result is an instance of the first of ``kinds`` that fits ``part``.
    """
    if part is None:
        return None
    kind = next(kind for kind in kinds if isinstance(part, kind))

    def method_of(name: str) -> Callable[..., Any]:
        before, after = _POINTS.get(name, (None, None))

        def method(faulty: Any, *arguments: Any, **named: Any) -> Any:
            if name == "commit_frame":
                arguments = (_faulty_frame(arguments[0], injector), *arguments[1:])
            is_claim = name == "record" and arguments[0].query == OWNER
            if before:
                injector.reach(before)
            if name == "commit":
                part.rejects = faulty.rejects
            result = getattr(part, name)(*arguments, **named)
            if after and not is_claim:
                injector.reach(after)
            return result

        return method

    names = [name for name in dir(kind) if not name.startswith("_")]
    members = {name: method_of(name) if callable(getattr(kind, name)) else getattr(part, name) for name in names}
    return type(f"Faulty{kind.__name__}", (kind,), members)()


def _faulty_frame(frame: DataFrame, injector: FailureInjector) -> DataFrame:
    """``frame``, whose rows pass :attr:`Point.TASK_ROW` if a fault waits for one."""

    def pass_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        for batch in batches:
            count += batch.num_rows
            injector.reach(Point.TASK_ROW, count)
            yield batch

    return frame.mapInArrow(pass_rows, frame.schema) if injector.armed(Point.TASK_ROW) else frame


class _FaultyWriter(SinkWriter):
    """Passes :attr:`Point.TASK_ROW` and :attr:`Point.TASK_STAGED`."""

    def __init__(self, inner: SinkWriter, injector: FailureInjector) -> None:
        self.inner = inner
        self.injector = injector
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.inner.write(batch)
        self.rows += batch.num_rows
        self.injector.reach(Point.TASK_ROW, self.rows)

    def prepare(self) -> Committable:
        staged = self.inner.prepare()
        self.rejects = self.inner.rejects
        self.injector.reach(Point.TASK_STAGED)
        return staged

    def abort(self) -> None:
        self.inner.abort()

    def close(self) -> None:
        self.inner.close()


class _FaultyReader(SplitReader[Any]):
    """Passes :attr:`Point.READ_ROW` after each half of a batch."""

    def __init__(self, inner: SplitReader[Any], injector: FailureInjector) -> None:
        super().__init__()
        self.inner = inner
        self.injector = injector
        self.atomic = inner.atomic  # type: ignore[misc]
        self.fetchers = inner.fetchers  # type: ignore[misc]

    def open(self) -> None:
        self.inner.open()

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self._pass_rows(self.inner.read(split), 0)

    def resume(self, split: Split, records: int) -> Iterator[pa.RecordBatch]:
        return self._pass_rows(self.inner.resume(split, records), records)

    def wake_up(self) -> None:
        self.inner.wake_up()
        super().wake_up()

    def close(self) -> None:
        self.inner.close()

    def _pass_rows(self, batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            middle = batch.num_rows // 2
            for half in (batch.slice(0, middle), batch.slice(middle)):
                if half.num_rows:
                    yield half
                    rows += half.num_rows
                    self.injector.reach(Point.READ_ROW, rows)
