"""A small queue of the client is waited for; it is no outage. The broker is the client's own mock."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from connectors.core import Batch
from connectors.systems.kafka import KafkaSink
from connectors.systems.kafka.cluster import SinkTopic
from connectors.systems.kafka.config import producer_config
from connectors.systems.kafka.errors import ClientReports
from connectors.systems.kafka.producer import RecordFeeder


class AnyTopic:
    def __getitem__(self, name: str) -> SinkTopic:
        return SinkTopic(name, 4, 1_048_588)


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "plain"])
@pytest.mark.parametrize("room", [1, 500])
def test_a_batch_may_be_larger_than_the_queue(is_native: bool, room: int) -> None:
    options = {"kafka.bootstrap.servers": "h:1", "topic": "t", "kafka.queue.buffering.max.messages": str(room)}
    sink = KafkaSink.of({**options, "kafka.linger.ms": "0"})
    config = producer_config(sink.config(), 1_048_588, ClientReports())
    config |= {"test.mock.num.brokers": 1, "log_level": "0"}
    if is_native:
        config |= {"transactional.id": "p-0"}
    producer: Any = Producer(config)
    if is_native:
        producer.init_transactions(30)
        producer.begin_transaction()
    topics: Any = AnyTopic()
    feeder = RecordFeeder(producer, config, topics, "t", 30)
    count = room * 3
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"x"] * count, pa.binary())})
    assert feeder.feed(rows, sink.rejects(Batch("s", "q", 0))) == count
    feeder.wait_for_room(1)
    producer.produce("t", b"one more")
    assert producer.flush(30) == 0
