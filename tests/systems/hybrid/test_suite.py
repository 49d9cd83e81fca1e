"""A hybrid source passes every case of a source."""

from connectors.testing import SimulationSuite, SourceSuite

from .contexts import HybridContext


class TestHybrid(SourceSuite):
    context = HybridContext


class TestHistories(SimulationSuite):
    context = HybridContext
