"""The sink and the source on Spark, in every environment that is chosen."""

from __future__ import annotations

import pytest

from connectors.testing.spark_suites import SparkBatchSuite, SparkSinkSuite

from .contexts import PartitionsContext, RowsContext, TableContext

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.soak]  # test_source and the suites have its parts


class TestRowsOnSpark(SparkBatchSuite):
    context = RowsContext


class TestTableOnSpark(SparkSinkSuite):
    context = TableContext


class TestPartitionsOnSpark(SparkSinkSuite):
    context = PartitionsContext
