"""What single answers and values mean, without a server: which pass, and which make a row a bad one."""

from __future__ import annotations

import pyarrow as pa
import pytest
import redis.exceptions
from cassandra.cqltypes import DecimalType, IntegerType

from connectors.batching import Throttled
from connectors.core import Batch, Poison, Transient
from connectors.systems.aws import failure
from connectors.systems.cassandra.encoding import ColumnEncoder
from connectors.systems.elasticsearch import ElasticsearchSink
from connectors.systems.elasticsearch.writer import BulkWriter
from connectors.systems.http import HttpSink
from connectors.systems.redis import RedisSink
from connectors.systems.redis.connection import RedisClient


@pytest.mark.parametrize(
    "code", ["RequestLimitExceeded", "RequestThrottled", "ThrottlingException", "LimitExceededException"]
)
def test_aws_throttles_by_many_names(code: str) -> None:
    assert isinstance(failure("the table t", code, "slower"), Throttled)


@pytest.mark.parametrize("text", ["BUSY a script", "NOREPLICAS Not enough good replicas", "UNBLOCKED force unblock"])
def test_a_server_of_redis_that_takes_no_command_for_now_is_an_outage(text: str) -> None:
    client = RedisClient("connectors.redis", RedisSink.of({"url": "redis://127.0.0.1:1", "key": "k:{id}"}).values)
    with pytest.raises(Transient), client.errors():
        raise redis.exceptions.ResponseError(text)
    client.close()


@pytest.mark.parametrize("kind", [IntegerType, DecimalType])
def test_a_text_that_is_no_number_is_a_bad_row_of_cassandra(kind: type) -> None:
    good, bad = ColumnEncoder("n", kind)(pa.array(["1", "abc"]))
    assert isinstance(good, bytes)
    assert isinstance(bad, Poison)
    assert "'abc'" in str(bad)


def test_an_id_that_would_make_elasticsearch_refuse_the_request_is_a_bad_row() -> None:
    sink = ElasticsearchSink.of({"hosts": "http://127.0.0.1:1", "index": "i", "idColumn": "id"})
    writer = sink.writer(Batch(sink.sink_id(), "q", 0), pa.schema([("id", pa.string())]), 0)
    assert isinstance(writer, BulkWriter)
    ids = ["x" * 512, "x" * 513, "ä" * 257, ""]
    entries = writer.entries(pa.RecordBatch.from_pydict({"id": ids}))
    writer.close()
    assert [isinstance(entry, Poison) for entry in entries] == [False, True, True, True]


def test_rows_without_an_id_share_no_idempotency_key() -> None:
    sink = HttpSink.of({"url": "http://127.0.0.1:1/x", "idempotencyHeader": "Idempotency-Key", "idColumn": "id"})
    writer = sink.writer(Batch(sink.sink_id(), "q", 0), pa.schema([("id", pa.int64())]), 0)
    entries = writer.entries(pa.RecordBatch.from_pydict({"id": pa.array([None, 1], pa.int64())}))
    writer.close()
    assert [isinstance(entry, Poison) for entry in entries] == [True, False]


@pytest.mark.parametrize("command", ["hset", "xadd"])
def test_a_nested_value_that_json_has_not_makes_a_bad_row_of_redis(command: str) -> None:
    sink = RedisSink.of({"url": "redis://127.0.0.1:1", "key": "k:{id}", "command": command})
    rows = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "list": [[1.0], [float("nan")], None]})
    writer = sink.writer(Batch(sink.sink_id(), "q", 0), rows.schema, 0)
    good, bad, null = writer.entries(rows)
    writer.close()
    assert b"[1.0]" in good
    assert 'the column "list" is not a number that JSON has' in str(bad)
    assert b"list" not in null
