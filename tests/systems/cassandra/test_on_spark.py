"""The sink and the source on Spark, in every environment that is chosen."""

from __future__ import annotations

import pytest

from connectors.testing.spark_suites import SparkBatchSuite, SparkSinkSuite

from .contexts import PartitionsContext, RowsContext, TableContext

pytestmark = [pytest.mark.spark, pytest.mark.server]


class TestRowsOnSpark(SparkBatchSuite):
    context = RowsContext


class TestTableOnSpark(SparkSinkSuite):
    context = TableContext


@pytest.mark.soak  # the same on Spark as with one row of a partition
class TestPartitionsOnSpark(SparkSinkSuite):
    context = PartitionsContext
