"""What the sink writes, by each command, and what the server refuses."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Guarantee, Misconfigured, Poison
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.redis import RedisSink

from .contexts import RedisTarget

pytestmark = pytest.mark.server
ROWS = pa.RecordBatch.from_pylist(
    [{"id": 1, "user": "ann", "score": 2.5}, {"id": 2, "user": "bob", "score": None}, {"id": 1, "user": "eve", "score": 1.0}]
)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[RedisTarget]:
    class Target(RedisTarget):
        def rows(self) -> list[dict[str, Any]]:
            return []

    target = Target(tmp_path)
    yield target
    target.close()


def write(target: RedisTarget, rows: pa.RecordBatch = ROWS, **options: str) -> None:
    sink = RedisSink.of({**target.options(), "key": f"{target.prefix}:{{user}}", **options})
    batch = Batch(sink.sink_id(), "q", 0)
    Commit(sink).finish(batch, [stage(sink, batch, rows.schema, 0, iter([rows]))])


def test_a_hash_has_a_row_as_json_in_each_field_and_expires(target: RedisTarget) -> None:
    write(target, key=f"{target.prefix}:events", field="{id}")
    hash = {name: json.loads(value) for name, value in target.client.hgetall(f"{target.prefix}:events").items()}
    assert hash == {b"1": {"id": 1, "user": "eve", "score": 1.0}, b"2": {"id": 2, "user": "bob", "score": None}}
    assert 86_000 < target.client.ttl(f"{target.prefix}:events") <= 86_400


def test_a_hash_without_a_field_has_the_columns_and_no_nulls(target: RedisTarget) -> None:
    write(target, expire="0")
    assert target.client.hgetall(f"{target.prefix}:bob") == {b"id": b"2", b"user": b"bob"}
    assert target.client.ttl(f"{target.prefix}:bob") == -1


def test_a_key_holds_a_row_as_json(target: RedisTarget) -> None:
    write(target, command="set", key=f"{target.prefix}:{{user}}/{{id}}", expire="60")
    assert json.loads(target.client.get(f"{target.prefix}:ann/1")) == {"id": 1, "user": "ann", "score": 2.5}
    assert 0 < target.client.ttl(f"{target.prefix}:ann/1") <= 60


@pytest.mark.parametrize(("command", "order"), [("rpush", [1, 2, 3, 4, 5]), ("lpush", [5, 4, 3, 2, 1])])
def test_a_list_has_the_rows_in_their_order(target: RedisTarget, command: str, order: list[int]) -> None:
    rows = pa.RecordBatch.from_pylist([{"id": number} for number in range(1, 6)])
    write(target, rows, command=command, key=f"{target.prefix}:list", **{"batch.maxRecords": "2"})
    assert [json.loads(value)["id"] for value in target.client.lrange(f"{target.prefix}:list", 0, -1)] == order


def test_a_sorted_set_has_the_scores_and_a_row_without_one_is_bad(target: RedisTarget) -> None:
    with pytest.raises(Poison, match=r"a column of \{score\} is null"):
        write(target, command="zadd", scoreColumn="score", key=f"{target.prefix}:set")
    write(target, ROWS.slice(0, 1), command="zadd", scoreColumn="score", key=f"{target.prefix}:set")
    ((member, score),) = target.client.zrange(f"{target.prefix}:set", 0, -1, withscores=True)
    assert (json.loads(member)["user"], score) == ("ann", 2.5)


def test_a_stream_has_the_columns_and_keeps_about_so_many_entries(target: RedisTarget) -> None:
    rows = pa.RecordBatch.from_pylist([{"id": number} for number in range(1000)])
    write(target, rows, command="xadd", maxLen="200", key=f"{target.prefix}:stream", **{"batch.maxRecords": "100"})
    entries = target.client.xrange(f"{target.prefix}:stream")
    assert 200 <= len(entries) < 400
    assert entries[-1][1] == {b"id": b"999"}


def test_a_channel_gets_the_rows(target: RedisTarget) -> None:
    channel = target.client.pubsub()
    channel.subscribe(f"{target.prefix}:channel")
    write(target, command="publish", key=f"{target.prefix}:channel")
    messages = [channel.get_message(timeout=5) for _ in range(4)]
    assert [json.loads(message["data"])["user"] for message in messages[1:]] == ["ann", "bob", "eve"]
    channel.close()


def test_values_are_texts_that_a_lookup_can_read(target: RedisTarget) -> None:
    moment = datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.timezone.utc)
    row = {"user": "x", "flag": True, "price": Decimal("1.10"), "at": moment, "raw": b"\xff", "tags": ["a", "b"]}
    write(target, pa.RecordBatch.from_pylist([row]))
    fields = target.client.hgetall(f"{target.prefix}:x")
    assert (fields[b"flag"], fields[b"price"], fields[b"raw"], fields[b"tags"]) == (b"true", b"1.10", b"\xff", b'["a","b"]')
    assert pa.array([fields[b"at"].decode()]).cast(pa.timestamp("us", "UTC")).to_pylist() == [moment]


def test_a_key_of_another_type_is_a_bad_row(target: RedisTarget) -> None:
    target.client.set(f"{target.prefix}:bob", "text")
    with pytest.raises(Poison, match="WRONGTYPE"):
        write(target)
    assert target.client.hexists(f"{target.prefix}:ann", "id")


def test_a_null_in_the_key_is_a_bad_row(target: RedisTarget) -> None:
    with pytest.raises(Poison, match=r"a column of .*\{score\} is null"):
        write(target, key=f"{target.prefix}:{{score}}")


def test_a_full_server_is_waited_for(target: RedisTarget) -> None:
    from connectors.testing.servers import RedisServer

    with RedisServer() as server:
        import redis

        client = redis.Redis.from_url(server.url)
        client.config_set("maxmemory", "1")
        options = {"url": server.url, "retry.maxRetries": "1", "outageTimeout": "200ms"}
        with pytest.raises(Exception, match=r"(?i)OOM|memory"):
            write(target, **options)
        client.config_set("maxmemory", "0")
        write(target, **options)
        assert client.hget(f"{target.prefix}:bob", "id") == b"2"


def test_the_guarantee_follows_from_the_command(target: RedisTarget) -> None:
    options, commands = target.options(), ("set", "rpush", "xadd")
    kinds = {command: RedisSink.of({**options, "command": command}).guarantee() for command in commands}
    assert kinds == {"set": Guarantee.IDEMPOTENT, "rpush": Guarantee.AT_LEAST_ONCE, "xadd": Guarantee.AT_LEAST_ONCE}
    with pytest.raises(Misconfigured, match="a replay adds rows again"):
        RedisSink.of({**target.options(), "command": "rpush", "guarantee": "idempotent"})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": "a:{"}, r"key +must be text with columns in braces"),
        ({"key": "a:{}"}, r"key +must be text with columns in braces"),
        ({"command": "set", "field": "x"}, r"field +has no use with command=set"),
        ({"command": "zadd"}, r"scoreColumn +missing"),
        ({"command": "publish", "expire": "5"}, r"expire +has no use with command=publish"),
        ({"host": "localhost"}, r"url +is given beside host"),
    ],
)
def test_wrong_options_are_named(target: RedisTarget, options: dict[str, str], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        RedisSink.of({**target.options(), **options})


def test_columns_that_the_rows_do_not_have_are_named(target: RedisTarget) -> None:
    with pytest.raises(Misconfigured, match=r'key +names the column "usr", which the rows do not have: id, user, score'):
        write(target, key="{usr}")
