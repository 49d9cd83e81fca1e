"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from typing import Any, ClassVar

from ..pipelines import CopyContext, Pipeline, Pipelines
from .contexts import StreamContext


class ReshardContext(StreamContext):
    """A stream whose shards are split and merged by turns, in the middle of each write: the records have a key each."""

    drain: ClassVar[dict[str, str]] = {}

    def options(self) -> dict[str, str]:
        return {**super().options(), "drainTimeout": "500ms", **self.drain}

    def write(self, count: int) -> list[dict[str, Any]]:
        rows = super().write(count // 2)
        self.reshard()
        return rows + super().write(count - count // 2)

    def reshard(self) -> None:
        """Splits a shard, or merges two, so that there are two to four."""
        is_open = self.server.open_shards(self.stream)
        shards = [shard for shard in self.server.shards(self.stream) if shard["ShardId"] in is_open]
        shards.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
        names = [shard["ShardId"] for shard in shards]
        if len(names) < 4 and self.count % 3:
            self.server.split(self.stream, names[self.count % len(names)])
        elif len(names) > 2:
            self.server.merge(self.stream, *names[:2])


class FanOutReshardContext(ReshardContext):
    """The same by enhanced fan-out. Another process takes a subscription over after five seconds, so epochs are few."""

    limit: ClassVar[dict[str, str]] = {"maxRowsPerTrigger": "40"}
    drain: ClassVar[dict[str, str]] = {
        "consumer": "efo",
        "consumerName": "query",
        "pollInterval": "2500ms",
        "drainTimeout": "4s",
    }


PIPELINES: Pipelines = {
    "copy of a stream": Pipeline(CopyContext, "foreach_batch", ReshardContext),
    "copy of a stream by format": Pipeline(CopyContext, "format", ReshardContext),
    "copy of a stream by fan-out": Pipeline(CopyContext, "foreach_batch", FanOutReshardContext),
}
QUICK = ()
SCHEDULES: dict[Any, Any] = {}
