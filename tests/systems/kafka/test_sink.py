"""What the sink writes, what it refuses, and what becomes of outages, zombies and a ledger that the broker forgot."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.core import Batch, CommitRefused, Guarantee, Misconfigured, Poison, Transient
from connectors.core.commit import Commit
from connectors.core.ledger import Entry
from connectors.systems.kafka import session as sessions
from connectors.systems.kafka.book import Book
from connectors.systems.kafka.session import session
from connectors.systems.kafka.transacting import publish
from connectors.testing.engine import in_a_child

from .sink_target import TEXT, Target, forget_sessions, murmur2, rows

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


def test_a_record_has_what_its_row_says(target: Target) -> None:
    schema = {**TEXT, "partition": pa.int32(), "timestamp": pa.timestamp("us", tz="UTC"), "headers": HEADERS}
    headers = [{"key": "h", "value": b"x"}]
    now = int(time.time()) * 1_000_000 + 123_456
    row = {"key": "k", "value": "v", "partition": 1, "timestamp": now, "headers": headers}
    target.write([row, {**row, "headers": None, "partition": None}], schema)
    first, second = sorted(target.messages(), key=lambda message: message.headers() is None)
    assert (first.key(), first.value(), first.partition(), first.headers()) == (b"k", b"v", 1, [("h", b"x")])
    assert first.timestamp()[1] == now // 1000
    assert second.headers() is None


def test_partition_and_timestamp_may_be_given_for_some_rows_only(target: Target) -> None:
    schema = {**TEXT, "partition": pa.int32(), "timestamp": pa.timestamp("us")}
    earlier = (int(time.time()) - 3600) * 1_000_000
    target.write([{"value": "a", "partition": 1}, {"value": "b", "timestamp": earlier}], schema)
    found = {message.value(): message for message in target.messages()}
    assert found[b"a"].partition() == 1
    assert found[b"b"].timestamp()[1] == earlier // 1000


def test_a_null_value_is_a_tombstone(target: Target) -> None:
    target.write([{"key": "k", "value": None}, {"key": None, "value": ""}], TEXT)
    assert sorted((m.key(), m.value()) for m in target.messages() if m.key()) == [(b"k", None)]
    assert [m.value() for m in target.messages() if m.key() is None] == [b""]


def test_a_topic_by_column_is_taken_for_each_row(tmp_path: Path) -> None:
    left, right = Target(tmp_path / "left"), Target(tmp_path / "right")
    found = [{"topic": one.topic, "value": one.topic} for one in (left, right, left)]
    left.write(found, {"topic": pa.string(), "value": pa.string()}, topic=None)
    assert (left.values(), right.values()) == ([left.topic] * 2, [right.topic])


def test_keys_go_to_the_partitions_that_kafka_gives_them(tmp_path: Path) -> None:
    target = Target(tmp_path, partitions=4)
    target.write([{"key": key, "value": "v"} for key in ("a", "b", "order-1", "order-2", "ü")], TEXT)
    found = {message.key().decode(): message.partition() for message in target.messages()}
    assert found == {key: murmur2(key.encode()) % 4 for key in found}


def test_values_are_serialized_by_their_format(target: Target) -> None:
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    target.write([{"key": 7, "value": {"id": 1, "name": "x"}}], {"key": pa.int64(), "value": kind},
                 value__format="json", key__format="string")  # fmt: skip
    assert [(m.key(), m.value()) for m in target.messages()] == [(b"7", b'{"id":1,"name":"x"}')]


def test_an_upsert_keeps_the_last_of_each_key_and_deletes_by_null(target: Target) -> None:
    found = [
        {"key": "a", "value": "1"},
        {"key": "b", "value": "1"},
        {"key": "a", "value": "2"},
        {"key": "b", "value": None},
    ]
    target.write(found, TEXT, operation="upsert")
    assert sorted((m.key(), m.value()) for m in target.messages()) == [(b"a", b"2"), (b"b", None)]


def test_an_upsert_takes_the_largest_of_its_order_column(target: Target) -> None:
    found = [{"key": "a", "value": value, "at": at} for value, at in (("new", 9), ("old", 3), ("none", None))]
    target.write(found, {**TEXT, "at": pa.int64()}, operation="upsert", orderColumn="at")
    assert target.values() == ["new"]


def test_a_record_that_is_too_large_is_set_aside_alone(tmp_path: Path) -> None:
    target = Target(tmp_path, max_message_bytes="3000")
    letters = {"errors": "deadLetter", "deadLetterPath": tmp_path / "letters"}
    found = [*rows(1), {"key": "large", "value": "x" * 3000}, *rows(*range(2, 200))]
    target.write(found, TEXT, **letters)
    assert len(target.values()) == 199
    (letter,) = [one for file in (tmp_path / "letters").glob("*.parquet") for one in pq.read_table(file).to_pylist()]
    assert "max.message.bytes" in letter["error"]
    assert b'"key": "large"' in letter["record"]


def test_a_record_above_the_clients_own_maximum_is_set_aside_alone(target: Target) -> None:
    large = [{"key": "k", "value": "small"}, {"key": "k", "value": "x" * 5000}]
    target.write(large, TEXT, errors="skip", kafka__max__request__size="2000")
    assert target.values() == ["small"]


def test_the_largest_record_that_a_topic_takes_is_written(tmp_path: Path) -> None:
    target = Target(tmp_path, partitions=1, max_message_bytes="3000")
    target.write([{"key": "k", "value": "x" * (3000 - 90)}], TEXT)
    assert len(target.values()) == 1


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"value": "x" * 3000}, "max.message.bytes"),
        ({"value": "x", "partition": 2}, "no partition 2"),
    ],
)
def test_a_bad_row_fails_the_batch_unless_told_otherwise(tmp_path: Path, row: dict[str, Any], told: str) -> None:
    target = Target(tmp_path, max_message_bytes="3000")
    with pytest.raises(Poison, match=told):
        target.write([*rows(1, 2), row], {**TEXT, "partition": pa.int32()})
    assert target.values() == []
    target.write([*rows(1, 2), row], {**TEXT, "partition": pa.int32()}, number=0, errors="skip")
    assert target.values() == ["v1", "v2"]


def test_an_empty_batch_opens_no_transaction(target: Target) -> None:
    for _ in range(3):
        target.write([], TEXT)
    assert not [line for line in _transactions(target) if "Ongoing" in line or "CompleteCommit" in line]
    assert target.messages("read_uncommitted") == []
    target.write(rows(1), TEXT)
    assert target.values() == ["v1"]


def _transactions(target: Target) -> list[str]:
    told = target.server.tool(
        "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", target.server.bootstrap, "list"
    )
    return [line for line in told.splitlines() if target.topic in line]


def test_a_query_that_began_with_empty_batches_is_known(target: Target) -> None:
    target.write([], TEXT)
    target.write([], TEXT)
    target.write(rows(1), TEXT)
    with pytest.raises(CommitRefused, match="onNewQuery"):
        Commit(target.sink()).begin(Batch(target.topic, "another", 0))


def test_two_attempts_at_one_batch_write_it_once(target: Target) -> None:
    """The first has its records in the transaction when the second begins; only one of them can commit."""
    sink = target.sink()
    batch, schema = Batch(sink.sink_id(), "query", 0), pa.schema(TEXT)
    early = session(sink.address())
    early.begin(early.books(0)[0])
    early.producer.produce(target.topic, b"from a zombie")
    early.producer.flush()
    forget_sessions()
    target.write(rows(1), TEXT)
    with pytest.raises(Transient, match="taken over"), early.guarded("x"):
        early.commit(early_book(batch))
    assert target.values() == ["v1"]
    assert "from a zombie" in target.values("read_uncommitted")
    assert schema.names == ["key", "value"]


def early_book(batch: Batch) -> Any:
    return Book().with_entry(Entry(batch.query, batch.number, 1))


def test_workers_that_write_in_turns_take_over_from_each_other_without_an_error(target: Target) -> None:
    """Each keeps its session; the target's retries are off."""
    target.write(rows(1), TEXT)
    first = dict(sessions._open)
    forget_sessions()
    target.write(rows(2), TEXT)
    second = dict(sessions._open)
    for number, kept in ((3, first), (4, second)):
        sessions._open.update(kept)
        target.write(rows(number), TEXT)
    target.write(rows(5), TEXT)
    assert target.values() == ["v1", "v2", "v3", "v4", "v5"]


