"""Options of Spark's own source: each is taken, mapped, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Misconfigured, Poison, Transient
from connectors.core.planning import INITIAL
from connectors.systems.kafka.source import KafkaSource

from .reading import Query
from .source_contexts import SCHEMA, Topic

BASE = {"kafka.bootstrap.servers": "broker-1:9092,broker-2:9092", "subscribe": "orders"}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="app" password="se\\"cret";'
SASL = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": JAAS}

TAKEN: list[dict[str, str]] = [
    {"subscribe": "orders,returns", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10000"},
    {"subscribe": "", "subscribePattern": "orders.*", "startingOffsets": "latest", "failOnDataLoss": "false"},
    {"subscribe": "", "assign": '{"orders":[0,1]}', "startingOffsets": '{"orders":{"0":23,"1":-2}}'},
    {"startingTimestamp": "1700000000000", "startingOffsetsByTimestampStrategy": "latest"},
    {"startingOffsetsByTimestamp": '{"orders":{"0":1700000000000}}', "endingOffsetsByTimestamp": '{"orders":{"0":1}}'},
    {"minPartitions": "16", "maxRecordsPerPartition": "100000", "includeHeaders": "true"},
    {"minOffsetsPerTrigger": "1000", "maxTriggerDelay": "5m", "maxOffsetsPerTrigger": "5000"},
    {"kafkaConsumer.pollTimeoutMs": "512", "fetchOffset.numRetries": "3", "fetchOffset.retryIntervalMs": "10"},
    {"groupIdPrefix": "spark-orders", "kafka.client.id": "orders", "kafka.client.rack": "a"},
    {"kafka.group.id": "orders", "kafka.session.timeout.ms": "30000", "kafka.heartbeat.interval.ms": "3000"},
    {"kafka.max.poll.records": "500", "kafka.request.timeout.ms": "60000", "kafka.default.api.timeout.ms": "60000"},
    {"kafka.fetch.max.wait.ms": "500", "kafka.fetch.min.bytes": "1", "kafka.fetch.max.bytes": "52428800"},
    {"kafka.max.partition.fetch.bytes": "1048576", "kafka.receive.buffer.bytes": "65536", "kafka.check.crcs": "false"},
    {"kafka.metadata.max.age.ms": "300000", "kafka.connections.max.idle.ms": "540000", "kafka.retry.backoff.ms": "100"},
    {"kafka.reconnect.backoff.ms": "50", "kafka.reconnect.backoff.max.ms": "1000"},
    {"kafka.client.dns.lookup": "use_all_dns_ips"},
    SASL,
    {"kafka.security.protocol": "SSL", "kafka.ssl.endpoint.identification.algorithm": ""},
    {"kafka.ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----"},
    {"kafka.isolation.level": "read_uncommitted"},
]
"""What real jobs give to ``format("kafka")``, beside brokers and topic."""

REFUSED: list[tuple[str, str, str]] = [
    ("kafka.auto.offset.reset", "earliest", "startingOffsets"),
    ("kafka.enable.auto.commit", "true", "checkpoint"),
    ("kafka.key.deserializer", "org.example.Keys", "key.format"),
    ("kafka.value.deserializer", "org.example.Values", "value.format"),
    ("kafka.interceptor.classes", "org.example.I", "Java class"),
    ("kafka.ssl.truststore.location", "/certs/trust.jks", "kafka.ssl.ca.location"),
    ("kafka.ssl.truststore.password", "hidden", "kafka.ssl.ca.location"),
    ("kafka.ssl.keystore.location", "/certs/key.jks", "PEM"),
    ("kafka.sasl.kerberos.service.name", "kafka", "Kerberos"),
    ("kafka.sasl.mechanism", "GSSAPI", "Kerberos"),
    ("kafka.sasl.jaas.config", "com.sun.security.auth.module.Krb5LoginModule required;", "PlainLoginModule"),
    ("kafka.fetch.min.byte", "1", "No such configuration"),
    ("kafka.fetch.min.bytes", "many", "Invalid value"),
    ("kafka.buffer.memory", "32MB", "must be a whole number"),
    ("startingOffset", "earliest", "did you mean"),
    ("startingOffsets", "first", "must be earliest, latest, committed or JSON"),
    ("endingOffsets", '{"orders":{"0":-2}', "JSON"),
    ("subscribePattern", "orders-.*", "exclude each other"),
    ("minPartitions", "0", "must be 1 or more"),
]


@pytest.mark.parametrize("options", TAKEN, ids=lambda options: ",".join(options))
def test_a_job_for_sparks_own_source_is_taken(options: dict[str, str]) -> None:
    typed = {key.lower(): value for key, value in {**BASE, **options}.items() if value or key != "subscribe"}
    source = KafkaSource.of(typed)
    assert isinstance(source, KafkaSource)
    source.reader(SCHEMA).open()


@pytest.mark.parametrize(("option", "value", "reason"), REFUSED, ids=[case[0] + "=" + case[1][:12] for case in REFUSED])
def test_an_option_that_cannot_be_had_is_refused_by_name(option: str, value: str, reason: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        KafkaSource.of({**BASE, option: value})
    assert option in str(refused.value)
    assert reason in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_every_problem_is_in_one_error() -> None:
    with pytest.raises(Misconfigured) as refused:
        KafkaSource.of({"kafka.ssl.keystore.location": "/x", "kafka.nonsense": "1"})
    assert {problem.option for problem in refused.value.problems} == {
        "kafka.bootstrap.servers",
        "kafka.nonsense",
        "kafka.ssl.keystore.location",
        "subscribe",
    }


def test_spark_s_names_reach_the_client_under_its_own() -> None:
    source: Any = KafkaSource.of({**BASE, **SASL, "kafka.fetch.max.wait.ms": "7", "fetchOffset.retryIntervalMs": "250"})
    config = source.config()
    assert (config["sasl.username"], config["sasl.password"]) == ("app", 'se"cret')
    assert config["fetch.wait.max.ms"] == "7"
    assert (config["isolation.level"], config["enable.auto.commit"]) == ("read_committed", "false")
    assert source.values["retry.initialBackoff"] == 0.25


def test_a_backslash_in_a_jaas_password_is_written_twice() -> None:
    jaas = JAAS.replace('se\\"cret', r"a\\b\"c")
    source: Any = KafkaSource.of({**BASE, **SASL, "kafka.sasl.jaas.config": jaas})
    assert source.config()["sasl.password"] == r"a\b" + '"c'


def test_a_batch_waits_for_as_many_offsets_as_the_user_wants() -> None:
    topic = Topic(1)
    topic.send([b"a", b"b"])
    options = topic.options(minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    query = Query(options)
    assert query.values() == []
    topic.send([b"c"])
    assert query.values() == [b"a", b"b", b"c"]
    topic.send([b"d"])
    assert Query({**options, "maxTriggerDelay": "0s"}, query.log).values() == [b"d"]


def splits(query: Query, planned: Query) -> list[Any]:
    """How ``query`` cuts the first batch that was ``planned``."""
    parts = query.planner.slices(INITIAL, planned.log[0])
    return [split for part in parts for split in query.planner.enumerator.splits_of(part)]


def test_ranges_are_cut_as_the_user_wants_and_a_replay_cuts_alike() -> None:
    topic = Topic(2)
    topic.send([b"x"] * 20)
    query = Query(topic.options(minPartitions="5"))
    query.next()
    other = Query(topic.options(maxRecordsPerPartition="3"), query.log)
    assert len(splits(query, query)) >= 5
    assert splits(query, query) == splits(other, query)
    largest = Query(topic.options(maxRecordsPerPartition="3"))
    largest.next()
    sizes = [split.end - split.first for split in splits(largest, largest)]
    assert max(sizes) <= 3
    assert sum(sizes) == 20


def test_a_record_that_cannot_be_read_is_set_aside_with_its_place(tmp_path: Path) -> None:
    topic = Topic(1)
    topic.send([b'{"id": 1}', b"broken", b'{"id": 2}'], key=b"7")
    options = topic.options(**{"value.format": "json", "schema": "id long", "key.format": "string"})
    kinds = {"key": pa.string(), "value": pa.struct([("id", pa.int64())])}
    schema = pa.schema([(field.name, kinds.get(field.name, field.type)) for field in SCHEMA])
    with pytest.raises(Poison, match=r'(?s)"offset":1,"partition":0,"topic".*errors=deadLetter'):
        Query(options, schema=schema).values()
    query = Query({**options, "errors": "deadLetter", "deadLetterPath": str(tmp_path)}, schema=schema)
    assert query.values() == [{"id": 1}, {"id": 2}]
    (letter,) = pq.read_table(tmp_path).to_pylist()
    assert (letter["source"], letter["record"]) == ("connectors.kafka", b"broken")
    assert letter["position"] == f'{{"offset":1,"partition":0,"topic":"{topic.name}"}}'


def test_brokers_that_are_away_are_an_outage() -> None:
    away = {**BASE, "kafka.bootstrap.servers": "127.0.0.1:1", "retry.maxRetries": "0"}
    with pytest.raises(Transient, match=r"no broker of 127\.0\.0\.1:1 can be reached"):
        Query(away).next()


def test_progress_tells_the_lag_of_each_partition() -> None:
    topic = Topic(2)
    topic.send([b"a"] * 5, 0)
    topic.send([b"b"], 1)
    query = Query(topic.options(maxRowsPerTrigger="3"))
    query.next()
    head = query.planner.enumerator.head()
    progress = {
        partition.partition: partition for partition in query.planner.enumerator.progress(query.log[-1]["at"], head)
    }
    first = progress[f"{topic.name}-0"]
    assert (first.position, first.latest, first.lag_records) == (2, 5, 3)
    assert progress[f"{topic.name}-1"].lag_records == 0
