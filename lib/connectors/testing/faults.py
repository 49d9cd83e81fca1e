"""Breaking things on purpose, at a chosen point, in whichever process reaches it.

A plan is a folder: each armed fault is a file, claimed by an atomic rename when a process reaches its point, so that it
strikes exactly as often as it was armed, whether that happens in the driver, in a planning process or in a task.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..core.errors import Transient
from ..core.ledger import Entry, Ledger
from ..core.sink import Batch, Committable, Committer, FrameCommitter, FrameSink, GlobalCommitter, Sink, SinkWriter
from ..core.source import Source, Split, SplitReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame



class Point(str, Enum):
    """Where a run can break, in the order in which a batch passes them."""

    READ_ROW = "a reader hands on a row"
    TASK_ROW = "a task writes a row"
    TASK_STAGED = "a task has staged its rows and not yet reported"
    COMMIT_BEFORE = "the batch is staged and not yet decided"
    RECORDED = "the batch is decided and not yet published"
    PUBLISHED = "the batch is published, and the ledger does not say so yet"
    COMMIT_AFTER = "the batch is published, and the commit has not yet returned"
    BATCH_DONE = "the sink has committed the batch, and the engine has not yet written so"


class Action(str, Enum):
    """What happens there."""

    RAISE = "an error"
    OUTAGE = "a transient error, as of a system that is away"
    KILL = "kill -9"
    KILL_EXECUTOR = "kill -9 of the executors that end_executors() names, else of this task's"
    HOLD = "the process stands still until release() is called: a zombie"
    OUTLIVE = "as HOLD, and deaf to the signals by which Spark ends its workers: it outlives its driver"


class Injected(Exception):
    """The error of :attr:`Action.RAISE`."""


class FailureInjector:
    """Arms faults and lets them strike. ``folder`` must be reachable by every process of the run.

    ``victims`` of a kill are the processes named by :meth:`spare_nobody`, else the one that reached the point.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def arm(self, point: Point, action: Action = Action.RAISE, *, times: int = 1, row: int = 0) -> None:
        """Lets ``action`` strike the next ``times`` times that ``point`` is reached; a row point from ``row`` on."""
        for _ in range(times):
            fault = {"action": action.name, "row": row}
            (self.folder / f"{uuid.uuid4().hex}.{point.name}").write_text(json.dumps(fault))

    def arm_one_of(self, seed: int, points: tuple[Point, ...], rows: int, action: Action = Action.KILL) -> Point:
        """Arms one fault at a point, and below a row, that follow from ``seed`` alone."""
        chance = random.Random(seed)
        point = chance.choice(points)
        self.arm(point, action, row=chance.randrange(rows) if point in (Point.READ_ROW, Point.TASK_ROW) else 0)
        return point

    def disarm(self) -> None:
        """Takes back whatever has not struck."""
        for fault in self.folder.glob("*.*"):
            if fault.suffix[1:] in Point.__members__:
                fault.unlink(missing_ok=True)

    def armed(self, point: Point) -> bool:
        """True while a fault waits at ``point``."""
        return next(self.folder.glob(f"*.{point.name}"), None) is not None

    def struck(self) -> int:
        """How many faults have struck so far."""
        return len(list(self.folder.glob("*.struck")))

    def spare_nobody(self, *pids: int) -> None:
        """Kills strike these processes, in this order, instead of the one that reaches the point."""
        (self.folder / "victims").write_text(json.dumps(pids))

    def victims(self) -> list[int]:
        """What :meth:`spare_nobody` names."""
        named = self.folder / "victims"
        return list(json.loads(named.read_text())) if named.exists() else []

    def end_executors(self, *pids: int) -> None:
        """:attr:`Action.KILL_EXECUTOR` strikes these processes, for a point that the driver reaches."""
        (self.folder / "executors").write_text(json.dumps(pids))

    def held(self) -> list[int]:
        """The processes that stand still, or have stood still."""
        return [int(file.suffix[1:]) for file in self.folder.glob("held.*")]

    def release(self) -> None:
        """Lets the processes go on that :attr:`Action.HOLD` has stopped."""
        (self.folder / "released").touch()

    def reach(self, point: Point, row: int = 0) -> None:
        """Called by the wrapped parts of a connector when they come by ``point``."""
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
            self._kill()
        if action is Action.KILL_EXECUTOR:
            self._kill_executors()
        if action is Action.OUTLIVE:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if action in (Action.HOLD, Action.OUTLIVE):
            self._hold()

    def _hold(self) -> None:
        (self.folder / f"held.{os.getpid()}").touch()
        while not (self.folder / "released").exists():
            time.sleep(0.02)

    def _kill(self) -> None:
        _end([*self.victims(), os.getpid()])

    def _kill_executors(self) -> None:
        named = self.folder / "executors"
        _end(json.loads(named.read_text()) if named.exists() else [executor_process()])


def executor_process() -> int:
    """In a task: the id of the JVM that started this worker; a daemon of Spark's stands between the two."""
    asked = subprocess.run(["ps", "-o", "ppid=", "-p", str(os.getppid())], capture_output=True, text=True, check=True)
    return int(asked.stdout)


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


# MERGED A connector with a failure injector in it: subclasses that pass every point of
# :class:`~connectors.testing.faults.Point`.

