"""``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream``: the only subclasses of Spark's data source API.

Thin on purpose: each method finds the part of the core that answers it. Objects of these classes are pickled between
Spark's planning processes and its tasks, so they hold options and nothing else; parts are made where they are used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming import datasource as limits
from pyspark.sql.types import StructType

from ..core.commit import Commit
from ..core.errors import ConnectorError, Misconfigured, Problem, Transient
from ..core.ledger import app_query, once_query
from ..core.metrics import Meter
from ..core.planning import INITIAL, Offset, Planner
from ..core.reading import read_slice
from ..core.sink import Batch, Committable, Sink
from ..core.source import UNLIMITED, Slice, Source
from ..core.writing import stage
from .library import format_bases
from .measure import count_commit, sink_meter, source_meter
from .query_watch import ends_when_silent
from .session import action_ids, arrow_schema, as_active, task_ids, task_run

_log = logging.getLogger("connectors")


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Lets a connector's error reach the user as its message alone; Spark would put a worker's traceback in front of it."""
    try:
        yield
    except ConnectorError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # read by Spark's worker when it reports the exception, then it ends
        raise


_SPARKS_OWN = ("checkpointlocation",)
"""Options that Spark reads itself and hands on all the same."""


def sink_with(kind: type[Sink], options: Mapping[str, str]) -> Sink:
    """The sink of the options that Spark hands to a format: it adds some of its own."""
    sink = kind.of({key: value for key, value in options.items() if key.lower() not in _SPARKS_OWN})
    sink.checkpoint = next((options[key] for key in options if key.lower() in _SPARKS_OWN), None)
    return sink


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
        with plainly():
            return self._source(streaming=False).schema

    def reader(self, schema: StructType) -> BatchReader:
        with plainly():
            return BatchReader(self._source(streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
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

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        with plainly():
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


class StreamReader(DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """A stream, micro-batch by micro-batch. See :mod:`connectors.core.planning` for what an offset holds."""

    def __init__(self, source: Source, schema: StructType) -> None:
        self.source = source
        self.columns = schema
        self.planner = Planner(source)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "columns": self.columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["source"], state["columns"])  # type: ignore[misc]

    def initialOffset(self) -> Offset:
        return INITIAL

    def getDefaultReadLimit(self) -> limits.ReadLimit:
        limit = self.source.limit()
        if limit.rows is not None:
            return limits.ReadMaxRows(limit.rows)
        if limit.bytes is not None:
            return limits.ReadMaxBytes(limit.bytes)
        return limits.ReadMaxFiles(limit.files) if limit.files is not None else limits.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with plainly():
            self.planner.freeze()

    def latestOffset(self, start: Offset, limit: limits.ReadLimit) -> Offset:
        with plainly():
            everything = isinstance(limit, limits.ReadAllAvailable)
            return self.planner.latest(start, UNLIMITED if everything else self.source.limit())

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with plainly():
            return [InputPartition(numbered) for numbered in enumerate(self.planner.slices(start, end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        number, part = partition.value
        return read_slice(self.source, part, arrow_schema(self.columns), source_meter(self.source, number))

    def commit(self, end: Offset) -> None:
        with plainly():
            self.planner.committed(end)

    def stop(self) -> None:
        self.planner.close()


class RefusedStream(DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """Says why a stream cannot be at Spark's first question: Spark hides what :meth:`streamReader` raises itself."""

    def __init__(self, refused: ConnectorError) -> None:
        self.refused = refused

    def initialOffset(self) -> Offset:
        with plainly():
            raise self.refused

    def getDefaultReadLimit(self) -> limits.ReadLimit:
        self.initialOffset()
        return limits.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.initialOffset()

    def latestOffset(self, start: Offset, limit: limits.ReadLimit) -> Offset:
        return self.initialOffset()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        raise self.refused

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self.refused


def _rows(source: Source, part: Slice | None, schema: StructType) -> Iterator[pa.RecordBatch]:
    if part is not None:
        run, retried = action_ids()
        yield from read_slice(source, replace(part, run=run, retried=retried), arrow_schema(schema))


@dataclass
class Staged(WriterCommitMessage):
    """What a task reports to the driver: its committable, and which batch of which query it belongs to."""

    query: str | None
    committable: dict[str, Any]


def _committables(messages: Sequence[WriterCommitMessage | None]) -> list[Committable]:
    return [Committable(**message.committable) for message in messages if isinstance(message, Staged)]


def _stage(
    sink: Sink, batch: Batch, schema: pa.Schema, subtask: int, rows: Iterator[pa.RecordBatch], meter: Meter
) -> Committable:
    """Stages the rows of a task. One that fails by an outage ends when the target is back: Spark tries it again at once."""
    try:
        with ends_when_silent(sink.values["taskTimeout"], meter):
            return stage(sink, batch, schema, subtask, meter.through(rows))
    except Transient as outage:
        if not sink.writers_retry:
            Commit(sink).await_target(batch, outage)
        raise


def _abort(sink: Sink, batch: Batch, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Removes what was staged for a batch that failed, as far as the target can be reached.

    Spark replaces the error of the batch by "Writing job failed" when an abort raises one of its own.
    """
    try:
        Commit(sink).abort(batch, _committables(messages))
    except Exception:
        _log.warning("connectors.%s: the stage of %s is left; a later run removes it", sink.name, batch, exc_info=True)


class BatchWriter(DataSourceArrowWriter):
    """``df.write``: one batch, all or nothing. ``txnAppId`` and ``txnVersion`` make running it again harmless."""

    def __init__(self, sink: Sink, schema: StructType, overwrite: bool) -> None:
        self.sink = sink
        self.columns = schema
        app, version = sink.values["txnAppId"], sink.values["txnVersion"]
        query, number = (app_query(app), version) if app is not None else (once_query(), 0)
        self.batch = Batch(sink.sink_id(), query, number, replace=overwrite, run=uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        _, _, subtask = task_ids()
        with plainly():
            if subtask == 0 and self.sink.values["txnAppId"] is not None:  # others write a new batch each time
                Commit(self.sink).drop_attempts(self.batch)
            staged = _stage(self.sink, self.batch, arrow_schema(self.columns), subtask, iterator, Meter())
        return Staged(self.batch.query, asdict(staged))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with plainly():
            Commit(self.sink).finish(self.batch, _committables(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self.sink, self.batch, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format``: each micro-batch is committed once, also when Spark replays it."""

    def __init__(self, sink: Sink, schema: StructType) -> None:
        self.sink = sink
        self.columns = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        query, number, subtask = task_ids()
        batch = Batch(self.sink.sink_id(), str(query), number, run=task_run())
        with plainly(), sink_meter(self.sink, batch, subtask).counting() as meter:
            if subtask == 0:  # no code of the driver runs before the tasks
                Commit(self.sink).drop_attempts(batch)
            staged = _stage(self.sink, batch, arrow_schema(self.columns), subtask, iterator, meter)
        return Staged(query, asdict(staged))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with plainly():
            if batch := self._batch(messages, batchId):
                staged, began = _committables(messages), time.monotonic()
                with sink_meter(self.sink, batch).counting() as meter:
                    Commit(self.sink).finish(batch, staged)
                    count_commit(meter, began, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if batch := self._batch(messages, batchId):
            _abort(self.sink, batch, messages)

    def _batch(self, messages: Sequence[WriterCommitMessage | None], number: int) -> Batch | None:
        """The batch that the tasks wrote; ``None`` when no task ran, so that there is nothing to commit."""
        queries = [message.query for message in messages if isinstance(message, Staged)]
        return Batch(self.sink.sink_id(), str(queries[0]), number) if queries else None


def register_formats(spark: Any, systems: Mapping[str, tuple[type[Source] | None, type[Sink] | None]]) -> None:
    """Makes ``connectors.<name>`` known to ``spark`` for each of ``systems``."""
    before = format_bases(spark)
    with as_active(spark):
        for name, (source, sink) in systems.items():
            spark.dataSource.register(format_of(name, source, sink, before))
