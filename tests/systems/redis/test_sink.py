"""What the sink writes, by each command, and what the server refuses."""

from __future__ import annotations

import datetime
import importlib.util
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from connectors.core import Batch, CommitRefused, Entry, Fatal, Guarantee, Misconfigured, Poison, Transient
from connectors.core.commit import Commit
from connectors.core.ledger import once_query
from connectors.core.writing import stage
from connectors.systems.redis import RedisSink
from connectors.systems.redis.connection import RedisClient
from connectors.systems.redis.script import MOST_PARTS
from connectors.testing.servers import RedisServer

from .contexts import RedisTarget
from .servers import wait

pytestmark = pytest.mark.server
ROWS = pa.RecordBatch.from_pylist(
    [{"id": 1, "user": "ann", "score": 2.5}, {"id": 2, "user": "bob", "score": None}, {"id": 1, "user": "eve", "score": 1.0}]
)
EXACTLY_ONCE = {"guarantee": "exactly-once", "onLostLedger": "notWritten"}


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
    with RedisServer() as server:
        client = redis.Redis.from_url(server.url)
        client.config_set("maxmemory", "1")
        options = {"url": server.url, "retry.maxRetries": "1", "outageTimeout": "200ms"}
        with pytest.raises(Exception, match=r"(?i)OOM|memory"):
            write(target, **options)
        client.config_set("maxmemory", "0")
        write(target, **options)
        assert client.hget(f"{target.prefix}:bob", "id") == b"2"


