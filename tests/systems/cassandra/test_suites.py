"""Cassandra passes the cases of the kit."""

from __future__ import annotations

import pytest

from connectors.testing import BatchSuite, SinkSuite

from .contexts import PartitionsContext, RowsContext, TableContext

pytestmark = pytest.mark.server


class TestRows(BatchSuite):
    context = RowsContext


class TestTable(SinkSuite):
    context = TableContext
    seeds = 1  # a hundred are in the schedules of kills


@pytest.mark.soak  # what is different is in test_sink
class TestPartitions(SinkSuite):
    context = PartitionsContext
