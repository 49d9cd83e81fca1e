"""What the epoch log costs: python tests/benchmarks/bench_epochs.py

Goals: at least 100,000 messages of 100 bytes per second and task, each with an id and a lease, received, recorded and read into
``noop``; at most 40 ms more for an epoch with one message than for a batch of one row of a source with offsets.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from figures import figure

import connectors
from connectors import workbench
from connectors.core import REQUIRED, Int, Options, Text
from connectors.core.epoch_source import EpochSource
from connectors.core.epochs import Messages, Receiver

ROUNDS, EPOCH, EPOCHS, SMALL = 3, 100_000, 10, 30


class CountingReceiver(Receiver):
    """Makes messages of 100 bytes at once, until a number that is kept in a file is used up."""

    def __init__(self, path: str, total: int) -> None:
        self._file, self._total = Path(path), total

    def receive(self, rows: int, seconds: float) -> Messages | None:
        count = min(rows, self._total - self._used())
        if count <= 0:
            return None
        with self._file.open("ab") as file:
            file.write(b".%d" % count)
        start = os.urandom(8).hex()
        names = pa.array([f"{start}{number:08d}" for number in range(count)], pa.large_string())
        values = pa.array([b"x" * 100] * count, pa.binary())
        return Messages(pa.RecordBatch.from_pydict({"value": values}), names, names)

    def acknowledge(self, leases: Sequence[str]) -> None:
        """Nothing is remembered."""

    def release(self, leases: Sequence[str]) -> None:
        """Nothing is remembered."""

    def pending(self) -> bool:
        return self._used() < self._total

    def _used(self) -> int:
        return sum(map(int, self._file.read_bytes().split(b".")[1:])) if self._file.exists() else 0


class CountingSource(EpochSource):
    name, schema = "counting", "value binary"
    options = Options(path=Text(REQUIRED), total=Int(REQUIRED))

    def receiver(self, schema: Any) -> Receiver:
        return CountingReceiver(self.values["path"], self.values["total"])


def seconds(spark: Any, format: str, options: dict[str, Any]) -> tuple[float, list[float]]:
    """How long an ``availableNow`` query takes, and each of its batches."""
    with tempfile.TemporaryDirectory() as folder:
        if format == "counting":
            options = {**options, "path": f"{folder}/used", "stateLocation": f"{folder}/log", "drainTimeout": "10ms"}
        rows = spark.readStream.format(f"connectors.{format}").options(**options).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
        began = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        taken = time.perf_counter() - began
        return taken, [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress][1:]


def main() -> None:
    spark = workbench.session(master="local[1]")
    connectors.register(spark, CountingSource)
    rates: list[float] = []
    small: dict[str, list[float]] = {"counting": [], "sequence": []}
    for _ in range(ROUNDS):
        _, batches = seconds(spark, "counting", {"total": EPOCH * EPOCHS, "maxRowsPerTrigger": EPOCH})
        rates.append(EPOCH / statistics.median(batches))
        for name, options in (("counting", {"total": SMALL, "maxRowsPerTrigger": 1}), ("sequence", {"end": SMALL})):
            _, batches = seconds(spark, name, {"maxRowsPerTrigger": 1, **options})
            small[name].append(statistics.median(batches) * 1000)
    figure("messages → Spark by the epoch log, in one task", "rows/s", rates, least=100_000)
    more = [epoch - batch for epoch, batch in zip(small["counting"], small["sequence"], strict=True)]
    figure("time of an epoch of one message beyond a batch with offsets", "ms", more, most=40)


if __name__ == "__main__":
    main()
