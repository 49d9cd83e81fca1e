"""What the ready lookups say of their inputs, without services: wrong names on the driver, and keys with a null."""

from __future__ import annotations

import sqlite3

import pyarrow as pa
import pytest
from botocore.exceptions import EndpointConnectionError

from connectors import async_io
from connectors.async_io.batches import EngineSettings
from connectors.async_io.task import Plan, run
from connectors.ground.errors import Misconfigured, Transient

NAME = pa.schema([("name", pa.string())])
NOWHERE = "127.0.0.1:1"
HTTP = async_io.HttpLookup(f"http://{NOWHERE}/users/{{id}}")
REDIS = async_io.RedisLookup(f"redis://{NOWHERE}", "user:{id}")
AWS = {"region_name": "eu-central-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
ITEMS = async_io.DynamoDbLookup("t", ["id"], endpoint_url=f"http://{NOWHERE}", **AWS)


def ask(lookup, ids, **settings):
    rows = pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})
    settings = EngineSettings(**{"ordered": True, "timeout": 20.0, "flush_interval": 0.01, **settings})
    plan = Plan("async_io.test", "inputs", lookup, settings, ("id",), NAME)
    return [tuple(row.values()) for out in run(plan, iter([rows])) for row in out.to_pylist()]


@pytest.mark.parametrize(
    ("lookup", "option"),
    [
        (async_io.HttpLookup("http://host/users/{user_idd}"), "url"),
        (async_io.RedisLookup("redis://host", "user:{user_idd[0]}:{id}"), "key"),
        (async_io.SqlLookup("sqlite+aiosqlite://", "select name from users where id = :user_idd"), "query"),
        (async_io.DynamoDbLookup("users", ["id", "user_idd"]), "key_columns"),
    ],
)
def test_a_column_that_the_rows_do_not_have_is_named_on_the_driver(lookup, option):
    (problem,) = lookup.check_columns(["id", "user_id"])
    assert problem.option == option
    assert problem.text == 'names the column "user_idd", which the rows do not have: id, user_id.'
    assert list(lookup.check_columns(["id", "user_id", "user_idd"])) == []


def test_a_template_that_is_none_is_named():
    (problem,) = async_io.HttpLookup("http://host/users/{id").check_columns(["id"])
    assert problem.text == 'must be text with columns in braces, such as users/{user_id}; got "http://host/users/{id".'


@pytest.mark.parametrize("lookup", [HTTP, REDIS, ITEMS])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_key_with_a_null_is_missing_without_a_request(lookup, batch_size):
    assert ask(lookup, [None, None], batch_size=batch_size) == [(None, None)] * 2


def test_an_endpoint_of_dynamodb_without_a_connection_is_an_outage():
    class Away(async_io.DynamoDbLookup):
        async def connect(self, context):
            await super().connect(context)
            self.client = self

        async def get_item(self, Key):  # noqa: N803
            raise EndpointConnectionError(endpoint_url="http://dynamodb")

    with pytest.raises(Transient, match="Could not connect to the endpoint URL"):
        ask(Away("t", ["id"], **AWS), [1])


def test_only_the_keys_without_a_null_are_asked_for():
    class Echo(async_io.RedisLookup):
        async def connect(self, context):
            pass

        async def ask_all(self, rows):
            return [{"name": f"n{row['id']}"} for row in rows]

    assert ask(Echo("", "user:{id}"), [1, None, 2], batch_size=3) == [(1, "n1"), (None, None), (2, "n2")]


def test_a_column_that_a_query_does_not_give_is_named_whatever_failed_says(tmp_path):
    with sqlite3.connect(tmp_path / "users.db") as connection:
        connection.execute("create table users (id integer, nickname text)")
    lookup = async_io.SqlLookup(
        f"sqlite+aiosqlite:///{tmp_path}/users.db", "select nickname from users where id = :id", failed="null"
    )
    with pytest.raises(Misconfigured, match='has the column "name", which the query does not give: nickname'):
        ask(lookup, [1])
