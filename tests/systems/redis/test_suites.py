"""Redis passes the cases of the kit."""

from __future__ import annotations

import pytest

from connectors.testing.epoch_suite import EpochSourceSuite
from connectors.testing.spark_suites import SparkSourceSuite

from .contexts import StreamContext

pytestmark = pytest.mark.server


class TestStream(EpochSourceSuite):
    context = StreamContext


class TestStreamOnSpark(SparkSourceSuite):
    context = StreamContext
