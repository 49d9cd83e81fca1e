"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from connectors.testing.sink_cases import SinkQuery

from ..pipelines import CopyContext, Pipeline, Pipelines
from .contexts import DocumentsContext, IndexContext, UpsertContext

PIPELINES: Pipelines = {
    "search": Pipeline(IndexContext, "format"),
    "search, upserts by foreach_batch": Pipeline(UpsertContext, "foreach_batch"),
    "copy of a search": Pipeline(CopyContext, "foreach_batch", DocumentsContext),
}
QUICK = ()
SCHEDULES = {IndexContext: SinkQuery}
