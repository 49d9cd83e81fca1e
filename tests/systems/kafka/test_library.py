"""The client's C functions give what the plain client gives, and are left alone where anything is not as expected."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer

from connectors.systems.kafka import native as module
from connectors.systems.kafka import producer, reader
from connectors.systems.kafka.native import PLAIN, addresses_of, binary_at, library
from connectors.systems.kafka.positions import OffsetRange
from connectors.systems.kafka.reader import HEADERS, NativeFetcher, PlainFetcher, fetcher_for

from .reading import Query
from .sink_target import Target, murmur2
from .source_contexts import SCHEMA, Topic

LENGTHS = (None, 0, 1, 5, 11, 12, 13, 100, 3000)
EVERYTHING = pa.schema([*SCHEMA, ("timestampType", pa.int32())])


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    module._checked.cache_clear()
    yield
    module._checked.cache_clear()


def _mixed(count: int) -> list[tuple[bytes | None, bytes | None]]:
    chance = random.Random(1)

    def some() -> bytes | None:
        size = chance.choice(LENGTHS)
        return None if size is None else chance.randbytes(size)

    return [(some(), some()) for _ in range(count)]


def _filled(count: int) -> Topic:
    topic = Topic(1)
    producer: Any = Producer({"bootstrap.servers": topic.server.bootstrap, "log_level": 0})
    for key, value in _mixed(count):
        producer.produce(topic.name, value, key)
    producer.flush()
    return topic


def _read(topic: Topic) -> list[dict[str, Any]]:
    query = Query(topic.options(), schema=EVERYTHING)
    return [row for rows in iter(query.next, None) for row in rows]


def test_records_of_all_lengths_are_read_as_the_plain_client_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = _filled(5000)
    fast = _read(topic)
    monkeypatch.setenv(PLAIN, "plain")
    assert fast == _read(topic)
    assert [(row["key"], row["value"]) for row in fast] == _mixed(5000)


@pytest.mark.parametrize("way", ["fast", "plain"])
def test_records_of_all_lengths_are_written_alike(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLAIN, way)
    target = Target(tmp_path, partitions=3)
    rows = [{"key": key, "value": value} for key, value in _mixed(3000)]
    target.write(rows, {"key": pa.binary(), "value": pa.binary()})
    messages = target.messages()
    assert sorted(((m.key(), m.value()) for m in messages), key=repr) == sorted(_mixed(3000), key=repr)
    partitions = {m.key(): m.partition() for m in messages if m.key()}
    assert partitions == {key: murmur2(key) % 3 for key in partitions}


@pytest.mark.parametrize("way", ["fast", "plain"])
def test_the_order_of_a_key_is_that_of_its_rows(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLAIN, way)
    target = Target(tmp_path)
    rows = [{"key": f"k{number % 10}", "value": f"{number:06d}"} for number in range(30_000)]
    target.write(rows, {"key": pa.string(), "value": pa.string()})
    by_key: dict[bytes, list[bytes]] = {}
    for message in target.messages():
        by_key.setdefault(message.key(), []).append(message.value())
    assert len(by_key) == 10
    assert all(values == sorted(values) for values in by_key.values())


@pytest.mark.parametrize("way", ["fast", "plain"])
def test_a_partition_that_a_row_names_is_taken(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLAIN, way)
    target = Target(tmp_path, partitions=3)
    rows = [{"value": f"v{number}", "partition": number % 3} for number in range(3000)]
    target.write(rows, {"value": pa.string(), "partition": pa.int32()})
    assert {m.value().decode(): m.partition() for m in target.messages()} == {
        row["value"]: row["partition"] for row in rows
    }


def test_the_functions_are_used_here() -> None:
    functions = library()
    assert functions is not None, "this machine has the wheel that they are made for"
    reader: Any = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "x", "log_level": 0})
    assert type(fetcher_for(reader, OffsetRange("t", 0, 0, 1), ["value"])) is NativeFetcher
    assert producer.NativeProducer.of(Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})) is not None
    reader.close()


def test_headers_are_read_by_the_plain_client() -> None:
    reader: Any = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "x", "log_level": 0})
    assert type(fetcher_for(reader, OffsetRange("t", 0, 0, 1), ["value", "headers"])) is PlainFetcher
    reader.close()


def test_the_plain_client_has_consumers_of_its_own() -> None:
    """It finds nothing in one whose records the functions have had, now and then: it depends on who is faster."""
    topic = Topic(1)
    topic.send([b"a"])
    with_headers = pa.schema([("value", pa.binary()), ("headers", HEADERS)])
    for _ in range(2):
        reader.CONSUMERS.close_all()
        assert [row["value"] for row in _read(topic)] == [b"a"]
        (by_functions,) = reader.CONSUMERS.clients()
        assert Query(topic.options(), schema=with_headers).values() == [b"a"]
        assert len(reader.CONSUMERS.clients()) == 2
        assert by_functions in reader.CONSUMERS.clients()


UNFIT: list[tuple[str, Any]] = [
    ("_VERSIONS", range(1, 2)),
    ("_FUNCTIONS", {"rd_kafka_no_such_function": (None, [])}),
    ("_loaded", lambda: "/no/such/file"),
    ("_Message", type("_Message", (ctypes.Structure,), {"_fields_": [("err", ctypes.c_int)]})),
]


@pytest.mark.parametrize(("name", "other"), UNFIT, ids=[name for name, _ in UNFIT])
def test_a_library_that_is_not_as_expected_is_left_alone(name: str, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, other)
    assert library() is None
    topic = Topic(1)
    topic.send([b"a", b"b"])
    assert [row["value"] for row in _read(topic)] == [b"a", b"b"]


def test_an_object_that_wraps_no_handle_gives_none() -> None:
    functions = library()
    assert functions is not None

    class Other:
        __slots__ = ("a", "b")

    strange = Other()
    strange.a = strange.b = "rdkafka#producer-1"
    assert functions.handle(strange) is None
    assert functions.handle(object()) is None


@pytest.mark.parametrize("count", [1, 7, 5000])
def test_memory_of_others_becomes_an_array(count: int) -> None:
    values = [value for _, value in _mixed(count)]
    array = pa.array(values, pa.binary())
    assert binary_at(*addresses_of(array)).to_pylist() == values
    sliced = array.slice(count // 2)
    assert binary_at(*addresses_of(sliced)).to_pylist() == values[count // 2 :]


def test_nothing_but_nulls_and_nothing_but_empty_values() -> None:
    for values in ([None, None], [b"", b""], [b"", None]):
        assert binary_at(*addresses_of(pa.array(values, pa.binary()))).to_pylist() == values