def test_a_batch_that_is_there_is_not_sent_again_by_who_comes_late(target: Target) -> None:
    """The late one has passed the check before its batch, and opens its session after the other has committed."""
    target.write(rows(1), TEXT)
    forget_sessions()
    sink = target.sink()
    late: Any = pa.RecordBatch.from_pylist([{"value": b"late"}], pa.schema({"value": pa.binary()}))
    batch = Batch(sink.sink_id(), "query", 0)
    assert not publish(sink, "query", 0, [late], sink.rejects(batch), lambda sent: Entry("query", 0, sent))
    assert target.values("read_uncommitted") == ["v1"]


class Deadly:
    """A producer whose process dies when it would commit: just ``before``, or just after."""

    def __init__(self, inner: Any, *, before: bool) -> None:
        self.inner = inner
        self.before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def commit_transaction(self, seconds: float) -> None:
        if not self.before:
            self.inner.commit_transaction(seconds)
        self.inner.flush()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("before", [True, False])
def test_a_process_that_dies_at_its_commit_leaves_rows_and_entry_or_neither(target: Target, before: bool) -> None:
    target.write(rows(1), TEXT)

    def dies() -> None:
        ours = session(target.sink().address())
        ours.producer = Deadly(ours.producer, before=before)
        target.write(rows(2), TEXT, number=1)

    assert in_a_child(dies) == -signal.SIGKILL
    forget_sessions()
    last = Commit(target.sink()).last("query")
    assert last is not None
    assert last.batch == (0 if before else 1)
    assert target.values() == (["v1"] if before else ["v1", "v2"])


