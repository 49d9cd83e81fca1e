"""Sink and source pass every case of the kit on a real OpenSearch."""

import pytest

from connectors.testing import SinkSuite, SourceSuite

from .contexts import AtLeastOnceContext, DocumentsContext, IndexContext


class TestWithIds(SinkSuite):
    context = IndexContext


@pytest.mark.soak  # a made-up target goes through the same cases of the engine without ids
class TestWithoutIds(SinkSuite):
    context = AtLeastOnceContext


class TestSource(SourceSuite):
    context = DocumentsContext
