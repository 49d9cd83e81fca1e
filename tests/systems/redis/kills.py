"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from connectors.testing.sink_cases import SinkQuery

from ..pipelines import CopyContext, Pipeline, Pipelines
from .contexts import HashContext, ListContext, StreamContext


class ShortIdleContext(StreamContext):
    """What a killed run has held is claimed soon."""

    min_idle = 3.0


PIPELINES: Pipelines = {
    "copy of a stream": Pipeline(CopyContext, "foreach_batch", ShortIdleContext),
    "copy of a stream by format": Pipeline(CopyContext, "format", ShortIdleContext),
    "hashes": Pipeline(HashContext, "format"),
    "list": Pipeline(ListContext, "foreach_batch"),
    "list by format": Pipeline(ListContext, "format"),
}
QUICK = ()
SCHEDULES = {HashContext: SinkQuery, ListContext: SinkQuery}
