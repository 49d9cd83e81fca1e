"""Every case that a sink must pass for the guarantee that it declares. Inherit the suite to run all of it::

    class TestBuffered(SinkSuite):
        context = BufferedContext

The cases run on :class:`~connectors.testing.engine.Engine`, in forked processes that are really killed.
:class:`~connectors.testing.spark_suites.SparkSinkSuite` runs the same target on Spark.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ..core.batch import Batch, Committable
from ..core.commit import Commit
from ..core.ledger import app_query, once_query
from ..core.sink import Guarantee, Sink
from ..core.writing import stage
from ..ground.errors import CommitRefused, Fatal, Misconfigured
from .compare import same_records
from .contexts import SinkContext, open_context, todo_lines
from .engine import Checkpoint, Convert, Engine
from .faults import Point
from .sink_cases import BATCH, ROWS, ContentionSuite, HeldRun, SinkQuery, release


class SinkSuite(ContentionSuite):
    """The cases of a sink. A subclass sets ``context``, and fewer ``seeds`` and ``starts`` if its target opens slowly."""

    starts: ClassVar[int] = 50
    """The number of failed starts in the case of a batch that fails at every start."""

    def test_no_stand_in_is_left(self) -> None:
        if lines := todo_lines(self.context.sink):
            pytest.skip("\n".join(lines))

    def test_the_declared_guarantee_is_the_one_that_is_computed(self, target: SinkContext) -> None:
        assert target.sink.of(target.options()).guarantee() is target.guarantee

    def test_every_row_is_written(self, query: SinkQuery) -> None:
        assert query.engine().run() == ROWS // BATCH
        query.expect()

    def test_an_empty_task_is_no_trouble(self, query: SinkQuery) -> None:
        query.engine(tasks=5, rows=3).run()
        query.expect()

    def test_a_query_that_is_started_again_writes_only_what_is_new(self, query: SinkQuery) -> None:
        query.engine(last=20).run()
        query.engine(last=ROWS).run()
        query.expect()

    def test_a_task_that_fails_is_tried_again(self, query: SinkQuery) -> None:
        query.injector.arm(Point.TASK_ROW, row=2)
        query.injector.arm(Point.TASK_STAGED, times=2)
        query.engine().run()
        assert query.injector.struck() == 3
        query.expect()

    def test_a_query_whose_task_fails_for_good_goes_on_when_started_again(self, query: SinkQuery) -> None:
        query.fails_at(Point.TASK_STAGED, times=4)
        query.engine(tasks=3).run()
        query.expect()

    @pytest.mark.parametrize("point", [Point.COMMIT_BEFORE, Point.RECORDED, Point.PUBLISHED, Point.COMMIT_AFTER])
    def test_a_commit_that_raises_is_carried_through_or_repeated(self, query: SinkQuery, point: Point) -> None:
        query.needs(point)
        query.engine(last=BATCH).run()
        query.fails_at(point)
        query.engine().run()
        query.expect()

    def test_what_is_published_stays_when_the_commit_raises_after_it(self, query: SinkQuery) -> None:
        query.needs(Point.COMMIT_BEFORE)
        query.fails_at(Point.COMMIT_AFTER)
        query.expect(last=BATCH)
        query.engine(last=BATCH).run()
        query.expect(last=BATCH)

    def test_what_was_published_and_taken_away_is_not_brought_back(self, query: SinkQuery) -> None:
        query.needs(Point.PUBLISHED)
        query.fails_at(Point.PUBLISHED)
        taken = query.target.take_away()
        if taken is None:
            pytest.skip("take_away of the context takes nothing out of the target")
        same_records([query.target.row(number) for number in range(1, BATCH + 1)], taken)
        query.engine().run()
        query.expect(first=BATCH + 1)

    def test_a_batch_that_is_replayed_is_not_written_again(self, query: SinkQuery) -> None:
        query.engine().run()
        Checkpoint(query.checkpoint).forget_commit()
        assert query.engine().run() == 1
        query.expect()

    @pytest.mark.parametrize("tasks", [1, 3, 5])
    def test_a_replay_with_another_parallelism_is_the_same_batch(self, query: SinkQuery, tasks: int) -> None:
        query.fails_at(Point.BATCH_DONE, tasks=2)
        query.engine(tasks=tasks).run()
        query.expect()

    @pytest.mark.parametrize("tasks", [1, 3, 5])
    def test_a_batch_that_was_not_decided_is_whole_with_another_parallelism(self, query: SinkQuery, tasks: int) -> None:
        query.needs(Point.COMMIT_BEFORE)
        query.is_killed_at(Point.TASK_STAGED, tasks=2)
        query.fails_at(Point.COMMIT_BEFORE, tasks=4)
        query.engine(tasks=tasks).run()
        query.expect()

    @pytest.mark.parametrize("point", [Point.TASK_ROW, Point.TASK_STAGED])
    def test_what_a_dead_attempt_has_staged_is_not_used(self, query: SinkQuery, point: Point) -> None:
        query.is_killed_at(point, row=2 if point is Point.TASK_ROW else 0)
        query.engine().run()
        query.expect()

    def test_a_stage_that_vanished_is_an_error_and_the_batch_is_written_by_the_next_start(self, query: SinkQuery) -> None:
        target, sink = query.target, query.engine().sink
        if not target.lose_stage():
            pytest.skip("lose_stage of the context removes nothing that is staged")
        batch = Batch(sink.sink_id(), "vanished", 0)
        staged = _stage(sink, target, batch, range(1, 2))
        target.lose_stage()
        with pytest.raises(Fatal, match="share"):
            Commit(sink).finish(batch, [staged])
        assert target.rows() == []
        Commit(sink).finish(batch, [_stage(sink, target, batch, range(1, 2))])
        query.expect(last=1)

    def test_a_zombie_that_finishes_late_changes_nothing(self, query: SinkQuery) -> None:
        query.needs(Point.COMMIT_BEFORE)
        zombie = HeldRun(query, Point.COMMIT_BEFORE, last=BATCH)
        assert query.injector.held(), "the run ended before it came to its commit"
        query.engine().run()
        release(zombie)
        query.expect()

    def test_a_new_checkpoint_on_a_written_target_is_refused(self, query: SinkQuery) -> None:
        query.needs_ledger()
        query.engine().run()
        shutil.rmtree(query.checkpoint)
        with pytest.raises(CommitRefused, match="onNewQuery"):
            query.engine().run()
        query.expect()

    def test_a_new_query_writes_on_when_the_user_says_so(self, query: SinkQuery) -> None:
        query.needs_ledger()
        query.engine(last=20).run()
        shutil.rmtree(query.checkpoint)
        query.engine(first=21, onNewQuery="continue").run()
        query.expect()

    def test_a_new_query_takes_the_place_of_the_old_one_when_the_user_says_so(self, query: SinkQuery) -> None:
        query.needs_ledger()
        try:
            query.engine(onNewQuery="replace")
        except Misconfigured:
            pytest.skip("the sink cannot replace what its target holds")
        query.engine(last=20).run()
        shutil.rmtree(query.checkpoint)
        query.fails_at(Point.COMMIT_BEFORE, first=ROWS + 1, last=ROWS + 2 * BATCH, onNewQuery="replace")
        query.expect(last=20)
        query.fails_at(Point.BATCH_DONE, first=ROWS + 1, last=ROWS + 2 * BATCH, onNewQuery="replace")
        query.engine(first=ROWS + 1, last=ROWS + 2 * BATCH, onNewQuery="replace").run()
        query.expect(first=ROWS + 1, last=ROWS + 2 * BATCH)

    def test_an_older_checkpoint_is_refused(self, query: SinkQuery) -> None:
        query.needs_ledger()
        query.engine(last=BATCH).run()
        older = shutil.copytree(query.checkpoint, query.checkpoint.with_name("older"))
        query.engine().run()
        shutil.rmtree(query.checkpoint)
        older.rename(query.checkpoint)
        with pytest.raises(CommitRefused, match="older checkpoint"):
            query.engine().run()
        query.expect()

    def test_an_older_checkpoint_is_refused_when_the_batch_number_fits(self, query: SinkQuery) -> None:
        query.needs_ledger()
        query.engine(last=BATCH).run()
        older = shutil.copytree(query.checkpoint, query.checkpoint.with_name("older"))
        query.engine(last=2 * BATCH).run()
        shutil.rmtree(query.checkpoint)
        older.rename(query.checkpoint)
        with pytest.raises(CommitRefused, match="replay"):
            query.engine(rows=3 * BATCH).run()  # batch 1 again, but with other rows than the committed one
        query.expect(last=2 * BATCH)

    def test_a_replay_with_other_rows_can_be_skipped(self, query: SinkQuery) -> None:
        query.needs_ledger()
        query.engine(last=BATCH).run()
        checkpoint = Checkpoint(query.checkpoint)
        checkpoint.forget_commit()
        checkpoint.storage.delete("offsets/0")
        with pytest.raises(CommitRefused, match="onReplayMismatch"):
            query.engine(last=BATCH, rows=3).run()
        query.engine(last=BATCH, rows=3, onReplayMismatch="skip").run(batches=1)
        query.expect(last=BATCH)

    def test_a_replay_with_as_many_other_rows_is_refused(self, query: SinkQuery) -> None:
        query.needs_ledger()
        if query.carrier != "foreach_batch":
            pytest.skip("only foreach_batch sees the rows before they are written")
        query.engine(last=BATCH).run()
        engine = query.engine(last=BATCH)
        checkpoint = Checkpoint(query.checkpoint)
        recorded = Commit(engine.sink).last(checkpoint.query)
        if recorded is None or recorded.checksum is None:
            pytest.skip("the ledger keeps no checksum")
        checkpoint.forget_commit()
        convert = engine.convert
        engine.convert = lambda batch: convert(pa.RecordBatch.from_arrays([pc.add(batch.column(0), 100)], ["value"]))
        with pytest.raises(CommitRefused, match="onReplayMismatch"):
            engine.run()
        query.expect(last=BATCH)

    def test_what_dead_attempts_have_staged_is_swept(self, query: SinkQuery) -> None:
        if query.target.leftovers() is None:
            pytest.skip("leftovers of the context does not show what is staged")
        for point in (Point.TASK_STAGED, Point.COMMIT_BEFORE):
            if point in query.target.points():
                query.is_killed_at(point)
        assert query.target.leftovers(), "a killed run leaves what it has staged"
        query.engine().run()
        query.engine(last=ROWS + BATCH, **query.target.sweeping).run()  # the staging of a live batch is never swept
        assert query.target.leftovers() == []
        query.expect(last=ROWS + BATCH)

    @pytest.mark.parametrize("point", [Point.TASK_STAGED, Point.COMMIT_BEFORE])
    def test_a_batch_that_fails_at_every_start_leaves_a_bounded_stage(self, query: SinkQuery, point: Point) -> None:
        query.needs(point)
        if query.target.leftovers() is None:
            pytest.skip("leftovers of the context does not show what is staged")
        for start in range(self.starts):
            if start % 2 == 0:
                query.is_killed_at(point)
            else:
                query.fails_at(point, times=Engine.attempts if point is Point.TASK_STAGED else 1)
        left, most = query.target.leftovers() or [], query.target.most_leftovers
        query.engine().run()
        query.expect()
        if len(left) > most:  # no AssertionError: a suite that expects this error still fails if rows are missing
            pytest.fail(f"{len(left)} staged things after {self.starts} starts, {most} at most: {left}")

    def test_a_decided_batch_outlives_runs_that_die_in_their_tasks(self, query: SinkQuery) -> None:
        query.needs(Point.RECORDED)
        for point in (Point.RECORDED, *[Point.TASK_STAGED] * 5):
            query.is_killed_at(point)
        query.engine().run()
        query.expect()

    @pytest.mark.parametrize(("answer", "skipped"), [("written", BATCH), ("notWritten", 0)])
    def test_a_lost_ledger_stops_until_the_user_says_what_is_there(
        self, query: SinkQuery, tmp_path: Path, answer: str, skipped: int
    ) -> None:
        query.needs_ledger()
        query.engine(last=BATCH).run()
        with open_context(self.context, tmp_path / "fresh") as fresh:
            elsewhere = type(query)(fresh, tmp_path, query.carrier)
            with pytest.raises(CommitRefused, match="onLostLedger"):
                elsewhere.engine().run()
            elsewhere.engine(onLostLedger=answer).run()
            elsewhere.expect(first=BATCH + 1 + skipped)

    def test_batches_without_rows_are_recorded_too(self, query: SinkQuery) -> None:
        query.needs_ledger()
        for _ in range(ROWS // BATCH):  # each in its own process
            engine = query.engine()
            engine.convert = partial(_without, convert=engine.convert, first=BATCH + 1, last=3 * BATCH)
            engine.run(batches=1)
        same_records(query.target.rows(), [query.target.row(number) for number in (*range(1, 11), *range(31, 41))])

    def test_a_target_that_was_set_back_stops_until_the_user_says_so(self, query: SinkQuery) -> None:
        query.needs_ledger()
        query.engine(last=BATCH).run()
        query.engine(last=3 * BATCH, sinkId="elsewhere", onLostLedger="notWritten").run()
        with pytest.raises(CommitRefused, match=r"(?s)batches 1 to 2.*onMissingBatches"):
            query.engine().run()
        query.expect(last=3 * BATCH)
        query.engine(onMissingBatches="continue").run()
        query.expect()

    def test_two_queries_write_to_one_target_by_sink_ids_of_their_own(self, query: SinkQuery, tmp_path: Path) -> None:
        query.needs_ledger()
        other = type(query)(query.target, tmp_path / "other", query.carrier)
        query.engine(last=20, sinkId="left").run()
        other.engine(first=21, sinkId="right").run()
        query.expect()

    def test_a_batch_write_is_whole_and_repeats_when_run_again(self, target: SinkContext) -> None:
        sink = target.sink.of(target.options())
        for first in (1, 11):
            _write_once(sink, target, once_query(), 0, range(first, first + 10))
        same_records([target.row(number) for number in range(1, 21)], target.rows())

    def test_a_batch_write_with_a_transaction_name_is_written_once(self, target: SinkContext) -> None:
        if target.guarantee is not Guarantee.EXACTLY_ONCE:
            pytest.skip("the sink keeps no ledger")
        sink = target.sink.of({**target.options(), "txnAppId": "nightly", "txnVersion": "1"})
        for version in (1, 1, 2):
            _write_once(sink, target, app_query("nightly"), version, range(version * 10, version * 10 + 10))
        same_records([target.row(number) for number in range(10, 30)], target.rows())


def _without(batch: pa.RecordBatch, convert: Convert, first: int, last: int) -> pa.RecordBatch:
    """The rows of ``batch`` except those with the numbers ``first`` to ``last``."""
    numbers = batch.column(0)
    return convert(batch.filter(pc.or_(pc.less(numbers, first), pc.greater(numbers, last))))


def _write_once(sink: Sink, target: SinkContext, query: str, number: int, rows: range) -> None:
    """Writes numbered rows of ``target`` as batch ``number`` of a batch write."""
    batch = Batch(sink.sink_id(), query, number)
    Commit(sink).finish(batch, [_stage(sink, target, batch, rows)])


def _stage(sink: Sink, target: SinkContext, batch: Batch, rows: range) -> Committable:
    records: Any = pa.RecordBatch.from_pylist([target.row(number) for number in rows], target.schema)
    return stage(sink, batch, target.schema, 0, iter([records]))
