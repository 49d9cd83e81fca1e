"""``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream``: the only subclasses of Spark's data source API.

Thin on purpose: each method finds the part of the core that answers it. Objects of these classes are pickled between
Spark's planning processes and its tasks, so they hold options and nothing else; parts are made where they are used.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ..core.batch import Batch
from ..core.commit import Commit
from ..core.ledger import app_query, once_query
from ..core.metrics import Meter
from ..core.planning import Offset, Planner
from ..core.reading import read_slice
from ..core.sink import Sink
from ..core.source import Slice, Source
from ..ground import machine
from ..ground.errors import ConnectorError, Misconfigured, Problem, Transient
from ..ground.retry import RetrySettings
from ..ground.runtime import STREAM_SINK, STREAM_SOURCE
from .filters import PushedFilters
from .library import format_bases
from .session import action_ids, arrow_schema, as_active, require, task_ids
from .workers import Staged, abort_batch, committables, plainly, stage_in_task

_SPARKS_OWN = ("checkpointlocation",)
"""Options that Spark reads itself and hands on all the same."""


def sink_with(kind: type[Sink], options: Mapping[str, str]) -> Sink:
    """The sink of the options that Spark hands to a format: it adds some of its own."""
    sink = kind.of({key: value for key, value in options.items() if key.lower() not in _SPARKS_OWN})
    sink.checkpoint = next((options[key] for key in options if key.lower() in _SPARKS_OWN), None)
    return sink


_FILTER_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
"""Spark's program of a read that pushes filters. Where the session does not, a reader must not even have the method."""


