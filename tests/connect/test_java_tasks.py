"""Connectors of Java with several tasks, new deals of tasks, and outages of their system: MirrorMaker's source on a broker."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from connectors.connect.java.source_host import JavaSourceHost
from connectors.core import ReadLimit
from connectors.testing.servers import KafkaServer
from tests.connect.java_sources import poll, rows_of, started
from tests.servers import required

MIRROR = "org.apache.kafka:connect-mirror:4.3.1"


@pytest.fixture
def broker() -> KafkaServer:
    return required(KafkaServer)


def mirror(broker: KafkaServer, topics: str, **more: str) -> dict[str, str]:
    named = {key.replace("__", "."): value for key, value in more.items()}
    return {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "name": "mirror",
        "source.cluster.alias": "here",
        "target.cluster.alias": "there",
        "source.cluster.bootstrap.servers": broker.bootstrap,
        "target.cluster.bootstrap.servers": broker.bootstrap,
        "topics": topics,
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "emit.checkpoints.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "sync.topic.configs.enabled": "false",
        "refresh.topics.interval.seconds": "1",
        "consumer.auto.offset.reset": "earliest",
        "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "tasks.max": "2",
        **named,
    }


def produce(broker: KafkaServer, topic: str, values: list[str], partitions: int = 4) -> None:
    from confluent_kafka import Producer

    producer: Any = Producer({"bootstrap.servers": broker.bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), key=str(number).encode(), partition=number % partitions)
    producer.flush(30)


@pytest.mark.server
@pytest.mark.soak
def test_tasks_share_the_partitions_and_are_dealt_out_anew_when_the_connector_asks(broker: KafkaServer) -> None:
    name = f"mirrored-{uuid.uuid4().hex[:8]}"
    broker.create_topic(f"{name}-a", partitions=4)
    values = [f"a{number}" for number in range(40)]
    produce(broker, f"{name}-a", values)
    with started(mirror(broker, f"{name}-.*"), MIRROR) as host:
        records = poll(host, 40)
        assert {part.task for part in records} == {0, 1}
        assert sorted(row["value"].decode() for row in rows_of(records)) == sorted(values)
        host.committed(1)
        offsets = {partition: offset for part in records for partition, offset in part.offsets.items()}
        broker.create_topic(f"{name}-b", partitions=4)
        produce(broker, f"{name}-b", ["b"] * 8)
        until = time.monotonic() + 60
        while not host.reconfiguration_requested():
            assert time.monotonic() < until
            offsets.update(_offsets(host))
        host.quiesce()
        while records := host.poll(2, ReadLimit(), 0.0):
            offsets.update({partition: offset for part in records for partition, offset in part.offsets.items()})
        host.reconfigure(offsets)
        assert (host.generation(), host.reconfiguration_requested()) == (2, False)
        assert [row["value"] for row in rows_of(poll(host, 8, epoch=3))] == [b"b"] * 8
        assert [status.state for status in host.statuses()] == ["RUNNING", "RUNNING"]


def _offsets(host: JavaSourceHost) -> dict[str, Any]:
    return {partition: offset for part in host.poll(2, ReadLimit(), 0.2) for partition, offset in part.offsets.items()}
