"""``errors.deadletterqueue.topic.name``: the topic is made, and holds each record that failed with what failed."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer

from connectors.connect.host import DeadLetter
from connectors.core import Batch
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.ground.errors import Fatal, Transient
from connectors.systems.connect import ConnectSink
from connectors.systems.connect.dead_letter_topic import DeadLetterTopic
from connectors.testing.servers import KafkaServer
from tests.connect import file_connectors, sinks
from tests.connect.test_sink import Write, placed_rows, rows
from tests.servers import required

pytestmark = pytest.mark.server


@pytest.mark.soak
def test_a_record_that_fails_is_in_the_topic_with_its_headers(tmp_path: Path) -> None:
    server, topic = required(KafkaServer), f"dlq-{uuid.uuid4().hex[:8]}"
    config = {
        "name": "people",
        "connector.class": file_connectors.SINK,
        "file": str(tmp_path / "out.txt"),
        "topics": "t",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        **letters_to(server, topic),
    }
    sink = ConnectSink.of({"config": json.dumps(config)})
    values = [b"{no json" if number == 500 else b"%d" % number for number in range(1000)]
    table = pa.table({"topic": ["t"] * 1000, "key": [b"k%d" % number for number in range(1000)], "value": values})
    batch = Batch(sink.sink_id(), "query", 0, run="run")
    Commit(sink).finish(batch, [stage(sink, batch, table.schema, 0, iter(table.to_batches()))])
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 999
    (message,) = messages(server, topic)
    assert (message.key(), message.value()) == (b"k500", b"{no json")
    headers = dict(message.headers() or [])
    assert headers["__connect.errors.topic"] == b"t"
    assert headers["__connect.errors.offset"] == b"500"
    assert headers["__connect.errors.connector.name"] == b"people"
    assert headers["__connect.errors.stage"] == b"VALUE_CONVERTER"
    assert headers["__connect.errors.exception.class.name"] == b"org.apache.kafka.connect.errors.DataException"


def test_a_letter_is_in_the_topic_before_the_target_moves_past_its_row() -> None:
    server, topic = required(KafkaServer), f"dlq-{uuid.uuid4().hex[:8]}"
    string = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
    write = Write(sinks.RefusingConnector, **string, **letters_to(server, topic))
    write.target.refuses, write.target.deaths = {"t-3"}, ["committed"]
    with pytest.raises(RuntimeError, match="dead where committed"):
        write.batch(placed_rows("t", 0, 5))
    write.batch(placed_rows("t", 0, 5))  # a replay, which finds everything in the target
    assert write.target.tables["t"] == ["t-0", "t-1", "t-2", "t-4"]
    assert [message.value() for message in messages(server, topic)] == [b"t-3"]


def test_a_letter_that_is_too_large_says_what_to_raise_and_many_wait_for_the_broker() -> None:
    server, topic = required(KafkaServer), f"dlq-{uuid.uuid4().hex[:8]}"
    string = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
    small = {"producer.override.queue.buffering.max.messages": "100", "producer.override.linger.ms": "1000"}
    write = Write(sinks.ReportingConnector, **string, **letters_to(server, topic), **small)
    large = "x" * 1_500_000
    write.target.refuses = {large, *(f"v{number}" for number in range(250))}
    write.batch(rows(250))
    assert len(messages(server, topic, 250)) == 250
    with pytest.raises(Fatal, match=r"(?s)letter of t-0 at 0 cannot go to the topic .*too large.*message\.max\.bytes"):
        write.batch([{"topic": "t", "value": large}])


def test_a_cluster_that_is_away_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.systems.connect.dead_letter_topic._SECONDS", 0.5)
    topic = DeadLetterTopic("d", {"bootstrap.servers": "127.0.0.1:9"})
    with pytest.raises(Transient, match="topic d cannot be reached or created"):
        topic.put([DeadLetter("t", 0, 0, None, b"x", [], None, "TASK_PUT", "", "", "")])


def letters_to(server: KafkaServer, topic: str) -> dict[str, str]:
    """Properties by which dead letters go to a topic of ``server``."""
    return {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": topic,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
        "bootstrap.servers": server.bootstrap,
    }


def messages(server: KafkaServer, topic: str, least: int = 1) -> list[Any]:
    """The messages of a topic, when there are ``least``, or after a minute."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    end, found = time.monotonic() + 60, list[Any]()
    while len(found) < least and time.monotonic() < end:
        found += [message for message in [consumer.poll(1.0)] if message is not None]
    found += [message for message in [consumer.poll(2.0)] if message is not None]
    consumer.close()
    return found
