"""The queries of drivers that are killed: rows of a source, or numbers, into a sink, each as one query of many.

A system whose folder has a module ``kills`` takes part. The module declares:

- ``PIPELINES``: the queries that ``make soak`` kills with those of the same system,
- ``QUICK``: the names of those that ``make test`` kills too; each makes a driver some seconds longer,
- ``SCHEDULES``: contexts of sinks for a hundred schedules of kills without Spark, and the query that writes to each.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from connectors.systems import SYSTEMS
from connectors.testing import SinkContext, SourceContext
from connectors.testing.contexts import open_context
from connectors.testing.kills import Kills

from ..delta_log import settings
from .reference_contexts import (
    BufferedContext,
    FilesContext,
    LinesContext,
    MisbehavingQueueContext,
    QueueContext,
    ShardContext,
)
from .test_delta import DeltaContext
from .test_delta_tables import RoutingContext


class InUtc(SinkContext):
    """A copy of a source's rows. Spark's own writer of Parquet, behind ``foreach_batch``, leaves the time zone away."""

    def rows(self) -> list[dict[str, Any]]:
        return [{name: _in_utc(value) for name, value in row.items()} for row in super().rows()]


class CopyContext(InUtc, FilesContext):
    """As Parquet."""


class DeltaCopyContext(InUtc, DeltaContext):
    """As a Delta table."""


def _in_utc(value: Any) -> Any:
    return value.replace(tzinfo=datetime.timezone.utc) if isinstance(value, datetime.datetime) else value


class ShortLeases(SourceContext):
    """What a killed run has held is delivered again soon: the next run waits for it."""

    def options(self) -> dict[str, str]:
        return {**super().options(), "lease": "3s", "maxEpochTime": "2s"}


class KilledQueueContext(ShortLeases, QueueContext):
    """A queue."""


class KilledMisbehavingQueueContext(ShortLeases, MisbehavingQueueContext):
    """A queue that misbehaves."""


class Pipeline(NamedTuple):
    """Rows of ``source``, or numbers where there is none, into ``sink``."""

    sink: type[SinkContext]
    carrier: str
    source: type[SourceContext] | None = None


Pipelines = Mapping[str, Pipeline]

REFERENCE: Pipelines = {
    "buffered by foreach_batch": Pipeline(BufferedContext, "foreach_batch"),
    "buffered": Pipeline(BufferedContext, "format"),
    "files by foreach_batch": Pipeline(FilesContext, "foreach_batch"),
    "lines": Pipeline(LinesContext, "format"),
}
DELTA: Pipelines = {"by row": Pipeline(RoutingContext, "foreach_batch")}
"""Apart: its batches take so long that kills of other queries would let it write none."""
QUEUES: Pipelines = {
    "copy of a queue": Pipeline(CopyContext, "foreach_batch", KilledQueueContext),
    "copy of a misbehaving queue": Pipeline(CopyContext, "format", KilledMisbehavingQueueContext),
    "copy of shards": Pipeline(CopyContext, "foreach_batch", ShardContext),
}
STREAMS = ("kinesis", "pubsub", "redis")
REQUESTS = ("dynamodb", "elasticsearch", "http", "redis")


def groups() -> dict[str, Pipelines]:
    """All queries by the driver that runs them together: each of its kills strikes every system of the group."""
    grouped: dict[str, dict[str, Pipeline]] = {
        "reference": dict(REFERENCE), "delta": dict(DELTA), "streams": dict(QUEUES), "requests": {},
    }  # fmt: skip
    for system, kills in kills_of_systems().items():
        for name, pipeline in kills.PIPELINES.items():
            if system in STREAMS and pipeline.source:
                group = "streams"
            elif system in REQUESTS:
                group = "requests"
            else:
                group = system
            grouped.setdefault(group, {})[f"{name} of {system}"] = pipeline
    return dict(grouped)


def kills_of_systems() -> dict[str, Any]:
    """The modules ``kills`` of the systems, by the names of these."""
    folder = Path(__file__).parent
    return {name: import_module(f".{name}.kills", __package__) for name in SYSTEMS if (folder / name / "kills.py").exists()}


@contextlib.contextmanager
def killed(pipelines: Pipelines, folder: Path, seed: int) -> Iterator[Kills]:
    """Drivers that run ``pipelines``, to be killed as ``seed`` says."""
    with contextlib.ExitStack() as contexts:
        targets, sources = {}, {}
        for name, pipeline in pipelines.items():
            target = contexts.enter_context(open_context(pipeline.sink, folder / "targets" / name / "target"))
            targets[name] = target, pipeline.carrier
            if pipeline.source is not None:
                system = open_context(pipeline.source, folder / "systems" / name / "system")
                sources[name] = contexts.enter_context(system)
        to_delta = any(issubclass(pipeline.sink, DeltaContext) for pipeline in pipelines.values())
        yield Kills(folder, targets, seed=seed, sources=sources, conf=settings() if to_delta else {})
