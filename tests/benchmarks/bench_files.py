"""The sink ``connectors.files`` against Spark's own writers: rows, files, and what a commit costs after many of them.

``python tests/benchmarks/bench_files.py [--rows 5000000] [--rounds 3] [--batches 200] [--commits 1000]`` has figures without
goals. Spark's own is ``df.write``, ``exactly-once`` the same rows through ``foreach_batch`` (Spark's writers, ledger,
publication), the third through ``df.write.format("connectors.files")`` (Python writers). They take turns, so that what else
the machine does falls on all. Then ``--batches`` small micro-batches are written by Spark's streaming sink and by ours with
``rolling=policy``, and the files are counted; and ``--commits`` batches are committed without Spark, to compare the first ones
with the last. A batch of no row and of one says what a batch costs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from figures import figure

LIBRARY = Path(__file__).parents[2] / "lib"


def rows_of(spark: Any, count: int) -> Any:
    """``count`` rows in two tasks: a number, a text, a fraction and a time."""
    return spark.range(0, count, numPartitions=2).selectExpr(
        "id", "concat('key-', id % 1000) AS key", "id * 0.5 AS amount", "timestamp_micros(id * 1000) AS at"
    )


def writers(frame: Any, kind: str, rows: int) -> Iterator[tuple[str, Callable[[Path], None]]]:
    import connectors
    from connectors.core import Batch

    def exactly_once(out: Path) -> None:
        connectors.foreach_batch("files", path=str(out), file_format=kind).write(frame, Batch("bench", "query", 0))  # type: ignore[attr-defined]

    def arrow(out: Path) -> None:
        frame.write.format("connectors.files").option("fileFormat", kind).option("path", str(out)).mode("append").save()

    yield "plain", lambda out: frame.write.format(kind).save(str(out))
    yield "exactly-once", exactly_once
    if kind == "parquet":  # lines of JSON are made by Python there
        yield "by Python writers", arrow


def throughput(spark: Any, folder: Path, rows: int, rounds: int) -> None:
    for kind, title in (("parquet", "Parquet"), ("json", "lines of JSON")):
        frame = rows_of(spark, rows)
        rates: dict[str, list[float]] = {}
        for turn in range(rounds + 1):
            for name, write in writers(frame, kind, rows):
                out = folder / f"{name}-{kind}-{turn}"
                start = time.perf_counter()
                write(out)
                duration = time.perf_counter() - start
                if turn:  # the first one warms up
                    rates.setdefault(name, []).append(rows / duration)
                elif (count := spark.read.format(kind).load(str(out)).count()) != rows:
                    raise SystemExit(f"{name} wrote {count} {kind} rows, not {rows}")
                shutil.rmtree(out)
        plain = rates.pop("plain")
        for name, values in rates.items():
            figure(f"Spark → {title}, {name}", "rows/s", values, "Spark's own", plain)


def latency(spark: Any, folder: Path, count: int) -> None:
    """An empty batch and one with one row, and an fsync of this disk."""
    import connectors
    from connectors.core import Batch

    number = 0
    for rows in (0, 1):
        frame, times = spark.range(0, rows, numPartitions=1).selectExpr("id"), []
        sink = connectors.foreach_batch("files", path=str(folder / f"latency-{rows}"), on_lost_ledger="notWritten")
        for _ in range(count + 5):
            start = time.perf_counter()
            sink.write(frame, Batch("bench", f"query {rows}", number))  # type: ignore[attr-defined]
            times.append((time.perf_counter() - start) * 1000)
            number += 1
        figure(f"Spark → Parquet, exactly-once, a batch of {('no', 'one')[rows]} row", "ms", times[5:])
    with (folder / "synced").open("wb") as file:
        syncs = []
        for _ in range(20):
            file.write(b"x")
            file.flush()
            start = time.perf_counter()
            os.fsync(file.fileno())
            syncs.append((time.perf_counter() - start) * 1000)
    figure("an fsync of the disk", "ms", syncs)


def small_batches(spark: Any, folder: Path, batches: int) -> None:
    import connectors

    counts, times = [], []
    for name in ("Spark's sink", "rolling=policy"):
        numbers = spark.readStream.format("connectors.sequence").option("end", batches * 100).option("maxRowsPerTrigger", 100)
        writer = numbers.load().writeStream.option("checkpointLocation", str(folder / f"{name}-checkpoint"))
        out, start = folder / name, time.perf_counter()
        if name == "rolling=policy":
            writer = writer.foreachBatch(connectors.foreach_batch("files", path=str(out), rolling="policy"))
        else:
            writer = writer.format("parquet").option("path", str(out))
        writer.trigger(availableNow=True).start().awaitTermination()
        for thread in threading.enumerate():
            if thread.name == "connectors.files":
                thread.join()
        times.append(time.perf_counter() - start)
        counts.append(len(list(out.glob("*.parquet"))))
        if (rows := spark.read.parquet(str(out)).count()) != batches * 100:
            raise SystemExit(f"{name} wrote {rows} rows, not {batches * 100}")
    figure(f"{batches} small batches → Parquet, rolling=policy", "s", times[1:], "Spark's sink", times[:1])
    figure(f"files of Spark's sink for each of rolling=policy, {batches} batches", "", [counts[0] / counts[1]])


def commits(folder: Path, count: int) -> None:
    import pyarrow as pa

    from connectors.core import Batch
    from connectors.core.commit import Commit
    from connectors.core.writing import stage
    from connectors.systems.files import FilesSink

    rows = pa.record_batch({"id": pa.array(range(100), pa.int64())})
    for rolling in ("onBatch", "policy"):
        sink = FilesSink.of({"path": str(folder / rolling), "rolling": rolling})
        commit, times = Commit(sink), []
        for number in range(count):
            batch = Batch(sink.sink_id(), "query", number)
            staged = stage(sink, batch, rows.schema, 0, iter([rows]))
            start = time.perf_counter()
            commit.finish(batch, [staged])
            times.append((time.perf_counter() - start) * 1000)
        tenth = max(1, count // 10)
        second, last = median(times[tenth : 2 * tenth]), median(times[-tenth:])
        figure(f"commit of files, rolling={rolling}, last tenth of {count:,}", "ms", [last], "the second tenth", [second])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--commits", type=int, default=1000)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(LIBRARY))
    from connectors.testing.session import session

    with tempfile.TemporaryDirectory() as folder:
        commits(Path(folder), options.commits)
        # The tests' sessions do without the second compiler; with it all is twice as fast, and the ratios are those of users.
        conf = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC", "spark.ui.showConsoleProgress": "false"}
        spark = session("local[2,4]", conf)
        latency(spark, Path(folder), 40)
        throughput(spark, Path(folder), options.rows, options.rounds)
        small_batches(spark, Path(folder), options.batches)
        spark.stop()


if __name__ == "__main__":
    main()
