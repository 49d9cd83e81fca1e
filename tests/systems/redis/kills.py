"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from connectors.testing.sink_cases import SinkQuery

from ..pipelines import CopyContext, Pipeline, Pipelines
from .contexts import HashContext, ListContext, StreamContext


class ShortIdleContext(StreamContext):
    """What a killed run has held is claimed soon."""

    min_idle = 3.0

    def options(self) -> dict[str, str]:
        return {**super().options(), "maxEpochTime": "2s"}


class LongEpochsContext(ShortIdleContext):
    """An epoch has all entries."""

    limit: ClassVar[Mapping[str, str]] = {"maxRowsPerTrigger": "1000"}


PIPELINES: Pipelines = {
    "copy of a stream": Pipeline(CopyContext, "foreach_batch", ShortIdleContext),
    "copy of a stream by format": Pipeline(CopyContext, "format", ShortIdleContext),
    "copy of a stream in long epochs": Pipeline(CopyContext, "foreach_batch", LongEpochsContext),
    "hashes": Pipeline(HashContext, "format"),
    "list": Pipeline(ListContext, "foreach_batch"),
    "list by format": Pipeline(ListContext, "format"),
}
QUICK = ()
SCHEDULES = {HashContext: SinkQuery, ListContext: SinkQuery}
