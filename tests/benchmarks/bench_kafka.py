"""Topics of Kafka: ``connectors.kafka`` against Spark's own source and sink.

``python tests/benchmarks/bench_kafka.py [--rounds 3] [--rows 1000000] [--records 5000000] [--only write,empty,read,copy]
[--peers]``: all ways take turns, so that other load of the machine falls on all of them. The first turn warms up and does not
count: Spark's writer gains most from it, since its code is compiled by then. Records have 100 bytes, topics four partitions.
Spark's source and sink need jars that Spark fetches. ``--peers`` copies by Flink, too, with its start.

Spark's sink writes at least once; that of the connector is exactly-once unless a figure says otherwise. With
``CONNECTORS_KAFKA_CLIENT=plain`` the connector uses the Python client alone, without the client's C functions for batches.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from figures import figure

LIBRARY = Path(__file__).parents[2] / "lib"
PARTITIONS = 4
SPARKS = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
TOKENS_VERSION = "4.0.0"
"""The jar of tokens is not in every repository in the version of the other one, and is the same code."""
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": "1000000"}
TUNED_NAME, DEFAULT_NAME, NOOP_NAME, ALONE = "Spark's own, tuned", "Spark's own", "Spark → noop", "the client alone"
OURS, LEAST = "Spark → Kafka, exactly-once", "Spark → Kafka, at-least-once"
AT_LEAST_ONCE = (TUNED_NAME, DEFAULT_NAME, ALONE, LEAST, "spark")
"""The ways that may write a record again, after a stall of the broker."""
Rates = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="that are written")
    parser.add_argument("--records", type=int, default=5_000_000, help="that are read")
    parser.add_argument("--only", default="write,empty,read,copy")
    parser.add_argument("--peers", action="store_true", help="the copy beside Flink, too")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(LIBRARY))
    from connectors.testing.servers import KafkaServer

    with KafkaServer(log_retention_ms="-1") as server:
        spark = spark_with_kafka()
        bench = Bench(spark, server, arguments.rounds, arguments.peers)
        for part in arguments.only.split(","):
            getattr(bench, part)(arguments.records if part in ("read", "copy") else arguments.rows)
        spark.stop()


def spark_with_kafka(delta: bool = False) -> Any:
    from connectors.testing.servers.base import classpath
    from connectors.testing.session import session
    from connectors.workbench.jars import delta_jars

    jars = classpath("spark-kafka-tokens", f"{TOKENS}:{TOKENS_VERSION}").split(os.pathsep)
    (tokens,) = [jar for jar in jars if "spark-token-provider-kafka" in jar]
    settings = {
        "spark.jars.packages": SPARKS,
        "spark.jars.excludes": f"{TOKENS},org.slf4j:slf4j-api",
        "spark.jars": ",".join([tokens, *(delta_jars() if delta else [])]),
        "spark.driver.memory": "2g",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": "",
    }
    return session("local[2,4]", settings | (DELTA if delta else {}))


class Bench:
    """One broker and one session for all parts."""

    def __init__(self, spark: Any, server: Any, rounds: int, peers: bool) -> None:
        self.spark = spark
        self.server = server
        self.rounds = rounds
        self.peers = peers
        self.folder = Path(tempfile.mkdtemp())
        self.address = {"kafka.bootstrap.servers": server.bootstrap}

    def write(self, rows: int) -> None:
        frame = rows_of(self.spark, rows)
        records = self._as_records(frame)
        ways: dict[str, Callable[[str], None]] = {
            NOOP_NAME: lambda topic: frame.write.format("noop").mode("overwrite").save(),
            TUNED_NAME: lambda topic: self._spark(frame, topic, TUNED),
            DEFAULT_NAME: lambda topic: self._spark(frame, topic, {}),
            ALONE: lambda topic: self._alone(records, topic),
            OURS: lambda topic: self._connectors(frame, topic, {"transactionalIdPrefix": topic}),
            f"{OURS}, slots=2": lambda topic: self._connectors(frame, topic, {"transactionalIdPrefix": topic, "slots": "2"}),
            f"{OURS}, slots=4": lambda topic: self._connectors(frame, topic, {"transactionalIdPrefix": topic, "slots": "4"}),
            f"{OURS}, staged": lambda topic: self._staged(frame, topic),
            f"{OURS}, staged, in foreachBatch": lambda topic: self._connectors(frame, topic, self._stage(topic)),
            LEAST: lambda topic: self._connectors(frame, topic, {}),
        }
        goals = {TUNED_NAME: 0.85, DEFAULT_NAME: 1.0, ALONE: 0.5}
        if os.environ.get("CONNECTORS_KAFKA_CLIENT") == "plain":  # the client alone is measured with its C functions
            del ways[ALONE], goals[ALONE]
        rates = self._turns(ways, rows, lambda name, topic: name == NOOP_NAME or self._check(topic, rows, name))
        for base, goal in goals.items():
            figure(OURS, "records/s", rates[OURS], base, rates[base], least=goal)
        for name in (name for name in rates if name.startswith("Spark → Kafka") and name != OURS):
            figure(name, "records/s", rates[name], TUNED_NAME, rates[TUNED_NAME])
        figure(NOOP_NAME, "records/s", rates[NOOP_NAME])

    def empty(self, _: int) -> None:
        """What an empty batch takes in the sink, above one that Spark drops."""
        from connectors.core import Batch

        more = []
        for _ in range(self.rounds + 1):
            topic = self._topic()
            sink, batch = self._sink(topic, {"transactionalIdPrefix": topic}), partial(Batch, topic, "query")
            noop = self._batches(lambda frame, _: frame.write.format("noop").mode("overwrite").save())
            more.append(self._batches(lambda frame, number: sink.write(frame, batch(number))) - noop)  # noqa: B023
        figure("empty batch → Kafka, above one that Spark drops", "ms", more[1:], most=150)

    def read(self, records: int) -> None:
        topic = self._filled(records)
        five = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
        columns = [column.split()[0] for column in five.split(", ")]
        cases = {"five columns": (columns, five, 1.25), "value": (["value"], "value binary", 1.6)}
        by_spark = self.spark.read.format("kafka").options(**self.address, subscribe=topic)
        by_connectors = self.spark.read.format("connectors.kafka").options(**self.address, subscribe=topic)
        for name, (names, schema, goal) in cases.items():
            self._read(name, by_spark.load().select(*names), by_connectors.schema(schema).load(), records, goal)
        schema = five.replace("binary", "string")
        decoded = by_spark.load().select(*columns).mapInArrow(decode, schema)
        texts = by_connectors.schema(schema).options(**{"key.format": "string", "value.format": "string"}).load()
        self._read("decoded in Python", decoded, texts, records, 1.8)

    def _read(self, columns: str, spark: Any, connectors: Any, records: int, goal: float) -> None:
        if (count := connectors.count()) != records:
            raise SystemExit(f"{count} records were read, not {records}")
        ways = {"spark": lambda _: dropped(spark), "connectors": lambda _: dropped(connectors)}
        rates = self._turns(ways, records, lambda *_: None, topics=False)
        figure(f"Kafka → Spark, {columns}", "records/s", rates["connectors"], "Spark's own", rates["spark"], least=goal)

    def copy(self, records: int) -> None:
        """A stream from topic to topic, in batches of a fifth."""
        source = self._filled(records)
        read = {**self.address, "subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(records // 5)}

        def by_spark(topic: str) -> None:
            rows = self.spark.readStream.format("kafka").options(**read).load().select("key", "value")
            self._run(rows.writeStream.format("kafka").options(**self.address, **TUNED, topic=topic))

        def by_connectors(topic: str) -> None:
            from connectors import foreach_batch

            rows = self.spark.readStream.format("connectors.kafka").schema("key binary, value binary").options(**read).load()
            sink = foreach_batch("kafka", {**self.address, "topic": topic, "transactionalIdPrefix": topic})
            self._run(rows.writeStream.foreachBatch(sink))

        ways = {"spark": by_spark, "connectors": by_connectors}
        if self.peers:
            ways["flink"] = self._flink_copy(source)
        rates = self._turns(ways, records, lambda name, topic: self._check(topic, records, name))
        what = "Kafka → Kafka, exactly-once"
        figure(what, "records/s", rates["connectors"], "Spark's own, tuned", rates["spark"], least=0.85)
        if self.peers:
            figure(what, "records/s", rates["connectors"], "Flink", rates["flink"])

    def _flink_copy(self, source: str) -> Callable[[str], None]:
        from flink_peer import Flink, table, topic

        flink, columns = Flink(self.folder / "flink", 2), "`key` BYTES, `value` BYTES"
        raw = {"key.format": "raw", "key.fields": "key", "value.format": "raw", "value.fields-include": "EXCEPT_KEY"}
        rows = table("source", columns, topic(self.server.bootstrap, source) | raw | {"scan.bounded.mode": "latest-offset"})

        def by_flink(name: str) -> None:
            target = table("target", columns, topic(self.server.bootstrap, name, is_target=True) | raw)
            flink.job(rows, target, "INSERT INTO `target` SELECT * FROM `source`").getJobExecutionResult().get()

        return by_flink

    def _run(self, writer: Any) -> None:
        checkpoint = self.folder / uuid.uuid4().hex
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    def _turns(
        self, ways: dict[str, Callable[[str], None]], records: int, check: Callable[..., Any], *, topics: bool = True
    ) -> Rates:
        """Records per second of each turn but the first."""
        rates: Rates = {name: [] for name in ways}
        for turn in range(self.rounds + 1):
            for name, way in ways.items():
                topic = self._topic() if topics else ""
                started = time.perf_counter()
                way(topic)
                seconds = time.perf_counter() - started
                check(name, topic)
                if turn:
                    rates[name].append(records / seconds)
        return rates

    def _topic(self) -> str:
        return str(self.server.create_topic(f"b{uuid.uuid4().hex}", PARTITIONS))

    def _filled(self, records: int) -> str:
        topic = self._topic()
        self._spark(rows_of(self.spark, records), topic, TUNED)
        return topic

    def _spark(self, frame: Any, topic: str, options: dict[str, str]) -> None:
        frame.write.format("kafka").options(**self.address, **options, topic=topic).save()

    def _connectors(self, frame: Any, topic: str, options: dict[str, str]) -> None:
        from connectors.core import Batch

        self._sink(topic, options).write(frame, Batch(topic, "query", 0))

    def _sink(self, topic: str, options: dict[str, str]) -> Any:
        from connectors.spark.foreach_batch import ForeachBatch
        from connectors.systems.kafka import KafkaSink

        return ForeachBatch(KafkaSink.of({**self.address, "topic": topic, **options}))

    def _staged(self, frame: Any, topic: str) -> None:
        frame.write.format("connectors.kafka").mode("append").options(**self.address, **self._stage(topic), topic=topic).save()

    def _stage(self, topic: str) -> dict[str, str]:
        return {"transactionalIdPrefix": topic, "stagingLocation": str(self.folder / "stage")}

    def _as_records(self, frame: Any) -> Any:
        import pyarrow as pa

        table = frame.toArrow()
        return pa.table({name: table[name].cast(pa.binary()) for name in ("key", "value")}).combine_chunks().to_batches()

    def _alone(self, records: Any, topic: str) -> None:
        """In one transaction, from memory, by the same functions: no sink in Python is faster."""
        from confluent_kafka import Producer

        from connectors.systems.kafka.config import producer_config
        from connectors.systems.kafka.errors import ClientReports
        from connectors.systems.kafka.producer import NativeProducer

        config = {"bootstrap.servers": self.server.bootstrap, "transactional.id": topic, "log_level": "2"}
        producer = Producer(producer_config(config, 1_000_000, ClientReports()))
        producer.init_transactions(30)
        producer.begin_transaction()
        batches = NativeProducer.of(producer)
        if batches is None:
            raise SystemExit("the client's functions for batches cannot be used here")
        for batch in records:
            for first in range(0, batch.num_rows, 10_000):
                while len(producer) > 400_000:
                    producer.poll(0.01)
                batches.produce(topic, batch.slice(first, 10_000))
        producer.commit_transaction(60)

    def _batches(self, write: Callable[[Any, int], None]) -> float:
        """The median milliseconds that an empty batch takes, after one that is not."""
        spent = []
        for number in range(12):
            frame = self.spark.range(0 if number else 5).selectExpr("CAST(id AS string) AS key", "'v' AS value")
            started = time.perf_counter()
            write(frame, number)
            spent.append((time.perf_counter() - started) * 1000)
        return median(spent[2:])

    def _check(self, topic: str, rows: int, way: str) -> None:
        read = self.spark.read.format("connectors.kafka").schema("value binary").options(**self.address, subscribe=topic)
        count = read.load().count()
        if count < rows or (count > rows and way not in AT_LEAST_ONCE):
            raise SystemExit(f"{count} records are in the topic of {way}, not {rows}")


def dropped(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def decode(batches: Iterator[Any]) -> Iterator[Any]:
    """What the connector's source does with ``key.format`` and ``value.format``: bytes become text."""
    import pyarrow as pa

    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        texts = {name: columns[name].cast(pa.string()) for name in ("key", "value")}
        yield pa.RecordBatch.from_pydict({**columns, **texts})


def rows_of(spark: Any, rows: int) -> Any:
    text = "concat('value number ', lpad(id, 12, '0'), repeat('x', 60)) AS value"
    return spark.range(0, rows, 1, PARTITIONS).selectExpr("concat('key-', id % 100000) AS key", text)


if __name__ == "__main__":
    main()
