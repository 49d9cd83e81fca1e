"""The job of dead letters, also killed in the middle of mending: what was mended arrives once, as it was sent first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from connectors.testing.servers import KafkaServer
from tests.delta_log import delta
from tests.servers import required

from .quickstart import run

ROWS = 3000
PARTITIONS = 3


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.soak
def test_what_can_be_mended_is_delivered_once_as_it_was_sent_and_the_rest_stays_dead(
    tmp_path: Path, killed: bool
) -> None:
    brokers, name = required(KafkaServer).bootstrap, f"test-{tmp_path.name}-{killed}"
    parameters = {"workdir": str(tmp_path), "rows": str(ROWS), "run": name, "bootstrap_servers": brokers}
    root, topic = tmp_path / f"run_{name}", f"orders-{name}"
    foreign = [tmp_path / "notes.txt", tmp_path / "dead_letters" / "notes.txt"]
    for file in foreign:
        file.parent.mkdir(exist_ok=True)
        file.write_text("42")
    if killed:
        code, output = run("dead_letters", parameters, lambda: _ends(brokers, topic) > ROWS + PARTITIONS)
        assert code == -9, output
    code, output = run("dead_letters", parameters)
    assert code == 0, output

    damaged = list(range(100, ROWS + 1, 100))
    hopeless = [number for number in damaged if number // 100 % 3 == 2]
    first, second = _first_and_second(_records(brokers, topic))
    assert sorted(first) == list(range(1, ROWS + 1))
    assert sorted(map(_number, second)) == [number for number in damaged if number not in hopeless]
    assert all(_envelope(record) == _envelope(first[_number(record)]) for record in second)
    assert [name for name, _ in second[0].headers()] == ["trace", "damage"]

    orders = delta(root / "orders").to_pylist()
    assert sorted(order["id"] for order in orders) == [n for n in range(1, ROWS + 1) if n not in hopeless]
    assert all(_row(order) == _envelope(first[order["id"]]) for order in orders)
    letters = pa.concat_tables(pq.ParquetFile(file).read() for file in (root / "dead_letters").glob("*.parquet"))
    places = [json.loads(letter["position"]) for letter in letters.to_pylist()]
    assert sorted((place["partition"], place["offset"]) for place in places) == sorted(
        (first[number].partition(), first[number].offset()) for number in damaged
    )
    assert [file.read_text() for file in foreign] == ["42", "42"]


@pytest.mark.soak
def test_a_topic_that_is_not_the_notebooks_own_is_left_alone(tmp_path: Path) -> None:
    server, name = required(KafkaServer), f"foreign-{tmp_path.name}"
    server.create_topic(f"orders-{name}")
    parameters = {"workdir": str(tmp_path), "rows": "100", "run": name, "bootstrap_servers": server.bootstrap}
    code, output = run("dead_letters", parameters)
    assert code == 1, output
    assert "already exists" in output
    assert _ends(server.bootstrap, f"orders-{name}") == 0
    assert list(tmp_path.iterdir()) == []


def _ends(brokers: str, topic: str) -> int:
    """How many offsets the topic has, those of open transactions too; 0 where it is not there."""
    settings = {"bootstrap.servers": brokers, "group.id": "ends", "isolation.level": "read_uncommitted"}
    with closing(Consumer(settings)) as consumer:
        try:
            partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
            return sum(consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=20)[1] for number in partitions)
        except KafkaException:
            return 0


def _records(brokers: str, topic: str) -> Iterator[Any]:
    """The committed records of each partition, in its order."""
    settings = {"bootstrap.servers": brokers, "group.id": "records", "enable.partition.eof": True}
    unread = set(range(PARTITIONS))
    with closing(Consumer({**settings, "isolation.level": "read_committed"})) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in unread])
        while unread:
            for message in consumer.consume(1000, 1.0):
                if not message.error():
                    yield message
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())


def _first_and_second(records: Iterable[Any]) -> tuple[dict[int, Any], list[Any]]:
    """The first record of each order, by its number, and those that came after it."""
    first: dict[int, Any] = {}
    second = [record for record in records if first.setdefault(_number(record), record) is not record]
    return first, second


def _number(record: Any) -> int:
    """The order's number is at the end of its trace, also where the value is damaged."""
    return int(record.headers()[0][1].rpartition(b"-")[2])


def _envelope(record: Any) -> tuple[Any, ...]:
    return record.key(), record.headers(), record.timestamp()[1]


def _row(order: dict[str, Any]) -> tuple[Any, ...]:
    headers = [(header["key"], header["value"]) for header in order["headers"]]
    return order["key"], headers, int(order["timestamp"].timestamp() * 1000 + 0.5)
