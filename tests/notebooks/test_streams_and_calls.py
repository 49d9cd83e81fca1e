"""The notebooks of Kafka's source, of schemas, of monitoring and of asynchronous calls, run in the tests' session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.testing.servers import KafkaServer, RedisServer
from tests.servers import required

from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]

pytestmark = pytest.mark.spark


@pytest.mark.server
@pytest.mark.usefixtures("foreign_files")
@pytest.mark.soak
def test_the_numbers_of_a_watched_stream_are_those_of_its_files(spark: Any, tmp_path: Path) -> None:
    required(RedisServer)
    execution = Execution("monitoring", spark, tmp_path, {"seconds": "30"})
    execution.exit()
    assert execution.pictures() == 1


@pytest.mark.server
@pytest.mark.soak
def test_alignment_saves_rows_from_being_late_and_other_topics_stay(spark: Any, tmp_path: Path) -> None:
    brokers = required(KafkaServer).bootstrap
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
    parameters = {"bootstrap_servers": brokers, "topic": "late-flights", "per_minute": "2"}
    execution = Execution("kafka_source", spark, tmp_path, parameters)
    execution.exit()
    topics = admin.list_topics(timeout=30).topics
    assert "orders" in topics
    assert sum(topic.startswith("late-flights-") for topic in topics) == 2
    assert execution.pictures() == 1


@pytest.mark.soak
@pytest.mark.server
def test_files_and_a_topic_are_one_table(spark: Any, tmp_path: Path) -> None:
    execution = Execution("hybrid", spark, tmp_path, {"bootstrap_servers": required(KafkaServer).bootstrap})
    execution.exit()
    assert execution.pictures() == 1


@pytest.mark.soak
@pytest.mark.server
def test_every_row_is_enriched(spark: Any, tmp_path: Path) -> None:
    execution = Execution("async_enrichment", spark, tmp_path, {"rows": "2000", "users": "500", "latency": "10ms"})
    execution.exit()
    assert execution.pictures() == 1


@pytest.mark.server
@pytest.mark.soak
def test_orders_of_each_schema_are_in_a_table_or_dead_letters(spark: Any, tmp_path: Path) -> None:
    required(KafkaServer)
    execution = Execution("schema_registry", spark, tmp_path, {"orders": "50"})
    assert execution.exit() == "200 orders in two tables, 100 dead letters"
    assert execution.pictures() == 1
