"""A dialect of the user's own: five lines, and URLs of that name are read and written, in tasks as well."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors.core.planning import Offset
from connectors.ground.errors import Misconfigured
from connectors.systems.jdbc import JdbcSink, JdbcSource, register_dialect
from connectors.systems.jdbc.dialects import DIALECTS, Dialect, PostgreSql, Sqlite
from connectors.testing.servers import HOST, PostgresServer
from connectors.testing.source_suite import SourceQuery
from tests.servers import required

from .contexts import SqliteContext
from .incremental_contexts import PostgresById


@pytest.fixture(autouse=True)
def own_dialects_end_with_the_test() -> Iterator[None]:
    before = dict(DIALECTS)
    yield
    DIALECTS.clear()
    DIALECTS.update(before)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[SqliteContext]:
    with contextlib.closing(SqliteContext(tmp_path / "target")) as target:
        yield target


def test_a_dialect_of_the_notebook_reads_and_writes_on_spark(spark: Any, target: SqliteContext, tmp_path: Path) -> None:
    class LiteStore(Sqlite):
        name = "litestore"

    register_dialect(LiteStore)
    connectors.register(spark)
    try:
        options = {**target.options(), "url": target.address()["url"].replace("sqlite", "litestore")}
        frame = spark.range(1, 6).selectExpr("id", "concat('row ', id) AS name")
        frame.repartition(3).write.format("connectors.jdbc").options(**options).mode("append").save()
        read = spark.read.format("connectors.jdbc").options(**options, partitionColumn="id", numPartitions="2").load()
        assert read.rdd.getNumPartitions() == 2
        assert sorted(row.id for row in read.collect()) == [1, 2, 3, 4, 5]
        stream = spark.readStream.format("connectors.jdbc").options(**options)
        stream = stream.option("incremental", "incrementing").option("incrementingColumn", "id")
        copy = target.table + "_copy"
        target.run(f"CREATE TABLE {copy} ({target.body})")
        into = {**options, "dbtable": copy}
        writes = {
            "by format": lambda writer: writer.format("connectors.jdbc").options(**into, sinkId="by format"),
            "by batch": lambda writer: writer.foreachBatch(connectors.foreach_batch("jdbc", into, sinkId="by batch")),
        }
        for name, write in writes.items():
            writer = stream.load().writeStream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / name))
            write(writer).start().awaitTermination()
        counts = target.query(f"SELECT count(*), min(name) FROM {copy} GROUP BY id")
        assert sorted(counts) == [(2, f"row {number}") for number in range(1, 6)]
        target.run(f"DROP TABLE {copy}")
    finally:
        del DIALECTS["litestore"]
        connectors.register(spark)


def test_a_dialect_that_extends_postgresql_has_its_streams(tmp_path: Path) -> None:
    class Yugabyte(PostgreSql):
        name, port = "yugabyte", 5433

    class Store(PostgresById):
        def options(self) -> dict[str, str]:
            return {**super().options(), "url": f"jdbc:yugabyte://{HOST}:{required(PostgresServer).port}/postgres?ssl=false"}

    register_dialect(Yugabyte)
    assert JdbcSink.of({"url": "jdbc:yugabyte://host/d", "dbtable": "t"}).target() == "yugabyte://host:5433/d/t"
    with contextlib.closing(Store(tmp_path / "system")) as system:
        rows = system.write(3)
        assert SourceQuery(system).rest(list[Offset]()) == rows


def test_a_dialect_of_a_system_that_has_no_streams_is_refused_as_a_stream() -> None:
    register_dialect(type("Db2", (Dialect,), {"name": "db2", "port": 50000}))
    with pytest.raises(Misconfigured, match=r"url +is for db2, whose dialect extends none that can be read as a stream"):
        JdbcSource.of({"url": "jdbc:db2://host/d", "dbtable": "t", "incremental": "bulk"}, streaming=True)


def test_what_is_no_dialect_is_refused() -> None:
    not_a_dialect: Any = SqliteContext
    with pytest.raises(TypeError, match="no subclass of Dialect"):
        register_dialect(not_a_dialect)
    with pytest.raises(ValueError, match="must be small letters and digits"):
        register_dialect(type("Odd", (PostgreSql,), {"name": "My DB"}))
