"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from connectors.testing.sink_cases import SinkQuery

from ..pipelines import Pipeline, Pipelines
from .contexts import PartitionsContext, TableContext

PIPELINES: Pipelines = {
    "rows": Pipeline(TableContext, "format"),
    "rows of a partition": Pipeline(PartitionsContext, "foreach_batch"),
}
QUICK = ()
SCHEDULES = {TableContext: SinkQuery, PartitionsContext: SinkQuery}
