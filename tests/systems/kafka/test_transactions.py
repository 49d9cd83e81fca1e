"""``python -m connectors kafka transactions``: what is open is listed, and ended on demand."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaException, Producer

from connectors.systems.kafka import open_transactions
from connectors.testing.servers import KafkaServer
from connectors_tools.cli import main
from tests.servers import required

from .sink_contexts import consumed


class Writer:
    """A producer with a record in a transaction that it does not end."""

    def __init__(self, name: str) -> None:
        self.server = required(KafkaServer)
        self.topic = self.server.create_topic(f"x-{uuid.uuid4().hex[:12]}", 1)
        self.id = f"{name}-{uuid.uuid4().hex[:8]}-0"
        settings = {"bootstrap.servers": self.server.bootstrap, "transactional.id": self.id, "log_level": 0}
        self.producer: Any = Producer(settings)
        self.producer.init_transactions(30)
        self.producer.begin_transaction()
        self.producer.produce(self.topic, b"open")
        self.producer.flush()


def called(*arguments: str, bootstrap: str = "") -> Result:
    where = bootstrap or required(KafkaServer).bootstrap
    return CliRunner().invoke(main, ["kafka", "transactions", "--bootstrap", where, *arguments])


def test_what_is_open_is_listed_and_what_is_not_is_left_out() -> None:
    writer, other, idle_writer = Writer("orders"), Writer("others"), Writer("orders")
    idle_writer.producer.commit_transaction(30)
    result = called("--prefix", "orders")
    assert result.exit_code == 0
    assert writer.id in result.output
    assert "ongoing" in result.output
    assert other.id not in result.output
    assert idle_writer.id not in result.output
    other.producer.abort_transaction(30)
    writer.producer.abort_transaction(30)


def test_nothing_open_is_said() -> None:
    assert "no open transactions" in called("--prefix", "nobody").output


def test_what_is_ended_keeps_nobody_waiting_and_its_writer_is_shut_out() -> None:
    writer = Writer("late")
    result = called("--prefix", writer.id, "--abort")
    assert result.exit_code == 0
    assert f"{writer.id}" in result.output
    assert ": ended" in result.output
    assert list(consumed(writer.server.bootstrap, writer.topic, 1)) == []
    with pytest.raises(KafkaException):
        writer.producer.commit_transaction(30)
    assert "no open transactions" in called("--prefix", writer.id).output


def test_a_list_that_brokers_hide_is_no_need_for_an_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transactions, "STATES", "not/a/topic")
    writer = Writer("hidden")
    assert "do not show" in called("--prefix", writer.id).output
    assert "is ended" in called("--prefix", writer.id, "--abort").output
    assert list(consumed(writer.server.bootstrap, writer.topic, 1)) == []


def test_a_file_has_the_settings_of_a_login(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="app" password="app";'
    file.write_text(f"# a login\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={jaas}\n")
    result = called("--prefix", "nobody", "--config", str(file), bootstrap=required(KafkaServer).sasl_bootstrap)
    assert "no open transactions" in result.output


def test_a_setting_that_cannot_work_is_told_by_name(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("ssl.truststore.location=store.jks\n")
    result = called("--prefix", "p", "--config", str(file))
    assert result.exit_code == 2
    assert "kafka.ssl.truststore.location" in result.output


def test_the_help_says_how_transactions_are_ended() -> None:
    text = CliRunner().invoke(main, ["kafka", "transactions", "--help"]).output
    assert "KIP-664" in text
    assert "shuts out" in text