def test_a_batch_that_fails_does_not_keep_readers_waiting(tmp_path: Path) -> None:
    target = Target(tmp_path, partitions=1, max_message_bytes="3000")
    sink = target.sink()
    batch = Batch(sink.sink_id(), "query", 0)
    good, bad = ({"value": pa.array([text], pa.binary())} for text in (b"good", b"x" * 3000))
    records: list[Any] = [pa.RecordBatch.from_pydict(columns) for columns in (good, bad)]
    ours = session(sink.address())

    def sent() -> Any:
        yield records[0]
        ours.producer.flush()  # it is in the topic, and not committed
        yield records[1]

    with pytest.raises(Poison):
        publish(sink, "query", 0, sent(), sink.rejects(batch), lambda _: Entry("query", 0, 2))
    target.write(rows(1), TEXT, transactionalIdPrefix=None, stagingLocation=None)
    assert target.values() == ["v1"]


def test_a_run_that_was_replaced_cannot_write_an_older_batch(target: Target) -> None:
    target.write(rows(1), TEXT)
    target.write(rows(2), TEXT)
    with pytest.raises(CommitRefused):
        target.write(rows(1), TEXT, number=0)
    assert target.values() == ["v1", "v2"]


def test_an_entry_whose_offset_the_broker_forgot_is_read_from_the_ledger_topic(target: Target) -> None:
    target.write(rows(1), TEXT)
    target.write(rows(2), TEXT)
    sink = target.sink()
    forget_sessions()
    admin = AdminClient({"bootstrap.servers": target.server.bootstrap})
    for future in admin.delete_consumer_groups([sink.address().group]).values():
        future.result(30)
    (told,) = admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(sink.address().group, [TopicPartition("_connectors_ledger", 0)])]
    ).values()
    assert told.result(30).topic_partitions[0].offset < 0
    last = Commit(sink).last("query")
    assert last is not None
    assert last.batch == 1
    target.write(rows(2), TEXT, number=1)
    assert target.values() == ["v1", "v2"]


def test_a_timeout_above_the_brokers_is_refused_with_both_numbers(target: Target) -> None:
    with pytest.raises(Misconfigured) as wrong:
        target.write(rows(1), TEXT, transactionTimeout="20 minutes")
    assert "1200000 ms" in str(wrong.value)
    assert "900000 ms" in str(wrong.value)


def test_a_topic_that_is_not_there_is_told_by_name(target: Target) -> None:
    with pytest.raises(Misconfigured, match='"no-such-topic" does not exist'):
        target.write(rows(1), TEXT, topic="no-such-topic")


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


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"transactionalIdPrefix": None, "stagingLocation": None, "guarantee": "exactly-once"}, "transactionalIdPrefix"),
    ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers"),
    ({"kafka.transaction.timeout.ms": 1000}, "kafka.transaction.timeout.ms"),
    ({"kafka.transactional.id": "x"}, "kafka.transactional.id"),
    ({"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence"),
    ({"kafka.acks": "1"}, "kafka.acks"),
    ({"kafka.key.serializer": "org.apache.Some"}, "kafka.key.serializer"),
    ({"kafka.ssl.truststore.location": "x.jks"}, "kafka.ssl.truststore.location"),
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


COLUMNS: list[tuple[dict[str, Any], str]] = [
    ({"key": pa.string()}, "value"),
    ({"value": pa.int64()}, "value"),
    ({"value": pa.string(), "partition": pa.string()}, "partition"),
    ({"value": pa.string(), "headers": pa.string()}, "headers"),
]


@pytest.mark.parametrize(("schema", "option"), COLUMNS, ids=[f"{option}-{len(schema)}" for schema, option in COLUMNS])
def test_columns_that_make_no_record_are_refused_by_name(target: Target, schema: dict[str, Any], option: str) -> None:
    with pytest.raises(Misconfigured) as wrong:
        target.write([{}], schema)
    assert [problem.option for problem in wrong.value.problems] == [option]


def test_a_sink_without_a_prefix_is_at_least_once(target: Target) -> None:
    sink = target.sink(transactionalIdPrefix=None, stagingLocation=None)
    assert sink.guarantee() is Guarantee.AT_LEAST_ONCE
    target.write(rows(1, 2), TEXT, transactionalIdPrefix=None, stagingLocation=None)
    assert target.values() == ["v1", "v2"]
