"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from connectors.testing.sink_cases import SinkQuery

from ..pipelines import Pipeline, Pipelines
from .contexts import ItemsContext, VersionsContext

PIPELINES: Pipelines = {
    "items": Pipeline(ItemsContext, "format"),
    "items with versions": Pipeline(VersionsContext, "foreach_batch"),
}
QUICK = ()
SCHEDULES = {ItemsContext: SinkQuery, VersionsContext: SinkQuery}
