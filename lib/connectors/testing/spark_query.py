"""A streaming query of the suites on Spark: described as data, so that another process can run the same one."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import connectors

from ..core.sink import Sink
from ..spark.foreach_batch import ForeachBatch
from ..spark.library import Carried
from .faults import FailureInjector, Point
from .faulty import faulty_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass
class SparkQuery:
    """``source`` is a format's short name; ``sink`` is ``"module:Class"``; ``faults`` the folder of a failure injector."""

    name: str
    source: str
    source_options: dict[str, str]
    sink: str
    sink_options: dict[str, str]
    carrier: str
    checkpoint: str
    faults: str
    select: Sequence[str] = ("*",)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Starts the query; it ends when everything available is written."""
        self._forget_half_an_offset()
        injector = FailureInjector(self.faults)
        kind = faulty_sink(load(self.sink), injector)
        rows = spark.readStream.format(f"connectors.{self.source}").options(**self.source_options).load()
        writer = rows.selectExpr(*self.select).writeStream.queryName(self.name).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", self.checkpoint)
        if self.carrier == "format":
            connectors.register(spark, kind)
            return writer.format(f"connectors.{kind.name}").options(**self.sink_options).start()
        return writer.foreachBatch(_Watched(kind.of(self.sink_options), injector)).start()

    def run(self, spark: SparkSession) -> None:
        """Runs the query to its end; raises what ended it before."""
        self.start(spark).awaitTermination()

    def forget_commit(self) -> None:
        """As if the driver had died after the sink's commit and before Spark's own."""
        commits = [file for file in (Path(self.checkpoint) / "commits").iterdir() if file.name.isdigit()]
        newest = max(commits, key=lambda file: int(file.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)

    def _forget_half_an_offset(self) -> None:
        """Lets a query begin whose driver was killed while it wrote its very first offset.

        Spark (4.1 and later) takes what is left of that file for the state of another query, and refuses to start until
        somebody has removed it.
        """
        offsets = Path(self.checkpoint) / "offsets"
        left = list(offsets.iterdir()) if offsets.exists() else []
        if all(file.name.startswith(".") for file in left):
            for file in left:
                file.unlink()


class _Watched(Carried):
    """A ``foreachBatch`` function that passes the last point of a batch."""

    def __init__(self, sink: Sink, injector: FailureInjector) -> None:
        self.inner = ForeachBatch(sink)
        self.injector = injector

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.inner(frame, number)
        self.injector.reach(Point.BATCH_DONE)


def load(path: str) -> Any:
    """The object that ``"module:name"`` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
