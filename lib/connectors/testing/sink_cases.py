"""What all suites of sinks begin with: a target of their context, and the carriers that bring rows to it."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from ..core.sink import Guarantee
from ..systems.sequence import SequenceSource
from .compare import same_records
from .contexts import SinkContext
from .engine import Engine, in_a_child
from .faults import Action, FailureInjector, Injected, Point, faulty_sink
from .forgetful_disk import ForgetfulDisk


class SinkCases:
    """A suite without cases. A subclass of a suite sets ``context``."""

    context: ClassVar[type[SinkContext]]

    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[SinkContext]:
        made = self.context(tmp_path / "target")
        made.folder.mkdir()
        with contextlib.closing(made):
            yield made

    @pytest.fixture(params=["foreach_batch", "format"])
    def carrier(self, target: SinkContext, request: pytest.FixtureRequest) -> str:
        if request.param not in target.carriers:
            pytest.skip(f"not a carrier of {target.sink.name}")
        return str(request.param)


# MERGED A query of the kit's own engine that writes rows to a target under test, and what the target must hold
# afterwards.

ROWS, BATCH = 40, 10
_NUMBERS = pa.schema([("value", pa.int64())])


class SinkQuery:
    """A query that writes the rows ``first`` to ``last`` of a context, a few at a time."""

    def __init__(self, target: SinkContext, folder: Path, carrier: str) -> None:
        self.target = target
        self.checkpoint = folder / "checkpoint"
        self.injector = FailureInjector(folder / "faults")
        self.carrier = carrier

    def engine(
        self, *, last: int = ROWS, first: int = 1, tasks: int = 2, rows: int = BATCH, **options: str
    ) -> Engine:
        """The query as it is started: with so many ``tasks``, and ``rows`` in a batch."""
        source = {"start": first, "end": last, "numPartitions": tasks, "maxRowsPerTrigger": rows}
        target, schema = self.target, self.target.schema

        def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
            numbers = batch.column(0).to_pylist()
            return pa.RecordBatch.from_pylist([target.row(number) for number in numbers], schema)

        kind = faulty_sink(target.sink, self.injector)
        return Engine(
            self.checkpoint,
            SequenceSource.of({name: str(value) for name, value in source.items()}, streaming=True),
            kind.of({**target.options(), **options}),
            _NUMBERS,
            convert,
            self.carrier,
            injector=self.injector,
            tasks=tasks,
        )

    def expect(self, last: int = ROWS, first: int = 1) -> None:
        """The target holds the rows ``first`` to ``last``, as often as its guarantee says."""
        repeats = self.target.guarantee is Guarantee.AT_LEAST_ONCE
        expected = [self.target.row(number) for number in range(first, last + 1)]
        same_records(expected, self.target.rows(), repeats=repeats)

    def points(self) -> tuple[Point, ...]:
        """The points that a batch of this sink passes."""
        sink = self.target.sink.of(self.target.options())
        commit = (Point.COMMIT_BEFORE, Point.COMMIT_AFTER) if sink.committer() is not None else ()
        recorded = (Point.RECORDED, Point.PUBLISHED) if sink.ledger() is not None else ()
        return (Point.TASK_ROW, Point.TASK_STAGED, *commit, *recorded, Point.BATCH_DONE)

    def fails(self, run: Callable[[], object]) -> None:
        """``run`` dies of the injected error."""
        with pytest.raises(Injected):
            run()


# MERGED Sinks in processes that are killed, without Spark; a part of
# :class:`~connectors.testing.sink_suite.SinkSuite`.
#
# Inherit it alone for many more schedules of kills::
#
#     class TestBuffered(KillSuite):
#         context = BufferedContext
#         seeds = 100

class KillSuite(SinkCases):
    """The cases. A subclass sets ``context``; each of ``seeds`` is a schedule of up to three kills for each carrier."""

    seeds: ClassVar[int] = 12

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Gives the case of killed runs its seeds."""
        if "seed" in metafunc.fixturenames:
            metafunc.parametrize("seed", range(self.seeds))

    @pytest.fixture
    def query(self, target: SinkContext, tmp_path: Path, carrier: str) -> SinkQuery:
        return SinkQuery(target, tmp_path, carrier)

    def test_a_killed_run_is_finished_by_the_next_ones(self, query: SinkQuery, seed: int) -> None:
        chance = random.Random(f"{self.context.__name__} {query.carrier} {seed}")
        for _ in range(3):
            query.injector.arm_one_of(chance.randrange(1 << 30), query.points(), rows=2)
            engine = query.engine(tasks=chance.randint(1, 4))
            code = in_a_child(engine.run)
            assert code in (0, -9), f"the run ended with {code}"
        query.injector.disarm()
        query.engine().run()
        assert query.injector.struck() >= 1
        query.expect()

    def test_a_power_failure_at_any_moment_loses_and_doubles_nothing(self, query: SinkQuery, tmp_path: Path, seed: int) -> None:
        if not query.target.disks():
            pytest.skip("the target is no folder of this machine")
        chance = random.Random(f"{self.context.__name__} {query.carrier} {seed}")
        for number in range(3):
            disk = ForgetfulDisk(query.target.disks()[0], tmp_path / f"disk {number}", chance.randrange(100))
            disk.start()
            engine = query.engine(tasks=chance.randint(1, 3))
            assert in_a_child(partial(disk.run, engine.run)) in (0, -9)
            disk.fail(chance)
        query.engine().run()
        query.expect()

    def test_a_run_killed_at_any_moment_is_finished_by_the_next(self, query: SinkQuery) -> None:
        chance = random.Random(self.context.__name__)
        fork = multiprocessing.get_context("fork")
        for _ in range(3):
            child = fork.Process(target=query.engine(last=ROWS).run)
            child.start()
            time.sleep(chance.uniform(0.0, 0.15))  # any moment: this is the case
            child.kill()
            child.join()
        query.engine().run()
        query.expect()


