"""A table preloaded into the workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader

from connectors import async_io
from connectors.ground.errors import Misconfigured

pytestmark = pytest.mark.spark


@pytest.fixture
def users(spark):
    return spark.createDataFrame([(1, "ann"), (2, "bob")], "id long, name string")


def test_rows_are_joined_with_the_table(spark, users):
    out = async_io.preload(spark.range(1, 4), users, on="id")
    assert sorted(map(tuple, out.collect())) == [(1, "ann"), (2, "bob"), (3, None)]
    assert async_io.preload(spark.range(1, 4), users, on=["id"], how="inner").count() == 2


def test_the_table_is_broadcast(spark, users, capsys):
    async_io.preload(spark.range(1, 4), users, on="id").explain()
    assert "BroadcastHashJoin" in capsys.readouterr().out


class Table(DataSource):
    """The lines ``id,name`` of a file: like a database, it shows at each read what is there now."""

    @classmethod
    def name(cls):
        return "table_of_lines"

    def schema(self):
        return "id long, name string"

    def reader(self, schema):
        return TableReader(self.options["path"])


class TableReader(DataSourceReader):
    def __init__(self, path):
        self.path = path

    def read(self, partition):
        for line in Path(self.path).read_text().split():
            number, name = line.split(",")
            yield int(number), name


@pytest.mark.parametrize(("refresh", "sees_it"), [("300ms", True), (None, False)])
def test_a_stream_sees_a_changed_table_only_after_a_refresh(spark, tmp_path, refresh, sees_it):
    spark.dataSource.register(Table)
    (tmp_path / "table").write_text("1,old")
    spark.range(1, 2).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    table = spark.read.format("table_of_lines").load(str(tmp_path / "table"))
    out = async_io.preload(stream, table, on="id", refresh=refresh)
    query = out.writeStream.format("memory").queryName(f"preloaded_{sees_it}").start()

    def names():
        query.processAllAvailable()
        return {row.name for row in spark.table(f"preloaded_{sees_it}").collect()}

    def names_after_another_batch():
        spark.range(1, 2).write.mode("append").parquet(str(tmp_path / "in"))
        return names()

    try:
        assert names() == {"old"}
        (tmp_path / "table").write_text("1,new")
        assert any("new" in names_after_another_batch() for _ in range(20 if sees_it else 4)) is sees_it
    finally:
        query.stop()


def test_what_cannot_work_is_told_at_once(spark, users):
    with pytest.raises(Misconfigured) as caught:
        async_io.preload(spark.range(3), users, on="user", refresh="soon", how="outer")
    assert "4 problems" in str(caught.value)
