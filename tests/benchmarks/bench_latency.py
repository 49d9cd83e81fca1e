"""Latency from a topic of Kafka to another one, to files and to a Delta table, against Spark's own sinks.

``python tests/benchmarks/bench_latency.py [--rounds 3] [--seconds 20] [--rates 1000,10000] [--targets kafka,files,delta]
[--peers]`` takes the milliseconds from the call that produces a record to its arrival: at a reader with ``read_committed``, in
a file that readers take for complete, in a version of the table. ``--peers`` adds Spark's real-time mode, and Flink with a
checkpoint each second. ``--one-row`` takes instead those of a batch of one row, and how many they are above a batch that is
dropped.

All ways take turns in one session. The first round warms up and is left out. Spark's sink of Kafka and its real-time mode write
at least once, the others exactly once. Records have 100 bytes, topics two partitions. Producer and reader are processes of
their own on the same machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from bench_kafka import LIBRARY, spark_with_kafka
from figures import figure

WARM_SECONDS = 5.0
"""The first records of a run, which wait for its query to start."""
SHARES = {"median": 0.5, "99th percentile": 0.99}
PARTITIONS = 2
OURS = {"kafka": ("format", "foreach_batch"), "files": ("format",), "delta": ("foreach_batch",)}
"""The carriers of this library that write to a target."""
PEERS = {"spark": "Spark's own", "real_time": "Spark's real-time mode", "flink": "Flink"}
RIVALS = {"kafka": ("spark", "real_time", "flink"), "files": ("spark", "flink"), "delta": ("spark",)}
"""The peers that write to a target."""
TARGETS = {"kafka": "Kafka", "files": "lines of JSON", "delta": "Delta"}
ROLLING = {"sink.rolling-policy.rollover-interval": "100 ms", "sink.rolling-policy.check-interval": "100 ms"}
"""Flink would keep its files open for half an hour."""
TIME_LENGTH = 17
"""The characters of a value that are the time at which it was to be sent."""
Portions = Iterator[tuple[float, list[float]]]
"""What a reader finds: a time, and those at which what has arrived by it was to be sent."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of records in each run")
    parser.add_argument("--rates", default="1000,10000", help="records per second")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--peers", action="store_true", help="beside Spark's real-time mode and Flink, too")
    parser.add_argument("--one-row", action="store_true")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(LIBRARY))
    from connectors.testing.servers import KafkaServer

    with KafkaServer() as server:
        bench = Latency(spark_with_kafka(delta=True), server)
        if arguments.one_row:
            bench.one_row(arguments.rounds)
        else:
            for target in arguments.targets.split(","):
                peers = RIVALS[target][: None if arguments.peers else 1]
                for rate in map(int, arguments.rates.split(",")):
                    bench.rounds(target, peers, rate, arguments.rounds, arguments.seconds)
        bench.spark.stop()


