"""The ready lookups, against real services on loopback."""

from __future__ import annotations

import json
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from connectors import async_io
from connectors.async_io.batches import EngineSettings
from connectors.async_io.task import Plan, run, worker
from connectors.ground.errors import Misconfigured, Poison, Transient
from connectors.testing.servers import HOST, ApiService, MotoServer, PostgresServer, RedisServer
from connectors.testing.servers.api_service import UNKNOWN
from connectors.testing.servers.fault_proxy import FaultProxy, Reply
from tests.servers import required
from tests.systems.http import answers as http_answers
from tests.systems.jdbc.proxy import Proxy

pytestmark = pytest.mark.server

USER = pa.schema([("name", pa.string()), ("age", pa.int32())])


@pytest.fixture(scope="module")
def redis_server():
    import redis

    server = RedisServer().start()
    client = redis.Redis.from_url(server.url)
    client.hset("user:1", mapping={"name": "ann", "age": "31", "other": "x"})
    client.hset("user:2", mapping={"name": "bob"})
    client.set("json:1", '{"name": "ann", "age": 31, "other": [1]}')
    yield server
    client.close()
    server.stop()


@pytest.fixture(scope="module")
def service_process():
    server = ApiService().start()
    yield server
    server.stop()


@pytest.fixture
def service(service_process):
    service_process.behave()
    service_process.forget()
    return service_process


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    import sqlite3

    path = tmp_path_factory.mktemp("sql") / "users.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table users (id integer, name text, age integer)")
        connection.executemany("insert into users values (?, ?, ?)", [(1, "ann", 31), (2, "bob", 32), (2, "ben", 33)])
    return f"sqlite+aiosqlite:///{path}"


def ask(lookup, ids, *, results=USER, batches=None, retry=None, **settings):
    inputs = batches or [pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})]
    settings = EngineSettings(**{"ordered": True, "timeout": 20.0, "flush_interval": 0.01, **settings})
    plan = Plan("async_io.test", "clients", lookup, settings, ("id",), results, retry=retry)
    return [tuple(row.values()) for out in run(plan, iter(inputs)) for row in out.to_pylist()]


# -- redis


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_hash_is_read_in_the_schemas_types(redis_server, batch_size):
    lookup = async_io.RedisLookup(redis_server.url, "user:{id}")
    assert ask(lookup, [1, 2, 3], batch_size=batch_size) == [(1, "ann", 31), (2, "bob", None), (3, None, None)]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_string_may_hold_json(redis_server, batch_size):
    lookup = async_io.RedisLookup(redis_server.url, "json:{id}", json=True, missing="drop")
    assert ask(lookup, [1, 9], batch_size=batch_size) == [(1, "ann", 31)]


def test_a_login_is_given_beside_the_url_and_its_password_may_be_a_secret(redis_server, monkeypatch):
    import redis

    client = redis.Redis.from_url(redis_server.url)
    client.acl_setuser("reader", enabled=True, passwords=["+of-the-reader"], categories=["+@all"], keys=["*"])
    lookup = {"user": "reader", "password": "{{secrets/kv/reader}}"}
    with pytest.raises(Misconfigured, match=r'password +must be a secret that is here; "reader" of scope "kv"'):
        async_io.RedisLookup(redis_server.url, "user:{id}", **lookup)
    for password, answers in (("of-the-reader", [(1, "ann", 31)]), ("another", None)):
        monkeypatch.setenv("SECRET_KV_READER", password)
        reader = async_io.RedisLookup(redis_server.url, "user:{id}", **lookup)
        if answers:
            assert ask(reader, [1]) == answers
        else:
            with pytest.raises(Exception, match="invalid username-password pair"):
                ask(reader, [1])


def test_more_rows_than_connections_wait_for_each_other(redis_server):
    lookup = async_io.RedisLookup(redis_server.url, "user:{id}")
    assert len(ask(lookup, [1] * 500, capacity=7)) == 500