def faulty_sink(kind: type[Sink], injector: FailureInjector) -> type[Sink]:
    """``kind``, passing the points of a sink: rows, staging, decision, publication."""

    class Faulty(kind):  # type: ignore[valid-type, misc]
        def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
            return _Writer(super().writer(batch, schema, subtask), injector)

        def ledger(self) -> Ledger | None:
            inner = super().ledger()
            return _Ledger(inner, injector) if inner is not None else None

        def committer(self) -> Committer | GlobalCommitter | None:
            inner = super().committer()
            if isinstance(inner, GlobalCommitter):
                wrapper = _FrameCommitter if isinstance(inner, FrameCommitter) else _GlobalCommitter
                return wrapper(inner, injector)
            return _Committer(inner, injector) if inner is not None else None

    if not (issubclass(kind, FrameSink) and kind.stages_frames):
        return Faulty

    class FaultyFrames(Faulty):
        def stage_frame(self, frame: DataFrame, batch: Batch) -> list[Committable] | None:
            watched = frame.mapInArrow(_pass_rows(injector), frame.schema) if injector.armed(Point.TASK_ROW) else frame
            staged: list[Committable] | None = super().stage_frame(watched, batch)
            injector.reach(Point.TASK_STAGED)
            return staged

    return FaultyFrames


def faulty_source(kind: type[Source], injector: FailureInjector) -> type[Source]:
    """``kind``, passing :attr:`Point.READ_ROW`."""

    class Faulty(kind):  # type: ignore[valid-type, misc]
        def reader(self, schema: pa.Schema) -> SplitReader[Any]:
            return _Reader(super().reader(schema), injector)

    return Faulty


def _pass_rows(injector: FailureInjector) -> Any:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in batches:
            seen += batch.num_rows
            injector.reach(Point.TASK_ROW, seen)
            yield batch

    return task


class _Writer(SinkWriter):
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


class _Ledger(Ledger):
    def __init__(self, inner: Ledger, injector: FailureInjector) -> None:
        self.inner = inner
        self.injector = injector

    def last(self, query: str) -> Entry | None:
        return self.inner.last(query)

    def queries(self) -> frozenset[str]:
        return self.inner.queries()

    def record(self, entry: Entry) -> bool:
        self.injector.reach(Point.COMMIT_BEFORE)
        recorded = self.inner.record(entry)
        self.injector.reach(Point.RECORDED)
        return recorded

    def unpublished(self) -> list[Entry]:
        return self.inner.unpublished()

    def mark_published(self, entry: Entry) -> None:
        self.inner.mark_published(entry)
        self.injector.reach(Point.COMMIT_AFTER)


class _Committer(Committer):
    def __init__(self, inner: Committer, injector: FailureInjector) -> None:
        self.inner = inner
        self.injector = injector

    def check(self, committables: Sequence[Committable], rows: int) -> None:
        self.inner.check(committables, rows)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        self.inner.drop_attempts(batch, failed=failed)

    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        self.inner.publish(batch, committables)
        self.injector.reach(Point.PUBLISHED)

    def discard(self, committable: Committable) -> None:
        self.inner.discard(committable)

    def sweep(self, live: frozenset[str]) -> None:
        self.inner.sweep(live)


class _GlobalCommitter(GlobalCommitter):
    def __init__(self, inner: GlobalCommitter, injector: FailureInjector) -> None:
        self.inner = inner
        self.injector = injector

    def last(self, query: str) -> Entry | None:
        return self.inner.last(query)

    def queries(self) -> frozenset[str]:
        return self.inner.queries()

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        self.injector.reach(Point.COMMIT_BEFORE)
        self.inner.rejects = self.rejects
        self.inner.commit(entry, committables)
        self.injector.reach(Point.COMMIT_AFTER)

    def discard(self, committable: Committable) -> None:
        self.inner.discard(committable)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        self.inner.drop_attempts(batch, failed=failed)

    def sweep(self, live: frozenset[str]) -> None:
        self.inner.sweep(live)


class _FrameCommitter(_GlobalCommitter, FrameCommitter):
    """For targets that take a whole DataFrame in one transaction."""

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        watched = frame.mapInArrow(_pass_rows(self.injector), frame.schema) if self.injector.armed(Point.TASK_ROW) else frame
        self.injector.reach(Point.COMMIT_BEFORE)
        inner: Any = self.inner
        inner.commit_frame(watched, batch)
        self.injector.reach(Point.COMMIT_AFTER)


class _Reader(SplitReader[Any]):
    def __init__(self, inner: SplitReader[Any], injector: FailureInjector) -> None:
        super().__init__()
        self.inner = inner
        self.injector = injector
        self.atomic = inner.atomic  # type: ignore[misc]
        self.fetchers = inner.fetchers  # type: ignore[misc]

    def open(self) -> None:
        self.inner.open()

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self._passing(self.inner.read(split), 0)

    def resume(self, split: Split, records: int) -> Iterator[pa.RecordBatch]:
        return self._passing(self.inner.resume(split, records), records)

    def wake_up(self) -> None:
        self.inner.wake_up()
        super().wake_up()

    def close(self) -> None:
        self.inner.close()

    def _passing(self, batches: Iterator[pa.RecordBatch], seen: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            for part in (batch.slice(0, half), batch.slice(half)):
                if part.num_rows:
                    yield part
                    seen += part.num_rows
                    self.injector.reach(Point.READ_ROW, seen)