class Latency:
    """One broker and one session for all ways."""

    def __init__(self, spark: Any, server: Any) -> None:
        self.spark = spark
        self.server = server
        self.folder = Path(tempfile.mkdtemp())
        self.address = {"kafka.bootstrap.servers": server.bootstrap}
        self._flink: Any = None

    def rounds(self, target: str, peers: tuple[str, ...], rate: int, rounds: int, seconds: float) -> None:
        ways = [*peers, *OURS[target]]
        turns = [{way: self._run(target, way, rate, seconds) for way in ways} for _ in range(rounds + 1)][1:]
        for place, share in enumerate(SHARES):
            results = {way: [turn[way][place] for turn in turns] for way in ways}
            for way in OURS[target]:
                what = f"Kafka → {TARGETS[target]} by {way}(), {rate:,} records a second: {share}"
                for peer in peers:
                    figure(what, "ms", results[way], PEERS[peer], results[peer])

    def one_row(self, rounds: int) -> None:
        """Milliseconds that ``addBatch`` takes for one row, in a query whose batches come one after the other."""
        ways = ["noop", "format", "foreach_batch"]
        turns = [{way: self._one_row(way) for way in ways} for _ in range(rounds + 1)][1:]
        for way in ways:
            what = f"batch of one row → {way if way == 'noop' else f'Kafka by {way}()'}"
            figure(what, "ms", [turn[way] for turn in turns])
            if way != "noop":
                figure(f"{what}, above noop", "ms", [turn[way] - turn["noop"] for turn in turns])

    def _one_row(self, way: str) -> float:
        source, target = self._topic(), self._topic()
        query = self._query("kafka", way, source, target)
        try:
            from confluent_kafka import Producer

            producer = Producer({"bootstrap.servers": self.server.bootstrap, "linger.ms": 0})
            for number in range(25):
                producer.produce(source, b"value %d" % number, b"key")
                producer.flush()
                query.processAllAvailable()
            batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        finally:
            query.stop()
        return median(progress["durationMs"]["addBatch"] for progress in batches[5:])

    def _topic(self) -> str:
        return str(self.server.create_topic(f"b{uuid.uuid4().hex}", PARTITIONS))

    def _run(self, target: str, way: str, rate: int, seconds: float) -> list[float]:
        source, place = self._topic(), self._topic() if target == "kafka" else str(self.folder / uuid.uuid4().hex)
        processes = multiprocessing.get_context("spawn")
        arrivals: Any = processes.Queue()
        portions = {"kafka": topic_portions, "files": file_portions, "delta": table_portions}[target]
        where = (self.server.bootstrap, place) if target == "kafka" else (place,)
        reader = processes.Process(target=read, args=(portions, where, int(rate * seconds), arrivals), daemon=True)
        reader.start()
        arrivals.get()  # it reads
        stop = self._flink_job(target, source, place) if way == "flink" else self._query(target, way, source, place).stop
        writer = processes.Process(target=produce, args=(self.server.bootstrap, source, rate, seconds))
        writer.start()
        try:
            latencies = arrivals.get(timeout=seconds + 120)
        finally:
            stop()
            writer.join()
            reader.kill()
        latencies.sort()
        return [latencies[int(len(latencies) * share)] * 1000 for share in SHARES.values()]

    def _query(self, target: str, way: str, source: str, place: str) -> Any:
        from connectors import foreach_batch

        mine = way in OURS["kafka"]
        rows = self.spark.readStream.format("connectors.kafka" if mine else "kafka")
        rows = rows.options(**self.address, subscribe=source, startingOffsets="earliest")
        rows = (rows.schema("key binary, value binary") if mine else rows).load().select("key", "value")
        options = {"path": place}
        if target == "kafka":
            options = {**self.address, "topic": place, **({"transactionalIdPrefix": place} if mine else {})}
        else:
            rows = rows.selectExpr("CAST(value AS STRING) AS value")
        if target == "files":
            options |= {"fileFormat": "json"} if mine else {}
        if way == "foreach_batch":
            writer = rows.writeStream.foreachBatch(foreach_batch(target, options))
        elif way == "noop":
            writer = rows.writeStream.foreachBatch(lambda frame, _: frame.write.format("noop").mode("overwrite").save())
        elif way == "format":
            writer = rows.writeStream.format(f"connectors.{target}").options(**options)
        else:
            writer = rows.writeStream.format("json" if target == "files" else target).options(**options)
        if way == "real_time":
            writer = writer.trigger(realTime="5 minutes").outputMode("update")
        return writer.option("checkpointLocation", str(self.folder / uuid.uuid4().hex)).start()

    def _flink_job(self, target: str, source: str, place: str) -> Callable[[], Any]:
        from flink_peer import Flink, table, topic

        self._flink = self._flink or Flink(self.folder / "flink", PARTITIONS)
        raw = {"format": "raw"}
        to = {"connector": "filesystem", "path": place, "format": "json", **ROLLING}
        if target == "kafka":
            to = topic(self.server.bootstrap, place, is_target=True) | raw
        rows = table("source", "`value` STRING", topic(self.server.bootstrap, source) | raw)
        job = self._flink.job(rows, table("target", "`value` STRING", to), "INSERT INTO `target` SELECT `value` FROM `source`")
        return lambda: job.cancel().get()


def produce(bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    """Sends ``rate`` records a second, each with the time at which it was to be sent."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    start = time.time()
    for number in range(int(rate * seconds)):
        at = start + number / rate
        if (pause := at - time.time()) > 0:
            producer.poll(0)
            time.sleep(pause)
        producer.produce(topic, f"{at:.6f}".ljust(100, "x").encode(), b"%d" % number)
    producer.flush()


def read(portions: Callable[..., Portions], where: tuple[str, ...], records: int, arrivals: Any) -> None:
    """Puts the seconds that records took, without the first ones."""
    first, latencies, count = None, [], 0
    found = portions(*where)
    next(found)
    arrivals.put("reads")
    for now, times in found:
        count += len(times)
        first = first or min(times, default=None)
        latencies += [now - sent for sent in times if first is not None and sent - first > WARM_SECONDS]
        if count >= records:
            break
    arrivals.put(latencies)


def topic_portions(bootstrap: str, topic: str) -> Portions:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    while True:
        messages = [message for message in consumer.consume(10_000, 0.002) if message.error() is None]
        yield time.time(), [float(message.value()[:TIME_LENGTH]) for message in messages]


def file_portions(folder: str) -> Portions:
    """Of the files of ``folder`` that readers take for complete; of those that Spark wrote, the ones of finished batches."""
    seen: set[str] = set()
    while True:
        time.sleep(0.002)
        names = [name for name in os.listdir(folder) if name[0] not in "._"] if os.path.isdir(folder) else []
        log = Path(folder, "_spark_metadata")
        if log.is_dir():
            texts = [file.read_text() for file in log.iterdir() if file.name[0] != "."]
            names = [Path(json.loads(line)["path"]).name for text in texts for line in text.splitlines()[1:]]
        now, new = time.time(), {*names} - seen
        seen |= new
        texts = [Path(folder, name).read_text() for name in new]
        yield now, [float(json.loads(line)["value"][:TIME_LENGTH]) for text in texts for line in text.splitlines()]


def table_portions(folder: str) -> Portions:
    """Of the versions of the Delta table in ``folder``."""
    from pyarrow import parquet

    version = 0
    while True:
        log = Path(folder, "_delta_log", f"{version:020d}.json")
        if not log.exists():
            time.sleep(0.002)
            yield time.time(), []
            continue
        now, version = time.time(), version + 1
        adds = [action["add"]["path"] for action in map(json.loads, log.read_text().splitlines()) if "add" in action]
        values = [value for path in adds for value in parquet.read_table(Path(folder, path))["value"].to_pylist()]
        yield now, [float(value[:TIME_LENGTH]) for value in values]


if __name__ == "__main__":
    main()
