"""The sink passes every case of the kit, however its files roll and wherever they lie."""

from __future__ import annotations

from connectors.testing import SinkSuite

from .contexts import (
    BucketedContext,
    FinishedContext,
    HdfsContext,
    RollingContext,
    RollingHdfsContext,
    RollingS3Context,
    S3Context,
    SealingContext,
)


class FewerStarts(SinkSuite):
    """Fewer failed starts of a batch: all of these stage alike."""

    starts = 10


class TestRolling(FewerStarts):
    context = RollingContext


class TestBucketed(FewerStarts):
    context = BucketedContext


class TestFinished(FewerStarts):
    context = FinishedContext
    test_two_queries_write_to_one_target_by_sink_ids_of_their_own = None  # each of them finishes the folders of its own rows


class TestSealing(FewerStarts):
    context = SealingContext


class TestS3(SinkSuite):
    context = S3Context


class TestRollingS3(SinkSuite):
    context = RollingS3Context


class TestHdfs(FewerStarts):
    context = HdfsContext


class TestRollingHdfs(FewerStarts):
    context = RollingHdfsContext
    test_a_batch_that_fails_at_every_start_leaves_a_bounded_stage = None  # as without rolling