def test_redis_that_dies_is_an_outage_and_its_return_is_noticed():
    server = RedisServer().start()
    try:
        lookup = async_io.RedisLookup(server.url, "user:{id}", failed="null")
        assert ask(lookup, [1]) == [(1, None, None)]
        server.kill()
        with pytest.raises(Transient, match="ConnectionError"):
            ask(async_io.RedisLookup(server.url, "user:{id}"), [1])
        assert ask(lookup, [1]) == [(1, None, None)]
        server.relaunch()
        import redis

        redis.Redis.from_url(server.url).hset("user:1", mapping={"name": "ann"})
        assert ask(lookup, [1]) == [(1, "ann", None)]
    finally:
        server.stop()


# -- http

NAME = pa.schema([("name", pa.string())])


def test_an_answer_becomes_a_row_and_404_a_missing_one(service):
    lookup = async_io.HttpLookup(service.url + "/users/{id}")
    assert ask(lookup, [7, UNKNOWN], results=NAME) == [(7, "user-7"), (UNKNOWN, None)]
    lookup = async_io.HttpLookup(service.url + "/users/{id}", missing="drop")
    assert ask(lookup, [7, UNKNOWN], results=NAME) == [(7, "user-7")]


def test_an_answer_may_be_several_rows(service):
    lookup = async_io.HttpLookup(service.url + "/users?ids={id},5")
    assert ask(lookup, [7], results=NAME) == [(7, "user-7"), (7, "user-5")]


def test_capacity_requests_are_there_at_once(service):
    service.behave(latency=0.2)
    ask(async_io.HttpLookup(service.url + "/users/{id}"), list(range(60)), results=NAME, capacity=20)
    assert service.seen()["most"] == 20


def test_an_outage_is_retried_and_each_row_answered_once(service):
    service.behave(fail=5)
    lookup = async_io.HttpLookup(service.url + "/users/{id}")
    rows = ask(lookup, list(range(20)), results=NAME, retry=async_io.Retry(6, "1ms"), capacity=3)
    assert rows == [(n, f"user-{n}") for n in range(20)]


def test_a_refusal_is_no_outage(service):
    service.behave(fail=1, status=400)
    with pytest.raises(Poison, match="HTTP 400"):
        ask(async_io.HttpLookup(service.url + "/users/{id}"), [1], results=NAME)


def test_headers_go_to_the_server_of_the_url_alone_and_by_no_redirect_elsewhere():
    with http_answers.answers() as home, http_answers.answers() as other:
        away = {"/users/1": "/here", "/users/2": f"{other.url}/there", "/users/3": "/users/3"}
        home.rule = lambda asked: (
            http_answers.Reply(status=307, headers={"Location": away[asked.path]})
            if asked.path in away
            else http_answers.Reply({"name": asked.headers["X-Api-Key"]})
        )
        other.rule = lambda asked: http_answers.Reply({"name": str(asked.headers["X-Api-Key"])})
        lookup = async_io.HttpLookup(f"{home.url}/users/{{id}}", {"X-Api-Key": "s3cret"}, failed="null")
        assert ask(lookup, [1, 2, 3], results=NAME) == [(1, "s3cret"), (2, "None"), (3, None)]


def test_a_request_that_hangs_gets_the_fallback(service):
    service.behave(hang=1)
    lookup = async_io.HttpLookup(service.url + "/users/{id}", failed="null")
    assert ask(lookup, [1], results=NAME, timeout=0.3) == [(1, None)]


def test_a_service_that_dies_and_returns_loses_no_row():
    service = ApiService().start()
    service.behave(latency=0.01)
    under_way = threading.Event()

    def batches():
        for first in range(0, 500, 50):
            yield pa.RecordBatch.from_pydict({"id": pa.array(range(first, first + 50), pa.int64())})
            if first == 100:
                under_way.set()

    def enrich():
        retry = async_io.Retry(1000, "50ms", "200ms")
        lookup = async_io.HttpLookup(service.url + "/users/{id}")
        return ask(lookup, None, results=NAME, batches=batches(), retry=retry, capacity=10, timeout=60.0)

    try:
        with ThreadPoolExecutor(1) as pool:
            rows = pool.submit(enrich)
            assert under_way.wait(30)
            service.kill()
            service.relaunch()
            assert rows.result() == [(n, f"user-{n}") for n in range(500)]
    finally:
        service.stop()


