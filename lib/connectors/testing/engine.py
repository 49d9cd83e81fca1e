"""A micro-batch engine of a hundred lines, with the contract of Spark's and none of its weight.

It writes the end offset of a batch before the batch runs and a mark after it, retries tasks, calls ``abort`` when a
commit raises, and replays the unfinished batch when it is started again. A process that runs it can be killed for real:
:func:`in_a_child` forks, so a kill costs milliseconds where Spark needs the start of a JVM.
"""

from __future__ import annotations

import contextlib
import gc
import os
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ..core.commit import Commit
from ..core.ledger import Verdict
from ..core.planning import INITIAL, Offset, Planner
from ..core.reading import read_slice
from ..core.sink import Batch, Committable, Sink
from ..core.source import Slice, Source
from ..core.state import digest, dumps, loads
from ..core.writing import stage
from ..storage.local import LocalStorage
from .faults import FailureInjector, Point

# What a parent has left as garbage is not collected by its children: clients whose threads the fork has not taken along
# would crash there.
os.register_at_fork(after_in_child=gc.freeze)

Convert = Callable[[pa.RecordBatch], pa.RecordBatch]


class Checkpoint:
    """Offsets and marks in a folder, as a streaming query keeps them."""

    def __init__(self, folder: Path) -> None:
        self.storage = LocalStorage(folder)
        self.storage.put_if_absent("metadata", str(uuid.uuid4()).encode())

    @property
    def query(self) -> str:
        return self.storage.read("metadata").decode()

    def planned(self) -> int:
        """The number of the newest batch whose end is known; -1 if there is none."""
        return max((int(name) for name in self.storage.names("offsets")), default=-1)

    def done(self) -> int:
        """The number of the newest batch that is finished; -1 if there is none."""
        return max((int(name) for name in self.storage.names("commits")), default=-1)

    def end(self, batch: int) -> Offset:
        return INITIAL if batch < 0 else loads(self.storage.read(f"offsets/{batch}"), f"offset {batch}")

    def plan(self, batch: int, end: Offset) -> None:
        self.storage.put_if_absent(f"offsets/{batch}", dumps(end).encode())

    def finish(self, batch: int) -> None:
        self.storage.put_if_absent(f"commits/{batch}", b"")

    def forget_commit(self) -> None:
        """As if the engine had died after the sink's commit and before its own."""
        self.storage.delete(f"commits/{self.done()}")


@dataclass
class Engine:
    """Runs ``source`` into ``sink`` until everything available is there.

    ``carrier`` is ``"foreach_batch"`` (asks before it writes) or ``"format"`` (writes, then asks). ``convert`` makes the
    sink's rows of the source's, whose schema is ``schema``. ``tasks`` deals the rows of a batch out to so many tasks, as
    a shuffle does, so that a replay may have another layout; by default each slice of the source is a task.
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

    def run(self, batches: int | None = None) -> int:
        """Runs until the end, or for so many ``batches``. Returns how many batches ran."""
        checkpoint, planner, commit = Checkpoint(self.folder), Planner(self.source), Commit(self.sink)
        run = uuid.uuid4().hex
        planner.freeze()
        ran = 0
        with contextlib.closing(planner):
            while batches is None or ran < batches:
                number = checkpoint.done() + 1
                start = checkpoint.end(number - 1)
                if checkpoint.planned() < number:
                    end = planner.latest(start, self.source.limit())
                    if end == start:
                        break
                    checkpoint.plan(number, end)
                batch = Batch(self.sink.sink_id(), checkpoint.query, number, run=run)
                self._batch(commit, batch, planner.slices(start, checkpoint.end(number)))
                self._reach(Point.BATCH_DONE)
                checkpoint.finish(number)
                ran += 1
        return ran

    def _batch(self, commit: Commit, batch: Batch, slices: Sequence[Slice]) -> None:
        if self.carrier == "foreach_batch":
            if commit.begin(batch) is Verdict.SKIP:
                commit.replayed(batch, *self._measure(slices))
                return
        else:
            commit = Commit(self.sink)
        commit.drop_attempts(batch)
        staged: list[Committable] = []
        try:
            for index in range(self.tasks or len(slices)):
                staged.append(self._task(batch, index, slices))
            commit.finish(batch, staged, *(self._measure(slices) if self.carrier == "foreach_batch" else ()))
        except Exception:
            commit.abort(batch, [*staged, None])  # a task that failed for good is None
            raise

    def _measure(self, slices: Sequence[Slice]) -> tuple[int, str]:
        """How many rows a batch has, and a sum of them that does not depend on their order."""
        rows, total = 0, 0
        for part in slices:
            for batch in self._rows(part):
                rows += batch.num_rows
                for row in batch.to_pylist():
                    total ^= int(digest(sorted(row.items()), length=16), 16)
        return rows, f"{total:016x}"

    def _task(self, batch: Batch, subtask: int, slices: Sequence[Slice]) -> Committable:
        for attempt in range(self.attempts):
            rows = self._rows(slices[subtask]) if self.tasks is None else self._dealt(slices, subtask, self.tasks)
            try:
                return stage(self.sink, batch, self.convert_schema(), subtask, rows)
            except Exception:
                if attempt == self.attempts - 1:
                    raise
        raise ValueError("attempts must be 1 or more")

    def convert_schema(self) -> pa.Schema:
        """The schema of what the sink is given."""
        return self.convert(pa.RecordBatch.from_pylist([], self.schema)).schema

    def _rows(self, part: Slice) -> Iterator[pa.RecordBatch]:
        return map(self.convert, read_slice(self.source, part, self.schema))

    def _dealt(self, slices: Sequence[Slice], subtask: int, tasks: int) -> Iterator[pa.RecordBatch]:
        """Every ``tasks``-th row of the batch."""
        before = 0
        for part in slices:
            for rows in self._rows(part):
                yield rows.take(pa.array(range((subtask - before) % tasks, rows.num_rows, tasks), pa.int64()))
                before += rows.num_rows

    def _reach(self, point: Point) -> None:
        if self.injector:
            self.injector.reach(point)


def in_a_child(work: Callable[[], object]) -> int:
    """Runs ``work`` in a forked process and returns its exit code: 0, 1 after an exception, -9 when it was killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
