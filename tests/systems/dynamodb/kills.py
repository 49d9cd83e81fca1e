"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from connectors.testing.sink_cases import SinkQuery

from ..pipelines import Pipeline, Pipelines
from .contexts import ItemsContext, TransactionsContext, VersionsContext

PIPELINES: Pipelines = {
    "items": Pipeline(ItemsContext, "format"),
    "items with versions": Pipeline(VersionsContext, "foreach_batch"),
    "transactions": Pipeline(TransactionsContext, "foreach_batch"),
    "transactions by format": Pipeline(TransactionsContext, "format"),
}
QUICK = ()
SCHEDULES = {ItemsContext: SinkQuery, VersionsContext: SinkQuery, TransactionsContext: SinkQuery}
