"""Clusters and sentinels: rows and lookups on several nodes, and a server that another one replaces."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from connectors import async_io
from connectors.async_io.batches import EngineSettings
from connectors.async_io.task import Plan, run
from connectors.core import Batch, Fatal, Misconfigured
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.redis import RedisSink
from connectors.systems.redis.connection import connect
from connectors.testing.compare import same_records
from connectors.testing.servers import RedisServer, Unavailable
from connectors.testing.servers.fault_proxy import certificates
from connectors.testing.source_suite import SourceQuery
from tests.servers import required

from .contexts import StreamContext
from .servers import TlsServer, cluster, watched

pytestmark = pytest.mark.server
ROWS = pa.table({"id": list(range(300)), "name": [f"n{number}" for number in range(300)]})


@pytest.fixture(scope="module")
def nodes() -> Iterator[str]:
    with cluster() as url:
        yield url


def write(url: str | None, number: int = 0, **options: str) -> None:
    sink = RedisSink.of({**({"url": url} if url else {}), "key": "order:{id}", "batch.maxRecords": "40", **options})
    batch = Batch(sink.sink_id(), "q", number)
    Commit(sink).finish(batch, [stage(sink, batch, ROWS.schema, 0, iter(ROWS.to_batches()))])


def ask(lookup: async_io.RedisLookup, count: int) -> list[str | None]:
    settings = EngineSettings(capacity=4, batch_size=50, ordered=True)
    plan = Plan("async_io.test", "nodes", lookup, settings, ("id",), pa.schema([("name", pa.string())]))
    results = run(plan, iter([pa.RecordBatch.from_pydict({"id": list(range(count))})]))
    return [row["name"] for batch in results for row in batch.to_pylist()]


@pytest.mark.parametrize("command", ["hset", "set"])
def test_rows_go_to_the_nodes_of_their_keys_and_a_lookup_finds_them(nodes: str, command: str) -> None:
    write(nodes, command=command, key=f"{command}:{{id}}")
    client = connect(redis, nodes, {})
    sizes = [client.dbsize(target_nodes=node) for node in client.get_primaries()]
    assert len(sizes) == 3
    assert all(size > 50 for size in sizes)
    lookup = async_io.RedisLookup(nodes, f"{command}:{{id}}", json=command == "set")
    names = ask(lookup, 320)
    assert names[:300] == ROWS["name"].to_pylist()
    assert names[300:] == [None] * 20


def test_a_list_and_a_stream_have_the_rows_of_a_cluster(nodes: str) -> None:
    write(nodes, command="rpush", key="list")
    write(nodes, command="xadd", key="stream")
    client = connect(redis, nodes, {})
    assert [json.loads(value)["id"] for value in client.lrange("list", 0, -1)] == list(range(300))
    assert [int(fields[b"id"]) for _, fields in client.xrange("stream")] == list(range(300))


class ClusterStream(StreamContext):
    """A stream of a cluster."""

    url = ""

    @cached_property
    def client(self) -> Any:
        return connect(redis, self.url, {})

    def options(self) -> dict[str, str]:
        return {**super().options(), "url": self.url, "minIdle": "200ms", "maxEpochTime": "100ms"}


def test_a_stream_of_a_cluster_is_read_also_what_a_dead_consumer_holds(nodes: str, tmp_path: Path) -> None:
    system, log = ClusterStream(tmp_path), list[Any]()
    system.url = nodes
    written = system.write(5)
    query = SourceQuery(system)
    rows = query.rest(log)
    query.planner.latest(log[-1])
    assert system.client.xpending(system.stream, system.group)["pending"] == 0
    written += system.write(3)
    system.client.xreadgroup(system.group, "dead", {system.stream: ">"})
    time.sleep(0.25)
    same_records(written, rows + SourceQuery(system).rest(log))


def test_sentinels_name_the_server_that_replaces_a_dead_one(tmp_path: Path) -> None:
    with watched() as (url, primary):
        write(url, command="set")
        assert ask(async_io.RedisLookup(url, "order:{id}", json=True), 3) == ["n0", "n1", "n2"]
        with redis.Redis.from_url(primary.url) as client:
            client.wait(1, 5000)
        primary.kill()
        # Only a query that has reached its server waits for it: batch 1, not 0.
        write(url, 1, command="set", key="again:{id}", **{"outageTimeout": "60s", "retry.maxRetries": "2"})
        client = connect(redis, url, {})
        assert client.connection_pool.get_master_address()[1] != primary.port
        assert len(client.keys("again:*")) == len(client.keys("order:*")) == 300


def test_rows_and_lookups_go_by_tls_to_a_server_whose_certificate_is_known(tmp_path: Path) -> None:
    try:
        server = TlsServer(certificates(tmp_path)).start()
    except Unavailable as missing:
        pytest.skip(f"a Redis with TLS: {missing}")
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        write(server.url, command="set")
        assert ask(async_io.RedisLookup(server.url, "order:{id}", json=True), 3) == ["n0", "n1", "n2"]
        with pytest.raises(Fatal, match=r"(?s)certificate verify failed.*ssl_ca_certs"):
            write(server.url.partition("?")[0])


def test_a_user_of_an_access_list_writes_what_it_may(tmp_path: Path) -> None:
    server = required(RedisServer)
    with redis.Redis.from_url(server.url) as client:
        rules = {"commands": ["+hset", "+expire"], "keys": ["order:*"]}
        client.acl_setuser("writer", enabled=True, passwords=["+s3cret"], **rules)
        options = {"host": "127.0.0.1", "port": str(server.port), "user": "writer", "password": "s3cret"}
        try:
            write(None, field="{name}", **options)
            assert client.hget("order:7", "n7") is not None
            with pytest.raises(Fatal, match=r"(?s)Redis refuses a command: .*permission.*grant the user what"):
                write(None, command="set", **options)
            with pytest.raises(Fatal, match="Redis refuses the login") as refused:
                write(None, **{**options, "password": "wr0ng"})
            assert "wr0ng" not in str(refused.value)
        finally:
            client.acl_deluser("writer")
            client.delete(*client.scan_iter("order:*"))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis+sentinel://localhost:26379", r"url +must name the sentinels' service"),
        ("sentinel://localhost", r"url +must be an address that begins with one of redis://"),
    ],
)
def test_a_wrong_address_is_named(url: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        RedisSink.of({"url": url, "key": "{id}"})
