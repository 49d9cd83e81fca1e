"""Options and servers that cannot work: one clear error each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from connectors.core import Misconfigured
from connectors.systems.kafka.errors import producer_error

from .sink_target import TEXT, Target, rows


def test_a_timeout_above_the_brokers_is_refused_with_both_numbers(target: Target) -> None:
    with pytest.raises(Misconfigured) as wrong:
        target.write(rows(1), TEXT, transactionTimeout="20 minutes")
    assert "1200000 ms" in str(wrong.value)
    assert "900000 ms" in str(wrong.value)


def test_a_topic_that_is_not_there_is_told_by_name(target: Target) -> None:
    with pytest.raises(Misconfigured, match='"no-such-topic" does not exist'):
        target.write(rows(1), TEXT, topic="no-such-topic")


def test_rows_are_staged_nowhere_where_no_folder_is_known(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misconfigured, match=r"stagingLocation +missing"):
        target.write(rows(1), TEXT, stagingLocation=None)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_password_is_one_clear_error_without_the_password(target: Target) -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="app" password="hidden-word";'
    sasl = {"kafka__security.protocol": "SASL_PLAINTEXT", "kafka__sasl.mechanism": "PLAIN"}
    options = {"kafka__bootstrap.servers": target.server.sasl_bootstrap, **sasl, "kafka__sasl.jaas.config": jaas}
    with pytest.raises(Misconfigured, match=r"kafka\.sasl") as wrong:
        target.write(rows(1), TEXT, transactionalIdPrefix="other", topic=None, **options)
    assert "hidden-word" not in str(wrong.value)


def test_a_jaas_login_is_the_clients_user_and_password(target: Target) -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="app" password="app";'
    sasl = {
        "kafka__security.protocol": "SASL_PLAINTEXT",
        "kafka__sasl.mechanism": "PLAIN",
        "kafka__sasl.jaas.config": jaas,
    }
    target.write(rows(1), TEXT, **sasl, **{"kafka__bootstrap.servers": target.server.sasl_bootstrap})
    assert target.values() == ["v1"]


def test_an_error_of_the_ledger_topic_names_its_option() -> None:
    error = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    for topic in ("topic", "ledgerTopic"):
        refusal: Any = producer_error(error, "the ledger cannot be read", topic=topic)
        assert [problem.option for problem in refusal.problems] == [topic]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"transactionalIdPrefix": None, "stagingLocation": None, "guarantee": "exactly-once"}, "transactionalIdPrefix"),
    ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers"),
    ({"kafka.transaction.timeout.ms": 1000}, "kafka.transaction.timeout.ms"),
    ({"kafka.transactional.id": "x"}, "kafka.transactional.id"),
    ({"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence"),
    ({"kafka.acks": "1"}, "kafka.acks"),
    ({"kafka.key.serializer": "org.apache.Some"}, "kafka.key.serializer"),
    ({"kafka.ssl.truststore.location": "x.jks"}, "kafka.ssl.truststore.location"),
    ({"kafka.buffer.memory": "32MB"}, "kafka.buffer.memory"),
    ({"kafka.delivery.timeout.ms": "2m"}, "kafka.delivery.timeout.ms"),
    ({"topics": "a,b"}, "topics"),
    ({"orderColumn": "at"}, "orderColumn"),
    ({"operation": "upsert", "transactionalIdPrefix": None, "stagingLocation": None}, "operation"),
    ({"guarantee": "idempotent"}, "guarantee"),
    ({"schema": "id long"}, "schema"),
]


@pytest.mark.parametrize(("options", "option"), REFUSED, ids=[option for _, option in REFUSED])
def test_what_cannot_work_is_refused_by_the_name_of_its_option(
    target: Target, options: dict[str, Any], option: str
) -> None:
    with pytest.raises(Misconfigured) as wrong:
        target.sink(**options)
    assert option in {problem.option for problem in wrong.value.problems}
