"""What the framework itself costs, as ratios taken in one run: python tests/benchmarks/bench_core.py

Goals: a source through the adapter takes at most 1.2 times as long as a bare PySpark reader of the same 20 M longs; the
``foreach_batch`` carrier at most 25 ms more per micro-batch than Spark's ``noop``; 100,000 split states go through JSON
and back in a second.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from figures import figure
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from connectors import workbench
from connectors.core import Batch, Committable, Committer, FrameSink, Options, SinkWriter
from connectors.core.ledger import FileLedger
from connectors.ground.state import dumps, loads
from connectors.spark.foreach_batch import ForeachBatch
from connectors.storage.local import LocalStorage
from connectors.systems.sequence import Range

ROWS, ROUNDS, BATCHES = 20_000_000, 5, 40


class Bare(DataSource):
    """The shortest PySpark reader of the same numbers."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return "value long"

    def reader(self, schema: Any) -> DataSourceReader:
        return BareReader()


class BareReader(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        half = ROWS // 2
        schema = pa.schema([("value", pa.int64())])
        for first in range(partition.value * half + 1, (partition.value + 1) * half + 1, 100_000):
            numbers = np.arange(first, first + 100_000, dtype=np.int64)
            yield pa.RecordBatch.from_arrays([pa.array(numbers)], schema=schema)


class Null(FrameSink):
    """A sink that drops its rows and keeps a ledger: what is left is the carrier and the commit protocol."""

    name = "null"
    stages_frames = True
    options = Options()
    folder = ""

    def target(self) -> str:
        return "nowhere"

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        raise NotImplementedError

    def stage_frame(self, frame: Any, batch: Batch) -> list[Committable]:
        frame.write.format("noop").mode("overwrite").save()
        return []

    def ledger(self) -> FileLedger:
        return FileLedger(LocalStorage(f"{self.folder}/{self.sink_id()}"))

    def committer(self) -> Committer:
        return Nothing()


class Nothing(Committer):
    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        """There is nothing."""

    def discard(self, committable: Committable) -> None:
        """There is nothing."""


def main() -> None:
    spark = workbench.session()
    spark.dataSource.register(Bare)
    compare_reading(spark)
    compare_carrier(spark)
    states()


def compare_reading(spark: Any) -> None:
    def read(name: str, **options: str) -> float:
        frame = spark.read.format(name).options(**options).load()
        return timed(lambda: frame.write.format("noop").mode("overwrite").save())

    pairs = [(read("connectors.sequence", end=str(ROWS)), read("bare")) for _ in range(ROUNDS + 1)][1:]
    ours, bare = ([ROWS / seconds for seconds in times] for times in zip(*pairs, strict=True))
    figure("20 M longs → Spark by the adapter", "rows/s", ours, "a bare PySpark reader", bare, least=0.83)


def compare_carrier(spark: Any) -> None:
    folder = Path(tempfile.mkdtemp())
    Null.folder = str(folder / "ledger")

    def noop(frame: Any, number: int) -> None:
        frame.write.format("noop").mode("overwrite").save()

    more = []
    for number in range(ROUNDS):
        carrier = ForeachBatch(Null.of({"sinkId": str(number)}))
        plain_time = median_batch(spark, noop, folder / f"noop{number}")
        more.append(median_batch(spark, carrier, folder / f"ours{number}") - plain_time)
    shutil.rmtree(folder)
    figure("time of foreach_batch beyond noop, by micro-batch", "ms", more[1:], most=25)  # the first one warms up


def median_batch(spark: Any, function: Callable[[Any, int], None], checkpoint: Path) -> float:
    """The median milliseconds of what a micro-batch spends in the sink."""
    end = 1000 * BATCHES
    rows = spark.readStream.format("connectors.sequence").option("end", end).option("maxRowsPerTrigger", 1000).load()
    query = (
        rows.writeStream.foreachBatch(function)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spent = [json.loads(batch.json)["durationMs"]["addBatch"] for batch in query.recentProgress]
    return statistics.median(spent[BATCHES // 4 :])


def states() -> None:
    splits = [Range(number * 10, number * 10 + 9) for number in range(100_000)]

    def trip() -> None:
        text = dumps({"v": 1, "splits": [vars(split) for split in splits]})
        again = [Range(**state) for state in loads(text, "the states")["splits"]]
        assert again == splits

    figure("100,000 split states through JSON and back", "s", [timed(trip) for _ in range(ROUNDS)], most=1)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
