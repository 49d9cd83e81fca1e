"""Event Hubs as a real broker stands for it: over SASL_PLAINTEXT and SASL_SSL, with and without transactions."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from connectors.core import Batch, Guarantee, Misconfigured
from connectors.core.commit import Commit
from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.core.writing import stage
from connectors.systems.event_hubs import EventHubsSink, EventHubsSource
from connectors.systems.kafka import KafkaSink, KafkaSource
from connectors.testing.servers import KafkaServer
from connectors.testing.servers.fault_proxy import certificates
from connectors.testing.servers.kafka_server import CONNECTION_STRING
from tests.servers import required
from tests.systems.kafka.source_contexts import SCHEMA

WITH_ENTITY = f"{CONNECTION_STRING};EntityPath=flights"
ROWS = pa.RecordBatch.from_pydict({"key": [f"k{n}" for n in range(30)], "value": [f"row {n}" for n in range(30)]})
VALUES = sorted(value.encode() for value in ROWS.column("value").to_pylist())


@pytest.fixture
def plain() -> dict[str, str]:
    """The shared broker, which asks for the connection string, and a new event hub there."""
    server = required(KafkaServer)
    hub = server.create_topic(f"hub-{uuid.uuid4().hex[:12]}", 2)
    broker = {"kafka.bootstrap.servers": server.sasl_bootstrap, "kafka.security.protocol": "SASL_PLAINTEXT"}
    return {"connectionString": CONNECTION_STRING, "eventHub": hub, **broker, "retry.initialBackoff": "10ms"}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A broker behind TLS; ``$ConnectionString`` may prepare no transaction whose id begins with ``no``.

    It may create no topic whose name begins with ``ledger``, and do all else with such a topic.
    """
    acls = {"authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    acls |= {"allow_everyone_if_no_acl_found": "true", "super_users": "User:ANONYMOUS"}
    issued = certificates(tmp_path_factory.mktemp("issued"))
    with KafkaServer(tls=issued, connection_string=WITH_ENTITY, **acls) as server:
        server.create_topic("flights", 2)
        admin: Any = AdminClient({"bootstrap.servers": server.bootstrap})
        who, yes, no = "User:$ConnectionString", AclPermissionType.ALLOW, AclPermissionType.DENY
        prefixed, cluster = (
            ResourcePatternType.PREFIXED,
            (ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL),
        )
        rules = [
            AclBinding(ResourceType.TRANSACTIONAL_ID, "no", prefixed, who, "*", AclOperation.ALL, no),
            AclBinding(ResourceType.TOPIC, "ledger", prefixed, who, "*", AclOperation.CREATE, no),
            AclBinding(ResourceType.TOPIC, "ledger", prefixed, who, "*", AclOperation.ALL, yes),
            AclBinding(*cluster, who, "*", AclOperation.CREATE, no),
            AclBinding(*cluster, who, "*", AclOperation.ALL, yes),
        ]
        for future in admin.create_acls(rules).values():
            future.result(30)
        yield server


@pytest.fixture
def trusted(secure: KafkaServer) -> dict[str, str]:
    assert secure.tls is not None
    broker = {"kafka.bootstrap.servers": secure.tls_bootstrap, "kafka.ssl.ca.location": str(secure.tls.authority)}
    return {"connectionString": WITH_ENTITY, **broker, "retry.initialBackoff": "10ms"}


@pytest.fixture
def hub(secure: KafkaServer) -> str:
    return secure.create_topic(f"hub-{uuid.uuid4().hex[:12]}", 2)


def write(sink: Any, number: int = 0, rows: pa.RecordBatch = ROWS) -> None:
    batch = Batch(sink.sink_id(), "q", number)
    commit = Commit(sink)
    commit.begin(batch)
    commit.finish(batch, [stage(sink, batch, rows.schema, 0, iter([rows]))], rows.num_rows)


def values(source: Any) -> list[bytes]:
    parts = Planner(source).whole()
    return sorted(
        row["value"] for part in parts for batch in read_slice(source, part, SCHEMA) for row in batch.to_pylist()
    )


def test_events_are_written_and_read_by_a_connection_string(plain: dict[str, str]) -> None:
    sink = EventHubsSink.of(plain)
    assert sink.guarantee() is Guarantee.AT_LEAST_ONCE
    write(sink)
    assert values(EventHubsSource.of(plain)) == VALUES


def test_the_entity_path_is_enough_over_tls(trusted: dict[str, str]) -> None:
    write(EventHubsSink.of(trusted))
    assert values(EventHubsSource.of(trusted)) == VALUES


def test_kafka_itself_is_written_and_read_over_tls(trusted: dict[str, str], hub: str) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    jaas = f'{module} username="app" password="app";'
    broker = {name: value for name, value in trusted.items() if name != "connectionString"}
    broker |= {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas}
    write(KafkaSink.of({**broker, "topic": hub}))
    assert values(KafkaSource.of({**broker, "subscribe": hub})) == VALUES


@pytest.mark.parametrize("kind", [EventHubsSource, EventHubsSink])
def test_a_wrong_key_is_one_clear_error_without_the_key_in_it(plain: dict[str, str], kind: Any) -> None:
    wrong = {**plain, "connectionString": CONNECTION_STRING.replace("SharedAccessKey=s", "SharedAccessKey=wrong-key")}
    with pytest.raises(Misconfigured, match=r"connectors.event_hubs(.|\n)*refuses the key \"k\"") as refused:
        values(kind.of(wrong)) if kind is EventHubsSource else write(kind.of(wrong))
    assert [problem.option for problem in refused.value.problems] == ["connectionString"]
    assert "wrong-key" not in str(refused.value)


def test_a_server_that_nobody_vouches_for_is_not_given_the_key(
    trusted: dict[str, str], secure: KafkaServer, tmp_path: Path
) -> None:
    others = {**trusted, "kafka.ssl.ca.location": str(certificates(tmp_path).authority)}
    for attempt in (lambda: values(EventHubsSource.of(others)), lambda: write(EventHubsSink.of(others))):
        with pytest.raises(Misconfigured, match=r"kafka.ssl.ca.location(.|\n)*no secure connection") as refused:
            attempt()
        assert WITH_ENTITY not in str(refused.value)


def test_a_service_that_has_transactions_makes_the_sink_exactly_once(
    trusted: dict[str, str], hub: str, tmp_path: Path
) -> None:
    typed = {**trusted, "topic": hub, "transactionalIdPrefix": hub, "stagingLocation": str(tmp_path)}
    sink = EventHubsSink.of(typed)
    assert sink.guarantee() is Guarantee.EXACTLY_ONCE
    write(sink)
    commit = Commit(EventHubsSink.of(typed))
    assert commit.begin(Batch(sink.sink_id(), "q", 0)).name != "WRITE", "a replay finds the batch"
    assert values(EventHubsSource.of({**trusted, "subscribe": hub})) == VALUES


def test_a_user_who_may_not_create_topics_needs_a_ledger_topic_of_somebody_else(
    trusted: dict[str, str], secure: KafkaServer, hub: str, tmp_path: Path
) -> None:
    ledger = f"ledger-{hub}"
    typed = {**trusted, "topic": hub, "transactionalIdPrefix": hub, "stagingLocation": str(tmp_path)}
    with pytest.raises(
        Misconfigured, match=f'"{ledger}" does not exist, and this user may not create topics'
    ) as refused:
        write(EventHubsSink.of({**typed, "ledgerTopic": ledger}))
    assert [problem.option for problem in refused.value.problems] == ["ledgerTopic"]
    secure.create_topic(ledger, 32)
    write(EventHubsSink.of({**typed, "ledgerTopic": ledger}))
    assert values(EventHubsSource.of({**trusted, "subscribe": hub})) == VALUES


def test_a_service_without_transactions_leaves_the_sink_at_least_once(
    trusted: dict[str, str], hub: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = EventHubsSink.of({**trusted, "topic": hub, "transactionalIdPrefix": f"no-{hub}"})
    with caplog.at_level(logging.WARNING, "connectors.event_hubs"):
        assert sink.guarantee() is Guarantee.AT_LEAST_ONCE
    assert "the service has no transactions" in caplog.text
    write(sink)
    assert values(EventHubsSource.of({**trusted, "subscribe": hub})) == VALUES


@pytest.mark.parametrize("option", [{"guarantee": "exactly-once"}, {"operation": "upsert"}])
def test_exactly_once_by_name_is_refused_by_a_service_without_transactions(
    trusted: dict[str, str], hub: str, option: dict[str, str]
) -> None:
    sink = EventHubsSink.of({**trusted, "topic": hub, "transactionalIdPrefix": f"no-{hub}", **option})
    with pytest.raises(Misconfigured, match="needs transactions, which this service does not have") as refused:
        write(sink)
    assert [problem.option for problem in refused.value.problems] == list(option)


def test_an_event_above_one_megabyte_is_set_aside(plain: dict[str, str], tmp_path: Path) -> None:
    letters = {"errors": "deadLetter", "deadLetterPath": str(tmp_path)}
    rows = pa.RecordBatch.from_pydict({"value": ["x" * 900_000, "y" * 1_060_000, "z"]})
    write(EventHubsSink.of({**plain, **letters}), rows=rows)
    assert [len(value) for value in values(EventHubsSource.of(plain))] == [900_000, 1]
    (letter,) = [letter for file in tmp_path.glob("*.parquet") for letter in pq.read_table(file).to_pylist()]
    assert letter["source"].startswith("event_hubs")
