"""The sink and the source on Spark."""

from __future__ import annotations

import pytest

from connectors.testing.spark_suites import SparkSinkSuite, SparkSourceSuite

from .contexts import DocumentsContext, IndexContext

pytestmark = pytest.mark.spark


class TestSink(SparkSinkSuite):
    context = IndexContext


class TestSource(SparkSourceSuite):
    context = DocumentsContext
