"""Kinesis passes the cases of the kit."""

from __future__ import annotations

import pytest

from connectors.testing import EpochSourceSuite
from connectors.testing.spark_suites import SparkSourceSuite

from .contexts import FanOutContext, StreamContext

pytestmark = pytest.mark.server


class TestStream(EpochSourceSuite):
    context = StreamContext


@pytest.mark.soak
class TestFanOut(EpochSourceSuite):
    context = FanOutContext


@pytest.mark.soak
class TestStreamOnSpark(SparkSourceSuite):
    context = StreamContext
