"""Connectors that are broken on purpose: the suites see each fault, and pass the correct connector beside it."""

from __future__ import annotations

import pytest

from connectors.testing import SinkContext, SourceContext

from . import broken, toys

pytest_plugins = ["pytester"]

ORDER = "test_the_records_of_a_partition_come_in_the_order_in_which_they_were_written"

SOURCES: list[tuple[type[SourceContext], str]] = [
    (broken.SkipsARowOnResume, "test_a_split_is_resumed_after_any_record"),
    (broken.SkipsARowOnResume, "test_an_outage_while_reading_is_bridged"),
    (broken.ReadsBackwards, ORDER),
    (broken.CutsTheNewestFirst, ORDER),
    (broken.BeginsWithTheNewestBatch, ORDER),
    (broken.NeedsARecordToBegin, "test_an_empty_system_is_a_batch_without_rows"),
    (broken.NeedsARecordToBegin, "test_a_query_that_begins_on_an_empty_system_reads_what_comes_later"),
    (broken.TakesAnEmptySystemForItsEnd, "test_a_query_that_begins_on_an_empty_system_reads_what_comes_later"),
    (broken.ItsStartMoves, "test_the_start_does_not_move"),
    (broken.CutsByTodaysParallelism, "test_a_replay_cuts_the_same_splits_with_another_parallelism"),
    (broken.ReadsWhatCameLater, "test_a_replay_reads_the_same_rows_with_another_parallelism_and_more_data"),
    (broken.ReadsWhatCameLater, "test_a_frozen_query_ends_with_what_was_there"),
    (broken.NumbersItsOffsetsInMemory, "test_a_restart_after_each_batch_loses_and_doubles_nothing"),
    (broken.NeverStandsStill, "test_a_source_without_new_data_stands_still"),
    (broken.IgnoresTheLimit, "test_a_limit_of_rows_is_kept"),
    (broken.ListsItsSplits, "test_the_range_is_cut_lazily_and_alike_each_time"),
    (broken.ServesTheLargestOnly, "test_a_limit_is_shared_among_partitions"),
    (broken.OverlooksALoss, "test_what_the_system_has_lost_stops_the_query"),
    (broken.SwallowsErrors, "test_an_error_while_reading_surfaces"),
]

SINKS: list[tuple[type[SinkContext], str]] = [
    (broken.CommitsTwiceOnReplay, "test_a_batch_that_is_replayed_is_not_written_again"),
    (broken.CommitsInTwoSteps, "test_a_zombie_that_finishes_late_changes_nothing"),
    (broken.ChecksAndThenCommits, "test_of_two_runs_of_one_query_at_the_same_time_one_wins"),
    (broken.SweepsTheStagesOfOthers, "test_two_queries_write_to_one_target_at_the_same_time"),
    (broken.KeepsTheStagesOfFailedStarts, "test_a_batch_that_fails_at_every_start_leaves_a_bounded_stage"),
    (broken.PublishesTwice, "test_a_commit_that_raises_is_carried_through_or_repeated"),
    (broken.UndoesWhatIsPublished, "test_what_is_published_stays_when_the_commit_raises_after_it"),
    (broken.UndoesABatchThatIsDecided, "test_a_commit_that_raises_is_carried_through_or_repeated"),
    (broken.LosesADecidedBatch, "test_a_commit_that_raises_is_carried_through_or_repeated"),
    (broken.DependsOnTheLayout, "test_a_batch_that_was_not_decided_is_whole_with_another_parallelism"),
    (broken.TrustsTheAttemptNumber, "test_what_a_dead_attempt_has_staged_is_not_used"),
    (broken.SkipsByBatchIdAlone, "test_an_older_checkpoint_is_refused_when_the_batch_number_fits"),
    (broken.NeverSweeps, "test_what_dead_attempts_have_staged_is_swept"),
    (broken.KnowsNoOlderBatch, "test_an_older_checkpoint_is_refused"),
    (broken.KnowsOneQueryOnly, "test_a_new_checkpoint_on_a_written_target_is_refused"),
    (broken.KnowsOneQueryOnly, "test_of_two_queries_that_begin_at_the_same_time_one_writes"),
    (broken.KnowsOneQueryOnly, "test_a_query_that_wakes_after_the_first_commit_of_another_stops"),
    (broken.SharesOneLedger, "test_two_queries_write_to_one_target_by_sink_ids_of_their_own"),
    (broken.LosesTheLastRows, "test_every_row_is_written"),
]

FILE = """
from connectors.testing import SinkSuite, SourceSuite
from tests.testing import broken, toys

class TestBroken({suite}):
    context = broken.{broken}
    starts = 12

class TestCorrect({suite}):
    context = toys.{correct}
    starts = 12
"""


def verdicts(pytester: pytest.Pytester, suite: str, context: type[object], case: str) -> dict[str, set[str]]:
    """The outcomes of ``case``, with all its parameters, for the broken connector and for its correct sibling."""
    correct = next(base for base in context.__mro__ if base.__module__ == toys.__name__)
    file = pytester.makepyfile(FILE.format(suite=suite, broken=context.__name__, correct=correct.__name__))
    ids = [f"{file}::{kind}::{case}" for kind in ("TestBroken", "TestCorrect")]
    outcomes: dict[str, set[str]] = {"TestBroken": set(), "TestCorrect": set()}
    for report in pytester.inline_run("-p", "no:cacheprovider", *ids).getreports("pytest_runtest_logreport"):
        if report.when == "call" or report.outcome == "failed":
            outcomes[report.nodeid.split("::")[1]].add(report.outcome)
    return outcomes


@pytest.mark.parametrize(("context", "case"), SOURCES, ids=lambda value: getattr(value, "__name__", value))
def test_the_source_suite_sees(pytester: pytest.Pytester, context: type[SourceContext], case: str) -> None:
    outcomes = verdicts(pytester, "SourceSuite", context, case)
    assert "failed" in outcomes["TestBroken"]
    assert outcomes["TestCorrect"] == {"passed"}


@pytest.mark.parametrize(("context", "case"), SINKS, ids=lambda value: getattr(value, "__name__", value))
def test_the_sink_suite_sees(pytester: pytest.Pytester, context: type[SinkContext], case: str) -> None:
    outcomes = verdicts(pytester, "SinkSuite", context, case)
    assert "failed" in outcomes["TestBroken"]
    assert "passed" in outcomes["TestCorrect"]
    assert "failed" not in outcomes["TestCorrect"]
