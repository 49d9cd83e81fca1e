"""``spark.readStream``: a source as Spark's streaming reader, with admission control. This module needs Spark 4.2."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource as limits
from pyspark.sql.types import StructType

from ..core.planning import INITIAL, Offset, Planner
from ..core.reading import read_slice
from ..core.source import UNLIMITED, Source
from .measure import source_meter
from .session import action_ids, arrow_schema
from .workers import plainly

_PLANNER_PROCESS: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def exit_when_terminated() -> None:
    """Lets SIGTERM end a planner's process by an exit, on whose way Spark calls :meth:`StreamReader.stop`.

    By that signal Spark ends the process at the end of a query, and without this nothing is closed. Does nothing elsewhere.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _PLANNER_PROCESS and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit


class StreamReader(DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """A stream, micro-batch by micro-batch. See :mod:`connectors.core.planning` for what an offset holds."""

    def __init__(self, source: Source, schema: StructType) -> None:
        self.source = source
        self.columns = schema
        self.planner = Planner(source)
        exit_when_terminated()

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
        part = replace(part, retried=action_ids()[1])
        return read_slice(self.source, part, arrow_schema(self.columns), source_meter(self.source, number))

    def commit(self, end: Offset) -> None:
        with plainly():
            self.planner.committed(end)

    def stop(self) -> None:
        self.planner.close()
