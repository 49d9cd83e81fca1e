"""What metrics cost, as a share of a micro-batch, taken in one run: python tests/benchmarks/bench_metrics.py

Goal: at most 2 % of a batch of 8 MB (40,000 JSON lines of 200 bytes, decoded, written as Parquet). Two ways to see it:

* the time inside of the meters, measured piece by piece, against the faster batch of each round: this is judged;
* the same stream with metrics and without, in turns. Noise of the machine is in it.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import figure

import connectors
from connectors import workbench
from connectors.core import PartitionProgress
from connectors.core.metrics import FOLDER, Component, Meter, Place
from connectors.core.progress import Waiting, packed

ROUNDS, FILES, BATCHES, TASKS, RECORD_BATCHES = 4, 4, 8, 4, 16
MEGABYTES = 8


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    write_lines(folder / "in")
    spark = workbench.session()
    rounds = [(batch(spark, folder, number, "off"), batch(spark, folder, number, "on")) for number in range(ROUNDS + 1)][1:]
    off, on = zip(*rounds, strict=True)
    spent = TASKS * task(folder) + commit(folder) + progress()
    what = f"file_stream → Parquet, batch of {MEGABYTES} MB"
    figure(f"{what}, with metrics", "ms", on, "without metrics", off)
    figure(f"{what}: share of metrics", "%", [100 * spent / min(times) for times in rounds], most=2)


def write_lines(folder: Path) -> None:
    folder.mkdir()
    text = "x" * 150
    lines = "".join(json.dumps({"id": number, "name": text, "value": 0.5}) + "\n" for number in range(10_000 * BATCHES))
    for number in range(FILES):
        (folder / f"{number}.jsonl").write_text(lines)


def batch(spark: Any, folder: Path, number: int, switch: str) -> float:
    """The median milliseconds of a micro-batch. Metrics of the workers are switched by what they inherit."""
    where = "off" if switch == "off" else str(folder / "metrics")
    os.environ[FOLDER] = spark.sparkContext.environment[FOLDER] = where
    connectors.register(spark)
    rows = (
        spark.readStream.format("connectors.file_stream")
        .options(path=str(folder / "in" / "*.jsonl"), maxBytesPerTrigger=f"{MEGABYTES}MB")
        .options(**{"value.format": "json", "schema": "id long, name string, value double"})
        .load()
    )
    name = f"{switch}{number}"
    writer = rows.select("value.*").writeStream.foreachBatch(
        connectors.foreach_batch("files", {"path": str(folder / name), "fileFormat": "parquet"})
    )
    query = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}")).trigger(availableNow=True).start()
    query.awaitTermination()
    written = any((folder / "metrics" / str(query.id)).glob("*.json"))
    if written != (switch == "on"):
        raise SystemExit(f"metrics were to be {switch}, and they were not")
    spent = [json.loads(batch.json)["durationMs"]["triggerExecution"] for batch in query.recentProgress if batch.numInputRows]
    return statistics.median(spent[1:])


def task(folder: Path) -> float:
    """What a task spends: counting record batches of four partitions, and one file."""
    component = Component("source", "file_stream", "bench")

    def work(number: int) -> None:
        with Meter(Place("spent", component, number, 0)) as meter:
            for part in range(RECORD_BATCHES):
                meter.count(f"{folder}/in/{part % FILES}.jsonl", rows=2500, bytes=500_000)

    return measured(folder, work)


def commit(folder: Path) -> float:
    """What the driver spends at a commit."""

    def work(number: int) -> None:
        with Meter(Place("spent", Component("sink", "files", "bench"), number, -1)) as meter:
            meter.count(rows=40_000, errors=0, dead_letters=0)
            meter.now(commit_ms=10, last_commit=time.time())

    return measured(folder, work)


def progress() -> float:
    """What planning spends to tell the progress of the partitions."""
    waiting = Waiting()

    def work(number: int) -> None:
        packed(waiting.timed([PartitionProgress(f"/data/in/{part}.jsonl", number, number + 10) for part in range(FILES)]))

    return measured(None, work)


def measured(folder: Path | None, work: Callable[[int], None]) -> float:
    """The mean milliseconds of ``work``."""
    os.environ[FOLDER] = str(folder / "spent") if folder else "off"
    began = time.perf_counter()
    for number in range(300):
        work(number)
    return (time.perf_counter() - began) * 1000 / 300


if __name__ == "__main__":
    main()
