"""The connector of REST APIs passes the cases of the kit."""

from __future__ import annotations

import pytest

from connectors.testing import EpochSourceSuite, SinkSuite
from connectors.testing.spark_suites import SparkSinkSuite, SparkSourceSuite

from .contexts import ApiContext, LinesContext, PutContext, RequestsContext, SearchContext


class TestApi(EpochSourceSuite):
    context = ApiContext


@pytest.mark.soak
class TestSearch(EpochSourceSuite):
    context = SearchContext


class TestApiOnSpark(SparkSourceSuite):
    context = ApiContext


class TestRequests(SinkSuite):
    context = RequestsContext


class TestPut(SinkSuite):
    context = PutContext


@pytest.mark.soak
class TestLines(SinkSuite):
    context = LinesContext


class TestRequestsOnSpark(SparkSinkSuite):
    context = RequestsContext
