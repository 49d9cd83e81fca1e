"""The job that carries payments from topic to topic while its drivers are killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.testing.servers import KafkaServer
from tests.servers import required

from .quickstart import run
from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]

SMALL = {"payments": "30000", "kills": "1"}


@pytest.fixture
def foreign_topic() -> Iterator[str]:
    """The brokers' address; a topic of somebody else on them has its one record after the test."""
    server = required(KafkaServer)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    topic = server.create_topic("payments")
    producer = Producer({"bootstrap.servers": server.bootstrap})
    producer.produce(topic, "42")
    producer.flush(30)
    yield server.bootstrap
    with closing(Consumer({"bootstrap.servers": server.bootstrap, "group.id": "ends"})) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30) == (0, 1)
    admin.delete_topics([topic])[topic].result(30)


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.usefixtures("foreign_files")
def test_payments_arrive_once_and_other_topics_stay(spark: Any, tmp_path: Path, foreign_topic: str) -> None:
    parameters = {"payments": "4000", "kills": "0", "bootstrap_servers": foreign_topic}
    execution = Execution("kafka_exactly_once", spark, tmp_path, parameters)
    assert execution.exit().startswith("4,000 payments arrived once; drivers killed: 0; ")
    assert execution.pictures() == 1


@pytest.mark.soak
def test_each_payment_arrives_once_though_the_driver_is_killed_in_the_middle_of_a_transaction(tmp_path: Path) -> None:
    code, output = run("kafka_exactly_once", {"workdir": str(tmp_path), **SMALL})
    assert code == 0, output
    outcome = re.search(r"30,000 payments arrived once; drivers killed: 1; ([\d,]+) aborted records", output)
    assert outcome is not None, output
    assert int(outcome[1].replace(",", "")) > 0


@pytest.mark.soak
def test_the_gate_sees_the_payments_that_a_weaker_guarantee_doubles(tmp_path: Path) -> None:
    code, output = run("kafka_exactly_once", {"workdir": str(tmp_path), "guarantee": "at-least-once", **SMALL})
    assert code == 1, output
    assert "unique" in output