@pytest.mark.parametrize("cause", ["memory", "replicas", "disk"])
@pytest.mark.parametrize("options", [{}, {"multi": "true"}, {**EXACTLY_ONCE}], ids=["commands", "multi", "script"])
def test_a_server_that_takes_no_writes_for_a_while_is_waited_for(
    target: RedisTarget, cause: str, options: dict[str, str]
) -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        quick = {"url": server.url, "key": "{user}", "retry.maxRetries": "1", "outageTimeout": "200ms"}
        sink = RedisSink.of({**quick, **options})
        batch = Batch(sink.sink_id(), "q", 0)
        stages = [stage(sink, batch, ROWS.schema, 0, iter([ROWS]))] if "guarantee" in options else []
        client.config_set("save", "3600 1")
        if cause == "disk":
            (server.folder / "full").mkdir()
            client.config_set("dbfilename", "full")
            client.bgsave()
            wait(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        else:
            client.config_set({"memory": "maxmemory", "replicas": "min-replicas-to-write"}[cause], "1")
        with pytest.raises(Transient, match="Redis does not"):
            Commit(sink).finish(batch, stages or [stage(sink, batch, ROWS.schema, 0, iter([ROWS]))])
        assert client.dbsize() == (2 if stages else 0)
        client.config_set("maxmemory", "0")
        client.config_set("min-replicas-to-write", "0")
        client.config_set("save", "")
        Commit(sink).finish(batch, stages or [stage(sink, batch, ROWS.schema, 0, iter([ROWS]))])
        assert client.hget("bob", "id") == b"2"


def test_the_guarantee_follows_from_the_command(target: RedisTarget) -> None:
    options, commands = target.options(), ("set", "rpush", "xadd")
    kinds = {command: RedisSink.of({**options, "command": command}).guarantee() for command in commands}
    assert kinds == {"set": Guarantee.IDEMPOTENT, "rpush": Guarantee.AT_LEAST_ONCE, "xadd": Guarantee.AT_LEAST_ONCE}


@pytest.mark.parametrize(
    ("command", "text"),
    [("rpush", "with command=rpush a replay adds rows again"), ("hset", "a script of a cluster has the keys of one slot")],
)
def test_a_cluster_has_no_script_for_the_keys_of_a_batch(command: str, text: str) -> None:
    options = {"url": "redis+cluster://one,two:7000", "key": "{id}", "command": command, "guarantee": "exactly-once"}
    with pytest.raises(Misconfigured, match=text):
        RedisSink.of(options)


@pytest.mark.parametrize(
    "options",
    [
        {"command": "hset"},
        {"command": "hset", "field": "{id}"},
        {"command": "set", "expire": "60"},
        {"command": "lpush"},
        {"command": "rpush"},
        {"command": "zadd", "scoreColumn": "id"},
        {"command": "xadd", "maxLen": "100"},
    ],
    ids=lambda options: options["command"],
)
def test_a_script_writes_what_the_commands_write(target: RedisTarget, options: dict[str, str]) -> None:
    write(target, key=f"{target.prefix}:a:{{user}}", **options)
    write(target, key=f"{target.prefix}:b:{{user}}", **options, **EXACTLY_ONCE)

    def content(key: str) -> Any:
        kind = target.client.type(key).decode()
        reads = {"hash": "HGETALL", "string": "GET", "list": "LRANGE 0 -1", "zset": "ZRANGE 0 -1 WITHSCORES"}
        if kind == "stream":
            return [fields for _, fields in target.client.xrange(key)]
        command, *rest = reads[kind].split()
        return target.client.execute_command(command, key, *rest)

    for user in ("ann", "bob", "eve"):
        keys = [f"{target.prefix}:{writer}:{user}" for writer in "ab"]
        assert content(keys[0]) == content(keys[1])
        expiries = [target.client.ttl(key) for key in keys]
        assert expiries[0] == pytest.approx(expiries[1], abs=10)


def test_a_channel_gets_the_rows_of_a_script(target: RedisTarget) -> None:
    channel = target.client.pubsub()
    channel.subscribe(f"{target.prefix}:channel")
    write(target, command="publish", key=f"{target.prefix}:channel", **EXACTLY_ONCE)
    messages = [channel.get_message(timeout=5) for _ in range(4)]
    assert [json.loads(message["data"])["user"] for message in messages[1:]] == ["ann", "bob", "eve"]
    channel.close()


def test_a_script_writes_nothing_of_a_batch_with_a_key_of_another_type(target: RedisTarget) -> None:
    target.client.set(f"{target.prefix}:eve", "text")
    with pytest.raises(Fatal, match=f'the key "{target.prefix}:eve" holds a string; nothing of batch 0 is written'):
        write(target, **EXACTLY_ONCE)
    assert not target.client.exists(f"{target.prefix}:ann", f"{target.prefix}:bob")
    target.client.delete(f"{target.prefix}:eve")
    write(target, **EXACTLY_ONCE)
    assert target.client.exists(*(f"{target.prefix}:{user}" for user in ("ann", "bob", "eve"))) == 3


def test_a_row_of_more_columns_than_a_script_takes_is_bad_before_the_batch_is_written(target: RedisTarget) -> None:
    columns = {f"c{number}": pa.array([None, "x"]) for number in range(MOST_PARTS // 2)}
    rows = pa.RecordBatch.from_pydict({"user": ["ann", "bob"], **columns})
    options = {"command": "xadd", "sinkId": target.prefix, **EXACTLY_ONCE}
    with pytest.raises(Poison, match="the row makes a command of 7905 parts, and one of a script has 7900 at most"):
        write(target, rows, **options)
    assert not target.client.exists(f"{target.prefix}:ann")
    most = rows.select(["user", *list(columns)[3:]])
    write(target, most, **options)
    assert [target.client.xlen(f"{target.prefix}:{user}") for user in ("ann", "bob")] == [1, 1]


def test_a_script_writes_nothing_of_a_batch_whose_stage_is_not_whole(target: RedisTarget) -> None:
    sink = RedisSink.of({**target.options(), "key": f"{target.prefix}:{{user}}", **EXACTLY_ONCE})
    batch = Batch(sink.sink_id(), "q", 0)
    staged = stage(sink, batch, ROWS.schema, 0, iter([ROWS]))
    target.client.hdel(f"connectors:{sink.sink_id()}:stage:{staged.data['attempt']}", "1")
    with pytest.raises(Fatal, match=r"1 commands staged in .* are gone; nothing of batch 0 is written"):
        Commit(sink).finish(batch, [staged])
    assert not target.client.exists(f"{target.prefix}:ann")


@pytest.mark.parametrize("place", range(2))
def test_a_batch_write_whose_answer_is_lost_is_written_once_and_leaves_nothing_for_ever(
    target: RedisTarget, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    options = {"command": "rpush", "key": f"{target.prefix}:list", "sinkId": target.prefix}
    sink = RedisSink.of({**target.options(), **options, **EXACTLY_ONCE})
    batch = Batch(sink.sink_id(), once_query(), 0)
    staged = stage(sink, batch, ROWS.schema, 0, iter([ROWS]))
    answer_of, sent = RedisClient.command, []

    def command(client: RedisClient, *parts: Any) -> Any:
        answer = answer_of(client, *parts)
        if parts[0] in ("EVAL", "HDEL", "UNLINK", "ZREM"):
            sent.append(parts[0])
            if len(sent) == place + 1:
                raise Transient("the answer is lost")
        return answer

    monkeypatch.setattr(RedisClient, "command", command)
    Commit(sink).finish(batch, [staged])
    assert [json.loads(row)["id"] for row in target.client.lrange(f"{target.prefix}:list", 0, -1)] == [1, 2, 1]
    own = f"connectors:{target.prefix}:"
    assert [key for key in target.client.scan_iter(f"{own}*") if target.client.ttl(key) < 0] == []


def test_a_large_batch_is_written_by_one_script_in_its_order(target: RedisTarget) -> None:
    rows = pa.table({"id": list(range(5000))}).to_batches()[0]
    options = {"command": "rpush", "key": f"{target.prefix}:list", "batch.maxRecords": "1000"}
    write(target, rows, **options, **EXACTLY_ONCE)
    values = target.client.lrange(f"{target.prefix}:list", 0, -1)
    assert [json.loads(value)["id"] for value in values] == list(range(5000))


def test_two_runs_with_one_batch_write_it_once(target: RedisTarget) -> None:
    sink = RedisSink.of({**target.options(), "command": "rpush", "key": f"{target.prefix}:list", **EXACTLY_ONCE})
    batch = Batch(sink.sink_id(), "q", 0)
    first, second = (stage(sink, batch, ROWS.schema, 0, iter([ROWS])) for _ in range(2))
    committers = [sink.committer() for _ in range(2)]
    entry = Entry("q", 0, 3)
    committers[0].commit(entry, [first])
    with pytest.raises(CommitRefused, match="committed by another run"):
        committers[1].commit(entry, [second])
    assert target.client.llen(f"{target.prefix}:list") == 3


def test_without_the_parser_in_c_the_rows_are_the_same(target: RedisTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "hiredis" else find(name))
    write(target, command="set", key=f"{target.prefix}:{{user}}")
    assert json.loads(target.client.get(f"{target.prefix}:eve")) == {"id": 1, "user": "eve", "score": 1.0}


def test_the_last_row_of_a_key_wins_though_an_earlier_one_is_sent_again(
    target: RedisTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, failures = RedisClient.answers, {b'{"id":%d,"user":"ann"}' % number for number in (1, 5, 6)}

    def flaky(client: RedisClient, commands: Any) -> Any:
        if failed := failures.intersection(commands[0]):
            failures.difference_update(failed)
            raise Transient("the connection is lost")
        return answers(client, commands)

    monkeypatch.setattr(RedisClient, "answers", flaky)
    rows = pa.table({"id": list(range(20)), "user": ["ann"] * 20}).to_batches()[0]
    write(target, rows, command="rpush", **{"batch.maxRecords": "1"})
    values = [json.loads(value)["id"] for value in target.client.lrange(f"{target.prefix}:ann", 0, -1)]
    assert values == list(range(20))
    assert not failures


def test_rows_of_a_key_go_in_one_command(target: RedisTarget) -> None:
    """A server that is asked for a thousand fields by one command has less to do than by a thousand."""
    rows = pa.table({"id": list(range(1000))}).to_batches()[0]
    before = target.client.info("stats")["total_commands_processed"]
    write(target, rows, key=f"{target.prefix}:hash", field="{id}", **{"batch.maxRecords": "500"})
    assert target.client.hlen(f"{target.prefix}:hash") == 1000
    assert target.client.info("stats")["total_commands_processed"] - before < 20


def test_readers_see_whole_what_a_request_writes_to_a_key(target: RedisTarget) -> None:
    rows = pa.table({"id": list(range(400)), "user": [f"u{number % 4}" for number in range(400)]}).to_batches()[0]
    options = {"command": "xadd", "key": f"{target.prefix}:{{user}}", "expire": "60", "batch.maxRecords": "400"}
    keys = [f"{target.prefix}:u{number}" for number in range(4)]
    lengths: set[int] = set()
    is_over = threading.Event()

    def look() -> None:
        with redis.Redis.from_url(target.server.url) as client:
            while not is_over.is_set():
                for key in keys:
                    with client.pipeline() as pipeline:
                        length, seconds = pipeline.xlen(key).ttl(key).execute()
                    lengths.add(length)
                    assert (length == 0) == (seconds < 0)

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(look)
        for _ in range(20):
            write(target, rows, multi="true", **options)
        is_over.set()
        looking.result()
    assert all(length % 100 == 0 for length in lengths), lengths
    assert [target.client.xlen(key) for key in keys] == [2000] * 4


def test_a_row_for_a_key_of_another_type_is_bad_in_a_transaction_too(target: RedisTarget) -> None:
    target.client.set(f"{target.prefix}:bob", "text")
    write(target, multi="true", errors="skip", field="{id}")
    assert target.client.get(f"{target.prefix}:bob") == b"text"
    assert target.client.hlen(f"{target.prefix}:ann") == target.client.hlen(f"{target.prefix}:eve") == 1
    with pytest.raises(Poison, match="WRONGTYPE"):
        write(target, multi="true", field="{id}")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"multi": "true", "guarantee": "exactly-once"}, r"multi +has no use with guarantee=exactly-once"),
        ({"key": "a:{"}, r"key +must be text with columns in braces"),
        ({"key": "a:{}"}, r"key +must be text with columns in braces"),
        ({"command": "set", "field": "x"}, r"field +has no use without command=hset; got command=set"),
        ({"command": "zadd"}, r"scoreColumn +missing"),
        ({"command": "publish", "expire": "5"}, r"expire +has no use with command=publish"),
        ({"host": "localhost"}, r"url +is given beside host"),
    ],
)
def test_wrong_options_are_named(target: RedisTarget, options: dict[str, str], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        RedisSink.of({**target.options(), **options})


def test_a_sink_keeps_its_ledger_when_the_login_in_its_url_changes() -> None:
    logins = ("etl:old-password@", "etl:new password@", "other:new-p@ssword@", ":password@", "")
    urls = [f"redis://{login}cache:6379/0" for login in logins]
    urls += ["redis://cache:6379/0?username=etl&password=new-password", "redis://cache:6379/0?sentinel_password=password"]
    sinks = [RedisSink.of({"url": url, "key": "{id}"}) for url in urls]
    assert {sink.target() for sink in sinks} == {"redis://cache:6379/0/hset/{id}"}
    assert len({sink.sink_id() for sink in sinks}) == 1


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("redis://a:6379/0?client_name=etl@prod", "redis://b:6380/7?client_name=etl@prod"),
        ("rediss://a:6379/0?ssl_ca_certs=/etc/a@b/ca.pem", "rediss://a:6379/5?ssl_ca_certs=/etc/a@b/ca.pem"),
        ("redis+sentinel://a:26379/orders?client_name=a@b", "redis+sentinel://a:26379/shop?client_name=a@b"),
        ("unix:///run/redis@a.sock", "unix:///tmp/redis@a.sock"),
        ("redis://etl:password@a:6379/0", "redis://etl:password@a:6379/1"),
    ],
)
def test_sinks_of_other_databases_have_ledgers_of_their_own(url: str, other: str) -> None:
    assert len({RedisSink.of({"url": one, "key": "{id}"}).sink_id() for one in (url, other)}) == 2


def test_columns_that_the_rows_do_not_have_are_named(target: RedisTarget) -> None:
    with pytest.raises(Misconfigured, match=r'key +names the column "usr", which the rows do not have: id, user, score'):
        write(target, key="{usr}")


def test_the_ledgers_of_a_server_are_found_by_its_url(target: RedisTarget) -> None:
    write(target, guarantee="exactly-once", sinkId=f"{target.prefix}:orders")
    contents = {content.sink_id: content.entries for content in RedisSink.ledgers_in(target.server.url, {}) or ()}
    assert [(entry.query, entry.batch, entry.rows) for entry in contents[f"{target.prefix}:orders"]] == [("q", 0, 3)]
