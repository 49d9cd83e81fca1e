"""What drivers do that are killed: rows of every source, or numbers, into every sink, each as one query of many."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from connectors.testing import SinkContext, SourceContext
from connectors.testing.kills import Kills

from ..delta_log import settings
from .elasticsearch.contexts import DocumentsContext, IndexContext, UpsertContext
from .files.contexts import BucketedContext, HdfsContext, RollingContext, RollingHdfsContext, RollingS3Context
from .files.test_source import FilesSourceContext
from .jdbc import contexts as jdbc
from .jdbc.incremental_contexts import PostgresStream, PostgresTables
from .kafka import sink_contexts as kafka
from .kafka import source_contexts as kafka_source
from .kafka.slot_contexts import SlotsContext
from .reference_contexts import BufferedContext, FilesContext, FileStreamContext, LinesContext
from .test_delta import DeltaContext


class InUtc(SinkContext):
    """What a source gave. Spark's own writer of Parquet, behind ``foreach_batch``, leaves the time zone away."""

    def rows(self) -> list[dict[str, Any]]:
        return [{name: _in_utc(value) for name, value in row.items()} for row in super().rows()]


class CopyContext(InUtc, FilesContext):
    """As Parquet."""


class DeltaCopyContext(InUtc, DeltaContext):
    """As a Delta table."""


def _in_utc(value: Any) -> Any:
    return value.replace(tzinfo=datetime.timezone.utc) if isinstance(value, datetime.datetime) else value


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
FILES: Pipelines = {
    "rolling files": Pipeline(RollingContext, "foreach_batch"),
    "rolling buckets": Pipeline(BucketedContext, "format"),
    "rolling files on S3": Pipeline(RollingS3Context, "format"),
    "files on HDFS": Pipeline(HdfsContext, "format"),
    "rolling files on HDFS": Pipeline(RollingHdfsContext, "foreach_batch"),
    "copy of files": Pipeline(CopyContext, "foreach_batch", FilesSourceContext),
    "copy of lines": Pipeline(CopyContext, "format", FileStreamContext),
}
JDBC: Pipelines = {
    "PostgreSQL by foreach_batch": Pipeline(jdbc.PostgresContext, "foreach_batch"),
    "PostgreSQL, prepared": Pipeline(jdbc.PreparedContext, "format"),
    "SQLite by foreach_batch": Pipeline(jdbc.SqliteContext, "foreach_batch"),
    "DuckDB": Pipeline(jdbc.DuckDbContext, "format"),
    "PostgreSQL, task by task": Pipeline(jdbc.TaskContext, "foreach_batch"),
    "copy of a table": Pipeline(CopyContext, "format", PostgresStream),
    "copy of tables": Pipeline(CopyContext, "format", PostgresTables),
}
KAFKA: Pipelines = {
    "Kafka by foreach_batch": Pipeline(kafka.DirectContext, "foreach_batch"),
    "Kafka": Pipeline(kafka.KafkaContext, "format"),
    "Kafka, staged by foreach_batch": Pipeline(kafka.KafkaContext, "foreach_batch"),
    "Kafka in slots": Pipeline(SlotsContext, "foreach_batch"),
    "Kafka to Kafka": Pipeline(kafka.KafkaCopyContext, "foreach_batch", kafka_source.CopiedContext),
    "Kafka to Delta": Pipeline(DeltaCopyContext, "foreach_batch", kafka_source.KafkaContext),
    "copy of Kafka": Pipeline(CopyContext, "format", kafka_source.KafkaContext),
    "copy of Kafka in transactions": Pipeline(CopyContext, "foreach_batch", kafka_source.TransactionalContext),
}
SEARCH: Pipelines = {
    "search": Pipeline(IndexContext, "format"),
    "search, upserts by foreach_batch": Pipeline(UpsertContext, "foreach_batch"),
    "copy of a search": Pipeline(CopyContext, "foreach_batch", DocumentsContext),
}
SYSTEMS: Mapping[str, Pipelines] = {"reference": REFERENCE, "files": FILES, "jdbc": JDBC, "kafka": KAFKA, "search": SEARCH}
SOME: Pipelines = {
    name: pipeline
    for pipelines in SYSTEMS.values()
    for name, pipeline in pipelines.items()
    if name in ("PostgreSQL, prepared", "Kafka by foreach_batch", "copy of Kafka")
}
"""What ``make test`` kills: each query makes a driver some seconds longer."""


@contextlib.contextmanager
def killed(pipelines: Pipelines, folder: Path, seed: int) -> Iterator[Kills]:
    """Drivers that run ``pipelines``, to be killed as ``seed`` says."""
    with contextlib.ExitStack() as closing:
        targets, sources = {}, {}
        for name, one in pipelines.items():
            targets[name] = closing.enter_context(_made(one.sink, folder / "targets" / name / "target")), one.carrier
            if one.source is not None:
                sources[name] = closing.enter_context(_made(one.source, folder / "systems" / name / "system"))
        to_delta = any(issubclass(one.sink, DeltaContext) for one in pipelines.values())
        yield Kills(folder, targets, seed=seed, sources=sources, conf=settings() if to_delta else {})


def _made(kind: Any, folder: Path) -> Any:
    folder.mkdir(parents=True)
    return contextlib.closing(kind(folder))