# MERGED Runs that meet at one target at the same time, without Spark; a part of
# :class:`~connectors.testing.sink_suite.SinkSuite`.

_SECONDS = 60.0


class HeldRun:
    """A run of a query in a process of its own, which stands still when it comes to ``point``, or has ended before.

    ``how`` goes to :meth:`~connectors.testing.sink_cases.Writing.engine`.
    """

    def __init__(self, query: SinkQuery, point: Point, **how: Any) -> None:
        self.injector = query.injector
        self.injector.arm(point, Action.HOLD)
        engine = query.engine(**how)
        self.process = multiprocessing.get_context("fork").Process(target=engine.run)
        self.process.start()
        until = time.monotonic() + _SECONDS
        while self.process.is_alive() and not self.injector.held():
            assert time.monotonic() < until, f"the run did not come to where {point.value}"
            time.sleep(0.005)

    def code(self) -> int:
        """The exit code of the run: 0, or 1 after an exception."""
        self.process.join(_SECONDS)
        ended = self.process.exitcode
        if ended is None:
            self.process.kill()
            raise AssertionError("the run hangs")
        return ended


def release(*runs: HeldRun) -> list[int]:
    """Lets ``runs`` go on, all at once, and returns their exit codes."""
    for run in runs:
        run.injector.release()
    return [run.code() for run in runs]


class ContentionSuite(KillSuite):
    """The cases. A subclass sets ``context``."""

    def test_two_queries_write_to_one_target_at_the_same_time(self, query: SinkQuery, tmp_path: Path) -> None:
        other = type(query)(query.target, tmp_path / "other", query.carrier)
        left = HeldRun(query, Point.TASK_STAGED, last=20, sinkId="left")
        right = HeldRun(other, Point.TASK_STAGED, first=21, sinkId="right")
        assert query.injector.held(), "the first run ended before it was released"
        assert release(left, right) == [0, 0]
        query.expect()

    @pytest.mark.parametrize("point", [Point.COMMIT_BEFORE, Point.RECORDED])
    def test_of_two_runs_of_one_query_at_the_same_time_one_wins(
        self, query: SinkQuery, tmp_path: Path, point: Point
    ) -> None:
        if point not in query.points():
            pytest.skip("a batch of this sink does not pass the point")
        query.engine(last=BATCH).run()
        twin = type(query)(query.target, tmp_path / "twin", query.carrier)
        shutil.copytree(query.checkpoint, twin.checkpoint)
        codes = release(HeldRun(query, point), HeldRun(twin, point))
        assert 0 in codes, "neither run came to its end"
        query.expect()
