"""Records of Kinesis in which the producer has packed many."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Sequence
from typing import Any

import pytest

from connectors.core import Transient
from connectors.systems.kinesis.aggregates import MAGIC, hash_of
from connectors.systems.kinesis.cursor import POOL
from connectors.testing.source_suite import SourceQuery
from tests.systems.kinesis.contexts import FanOutContext, StreamContext
from tests.systems.kinesis.streams import Rows, cursor_of, numbers

pytestmark = pytest.mark.server


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def packed(records: Sequence[tuple[str, bytes]], hash_keys: Sequence[str] = ()) -> bytes:
    """Records in one, as the published format says; the last ones have ``hash_keys``."""
    body = b"".join(_field(1, key.encode()) for key, _ in records) + b"".join(_field(2, key.encode()) for key in hash_keys)
    for number, (_, data) in enumerate(records):
        index = number - (len(records) - len(hash_keys))
        hash_key = b"\x10" + _varint(index) if index >= 0 else b""
        body += _field(3, b"\x08" + _varint(number) + hash_key + _field(3, data))
    return MAGIC + body + hashlib.md5(body).digest()


def test_a_restart_inside_a_packed_record_loses_and_doubles_nothing(system: StreamContext) -> None:
    keys = [key for key in (f"key-{number}" for number in range(200)) if hash_of(key) < 1 << 127][:50]
    for first in (0, 20):
        system.put([(keys[0], packed([(key, b"%d" % (first + number)) for number, key in enumerate(keys[:20])]))])
    system.put([(keys[0], b"40")])
    log: list[Any] = []
    rows: Rows = []
    while batch := SourceQuery(system, maxRowsPerTrigger="7").next(log):
        POOL.close_all()  # as in another process
        assert SourceQuery(system).batch(log, len(log) - 1) == batch
        POOL.close_all()
        rows += batch
    assert numbers(rows) == list(range(41))
    assert [row["subSequenceNumber"] for row in rows] == [*range(20), *range(20), 0]
    assert [row["partitionKey"] for row in rows[:20]] == keys[:20]


@pytest.mark.parametrize("system", [StreamContext, FanOutContext], indirect=True, ids=["polling", "efo"])
def test_a_page_that_could_not_be_unpacked_is_fetched_again(
    system: StreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is packed needs the hash keys of its shard, and the service does not answer at first."""
    key = "key"
    shard = system.put([(key, packed([(key, b"%d" % number) for number in range(10)]))])[0]["shardId"]
    if isinstance(system, FanOutContext):
        SourceQuery(system).plan([])  # registers the consumer
    cursor = cursor_of(system)
    list_shards, listings = cursor.client.list_shards, 0

    def fail() -> Any:
        nonlocal listings
        listings += 1
        if listings == 1:
            raise Transient("the service does not answer")
        return list_shards()

    monkeypatch.setattr(cursor.client, "list_shards", fail)
    rows: Rows = []
    end = time.monotonic() + 10
    while len(rows) < 10 and time.monotonic() < end:
        with contextlib.suppress(Transient):
            rows += cursor.read(shard, {"from": "TRIM_HORIZON"}, None, 100).rows.to_pylist()
    cursor.close()
    assert numbers(rows) == list(range(10))
    assert listings == 2


def test_packed_records_of_another_shard_are_left_out_for_the_producer_sends_them_again(system: StreamContext) -> None:
    first = next(key for key in (f"key-{number}" for number in range(99)) if hash_of(key) < 1 << 126)
    parts = [(first, b"0"), (first, b"1"), (first, b"2")]
    system.put([(first, packed(parts, hash_keys=[str((1 << 127) + 5), "7"]))])
    assert numbers(SourceQuery(system).rest([])) == [0, 2]


def test_a_record_that_only_begins_like_a_packed_one_is_as_it_is(system: StreamContext) -> None:
    data = MAGIC + b"no message" * 3
    system.put([("key", data)])
    assert [row["data"] for row in SourceQuery(system).rest([])] == [data]
