"""A topic of its own, and batches that are written to it as a driver and its tasks would."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.core import Batch
from connectors.core.commit import Commit
from connectors.core.ledger import Entry
from connectors.core.writing import stage
from connectors.systems.kafka import KafkaSink
from connectors.systems.kafka import session as sessions
from connectors.systems.kafka.transactions import BatchTransaction
from connectors.testing.servers import KafkaServer
from tests.servers import required

from .sink_contexts import consumed


class Target:
    """A new topic. ``options`` of the sink have ``__`` for dots, and ``None`` takes one away."""

    kind: ClassVar[type[KafkaSink]] = KafkaSink

    def __init__(self, folder: Path, partitions: int = 2, **config: str) -> None:
        self.server = required(KafkaServer)
        self.partitions = partitions
        self.topic = self.server.create_topic(f"s-{uuid.uuid4().hex[:12]}", partitions, **config)
        self.folder = folder
        self.number = -1

    def sink(self, **options: Any) -> KafkaSink:
        typed = {
            "kafka.bootstrap.servers": self.server.bootstrap,
            "topic": self.topic,
            "transactionalIdPrefix": self.topic,
            "stagingLocation": self.folder / "stage",
            "retry.maxRetries": 0,
            "outageTimeout": "0s",
            **{name.replace("__", "."): value for name, value in options.items()},
        }
        sink = self.kind.of({name: value for name, value in typed.items() if value is not None})
        assert isinstance(sink, KafkaSink)
        return sink

    def write(
        self,
        rows: list[dict[str, Any]],
        schema: dict[str, Any],
        number: int | None = None,
        query: str = "query",
        **options: Any,
    ) -> None:
        """One batch, in one task."""
        sink = self.sink(**options)
        self.number = self.number + 1 if number is None else number
        batch, columns = Batch(sink.sink_id(), query, self.number), pa.schema(schema)
        records: Any = pa.RecordBatch.from_pylist(rows, columns)
        commit = Commit(sink)
        commit.begin(batch)
        commit.finish(batch, [stage(sink, batch, columns, 0, iter([records]))])

    def place(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def messages(self, isolation: str = "read_committed") -> list[Any]:
        return list(consumed(self.server.bootstrap, self.topic, self.partitions, isolation))

    def values(self, isolation: str = "read_committed") -> list[str]:
        return sorted(message.value().decode() for message in self.messages(isolation))


TEXT = {"key": pa.string(), "value": pa.string()}


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"key": str(number % 3), "value": f"v{number}"} for number in numbers]


def publish(
    sink: KafkaSink,
    query: str,
    number: int,
    records: Iterable[pa.RecordBatch],
    rejects: Any,
    entry: Callable[[int], Entry],
) -> float | None:
    """One batch in one transaction, as a task or a driver sends it; ``None`` if it is committed already."""
    transaction = BatchTransaction(sink, Entry(query, number))
    if not transaction.begin():
        return None
    transaction.entry = entry(transaction.send(records, rejects))
    return transaction.commit()


def forget_sessions() -> None:
    """As if this process were a new one: what it has open stays open, and is not used again."""
    sessions._sessions.clear()


def forget_offsets(target: Target) -> None:
    """What a broker does with the offsets of a group after ``offsets.retention.minutes``, which pass for sessions, too."""
    for session in sessions._sessions.values():
        session._ledger._texts_end = 0.0
    group = target.sink().transaction_settings().group
    admin = AdminClient({"bootstrap.servers": target.server.bootstrap})
    for future in admin.delete_consumer_groups([group]).values():
        future.result(30)
    places = [TopicPartition("_connectors_ledger", place) for place in (0, 1)]
    (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
    assert [place.offset >= 0 for place in answer.result(30).topic_partitions] == [False, False]


def murmur2(data: bytes) -> int:
    """Kafka's default partitioner, as its documentation gives it."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    for at in range(0, len(data) - len(data) % 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    tail = data[len(data) - len(data) % 4 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF
