"""A micro-batch engine of a hundred lines that keeps Spark's contract, without a JVM.

It writes the end offset of a batch before the batch runs and a mark after it. It retries tasks, calls ``abort`` when a
commit raises, and replays the unfinished batch at the next start. :func:`in_a_child` runs it in a forked process that a
test can kill: that costs milliseconds, where Spark needs the start of a JVM.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from ..core.batch import Batch, Committable
from ..core.commit import Commit
from ..core.ledger import Verdict
from ..core.planning import INITIAL, Offset, Planner
from ..core.reading import read_slice
from ..core.sink import Sink
from ..core.source import Slice, Source
from ..core.writing import stage
from ..ground import machine
from ..ground.state import digest, dumps, loads
from ..storage.local import LocalStorage
from .faults import FailureInjector, Point

# A child does not collect its parent's garbage: clients in it would crash, since a fork does not copy their threads.
os.register_at_fork(after_in_child=gc.freeze)

Convert = Callable[[pa.RecordBatch], pa.RecordBatch]
_FORKS: Final = 10
_FORK_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0
_STACK_SECONDS: Final = 0.5
"""The seconds that a hanging process has to write its stack."""


class Checkpoint:
    """The offsets and commit marks of a query, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.storage = LocalStorage(folder)
        self.storage.put_if_absent("metadata", machine.token().encode())

    @property
    def query(self) -> str:
        return self.storage.read("metadata").decode()

    def make_durable(self) -> None:
        """Makes durable what a dead run has written and perhaps not synced."""
        self.storage.sync(folders=["offsets", "commits"])

    def planned(self) -> int:
        """The number of the newest batch whose end is known; -1 before the first."""
        return max((int(name) for name in self.storage.names("offsets")), default=-1)

    def done(self) -> int:
        """The number of the newest batch that is finished; -1 before the first."""
        return max((int(name) for name in self.storage.names("commits")), default=-1)

    def end(self, batch: int) -> Offset:
        return INITIAL if batch < 0 else loads(self.storage.read(f"offsets/{batch}"), f"offset {batch}")

    def plan(self, batch: int, end: Offset) -> bool:
        """Records the end of ``batch``; false if another run was faster."""
        return self.storage.put_if_absent(f"offsets/{batch}", dumps(end).encode())

    def finish(self, batch: int) -> bool:
        """Marks ``batch`` as finished; false if another run was faster."""
        return self.storage.put_if_absent(f"commits/{batch}", b"")

    def forget_commit(self) -> None:
        """Acts as if the engine had died after the sink's commit and before its own."""
        self.storage.delete(f"commits/{self.done()}")


