"""DynamoDB passes the cases of the kit."""

from __future__ import annotations

import pytest

from connectors.testing import SinkSuite
from connectors.testing.spark_suites import SparkSinkSuite

from .contexts import ItemsContext, TransactionsContext, VersionsContext

pytestmark = [pytest.mark.server, pytest.mark.soak]  # a client of boto3 takes half a second in each forked process


class TestItems(SinkSuite):
    context = ItemsContext


class TestVersions(SinkSuite):
    context = VersionsContext


class TestItemsOnSpark(SparkSinkSuite):
    context = ItemsContext


class TestTransactions(SinkSuite):
    context = TransactionsContext


class TestTransactionsOnSpark(SparkSinkSuite):
    context = TransactionsContext
