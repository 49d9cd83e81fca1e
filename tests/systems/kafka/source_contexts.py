"""Topics on a real broker, as the suites see them."""

from __future__ import annotations

import datetime
import itertools
import os
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from connectors.systems.kafka.source import KafkaSource
from connectors.testing import SourceContext
from connectors.testing.servers import KafkaServer
from tests.servers import required

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
BEGIN = 1_700_000_000_000
_numbers = itertools.count()


def fresh(prefix: str = "topic") -> str:
    """A topic name that no other test has."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


@cache
def admin_of(bootstrap: str) -> AdminClient:
    """The one client of a server in this process: each has three threads."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


class Topic:
    """A topic with a producer. ``rows`` are those that a reader of committed records must see."""

    def __init__(self, partitions: int = 3, name: str | None = None, **config: str) -> None:
        self.server = required(KafkaServer)
        self.name = name or fresh()
        self.partitions = partitions
        self.config = config
        self.admin = admin_of(self.server.bootstrap)
        self.rows: list[dict[str, Any]] = []
        self._producer: Producer | None = None
        self.create()

    def create(self) -> None:
        config = {key.replace("_", "."): value for key, value in self.config.items()}
        config.setdefault("retention.ms", "-1")  # the records of tests are old
        until = time.monotonic() + 20
        while True:
            try:
                self.admin.create_topics([NewTopic(self.name, self.partitions, 1, config=config)])[self.name].result(30)
                break
            except Exception:  # a topic of this name is still being deleted
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        while self.name not in self.admin.list_topics(timeout=30).topics:  # the broker hears of it a moment later
            time.sleep(0.01)

    def options(self, **more: str) -> dict[str, str]:
        servers = {"kafka.bootstrap.servers": self.server.bootstrap, "discoveryInterval": "0s"}
        return {**servers, "subscribe": self.name, "startingOffsets": "earliest", **more}

    def transactional(self, timeout: str = "60000") -> Producer:
        settings = {"transactional.id": fresh("writer"), "transaction.timeout.ms": timeout}
        producer = Producer({"bootstrap.servers": self.server.bootstrap, "log_level": 0, **settings})
        producer.init_transactions(30)
        return producer

    def send(
        self,
        values: Iterable[bytes | None],
        partition: int | None = None,
        *,
        producer: Producer | None = None,
        at: int = BEGIN,
        key: bytes | None = b"k",
        headers: list[tuple[str, bytes]] | None = None,
    ) -> list[dict[str, Any]]:
        """Adds records, in turn to every partition or to one, and returns the rows that they are."""
        if producer is None:
            producer = self._producer = self._producer or Producer({"bootstrap.servers": self.server.bootstrap})
        sent: list[dict[str, Any]] = []
        for number, value in enumerate(values):
            row = {"key": key, "value": value, "topic": self.name, "timestampType": 0}
            row["partition"] = number % self.partitions if partition is None else partition
            row["timestamp"] = datetime.datetime.fromtimestamp((at + number) / 1000, datetime.timezone.utc)
            sent.append(row)
            producer.produce(
                self.name,
                value,
                key,
                partition=row["partition"],
                timestamp=at + number,
                headers=headers,
                on_delivery=lambda error, message, row=row: row.update(offset=message.offset()),
            )
            producer.poll(0)
        assert producer.flush(30) == 0
        self.rows += sent
        return sent

    def end(self, partition: int = 0) -> int:
        return self.bounds(partition)[1]

    def bounds(self, partition: int = 0) -> tuple[int, int]:
        consumer = Consumer({"bootstrap.servers": self.server.bootstrap, "group.id": "bounds"})
        try:
            return consumer.get_watermark_offsets(TopicPartition(self.name, partition), timeout=20)  # type: ignore[no-any-return]
        finally:
            consumer.close()

    def expire(self, before: Mapping[int, int]) -> None:
        """Deletes the records before an offset, as retention does."""
        offsets = [TopicPartition(self.name, partition, offset) for partition, offset in before.items()]
        for future in self.admin.delete_records(offsets).values():
            future.result(30)

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(30)
        while self.name in self.admin.list_topics(timeout=20).topics:
            time.sleep(0.05)
        self._producer = None  # it knows the topic's id

    def grow(self, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(30)
        self.partitions = partitions
        while len(self.admin.list_topics(timeout=20).topics[self.name].partitions) < partitions:
            time.sleep(0.05)
        self._producer = None


class KafkaContext(SourceContext):
    """Three partitions with plain records."""

    source = KafkaSource
    schema = SCHEMA
    latest: ClassVar[Mapping[str, str]] = {"startingOffsets": "latest"}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.topic = Topic()

    def options(self) -> dict[str, str]:
        return self.topic.options()

    def write(self, count: int) -> list[dict[str, Any]]:
        return self.topic.send(b"value %d" % number for number in range(count))

    def partition(self, row: Mapping[str, Any]) -> str:
        return f"{row['topic']}-{row['partition']}"

    def lose(self) -> bool:
        self.topic.expire({partition: self.topic.end(partition) for partition in range(3)})
        return True


class TransactionalContext(KafkaContext):
    """Two partitions with committed and aborted transactions in turn, so that most offsets are no record."""

    def __init__(self, folder: Path) -> None:
        SourceContext.__init__(self, folder)
        self.topic = Topic(2)
        self.producer = self.topic.transactional()

    def write(self, count: int) -> list[dict[str, Any]]:
        rows = []
        for first in range(0, count, 10):
            for end in (
                self.producer.abort_transaction,
                self.producer.commit_transaction,
                self.producer.abort_transaction,
            ):
                self.producer.begin_transaction()
                sent = self.topic.send(
                    [b"value %d" % n for n in range(first, min(first + 10, count))], producer=self.producer
                )
                end(30)
                rows += sent if end == self.producer.commit_transaction else []
        return rows

    def lose(self) -> bool:
        self.topic.expire({partition: self.topic.end(partition) for partition in range(2)})
        return True


class CopiedContext(KafkaContext):
    """Records that are copied to another topic: what of them is to be found there. No two are the same."""

    def write(self, count: int) -> list[dict[str, Any]]:
        before = len(self.topic.rows)
        sent = self.topic.send((b"value %d" % number for number in range(before, before + count)), key=b"k%d" % before)
        records = [{name: row[name] for name in ("key", "value", "partition")} for row in sent]
        return [{**row, "timestamp": BEGIN + number} for number, row in enumerate(records)]
