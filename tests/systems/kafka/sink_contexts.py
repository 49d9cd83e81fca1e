"""A topic of its own on the shared broker, read as careful readers read it: what is committed, and nothing else."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from connectors.core import Guarantee
from connectors.systems.kafka import KafkaSink
from connectors.testing import SinkContext
from connectors.testing.servers import KafkaServer
from tests.servers import required

from .source_contexts import admin_of


def consumed(bootstrap: str, topic: str, partitions: int = 2, isolation: str = "read_committed") -> Iterator[Any]:
    """The messages of ``topic``, up to where every partition ends now."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "test",
        "enable.auto.commit": False,
        "log_level": 2,
        "fetch.wait.max.ms": 10,
    }
    reader: Any = Consumer({**settings, "isolation.level": isolation, "enable.partition.eof": True})
    places = [TopicPartition(topic, number, 0) for number in range(partitions)]
    until = time.monotonic() + 60
    while isolation == "read_committed" and not all(is_decided(bootstrap, place) for place in places):
        assert time.monotonic() < until, "a transaction that nobody ends keeps readers waiting"
        time.sleep(0.05)
    reader.assign(places)
    ended = 0
    while ended < partitions:
        message = reader.poll(1.0)
        assert time.monotonic() < until
        if message is None:
            continue
        if not message.error():
            yield message
        elif message.error().name() == "_PARTITION_EOF":
            ended += 1
        else:
            raise AssertionError(message.error())
    reader.close()


def is_decided(bootstrap: str, place: TopicPartition) -> bool:
    """True when no transaction is open: a commit is answered before its markers are in every partition."""
    admin = admin_of(bootstrap)
    ends = [
        admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place].result().offset
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    return ends[0] == ends[1]


class KafkaContext(SinkContext):
    """Records are JSON of a row, by its id; the whole batch is staged first. ``extra`` are more options."""

    sink = KafkaSink
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    select = ("CAST(value AS string) AS key", "concat('row ', value) AS value")
    extra: ClassVar[dict[str, str]] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(KafkaServer)
        self.topic = self.server.create_topic(f"t-{uuid.uuid4().hex[:12]}", 2)

    def options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.server.bootstrap,
            "topic": self.topic,
            "retry.initialBackoff": "10ms",
            **self.guaranteed(),
            **self.extra,
        }

    def guaranteed(self) -> dict[str, str]:
        return {"transactionalIdPrefix": self.topic, "stagingLocation": str(self.folder / "stage")}

    def row(self, number: int) -> dict[str, Any]:
        return {"key": str(number), "value": f"row {number}"}

    def rows(self) -> list[dict[str, Any]]:
        messages = consumed(self.server.bootstrap, self.topic)
        return [{"key": message.key().decode(), "value": message.value().decode()} for message in messages]

    def leftovers(self) -> list[str] | None:
        return sorted(stage.name for stage in (self.folder / "stage").glob(".connectors/*/stage/*"))


class DirectContext(KafkaContext):
    """The driver sends the whole batch, which is small; nothing is staged."""

    carriers = ("foreach_batch",)

    def guaranteed(self) -> dict[str, str]:
        return {"transactionalIdPrefix": self.topic}

    def leftovers(self) -> None:
        return None


class SentByTask(KafkaSink):
    """Each batch is sent as a large one is."""

    driver_bytes = 0


class TaskContext(DirectContext):
    """One task sends the whole batch."""

    sink = SentByTask


class AtLeastOnceContext(KafkaContext):
    guarantee = Guarantee.AT_LEAST_ONCE

    def guaranteed(self) -> dict[str, str]:
        return {}

    def leftovers(self) -> None:
        return None


class KafkaCopyContext(TaskContext):
    """A copy of what :class:`~.source_contexts.CopiedContext` has, record by record, in the same partitions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.topic = self.server.create_topic(f"t-{uuid.uuid4().hex[:12]}", 3)

    def rows(self) -> list[dict[str, Any]]:
        messages = consumed(self.server.bootstrap, self.topic, 3)
        return [
            {"key": m.key(), "value": m.value(), "partition": m.partition(), "timestamp": m.timestamp()[1]}
            for m in messages
        ]


class SlottedCopyContext(KafkaCopyContext):
    """The same in three transactions for each batch."""

    extra: ClassVar[dict[str, str]] = {"slots": "3"}