# -- sql


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_query_gives_none_one_or_several_rows(database, batch_size):
    lookup = async_io.SqlLookup(database, "select name, age from users where id = :id order by age", missing="drop")
    rows = ask(lookup, [1, 2, 3], batch_size=batch_size, capacity=2)
    assert rows == [(1, "ann", 31), (2, "bob", 32), (2, "ben", 33)]


def test_a_query_that_is_wrong_fails_with_the_databases_words(database):
    with pytest.raises(Poison, match="no such column"):
        ask(async_io.SqlLookup(database, "select nonsense from users where id = :id"), [1])


@pytest.fixture(scope="module")
def postgres():
    import psycopg

    server = required(PostgresServer)
    with psycopg.connect(server.url, user=server.user, autocommit=True) as connection:
        connection.execute("create table lookup_users (id bigint primary key, name text, age int)")
        connection.execute("insert into lookup_users select n, 'user-' || n, n % 90 from generate_series(1, 300) n")
    yield server.url.replace("postgresql://", "postgresql+asyncpg://postgres@")
    with psycopg.connect(server.url, user=server.user, autocommit=True) as connection:
        connection.execute("drop table lookup_users")


@pytest.mark.parametrize("batch_size", [1, 50])
def test_postgres_answers_many_requests_at_once(postgres, batch_size):
    lookup = async_io.SqlLookup(postgres, "select name, age from lookup_users where id = :id")
    results = ask(lookup, range(1, 301), batch_size=batch_size, capacity=8)
    assert results == [(n, f"user-{n}", n % 90) for n in range(1, 301)]


def test_postgres_tells_what_is_wrong_with_a_query(postgres):
    with pytest.raises(Poison, match="nonsense"):
        ask(async_io.SqlLookup(postgres, "select nonsense from lookup_users where id = :id"), [1])


def test_postgres_that_goes_down_is_an_outage_and_its_return_is_noticed():
    with PostgresServer() as server:
        url = server.url.replace("postgresql://", "postgresql+asyncpg://postgres@")
        query = "select 'ann' as name, 1 as age where :id > 0"
        lookup = async_io.SqlLookup(url, query)
        assert ask(lookup, [1]) == [(1, "ann", 1)]
        server.kill()
        server.relaunch()
        assert ask(lookup, [1]) == [(1, "ann", 1)]  # the pool's connections are those of before
        server.kill()
        with pytest.raises(Transient):
            ask(lookup, [1])
        server.relaunch()
        assert ask(lookup, [1]) == [(1, "ann", 1)]


def test_postgres_that_dies_and_returns_loses_no_row():
    under_way = threading.Event()

    def batches():
        for first in range(0, 500, 50):
            yield pa.RecordBatch.from_pydict({"id": pa.array(range(first, first + 50), pa.int64())})
            if first == 100:
                under_way.set()

    with PostgresServer() as server, ThreadPoolExecutor(1) as pool:
        url = server.url.replace("postgresql://", "postgresql+asyncpg://postgres@")
        lookup = async_io.SqlLookup(url, "select 'user-' || cast(:id as bigint) as name from pg_sleep(0.01)")
        retry = async_io.Retry(1000, "50ms", "200ms")
        rows = pool.submit(
            ask, lookup, None, results=NAME, batches=batches(), retry=retry, capacity=5, timeout=60.0
        )
        assert under_way.wait(30)
        server.kill()
        server.relaunch()
        assert rows.result() == [(n, f"user-{n}") for n in range(500)]


