"""What a user may type, and what is told about what cannot work; names, documents and columns, without a server."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pytest

from connectors.core import Guarantee, Misconfigured
from connectors.formats.documents import documents
from connectors.systems.elasticsearch import ElasticsearchSink, ElasticsearchSource
from connectors.systems.elasticsearch.documents import IndexName, columns

HOST = {"hosts": "https://search.example.org:9200", "index": "flights"}


@pytest.mark.parametrize(
    ("typed", "option", "text"),
    [
        ({"hosts": "localhost:9200"}, "hosts", "scheme and port"),
        ({"hosts": "http://localhost"}, "hosts", "scheme and port"),
        ({"hosts": "http://me:hush@localhost:9200"}, "hosts", "user and password"),
        ({"index": "logs-{at|QQ}"}, "index", 'got "QQ"'),
        ({"index": "logs-{at"}, "index", "a template such as"),
        ({"operation": "upsert"}, "idColumn", "missing; operation=upsert"),
        ({"operation": "update", "idColumn": "id", "orderColumn": "v"}, "orderColumn", "operation=index or delete"),
        ({"orderColumn": "v"}, "idColumn", "missing; orderColumn"),
        ({"operationColumn": "op", "operation": "upsert", "idColumn": "id"}, "operationColumn", "operation=upsert: each row"),
        ({"operationColumn": "op", "deleteColumn": "gone", "idColumn": "id"}, "operationColumn", "give one of them"),
        ({"deleteColumn": "gone"}, "deleteColumn", "has no use without idColumn"),
        ({"deleteColumn": "gone", "operation": "delete", "idColumn": "id"}, "deleteColumn", "no use with operation=delete"),
        ({"user": "me"}, "password", "user needs it"),
        ({"user": "me", "password": "hush", "apiKey": "key"}, "apiKey", "give one of them"),
        ({"hosts": "http://localhost:9200", "caCert": "ca.pem"}, "caCert", "no use with http"),
        ({"guarantee": "exactly-once", "idColumn": "id"}, "guarantee", 'only "idempotent"'),
        ({"guarantee": "idempotent"}, "guarantee", "give idColumn"),
        ({"batch.maxBuffered": "1000"}, "batch.maxBuffered", "above batch.maxRecords"),
        ({"batch.maxRecordBytes": "6MB"}, "batch.maxRecordBytes", "not be above batch.maxBytes"),
        ({"indx": "x"}, "indx", 'did you mean "index"'),
    ],
)
def test_what_cannot_work_is_told_by_option(typed: dict[str, str], option: str, text: str) -> None:
    with pytest.raises(Misconfigured) as error:
        ElasticsearchSink.of({**HOST, **typed})
    assert [problem.option for problem in error.value.problems] == [option]
    assert text in error.value.problems[0].text
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("option", "problem"),
    [("operationColumn", "must be a column of text"), ("deleteColumn", "must be a boolean column")],
)
def test_columns_that_say_what_to_do_have_one_type(option: str, problem: str) -> None:
    sink = ElasticsearchSink.of({**HOST, "idColumn": "id", option: "what"})
    sink.refuse_frame(pa.schema([("id", pa.int64()), ("what", pa.string() if "text" in problem else pa.bool_())]), placed=False)
    with pytest.raises(Misconfigured, match=f'{option} +{problem}; "what" is int64'):
        sink.refuse_frame(pa.schema([("id", pa.int64()), ("what", pa.int64())]), placed=False)


def test_defaults_are_those_of_bulk_processors() -> None:
    values = ElasticsearchSink.of(HOST).values
    batch = [values[f"batch.{name}"] for name in ("maxRecords", "maxTime", "maxBytes", "maxInFlight")]
    assert batch == [1000, 5.0, 5 << 20, 50]
    assert [values["retry.maxRetries"], values["retry.initialBackoff"]] == [5, 1.0]


def test_ids_make_it_idempotent() -> None:
    assert ElasticsearchSink.of({**HOST, "idColumn": "id"}).guarantee() is Guarantee.IDEMPOTENT
    assert ElasticsearchSink.of(HOST).guarantee() is Guarantee.AT_LEAST_ONCE


def test_a_source_takes_slices_or_num_partitions() -> None:
    assert ElasticsearchSource.of({**HOST, "slices": "7"}).parallelism() == 7
    with pytest.raises(Misconfigured, match="give one of them"):
        ElasticsearchSource.of({**HOST, "slices": "7", "numPartitions": "2"})


def test_index_names_by_columns() -> None:
    rows = pa.RecordBatch.from_pydict({"kind": ["a", None], "n": [1, 2]})
    assert IndexName.of("x-{kind}-{ n }").of_rows(rows) == ["x-a-1", None]
    assert IndexName.of("flights").constant == "flights"


def test_a_document_keeps_large_numbers_and_nulls() -> None:
    rows = pa.RecordBatch.from_pydict({"n": [2**60 + 1, None], "x": [None, 0.1], "b": [True, None]})
    assert [orjson.loads(document) for document in documents(rows)] == [  # type: ignore[arg-type]
        {"n": 2**60 + 1, "x": None, "b": True},
        {"n": None, "x": 0.1, "b": None},
    ]


def test_columns_come_from_the_mapping() -> None:
    def mapped(**properties: Any) -> dict[str, Any]:
        return {"i": {"mappings": {"properties": properties}}}

    inner = {"properties": {"x": {"type": "float"}}}
    mapping = mapped(a={"type": "keyword"}, b=inner, c={"type": "nested", **inner}, d={"type": "date"})
    assert columns(mapping) == "`a` string, `b` struct<`x`: float>, `c` array<struct<`x`: float>>, `d` timestamp"
    with pytest.raises(ValueError, match='"p" is geo_point'):
        columns(mapped(p={"type": "geo_point"}))
    with pytest.raises(ValueError, match='"a" is string in one index and bigint in j'):
        columns({**mapped(a={"type": "text"}), "j": mapped(a={"type": "long"})["i"]})
