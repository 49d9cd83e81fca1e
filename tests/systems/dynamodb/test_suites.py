"""DynamoDB passes the cases of the kit."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.testing import SinkSuite
from connectors.testing.faults import Point
from connectors.testing.sink_cases import SinkCases, SinkQuery
from connectors.testing.spark_suites import SparkSinkSuite

from .contexts import ItemsContext, TransactionsContext, VersionsContext

pytestmark = pytest.mark.server
_whole = pytest.mark.soak  # a client of boto3 takes half a second in each forked process


@_whole
class TestItems(SinkSuite):
    context = ItemsContext


@_whole
class TestVersions(SinkSuite):
    context = VersionsContext


@_whole
class TestItemsOnSpark(SparkSinkSuite):
    context = ItemsContext


@_whole
class TestTransactions(SinkSuite):
    context = TransactionsContext


class TestKilledTransactions(SinkCases):
    """The short form of :class:`TestTransactions`: kills at the moments that only this sink's commit has."""

    context = TransactionsContext

    def test_a_run_that_is_killed_around_its_decision_is_finished_by_the_next(
        self, target: TransactionsContext, tmp_path: Path
    ) -> None:
        query = SinkQuery(target, tmp_path, "foreach_batch")
        for point in (Point.RECORDED, Point.PUBLISHED, Point.BATCH_DONE):
            query.is_killed_at(point)
        query.engine().run()
        query.expect()


@_whole
class TestTransactionsOnSpark(SparkSinkSuite):
    context = TransactionsContext