class ConnectorFormat(DataSource):
    """One system as a Spark format. :func:`format_of` makes a subclass per system."""

    system: ClassVar[str] = ""
    source_class: ClassVar[type[Source] | None] = None
    sink_class: ClassVar[type[Sink] | None] = None
    extensions: ClassVar[Sequence[Any]] = ()
    """Registers the user's own parts of the system in each process that unpickles the class."""

    @classmethod
    def name(cls) -> str:
        return f"connectors.{cls.system}"

    def _source(self, *, streaming: bool) -> Source:
        if self.source_class is None:
            raise Misconfigured(self.name(), [Problem("format", f"{self.name()} is a sink; it cannot be read.")])
        return self.source_class.of(self.options, streaming=streaming)

    def _sink(self) -> Sink:
        if self.sink_class is None:
            raise Misconfigured(self.name(), [Problem("format", f"{self.name()} is a source; it cannot be written.")])
        return sink_with(self.sink_class, self.options)

    def schema(self) -> str:
        """The schema. Some systems tell it, so that this is the first contact with them."""
        with plainly():
            source = self._source(streaming=False)
            retry = RetrySettings.of(source.values)
            return retry.call(lambda: source.schema) if retry.at_start else source.schema

    def reader(self, schema: StructType) -> BatchReader:
        with plainly():
            source = self._source(streaming=False)
            if source.pushes_filters and _FILTER_WORKER in sys.modules:
                return FilteringReader(source, schema)
            return BatchReader(source, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            require(STREAM_SOURCE, connector=self.name())
            from .stream_reader import StreamReader

            return StreamReader(self._source(streaming=True), schema)
        except ConnectorError as refused:
            return RefusedStream(refused)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        with plainly():
            sink = self._sink()
            if overwrite and not sink.replaces:
                text = 'must be append; "overwrite" cannot replace everything in this target in one step.'
                raise Misconfigured(self.name(), [Problem("mode", text)])
            _refuse(sink, schema)
            return BatchWriter(sink, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        with plainly():
            require(STREAM_SINK, connector=self.name())
            from .stream_writer import StreamWriter

            sink = self._sink()
            _refuse(sink, schema)
            return StreamWriter(sink, schema)


def _refuse(sink: Sink, schema: StructType) -> None:
    """Raises :class:`Misconfigured` for rows that ``sink`` cannot write, before the first task. Tasks wait for an outage."""
    columns = arrow_schema(schema)
    sink.refuse_frame(columns, placed=False)
    with contextlib.suppress(Transient):
        sink.check_target(columns)


def format_of(
    system: str, source: type[Source] | None, sink: type[Sink] | None, before: tuple[type, ...] = ()
) -> type[ConnectorFormat]:
    """The Spark data source class of one system, with the bases ``before`` in front of its own."""
    bases = (*before, ConnectorFormat)
    extensions = [kind.extensions for kind in (source, sink) if kind is not None]
    body = {"system": system, "source_class": source, "sink_class": sink, "extensions": extensions}
    return type(f"Connectors_{system}", bases, body)


class BatchReader(DataSourceReader):
    """A bounded read: everything from the source's start to where it ends now."""

    def __init__(self, source: Source, schema: StructType) -> None:
        if not source.bounded:
            raise Misconfigured(
                f"connectors.{source.name}",
                [Problem("format", "has no end with these options; read it with readStream, or give it an end.")],
            )
        self.source = source
        self.columns = schema

    def partitions(self) -> Sequence[InputPartition]:
        with plainly():
            planner = Planner(self.source)
            slices = [InputPartition(part) for part in planner.whole()]
            planner.close()
            return slices or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self.source, partition.value, self.columns)


class FilteringReader(PushedFilters, BatchReader):
    """A batch reader that takes filters."""


class RefusedStream(DataSourceStreamReader):
    """Says why a stream cannot be at Spark's first question: Spark hides what :meth:`streamReader` raises itself."""

    def __init__(self, refused: ConnectorError) -> None:
        self.refused = refused

    def initialOffset(self) -> Offset:
        with plainly():
            raise self.refused

    def latestOffset(self, *start_and_limit: Any) -> Offset:
        return self.initialOffset()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        raise self.refused

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self.refused


def _rows(source: Source, part: Slice | None, schema: StructType) -> Iterator[pa.RecordBatch]:
    if part is not None:
        run, retried = action_ids()
        yield from read_slice(source, replace(part, run=run, retried=retried), arrow_schema(schema))


class BatchWriter(DataSourceArrowWriter):
    """``df.write``: one batch, all or nothing. ``txnAppId`` and ``txnVersion`` make running it again harmless."""

    def __init__(self, sink: Sink, schema: StructType, overwrite: bool) -> None:
        self.sink = sink
        self.columns = schema
        app, version = sink.values["txnAppId"], sink.values["txnVersion"]
        query, number = (app_query(app), version) if app is not None else (once_query(), 0)
        self.batch = Batch(sink.sink_id(), query, number, replace=overwrite, run=machine.token())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        _, _, subtask = task_ids()
        with plainly():
            if subtask == 0 and self.sink.values["txnAppId"] is not None:  # others write a new batch each time
                Commit(self.sink).drop_attempts(self.batch)
            staged = stage_in_task(self.sink, self.batch, arrow_schema(self.columns), subtask, iterator, Meter())
        return Staged(self.batch.query, asdict(staged))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with plainly():
            Commit(self.sink).finish(self.batch, committables(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task that failed has no message, and no later run looks for what it staged."""
        abort_batch(self.sink, self.batch, messages)
        with contextlib.suppress(Exception):
            Commit(self.sink).drop_attempts(self.batch, failed=True)


def register_formats(spark: Any, systems: Mapping[str, tuple[type[Source] | None, type[Sink] | None]]) -> None:
    """Makes ``connectors.<name>`` known to ``spark`` for each of ``systems``."""
    before = format_bases(spark)
    with as_active(spark):
        for name, (source, sink) in systems.items():
            spark.dataSource.register(format_of(name, source, sink, before))


def refuse_format(spark: Any, system: str, missing: ConnectorError) -> None:
    """Lets every use of Spark's format ``system``, which the session lacks, fail by ``missing``."""

    class MissingFormat(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            raise missing

        @classmethod
        def name(cls) -> str:
            return system

    with as_active(spark):
        spark.dataSource.register(MissingFormat)


def _is_started_by_spark() -> bool:
    """True in a process whose program is one of PySpark's own, such as the daemon whose forks plan reads and writes."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    return program is not None and program.name.startswith("pyspark.")


if _is_started_by_spark():
    gc.freeze()  # Spark collects garbage after each answer: what is loaded until here is none, and takes 50 ms to look at
