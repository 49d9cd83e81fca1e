"""Redis passes the cases of the kit."""

from __future__ import annotations

import pytest

from connectors.testing import QueueSuite, SinkSuite
from connectors.testing.spark_suites import SparkSinkSuite, SparkSourceSuite

from .contexts import EntriesContext, FieldsContext, HashContext, ListContext, StreamContext

pytestmark = pytest.mark.server


class TestStream(QueueSuite):
    context = StreamContext


class TestStreamOnSpark(SparkSourceSuite):
    context = StreamContext


class TestHash(SinkSuite):
    context = HashContext


@pytest.mark.soak
class TestFields(SinkSuite):
    context = FieldsContext


@pytest.mark.soak
class TestEntries(SinkSuite):
    context = EntriesContext


@pytest.mark.soak
class TestHashOnSpark(SparkSinkSuite):
    context = HashContext


class TestList(SinkSuite):
    context = ListContext


class TestListOnSpark(SparkSinkSuite):
    context = ListContext
