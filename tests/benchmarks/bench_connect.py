"""The runtime of Connect's model: ``python tests/benchmarks/bench_connect.py [--rounds 3] [--lines 1000000] [--part PART]``.

Parts, each with its goal:

``runtime``  a file through the file connector of the tests into ``noop``, at 0.5 of ``connectors.file_stream`` or better;
``kafka``    file → Kafka at 3 times, and Kafka → file at 1.5 times, the rate of Connect's own standalone worker with its
             FileStream pair and 1 GB; ours by ``file_stream`` and ``kafka``, and once more through the runtime; out of Kafka
             also Spark's own source and text files, which show what rows can do that go through Spark.

Contestants take turns. The time of a query is from its start to its end, in a session that is warm; that of Connect's worker
is from its start to its last record into Kafka, and from its first record to its last one out of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from figures import figure

LIBRARY = Path(__file__).parents[2] / "lib"
sys.path[:0] = [str(LIBRARY), str(LIBRARY.parent)]

STRING = "org.apache.kafka.connect.storage.StringConverter"
CONNECTORS = "tests.connect.file_connectors"
CONNECT = [f"org.apache.kafka:{name}:4.3.1" for name in ("connect-runtime", "connect-file")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--part", choices=("runtime", "kafka"))
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), str(LIBRARY.parent), os.environ.get("PYTHONPATH", "")])
    from bench_kafka import spark_with_kafka

    spark = spark_with_kafka()
    with tempfile.TemporaryDirectory(prefix="connectors-bench-connect-") as folder:
        if options.part in (None, "runtime"):
            runtime(spark, Path(folder), options.lines, options.rounds)
        if options.part in (None, "kafka"):
            kafka(spark, Path(folder), options.lines, options.rounds)
    spark.stop()


def lines_file(folder: Path, lines: int) -> Path:
    file = folder / "lines.txt"
    if not file.exists():
        file.write_text("".join(f"{number:08} a line of a log, as long as many\n" for number in range(lines)))
    return file


def run(frame: Any, checkpoint: Path, sink: Callable[..., None] | None = None) -> float:
    """Seconds of a query that reads everything, into ``noop`` or by a function of ``foreachBatch``."""
    began = time.perf_counter()
    writer = frame.writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoint))
    query = (writer.foreachBatch(sink) if sink else writer.format("noop")).start()
    query.awaitTermination()
    return time.perf_counter() - began


def connector(spark: Any, file: Path, state: Path, topic: str = "lines") -> Any:
    kind = f"{CONNECTORS}.FileStreamSourceConnector"
    config = {"connector.class": kind, "file": str(file), "topic": topic, "value.converter": STRING}
    config["batch.size"] = "20000"
    options = {
        "config": json.dumps(config),
        "stateLocation": str(state),
        "drainTimeout": "100ms",
        "maxRowsPerTrigger": "1000000",
        "maxBytesPerTrigger": "256MB",
    }
    return spark.readStream.format("connectors.connect").options(**options).load()


def runtime(spark: Any, folder: Path, lines: int, rounds: int) -> None:
    file = lines_file(folder, lines)
    rates: dict[str, list[float]] = {"file_stream": [], "connector": []}
    for turn in range(rounds + 1):
        for name, values in rates.items():
            at = folder / f"runtime-{name}-{turn}"
            native = spark.readStream.format("connectors.file_stream").option("path", str(file)).load
            frame = native() if name == "file_stream" else connector(spark, file, at / "state")
            seconds = run(frame.select("value"), at / "checkpoint")
            if turn:  # the first one warms up
                values.append(lines / seconds)
    what = "lines of a file → Spark by a connector in Python"
    figure(what, "rows/s", rates["connector"], "connectors.file_stream", rates["file_stream"], least=0.5)


def kafka(spark: Any, folder: Path, lines: int, rounds: int) -> None:
    import connectors
    from connectors.jvm.maven import class_path
    from connectors.testing.servers import KafkaServer

    jars = class_path("connect", CONNECT)
    file = lines_file(folder, lines)
    into: dict[str, list[float]] = {"Connect's worker": [], "file_stream": [], "connector": []}
    out: dict[str, list[float]] = {"Connect's worker": [], "file_stream": [], "connector": [], "Spark's own": []}
    with KafkaServer() as server:
        servers = {"kafka.bootstrap.servers": server.bootstrap}
        for turn in range(rounds + 1):
            for name, values in into.items():
                at, topic = (
                    folder / f"into-{name[:6]}-{turn}",
                    server.create_topic(f"into-{name[:6].replace(' ', '')}-{turn}".replace("'", "")),
                )
                if name == "Connect's worker":
                    properties = {"connector.class": "FileStreamSource", "file": str(file), "topic": topic}
                    seconds = worker(jars, server, at, properties, partial(end_of, server, topic), lines, with_start=True)
                else:
                    native = spark.readStream.format("connectors.file_stream").option("path", str(file)).load
                    frame = native() if name == "file_stream" else connector(spark, file, at / "state", topic)
                    sink = connectors.foreach_batch(
                        "kafka", {**servers, "topic": topic, "transactionalIdPrefix": topic}
                    )
                    seconds = run(frame.select("value"), at / "checkpoint", sink)
                if turn:
                    values.append(lines / seconds)
            source = f"into-connec-{turn}" if turn else "into-file_s-0"
            for name, values in out.items():
                at = folder / f"out-{name[:6]}-{turn}"
                at.mkdir(parents=True)
                if name == "Connect's worker":
                    properties = {"connector.class": "FileStreamSink", "file": str(at / "out.txt"), "topics": source}
                    seconds = worker(jars, server, at, properties, lambda at=at: count(at / "out.txt"), lines)
                else:
                    options = {**servers, "subscribe": source, "startingOffsets": "earliest", "minPartitions": "2"}
                    kind = "kafka" if name == "Spark's own" else "connectors.kafka"
                    frame = spark.readStream.format(kind).options(**options).load()
                    config = {
                        "connector.class": f"{CONNECTORS}.FileStreamSinkConnector",
                        "file": str(at / "out.txt"),
                        "topics": source,
                        "value.converter": STRING,
                    }
                    if name != "connector":
                        frame = frame.selectExpr("cast(value AS string) AS value")
                    if name == "Spark's own":
                        sink = partial(write_text, folder=at / "out")
                    elif name == "file_stream":
                        sink = connectors.foreach_batch("file_stream", {"path": str(at / "out")})
                    else:
                        sink = connectors.foreach_batch("connect", {"config": config})
                    seconds = run(frame, at / "checkpoint", sink)
                if turn:
                    values.append(lines / seconds)
        _CONSUMERS.pop(server.bootstrap).close()
    titles = {"file_stream": "", "connector": ", by a connector in Python", "Spark's own": ", by Spark's own source and text"}
    for what, rates, least in (("lines of a file → Kafka", into, 3), ("Kafka → lines of a file", out, 1.5)):
        plain = rates.pop("Connect's worker")
        for name, values in rates.items():
            goal = least if name == "file_stream" else None
            figure(what + titles[name], "rows/s", values, "Connect's worker", plain, least=goal)


def write_text(frame: Any, number: int, folder: Path) -> None:
    """Spark's own lines, at least once."""
    frame.write.mode("append").text(str(folder))


