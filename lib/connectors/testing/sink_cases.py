"""The common part of the suites of sinks: fixtures, a query that writes to the target, and the cases of killed runs.

Each part builds on the previous one:

- :class:`SinkCases` has the fixtures: an empty target, and each of its carriers.
- :class:`SinkQuery` writes numbered rows to the target by the kit's own engine, without Spark.
- :class:`KillSuite` has the cases of runs that end by a kill or a power failure.
- :class:`ContentionSuite` has the cases of runs that meet at one target at the same time.

:class:`~connectors.testing.sink_suite.SinkSuite` inherits all of it.
"""

from __future__ import annotations

import multiprocessing
import random
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from ..core.sink import GlobalCommitter, Guarantee
from ..systems.sequence import SequenceSource
from .contexts import SinkContext, open_context
from .engine import Engine, in_a_child
from .faults import Action, FailureInjector, Injected, Point, faulty_sink
from .forgetful_disk import ForgetfulDisk

ROWS, BATCH = 40, 10
_NUMBERS = pa.schema([("value", pa.int64())])
_SECONDS = 60.0
_FORK = multiprocessing.get_context("fork")


class SinkCases:
    """The fixtures of a suite. A subclass of a suite sets ``context``."""

    context: ClassVar[type[SinkContext]]

    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[SinkContext]:
        with open_context(self.context, tmp_path / "target") as target:
            yield target

    @pytest.fixture(params=["foreach_batch", "format"])
    def carrier(self, target: SinkContext, request: pytest.FixtureRequest) -> str:
        if request.param not in target.carriers:
            pytest.skip(f"not a carrier of {target.sink.name}")
        return str(request.param)


class SinkQuery:
    """A query that writes rows of a context, a few in each batch."""

    def __init__(self, target: SinkContext, folder: Path, carrier: str) -> None:
        self.target = target
        self.checkpoint = folder / "checkpoint"
        self.injector = FailureInjector(folder / "faults")
        self.carrier = carrier

    def engine(self, *, last: int = ROWS, first: int = 1, tasks: int = 2, rows: int = BATCH, **options: str) -> Engine:
        """A start of the query that writes the rows ``first`` to ``last``: ``rows`` in a batch, with ``tasks`` tasks."""
        source = {"start": first, "end": last, "numPartitions": tasks, "maxRowsPerTrigger": rows}
        target, schema = self.target, self.target.schema

        def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
            numbers = batch.column(0).to_pylist()
            return pa.RecordBatch.from_pylist([target.row(number) for number in numbers], schema)

        return Engine(
            self.checkpoint,
            SequenceSource.of({name: str(value) for name, value in source.items()}, streaming=True),
            faulty_sink(target.sink, self.injector).of({**target.options(), **options}),
            _NUMBERS,
            convert,
            self.carrier,
            injector=self.injector,
            tasks=tasks,
        )

    def expect(self, last: int = ROWS, first: int = 1) -> None:
        """Checks that the target holds the rows ``first`` to ``last``, as often as its guarantee allows."""
        self.target.expect(last, first)

    def needs(self, point: Point) -> None:
        """Skips the case unless a batch of this sink passes ``point``."""
        if point not in self.target.points():
            pytest.skip(f"no batch of this sink comes to where {point.value}")

    def needs_ledger(self) -> None:
        """Skips the case unless the sink keeps a ledger."""
        if self.target.guarantee is not Guarantee.EXACTLY_ONCE:
            pytest.skip("the sink keeps no ledger")

    def needs_claims(self) -> None:
        """Skips the case unless a query's first batch claims the sink."""
        self.needs_ledger()
        committer = self.target.sink.of(self.target.options()).committer()
        if isinstance(committer, GlobalCommitter) and not committer.records_claims:
            pytest.skip("the committer records no claims")

    def fails_at(self, point: Point, *, times: int = 1, **how: Any) -> None:
        """Starts the query as :meth:`engine` does, and checks that it ends by an error at ``point``."""
        self.injector.arm(point, times=times)
        with pytest.raises(Injected):
            self.engine(**how).run()

    def is_killed_at(self, point: Point, *, row: int = 0, **how: Any) -> None:
        """Starts the query as :meth:`engine` does, and checks that it ends by a kill at ``point``."""
        self.injector.arm(point, Action.KILL, row=row)
        assert in_a_child(self.engine(**how).run) == -9


