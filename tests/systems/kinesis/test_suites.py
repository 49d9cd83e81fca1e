"""Kinesis passes the cases of the kit."""

from __future__ import annotations

import pytest

from connectors.testing import EpochSourceSuite
from connectors.testing.spark_suites import SparkSourceSuite

from .contexts import FanOutContext, StreamContext

pytestmark = pytest.mark.server


class TestStream(EpochSourceSuite):
    context = StreamContext
    short_form = (
        EpochSourceSuite.test_everything_is_read_once,
        EpochSourceSuite.test_the_records_of_a_partition_come_in_the_order_in_which_they_were_written,
        EpochSourceSuite.test_a_restart_after_each_batch_loses_and_doubles_nothing,
        EpochSourceSuite.test_a_replay_reads_the_same_rows_with_another_parallelism_and_more_data,
        EpochSourceSuite.test_a_replay_cuts_the_same_splits_with_another_parallelism,
        EpochSourceSuite.test_a_split_is_resumed_after_any_record,
        EpochSourceSuite.test_the_start_does_not_move,
        EpochSourceSuite.test_a_run_that_ends_at_a_point_of_an_epoch_loses_and_doubles_nothing,
    )


@pytest.mark.soak
class TestFanOut(EpochSourceSuite):
    context = FanOutContext


@pytest.mark.soak
class TestStreamOnSpark(SparkSourceSuite):
    context = StreamContext