def worker(
    jars: list[str],
    server: Any,
    folder: Path,
    connector: dict[str, str],
    done: Callable[[], int],
    lines: int,
    *,
    with_start: bool = False,
) -> float:
    """Seconds until Connect's standalone worker has copied the last record: from the first one, or from its start."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "bootstrap.servers": server.bootstrap,
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "1000",
        "listeners": "http://127.0.0.1:0",
        "key.converter": STRING,
        "value.converter": STRING,
        "plugin.discovery": "service_load",
    }
    (folder / "worker.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    properties = {"name": "bench", "tasks.max": "1", **connector}
    (folder / "connector.properties").write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    command = [server.java, "-Xmx1g", "-cp", os.pathsep.join(jars), main, "worker.properties", "connector.properties"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        began = time.perf_counter() if with_start else None
        while (copied := done()) < lines:
            if began is None and copied:
                began = time.perf_counter()
            if process.poll() is not None:
                raise SystemExit((folder / "log").read_text()[-2000:])
            time.sleep(0.02)
        return time.perf_counter() - (began or time.perf_counter())
    finally:
        process.terminate()
        process.wait()


def end_of(server: Any, topic: str) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = _CONSUMERS.setdefault(
        server.bootstrap, Consumer({"bootstrap.servers": server.bootstrap, "group.id": "bench"})
    )
    return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10, cached=False)[1])


_CONSUMERS: dict[str, Any] = {}


def count(file: Path) -> int:
    """Lines of a file, by its size: all are equally long."""
    return file.stat().st_size // 41 if file.exists() else 0


if __name__ == "__main__":
    main()