class KillSuite(SinkCases):
    """Killed runs, without Spark. A subclass sets ``context``; each of ``seeds`` is a schedule for each carrier.

    Inherit it alone for many more schedules::

        class TestBuffered(KillSuite):
            context = BufferedContext
            seeds = 100
    """

    seeds: ClassVar[int] = 12

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Runs the cases that ask for a seed with all seeds."""
        if "seed" in metafunc.fixturenames:
            metafunc.parametrize("seed", range(self.seeds))

    @pytest.fixture
    def query(self, target: SinkContext, tmp_path: Path, carrier: str) -> SinkQuery:
        return SinkQuery(target, tmp_path, carrier)

    def test_a_killed_run_is_finished_by_the_next_ones(self, query: SinkQuery, seed: int) -> None:
        chance = random.Random(f"{self.context.__name__} {query.carrier} {seed}")
        for _ in range(3):
            query.injector.arm_one_of(chance.randrange(1 << 30), query.target.points(), rows=2)
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
            for _ in range(chance.randint(1, 2)):  # the second run finds changes that the first has not synced
                engine = query.engine(tasks=chance.randint(1, 3))
                assert in_a_child(partial(disk.run, engine.run)) in (0, -9)
            disk.fail(chance)
        query.engine().run()
        query.expect()

    def test_a_run_killed_at_any_moment_is_finished_by_the_next(self, query: SinkQuery) -> None:
        chance = random.Random(self.context.__name__)
        for _ in range(3):
            child = _FORK.Process(target=query.engine(last=ROWS).run)
            child.start()
            time.sleep(chance.uniform(0.0, 0.15))  # a kill at any moment is the case
            child.kill()
            child.join()
        query.engine().run()
        query.expect()


class HeldRun:
    """A run of a query in its own process, which stops at ``point`` or ends before it.

    ``how`` goes to :meth:`SinkQuery.engine`.
    """

    def __init__(self, query: SinkQuery, point: Point, **how: Any) -> None:
        self.injector = query.injector
        self.injector.arm(point, Action.HOLD)
        self.process = _FORK.Process(target=query.engine(**how).run)
        self.process.start()
        until = time.monotonic() + _SECONDS
        while self.process.is_alive() and not self.injector.held():
            assert time.monotonic() < until, f"the run did not come to where {point.value}"
            time.sleep(0.005)

    def exit_code(self) -> int:
        """Waits for the end of the run; returns 0, or 1 after an exception."""
        self.process.join(_SECONDS)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            raise AssertionError("the run hangs")
        return code


def release(*runs: HeldRun) -> list[int]:
    """Resumes all ``runs`` at once and returns their exit codes."""
    for run in runs:
        run.injector.release()
    return [run.exit_code() for run in runs]


class ContentionSuite(KillSuite):
    """Runs that meet at one target at the same time, without Spark. A subclass sets ``context``."""

    def test_two_queries_write_to_one_target_at_the_same_time(self, query: SinkQuery, tmp_path: Path) -> None:
        other = type(query)(query.target, tmp_path / "other", query.carrier)
        left = HeldRun(query, Point.TASK_STAGED, last=20, sinkId="left")
        right = HeldRun(other, Point.TASK_STAGED, first=21, sinkId="right")
        assert query.injector.held(), "the first run ended before it was released"
        assert release(left, right) == [0, 0]
        query.expect()

    def test_of_two_queries_that_begin_at_the_same_time_one_writes(self, query: SinkQuery, tmp_path: Path) -> None:
        query.needs_claims()
        other = type(query)(query.target, tmp_path / "other", query.carrier)
        assert sorted(release(HeldRun(query, Point.COMMIT_BEFORE), HeldRun(other, Point.COMMIT_BEFORE))) == [0, 1]
        query.expect()

    def test_a_query_that_wakes_after_the_first_commit_of_another_stops(self, query: SinkQuery, tmp_path: Path) -> None:
        query.needs_claims()
        late = HeldRun(query, Point.COMMIT_BEFORE)
        type(query)(query.target, tmp_path / "other", query.carrier).engine().run()
        assert release(late) == [1]
        query.expect()

    @pytest.mark.parametrize("point", [Point.COMMIT_BEFORE, Point.RECORDED])
    def test_of_two_runs_of_one_query_at_the_same_time_one_wins(
        self, query: SinkQuery, tmp_path: Path, point: Point
    ) -> None:
        query.needs(point)
        query.engine(last=BATCH).run()
        twin = type(query)(query.target, tmp_path / "twin", query.carrier)
        shutil.copytree(query.checkpoint, twin.checkpoint)
        codes = release(HeldRun(query, point), HeldRun(twin, point))
        assert 0 in codes, "neither run came to its end"
        query.expect()
