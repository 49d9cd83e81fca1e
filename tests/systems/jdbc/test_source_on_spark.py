"""The batch read on Spark: the same columns as Spark's own format, one moment for its tasks, and lookup tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors import async_io
from connectors.testing import same_records

from .batch_reading import fill, source_options, table_of
from .contexts import DatabaseContext, PostgresContext, SqliteContext

PRODUCTS = [(1, "'lamp'", "'light'"), (2, "'chair'", "'seat'"), (3, "'desk'", "NULL")]


@pytest.fixture
def products(tmp_path: Path) -> Iterator[DatabaseContext]:
    with contextlib.closing(table_of(SqliteContext, "id BIGINT, name TEXT, category TEXT", tmp_path)) as context:
        fill(context, PRODUCTS)
        yield context


def test_a_table_is_read_in_parallel_and_again_with_what_is_there_by_then(spark: Any, tmp_path: Path) -> None:
    body = "id BIGINT PRIMARY KEY, tags TEXT[], amount NUMERIC(10, 2), at TIMESTAMPTZ"
    with contextlib.closing(table_of(PostgresContext, body, tmp_path)) as context:
        expressions = "n, ARRAY['a', NULL, n::text], n / 4.0, timestamptz '2024-01-01 00:00:00+00' + n * interval '1 hour'"
        context.run(f"INSERT INTO {context.table} SELECT {expressions} FROM generate_series(1, 1000) n")
        frame = spark.read.format("connectors.jdbc").options(**source_options(context, numPartitions=4)).load()
        assert frame.dtypes == [
            ("id", "bigint"), ("tags", "array<string>"), ("amount", "decimal(10,2)"), ("at", "timestamp"),
        ]  # fmt: skip
        assert frame.rdd.getNumPartitions() == 4
        totals = frame.selectExpr(
            "sum(id)", "sum(amount)", "max(tags[2])", "count(tags[1])", "min(unix_timestamp(at))"
        ).first()
        assert [str(value) for value in totals] == ["500500", "125125.00", "999", "0", "1704070800"]
        context.run(f"DELETE FROM {context.table} WHERE id > 10")
        assert sorted(row.id for row in frame.select("id").collect()) == list(range(1, 11))
        shown = frame.schema.add("more", "string")
        with pytest.raises(Exception, match='has "more", but the columns are id, tags, amount, at'):
            spark.read.format("connectors.jdbc").options(**source_options(context)).schema(shown).load().collect()


def test_a_lookup_table_is_joined_and_refreshed(spark: Any, products: DatabaseContext) -> None:
    query = f"SELECT id, name, category FROM {products.table}"
    options = {**products.address(), "query": query}
    lookup = spark.read.format("connectors.jdbc").options(**options).load()
    orders = spark.range(1, 5)
    joined = async_io.preload(orders, lookup, on="id")
    expected = [
        {"id": 1, "name": "lamp", "category": "light"},
        {"id": 2, "name": "chair", "category": "seat"},
        {"id": 3, "name": "desk", "category": None},
        {"id": 4, "name": None, "category": None},
    ]
    same_records(expected, joined.collect())
    products.run(f"UPDATE {products.table} SET name = 'stool' WHERE id = 2")
    same_records(expected, joined.collect())
    lookup.unpersist()
    lookup.persist()
    assert [row.name for row in lookup.filter("id = 2").collect()] == ["stool"]
    lookup.unpersist()


def test_what_is_wrong_is_told_at_load_without_the_password(spark: Any) -> None:
    secret = "correct horse"
    options = {"url": f"postgresql://u:{secret}@127.0.0.1:1/d", "dbtable": "t"}
    wrong_options = {**options, "password": secret, "fetchsize": "many", "colour": "red"}
    with pytest.raises(Exception, match=r"connectors\.jdbc cannot start; 2 problems") as wrong:
        spark.read.format("connectors.jdbc").options(**wrong_options).load()
    assert secret not in str(wrong.value)
    with pytest.raises(Exception, match="Connection refused") as wrong:
        spark.read.format("connectors.jdbc").options(**options).load()
    assert secret not in str(wrong.value)


def test_a_stream_that_does_not_know_what_is_new_does_not_start(spark: Any) -> None:
    options = {"url": "sqlite:///x.db", "dbtable": "t"}
    stream = spark.readStream.format("connectors.jdbc").options(**options).schema("a int").load()
    with pytest.raises(Exception, match="a stream needs incremental"):
        stream.writeStream.format("noop").start().awaitTermination()