@dataclass
class Engine:
    """A query from ``source`` into ``sink``, with its checkpoint in ``folder``.

    ``carrier`` is ``"foreach_batch"``, which asks the ledger before it writes, or ``"format"``, which writes and then asks.
    ``schema`` is the schema of the source's rows; ``convert`` turns them into the sink's. ``tasks`` distributes the rows of a
    batch to so many tasks, as a shuffle does, so that a replay may have another layout. By default each slice is a task.
    """

    folder: Path
    source: Source
    sink: Sink
    schema: pa.Schema
    convert: Convert = lambda batch: batch
    carrier: str = "foreach_batch"
    attempts: int = 4
    injector: FailureInjector | None = None
    tasks: int | None = None
    available_now: bool = True
    """Whether a run ends at the end that the data had at its start; else it ends after :attr:`seconds`."""
    seconds: float = 30.0

    def run(self, batches: int | None = None) -> int:
        """Writes all available data, or only ``batches`` of it. Returns the number of batches that ran."""
        checkpoint, planner, commit = Checkpoint(self.folder), Planner(self.source), Commit(self.sink)
        run = machine.token()
        checkpoint.make_durable()
        if self.available_now:
            planner.freeze()
        count, until = 0, machine.monotonic() + self.seconds
        with contextlib.closing(planner):
            while count != batches and (self.available_now or machine.monotonic() < until):
                number = checkpoint.done() + 1
                start = checkpoint.end(number - 1)
                if checkpoint.planned() < number:
                    end = planner.latest(start, self.source.limit())
                    if end == start and self.available_now:
                        break
                    if end == start:
                        machine.sleep(_LOOK_SECONDS)
                        continue
                    if not checkpoint.plan(number, end):
                        raise RuntimeError(f"another run of the query has planned batch {number}")
                batch = Batch(self.sink.sink_id(), checkpoint.query, number, run=run)
                self._batch(commit, batch, planner.slices(start, checkpoint.end(number)))
                if self.injector:
                    self.injector.reach(Point.BATCH_DONE)
                if not checkpoint.finish(number):
                    raise RuntimeError(f"another run of the query has finished batch {number}")
                count += 1
        return count

    def _batch(self, commit: Commit, batch: Batch, slices: Sequence[Slice]) -> None:
        if self.carrier == "foreach_batch":
            if commit.begin(batch) is Verdict.SKIP:
                commit.replayed(batch, *self.measure(slices))
                return
        else:
            commit = Commit(self.sink)
        commit.drop_attempts(batch)
        staged: list[Committable] = []
        try:
            self.stage(batch, slices, staged)
            commit.finish(batch, staged, *(self.measure(slices) if self.carrier == "foreach_batch" else ()))
        except Exception:
            commit.abort(batch, [*staged, None])  # a task that failed for good is None
            raise

    def measure(self, slices: Sequence[Slice]) -> tuple[int | None, str | None]:
        """The number of rows of a batch, and a checksum that does not depend on their order."""
        rows, checksum = 0, 0
        for part in slices:
            for batch in self._rows(part):
                rows += batch.num_rows
                for row in batch.to_pylist():
                    checksum ^= int(digest(sorted(row.items()), length=16), 16)
        return rows, f"{checksum:016x}"

    def stage(self, batch: Batch, slices: Sequence[Slice], staged: list[Committable]) -> None:
        """Runs the tasks of ``batch``, and appends the committable of each to ``staged``."""
        for index in range(self.tasks or len(slices)):
            staged.append(self._task(batch, index, slices))

    def _task(self, batch: Batch, subtask: int, slices: Sequence[Slice]) -> Committable:
        for attempt in range(self.attempts):
            rows = self._rows(slices[subtask]) if self.tasks is None else self._deal(slices, subtask, self.tasks)
            try:
                return stage(self.sink, batch, self.convert_schema(), subtask, rows)
            except Exception:
                if attempt == self.attempts - 1:
                    raise
        raise ValueError("attempts must be 1 or more")

    def convert_schema(self) -> pa.Schema:
        """The schema of the sink's rows."""
        return self.convert(pa.RecordBatch.from_pylist([], self.schema)).schema

    def _rows(self, part: Slice) -> Iterator[pa.RecordBatch]:
        return map(self.convert, read_slice(self.source, part, self.schema))

    def _deal(self, slices: Sequence[Slice], subtask: int, tasks: int) -> Iterator[pa.RecordBatch]:
        """The rows of a task: every ``tasks``-th row of the batch."""
        offset = 0
        for part in slices:
            for rows in self._rows(part):
                yield rows.take(pa.array(range((subtask - offset) % tasks, rows.num_rows, tasks), pa.int64()))
                offset += rows.num_rows


def in_a_child(work: Callable[[], object], seconds: float = 300.0) -> int:
    """Runs ``work`` in a forked process and returns its exit code: 0, 1 after an exception, -9 if it was killed.

    If it has not ended within ``seconds``, ends it and raises ``TimeoutError``; its stack is on standard error.
    """
    child = _fork(work)
    until = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGUSR1)
            time.sleep(_STACK_SECONDS)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"the forked process {child} did not end within {seconds:g} s")
        time.sleep(0.002)


def _fork(work: Callable[[], object]) -> int:
    """The id of a forked process that has begun with ``work``.

    At the moment of the fork, a client library's thread may hold the C library's lock of name resolution. Nobody would
    release it in the forked process, so that process is ended before it begins, and forked again.
    """
    for _ in range(_FORKS):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with contextlib.suppress(OSError):
                    socket.getaddrinfo("127.0.0.1", 0, flags=socket.AI_ADDRCONFIG)
                faulthandler.register(signal.SIGUSR1, file=2)
                os.write(writer, b"ready")
                work()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(writer)
        answers = select.poll()
        answers.register(reader, select.POLLIN)
        has_begun = bool(answers.poll(1000 * _FORK_SECONDS))
        os.close(reader)
        if has_begun:
            return child
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    raise TimeoutError(f"of {_FORKS} forked processes none could resolve a name within {_FORK_SECONDS:g} s")
