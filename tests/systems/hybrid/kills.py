"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from ..pipelines import CopyContext, Pipeline, Pipelines
from .contexts import HybridContext
from .test_kafka import FilesToKafkaContext

PIPELINES: Pipelines = {
    "copy of files and a clock": Pipeline(CopyContext, "format", HybridContext),
    "copy of files and a topic": Pipeline(CopyContext, "foreach_batch", FilesToKafkaContext),
}
QUICK = ()
SCHEDULES: dict[type, type] = {}
