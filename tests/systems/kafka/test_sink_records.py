"""What a record has of its row: key, value, headers, topic, partition; and rows that make none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

from connectors.core import Batch, Misconfigured, Poison
from connectors.systems.kafka import KafkaSink
from connectors.systems.kafka.records import Serializer

from .sink_target import TEXT, Target, murmur2, rows

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


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
    messages = {message.value(): message for message in target.messages()}
    assert messages[b"a"].partition() == 1
    assert messages[b"b"].timestamp()[1] == earlier // 1000


def test_a_null_value_is_a_tombstone(target: Target) -> None:
    target.write([{"key": "k", "value": None}, {"key": None, "value": ""}], TEXT)
    assert sorted((m.key(), m.value()) for m in target.messages() if m.key()) == [(b"k", None)]
    assert [m.value() for m in target.messages() if m.key() is None] == [b""]


def test_a_topic_by_column_is_taken_for_each_row(tmp_path: Path) -> None:
    left, right = Target(tmp_path / "left"), Target(tmp_path / "right")
    records = [{"topic": target.topic, "value": target.topic} for target in (left, right, left)]
    left.write(records, {"topic": pa.string(), "value": pa.string()}, topic=None)
    assert (left.values(), right.values()) == ([left.topic] * 2, [right.topic])


def test_a_topic_is_made_of_columns(tmp_path: Path) -> None:
    left, right = Target(tmp_path / "left"), Target(tmp_path / "right")
    ends = [target.topic[1:] for target in (left, right, left)]
    records = [{"end": end, "topic": "another", "value": f"{number}"} for number, end in enumerate(ends)]
    schema = {"end": pa.string(), "topic": pa.string(), "value": pa.string()}
    rows = [*records, {"end": None, "topic": left.topic, "value": "none"}]
    left.write(rows, schema, topic=f"{left.topic[0]}{{end}}", errors="skip")
    assert (left.values(), right.values()) == (["0", "2"], ["1"])
    with pytest.raises(Misconfigured, match=r'topic .*names the column "typo"'):
        left.write(records, schema, topic="{typo}")


def test_a_topic_of_bytes_that_are_no_text_is_a_bad_row(target: Target) -> None:
    rows = [{"end": b"\xff", "value": "a"}, {"end": target.topic[1:].encode(), "value": "b"}]
    target.write(rows, {"end": pa.binary(), "value": pa.string()}, topic=f"{target.topic[0]}{{end}}", errors="skip")
    assert target.values() == ["b"]


def test_keys_go_to_the_partitions_that_kafka_gives_them(tmp_path: Path) -> None:
    target = Target(tmp_path, partitions=4)
    target.write([{"key": key, "value": "v"} for key in ("a", "b", "order-1", "order-2", "ü")], TEXT)
    messages = {message.key().decode(): message.partition() for message in target.messages()}
    assert messages == {key: murmur2(key.encode()) % 4 for key in messages}


def test_values_are_serialized_by_their_format(target: Target) -> None:
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    target.write([{"key": 7, "value": {"id": 1, "name": "x"}}], {"key": pa.int64(), "value": kind},
                 value__format="json", key__format="string")  # fmt: skip
    assert [(m.key(), m.value()) for m in target.messages()] == [(b"7", b'{"id":1,"name":"x"}')]


def test_an_upsert_keeps_the_last_of_each_key_and_deletes_by_null(target: Target) -> None:
    records = [
        {"key": "a", "value": "1"},
        {"key": "b", "value": "1"},
        {"key": "a", "value": "2"},
        {"key": "b", "value": None},
    ]
    target.write(records, TEXT, operation="upsert")
    assert sorted((m.key(), m.value()) for m in target.messages()) == [(b"a", b"2"), (b"b", None)]


def test_an_upsert_takes_the_largest_of_its_order_column(target: Target) -> None:
    records = [{"key": "a", "value": value, "at": at} for value, at in (("new", 9), ("old", 3), ("none", None))]
    target.write(records, {**TEXT, "at": pa.int64()}, operation="upsert", orderColumn="at")
    assert target.values() == ["new"]


def test_a_record_that_is_too_large_is_set_aside_alone(tmp_path: Path) -> None:
    target = Target(tmp_path, max_message_bytes="3000")
    letters = {"errors": "deadLetter", "deadLetterPath": tmp_path / "letters"}
    records = [*rows(1), {"key": "large", "value": "x" * 3000}, *rows(*range(2, 200))]
    target.write(records, TEXT, **letters)
    assert len(target.values()) == 199
    (letter,) = [letter for file in (tmp_path / "letters").glob("*.parquet") for letter in pq.read_table(file).to_pylist()]
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
    ("row", "reason"),
    [
        ({"value": "x" * 3000}, "max.message.bytes"),
        ({"value": "x", "partition": 2}, "no partition 2"),
        ({"value": "x", "partition": 2**40}, "no partition 1099511627776"),
        ({"value": "x", "timestamp": 999}, "the first of 1970"),
        ({"value": "x", "timestamp": 4 * 10**15}, "message.timestamp.after.max.ms"),
        ({"value": "x", "timestamp": 10**15}, "message.timestamp.before.max.ms"),
    ],
)
def test_a_bad_row_fails_the_batch_unless_told_otherwise(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    target = Target(tmp_path, max_message_bytes="3000", message_timestamp_before_max_ms="86400000")
    schema = {**TEXT, "partition": pa.int64(), "timestamp": pa.timestamp("us")}
    with pytest.raises(Poison, match=reason):
        target.write([*rows(1, 2), row], schema)
    assert target.values() == []
    target.write([*rows(1, 2), row], schema, number=0, errors="skip")
    assert target.values() == ["v1", "v2"]


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.list_(pa.struct([("at", pa.timestamp("us"))]))], ids=str)
def test_a_bad_row_may_have_a_time_that_python_lacks(kind: pa.DataType) -> None:
    """As the source of Kafka has it of a record with nanoseconds."""
    last = 2**63 - 1
    rows = pa.RecordBatch.from_pydict({
        "topic": pa.array(["t", None]),
        "value": ["a", "b"],
        "at": pa.array([None, last if pa.types.is_timestamp(kind) else [{"at": last}]], kind),
    })  # fmt: skip
    sink = KafkaSink.of({"kafka.bootstrap.servers": "h:1", "errors": "skip"})
    rejects = sink.rejects(Batch("s", "q", 0))
    assert Serializer(sink.values, rows.schema).records(rows, rejects).to_pylist() == [{"value": b"a", "topic": "t"}]
    assert rejects.count == 1


def test_a_row_without_the_name_of_its_topic_is_left_out_and_an_impossible_name_is_said(target: Target) -> None:
    records = [{"topic": name, "value": "v"} for name in (None, "", target.topic)]
    schema = {"topic": pa.string(), "value": pa.string()}
    target.write(records, schema, topic=None, errors="skip")
    assert target.values() == ["v"]
    with pytest.raises(Misconfigured, match='"no topic!" does not exist'):
        target.write([{"topic": "no topic!", "value": "v"}], schema, topic=None)


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_topic_that_grows_while_the_query_runs_takes_what_it_has_room_for_now(
    tmp_path: Path, exactly_once: bool
) -> None:
    """The clients of the first batch are those of the second: more partitions, and larger records."""
    target = Target(tmp_path, max_message_bytes="3000")
    options = {} if exactly_once else {"transactionalIdPrefix": None, "stagingLocation": None}
    schema = {**TEXT, "partition": pa.int32()}
    target.write([{"value": "first", "partition": 1}], schema, **options)
    admin = AdminClient({"bootstrap.servers": target.server.bootstrap})
    admin.create_partitions([NewPartitions(target.topic, 4)])[target.topic].result(30)
    entry = ConfigEntry("max.message.bytes", "200000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, target.topic, incremental_configs=[entry])
    admin.incremental_alter_configs([topic])[topic].result(30)
    target.write([{"value": "new", "partition": 3}, {"value": "x" * 100_000, "partition": 0}], schema, **options)
    target.partitions = 4
    assert [len(value) for value in sorted(target.values())] == [5, 3, 100_000]
    with pytest.raises(Poison, match="has 4 partitions, and no partition 4"):
        target.write([{"value": "x", "partition": 4}], schema, **options)


def test_a_queue_of_one_record_is_room_enough_for_a_batch_and_its_ledger_entry(target: Target) -> None:
    target.write(rows(1, 2, 3), TEXT, **{"kafka__queue.buffering.max.messages": "1"})
    assert sorted(target.values()) == ["v1", "v2", "v3"]


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