@pytest.mark.soak
def test_connections_that_fall_silent_cost_their_rows_alone():
    def batches(proxy):
        for first in range(0, 40, 4):
            proxy.silent = first in (12, 16)
            yield pa.RecordBatch.from_pydict({"id": pa.array(range(first, first + 4), pa.int64())})

    with Proxy(required(PostgresServer).port) as proxy:
        url = f"postgresql+asyncpg://postgres@{HOST}:{proxy.port}/postgres"
        lookup = async_io.SqlLookup(url, "select 'user-' || cast(:id as bigint) as name", failed="null")
        rows = ask(lookup, None, results=NAME, batches=batches(proxy), capacity=4, timeout=0.5)
    assert [n for n, _ in rows] == list(range(40))
    answered = {n for n, name in rows if name == f"user-{n}"}
    lost = set(range(40)) - answered
    assert lost
    assert len(lost) <= 12, f"rows without answer: {sorted(lost)}"


def test_a_connection_that_falls_silent_while_it_goes_back_is_given_up():
    class LastWord(Proxy):
        asked = False

        def _strikes(self, data):
            self.asked |= b"'ann'" in data
            self.silent |= self.asked and b"ROLLBACK" in data
            return ""

    with LastWord(required(PostgresServer).port) as proxy:
        url = f"postgresql+asyncpg://postgres@{HOST}:{proxy.port}/postgres"
        lookup = async_io.SqlLookup(url, "select 'ann' as name, cast(:id as int) as age", failed="null")
        rows = ask(lookup, [1, 2, 3], capacity=2, timeout=0.3, close_timeout=0.2)
    assert rows == [(1, None, None), (2, None, None), (3, None, None)]
    pool = worker().clients[f"sql 2 {url}"].pool
    deadline = time.monotonic() + 5
    while pool.checkedout() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pool.checkedout() == 0, "they would be missing for as long as the worker lives"


# -- dynamodb


@pytest.fixture(scope="module")
def items():
    """A table with users 1 and 10 to 309, and the settings of its client."""
    server = required(MotoServer)
    name, client = f"users-{uuid.uuid4().hex[:8]}", server.client("dynamodb")
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for id in (1, *range(10, 310)):
        client.put_item(TableName=name, Item={"id": {"N": str(id)}, "name": {"S": f"n{id}"}, "age": {"N": "31"}})
    return name, {"region_name": "us-east-1", "endpoint_url": server.url, **KEYS}


KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


@pytest.mark.parametrize("batch_size", [1, 3, 250])
def test_an_item_becomes_a_row(items, batch_size):
    name, config = items
    lookup = async_io.DynamoDbLookup(name, ["id"], **config)
    assert ask(lookup, [1, 2, 1], batch_size=batch_size) == [(1, "n1", 31), (2, None, None), (1, "n1", 31)]
    assert ask(lookup, range(10, 310), batch_size=batch_size) == [(id, f"n{id}", 31) for id in range(10, 310)]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_table_that_does_not_exist_is_named(items, batch_size):
    lookup = async_io.DynamoDbLookup("nowhere", ["id"], **items[1])
    with pytest.raises(Poison, match="ResourceNotFound"):
        ask(lookup, [1, 2, 3], batch_size=batch_size)


def test_keys_that_a_busy_table_leaves_out_are_asked_for_again(items):
    name, config = items
    sizes = []

    def rule(request, forward):
        """Processes at most forty keys of a request."""
        keys = json.loads(request.body)["RequestItems"][name]["Keys"]
        sizes.append(len(keys))
        answer = json.loads(forward(json.dumps({"RequestItems": {name: {"Keys": keys[:40]}}}).encode()).body)
        left = {name: {"Keys": keys[40:]}} if keys[40:] else {}
        return Reply(200, json.dumps({**answer, "UnprocessedKeys": left}).encode())

    with FaultProxy(config["endpoint_url"]) as proxy:
        proxy.rule = rule
        lookup = async_io.DynamoDbLookup(name, ["id"], **{**config, "endpoint_url": proxy.url})
        assert ask(lookup, range(10, 260), batch_size=250) == [(id, f"n{id}", 31) for id in range(10, 260)]
    assert sorted(sizes) == [10, 20, 20, 50, 60, 60, 100, 100]


@pytest.mark.parametrize("options", [{"missing": "x"}, {"failed": "x"}])
def test_a_lookup_that_cannot_work_is_told_at_once(options):
    with pytest.raises(Misconfigured, match=next(iter(options))):
        async_io.HttpLookup("http://localhost", **options)
