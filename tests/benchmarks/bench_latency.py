"""Latency from topic to topic of Kafka, by each way to write, against Spark's own sink.

``python tests/benchmarks/bench_latency.py [--rounds 3] [--seconds 20] [--rates 1000,10000]`` takes the milliseconds from the
call that produces a record to its arrival at a reader with ``read_committed``. ``--one-row`` takes instead those of a batch of
one row, and how many they are above a batch that is dropped.

All ways take turns in one session. The first round warms up and is left out. Spark's sink writes at least once, the others
exactly once. Records have 100 bytes, topics two partitions. Producer and reader are processes of their own on the same machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import struct
import sys
import tempfile
import time
import uuid
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from bench_kafka import LIBRARY, spark_with_kafka
from figures import figure

WARM_SECONDS = 5.0
"""The first records of a run, which wait for its query to start."""
SHARES = {"median": 0.5, "95th percentile": 0.95, "99th percentile": 0.99}
PARTITIONS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of records in each run")
    parser.add_argument("--rates", default="1000,10000", help="records per second")
    parser.add_argument("--ways", default="spark,format,foreach_batch")
    parser.add_argument("--one-row", action="store_true")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(LIBRARY))
    from connectors.testing.servers import KafkaServer

    with KafkaServer() as server:
        bench = Latency(spark_with_kafka(), server)
        if arguments.one_row:
            bench.one_row(arguments.rounds)
        else:
            for rate in map(int, arguments.rates.split(",")):
                bench.rounds(rate, arguments.rounds, arguments.seconds, arguments.ways.split(","))
        bench.spark.stop()


class Latency:
    """One broker and one session for all ways."""

    def __init__(self, spark: Any, server: Any) -> None:
        self.spark = spark
        self.server = server
        self.folder = Path(tempfile.mkdtemp())
        self.address = {"kafka.bootstrap.servers": server.bootstrap}

    def rounds(self, rate: int, rounds: int, seconds: float, ways: list[str]) -> None:
        turns = [{way: self._run(way, rate, seconds) for way in ways} for _ in range(rounds + 1)][1:]
        for place, share in enumerate(SHARES):
            results = {way: [turn[way][place] for turn in turns] for way in ways}
            spark = results.pop("spark", [])
            for way, measured in results.items():
                what = f"Kafka → Kafka by {way}(), {rate:,} records a second: {share}"
                figure(what, "ms", measured, "Spark's own" if spark else "", spark)

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
        source, target = self._topics()
        query = self._query(way, source, target)
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

    def _topics(self) -> tuple[str, str]:
        return tuple(self.server.create_topic(f"b{uuid.uuid4().hex}", PARTITIONS) for _ in range(2))  # type: ignore[return-value]

    def _run(self, way: str, rate: int, seconds: float) -> list[float]:
        source, target = self._topics()
        processes = multiprocessing.get_context("spawn")
        arrivals: Any = processes.Queue()
        arguments = (self.server.bootstrap, target, int(rate * seconds), arrivals)
        reader = processes.Process(target=read, args=arguments, daemon=True)
        reader.start()
        arrivals.get()  # it reads
        query = self._query(way, source, target)
        writer = processes.Process(target=produce, args=(self.server.bootstrap, source, rate, seconds))
        writer.start()
        try:
            latencies = arrivals.get(timeout=seconds + 120)
        finally:
            query.stop()
            writer.join()
            reader.kill()
        latencies.sort()
        return [latencies[int(len(latencies) * share)] * 1000 for share in SHARES.values()]

    def _query(self, way: str, source: str, target: str) -> Any:
        from connectors import foreach_batch

        mine = way != "spark"
        rows = self.spark.readStream.format("connectors.kafka" if mine else "kafka")
        rows = rows.options(**self.address, subscribe=source, startingOffsets="earliest")
        rows = (rows.schema("key binary, value binary") if mine else rows).load().select("key", "value")
        options = {**self.address, "topic": target, "transactionalIdPrefix": target}
        if way == "foreach_batch":
            writer = rows.writeStream.foreachBatch(foreach_batch("kafka", options))
        elif way == "noop":
            writer = rows.writeStream.foreachBatch(lambda frame, _: frame.write.format("noop").mode("overwrite").save())
        elif way == "format":
            writer = rows.writeStream.format("connectors.kafka").options(**options)
        else:
            writer = rows.writeStream.format("kafka").options(**self.address, topic=target)
        return writer.option("checkpointLocation", str(self.folder / uuid.uuid4().hex)).start()


def produce(bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    """Sends ``rate`` records a second, each with the time at which it was to be sent."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    start, rest = time.time(), b"x" * 92
    for number in range(int(rate * seconds)):
        at = start + number / rate
        if (pause := at - time.time()) > 0:
            producer.poll(0)
            time.sleep(pause)
        producer.produce(topic, struct.pack(">d", at) + rest, b"%d" % number)
    producer.flush()


def read(bootstrap: str, topic: str, records: int, arrivals: Any) -> None:
    """Puts the seconds that records took, without the first ones."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "latency", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    arrivals.put("reads")
    first, latencies, count = None, [], 0
    while count < records:
        for message in consumer.consume(10_000, 0.002):
            if message.error() is not None:
                continue
            (sent,), now = struct.unpack(">d", message.value()[:8]), time.time()
            first = first or sent
            count += 1
            if sent - first > WARM_SECONDS:
                latencies.append(now - sent)
    arrivals.put(latencies)
    consumer.close()


if __name__ == "__main__":
    main()
