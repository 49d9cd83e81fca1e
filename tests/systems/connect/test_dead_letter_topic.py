"""``errors.deadletterqueue.topic.name``: the topic is made, and holds each record that failed with what failed."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer

from connectors.core import Batch
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.connect import ConnectSink
from connectors.testing.servers import KafkaServer
from tests.servers import required

pytestmark = pytest.mark.server


def test_a_record_that_fails_is_in_the_topic_with_its_headers(tmp_path: Path) -> None:
    server, topic = required(KafkaServer), f"dlq-{uuid.uuid4().hex[:8]}"
    config = {
        "name": "people",
        "connector.class": "FileStreamSink",
        "file": str(tmp_path / "out.txt"),
        "topics": "t",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": topic,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
        "bootstrap.servers": server.bootstrap,
    }
    sink = ConnectSink.of({"config": json.dumps(config)})
    values = [b"{no json" if number == 500 else b"%d" % number for number in range(1000)]
    rows = pa.table({"topic": ["t"] * 1000, "key": [b"k%d" % number for number in range(1000)], "value": values})
    batch = Batch(sink.sink_id(), "query", 0, run="run")
    Commit(sink).finish(batch, [stage(sink, batch, rows.schema, 0, iter(rows.to_batches()))])
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 999
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    end, message = time.monotonic() + 60, None
    while message is None and time.monotonic() < end:
        message = consumer.poll(1.0)
    more = consumer.poll(2.0)
    consumer.close()
    assert message is not None
    assert more is None
    assert (message.key(), message.value()) == (b"k500", b"{no json")
    headers = dict(message.headers() or [])
    assert headers["__connect.errors.topic"] == b"t"
    assert headers["__connect.errors.offset"] == b"500"
    assert headers["__connect.errors.connector.name"] == b"people"
    assert headers["__connect.errors.stage"] == b"VALUE_CONVERTER"
    assert headers["__connect.errors.exception.class.name"] == b"org.apache.kafka.connect.errors.DataException"
