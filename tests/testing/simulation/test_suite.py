"""The suite of histories: connectors that are right live through them, and those that are broken do not."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

from connectors.core import Position, ReadLimit
from connectors.ground import machine
from connectors.testing import SimulationSuite
from connectors.testing.contexts import SinkContext, SourceContext
from connectors.testing.simulation.history import check, run
from tests.batching.test_sink import ShelfContext
from tests.evidence import HISTORIES, evidence
from tests.systems.files.contexts import BucketedContext, RollingContext, SealingContext
from tests.systems.files.test_source import FilesSourceContext
from tests.systems.http.contexts import ApiContext, PutContext, RequestsContext
from tests.systems.jdbc.contexts import SqliteContext
from tests.systems.jdbc.incremental_contexts import SqliteByBoth, SqliteById, SqliteByTime
from tests.systems.redis.contexts import EntriesContext, HashContext
from tests.systems.reference_contexts import (
    FilesContext,
    FileStreamContext,
    LinesContext,
    QueueContext,
    SequenceContext,
    ShardContext,
)

from .. import broken, toys

Context = type[SourceContext] | type[SinkContext]
QUICK: tuple[Context, ...] = (QueueContext, ShardContext, FileStreamContext, LinesContext, SqliteContext, HashContext)
MORE: tuple[Context, ...] = (
    SequenceContext, FilesContext, RollingContext, BucketedContext, SealingContext, FilesSourceContext, ShelfContext,
    EntriesContext, RequestsContext, PutContext, ApiContext, SqliteById, SqliteByTime, SqliteByBoth,
)  # fmt: skip
COUNT = int(os.environ.get("SEEDS", "2000")) // len(QUICK + MORE)


class SteppedCommits(broken.CommitsInTwoSteps):
    """The client's functions are known, so that a history may end between two of them."""

    requests = ((toys.SqliteCommitter, "record"),)


class SkipsARow(broken.SkipsARowOnResume):
    """Its reader hands on row by row, so that it is often interrupted inside of a split."""

    class Rows(broken.SkipsARowOnResume.Reader):
        def resume(self, split: toys.Numbered, records: int) -> Iterator[pa.RecordBatch]:
            for rows in super().resume(split, records):
                yield from (rows.slice(number, 1) for number in range(rows.num_rows))

    class source(toys.LogSource):  # noqa: N801
        def reader(self, schema: pa.Schema) -> toys.LogReader:
            return SkipsARow.Rows(self, schema)


class FailsAtItsEnd(toys.LogContext):
    """Delivers every row, and each run fails where nothing more has come."""

    class source(toys.LogSource):  # noqa: N801
        def enumerator(self) -> toys.LogEnumerator:
            return FailsAtItsEnd.Enumerator(self)

    class Enumerator(toys.LogEnumerator):
        def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
            end = super().advance(at, head, limit)
            return self.rest() if end == at else end

        def rest(self) -> Position:
            raise RuntimeError("a page without rows")


class NeverEnds(FailsAtItsEnd):
    """Delivers every row, and no run ends."""

    class source(toys.LogSource):  # noqa: N801
        def enumerator(self) -> toys.LogEnumerator:
            return NeverEnds.Enumerator(self)

    class Enumerator(FailsAtItsEnd.Enumerator):
        def rest(self) -> Position:
            machine.event().wait()
            raise AssertionError


FAULTS: tuple[Context, ...] = (
    broken.CommitsTwiceOnReplay, broken.KnowsNoOlderBatch, broken.PublishesTwice, broken.UndoesWhatIsPublished,
    broken.NumbersItsOffsetsInMemory, broken.DependsOnTheLayout, broken.TrustsTheAttemptNumber,
    SkipsARow,
)  # fmt: skip


@pytest.mark.parametrize("context", QUICK)
def test_a_connector_of_the_library_lives_through_histories(context: Context) -> None:
    check(context, range(1, 4))


@pytest.mark.parametrize("context", [QueueContext, ShardContext])
def test_a_run_of_a_driver_whose_clock_is_wrong_has_what_was_there_at_its_start(context: Context) -> None:
    assert not run(context, 1016).fault


@pytest.mark.soak
@pytest.mark.evidence(of=lambda context: evidence([context], HISTORIES, COUNT))
@pytest.mark.parametrize("context", QUICK + MORE)
def test_a_connector_of_the_library_lives_through_many_histories(context: Context) -> None:
    first = int(os.environ.get("SEED", "1000"))
    check(context, range(first, first + COUNT))


@pytest.mark.parametrize("context", FAULTS)
def test_a_broken_connector_does_not_live_through_them(context: Context) -> None:
    assert any(run(context, seed).fault for seed in range(1, 11))


@pytest.mark.soak
def test_a_death_inside_of_a_commit_is_found_where_the_function_is_known() -> None:
    assert any("doubled" in run(SteppedCommits, seed).fault for seed in range(1, 101))


@pytest.mark.parametrize(
    ("context", "end"), [(FailsAtItsEnd, "says RuntimeError: a page without rows"), (NeverEnds, "does not end")]
)
def test_a_run_that_delivers_all_has_to_end_as_well(context: Context, end: str) -> None:
    assert run(context, 2).fault == f"all rows have arrived, and the last run, which nobody disturbs, {end}"


def test_a_fault_is_told_with_the_command_that_repeats_it() -> None:
    with pytest.raises(AssertionError, match=r"simulation tests\.testing\.broken:CommitsTwiceOnReplay 1$"):
        check(broken.CommitsTwiceOnReplay, [1])


def test_the_time_of_a_queue_must_be_that_of_the_history() -> None:
    class Timeless(QueueContext):
        set_time = SourceContext.set_time

    class Suite(SimulationSuite):
        context = Timeless

    with pytest.raises(pytest.skip.Exception, match=r"Timeless\.set_time"):
        Suite().test_no_history_loses_or_doubles_a_row()
