"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from connectors.testing.sink_cases import SinkQuery

from ..pipelines import CopyContext, Pipeline, Pipelines
from .contexts import ApiContext, PutContext, RequestsContext

PIPELINES: Pipelines = {
    "copy of an API": Pipeline(CopyContext, "foreach_batch", ApiContext),
    "copy of an API by format": Pipeline(CopyContext, "format", ApiContext),
    "requests with keys": Pipeline(RequestsContext, "format"),
    "requests with keys by foreach_batch": Pipeline(RequestsContext, "foreach_batch"),
}
QUICK = ()
SCHEDULES = {RequestsContext: SinkQuery, PutContext: SinkQuery}
