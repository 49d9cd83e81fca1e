"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from typing import Any

from ..pipelines import CopyContext, Pipeline, Pipelines
from .contexts import FileSinkContext, LinesContext, OffsetSinkContext, TablesContext


class RecordsContext(CopyContext):
    """Without the time at which a record was read."""

    def rows(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if name != "timestamp"} for row in super().rows()]


PIPELINES: Pipelines = {
    "copy of lines by a connector": Pipeline(RecordsContext, "foreach_batch", LinesContext),
    "copy of tables by a connector": Pipeline(RecordsContext, "format", TablesContext),
    "file sink of Connect": Pipeline(FileSinkContext, "format"),
    "sink that keeps offsets": Pipeline(OffsetSinkContext, "foreach_batch"),
}
QUICK = ("copy of lines by a connector",)
SCHEDULES: dict[Any, Any] = {}
