"""A table as a stream on Spark, and a stream of tables that becomes one Delta table for each."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Batch
from connectors.ground.errors import Misconfigured
from connectors.systems.jdbc import fan_out
from connectors.testing.spark_suites import SparkSourceSuite
from connectors.workbench.target_schema import TargetSchema

from . import incremental_contexts as contexts
from .test_incremental_tables import Sqlite


class TestPostgres(SparkSourceSuite):
    context = contexts.PostgresStream


@pytest.mark.soak
class TestSqlite(SparkSourceSuite):
    class context(contexts.WithoutTimes, contexts.SqliteById):  # noqa: N801
        pass


@pytest.mark.soak
class TestDuckDb(SparkSourceSuite):
    class context(contexts.WithoutTimes, contexts.DuckDbById):  # noqa: N801
        pass


def test_each_table_becomes_a_delta_table_with_its_types(spark: Any, tmp_path: Path) -> None:
    with contextlib.closing(Sqlite(tmp_path)) as shop:
        shop.run("CREATE TABLE items (id INTEGER PRIMARY KEY, price DECIMAL(9, 2), made DATETIME, raw BLOB, note TEXT)")
        shop.run("INSERT INTO items VALUES (1, '12.50', '2024-05-05 10:00:00.123456', x'00ff', 'a \"quoted\" one')")
        run(spark, shop, tmp_path)
        shop.run("ALTER TABLE items ADD COLUMN sold BOOLEAN", "INSERT INTO items VALUES (2, NULL, NULL, NULL, NULL, 1)")
        for name in ("odd name", "_changes"):
            shop.run(f'CREATE TABLE "{name}" (id INTEGER PRIMARY KEY)', f'INSERT INTO "{name}" VALUES (7)')
        run(spark, shop, tmp_path)
    items = spark.read.format("delta").load(str(tmp_path / "copy" / "items"))
    assert dict(items.dtypes) == {
        "id": "bigint",
        "price": "decimal(9,2)",
        "made": "timestamp",
        "raw": "binary",
        "note": "string",
        "sold": "boolean",
    }
    shown = items.selectExpr("id", "cast(price AS string)", "cast(made AS string)", "hex(raw)", "note", "sold")
    first, second = shown.orderBy("id").collect()
    assert tuple(first) == (1, "12.50", "2024-05-05 10:00:00.123456", "00FF", 'a "quoted" one', None)
    assert tuple(second) == (2, None, None, None, None, True)
    assert [row.id for row in spark.read.format("delta").load(str(tmp_path / "copy" / "odd name")).collect()] == [7]
    schema = TargetSchema(f"{tmp_path}/copy/", '{"items": [{"not_null": "made"}], "*": [{"unique": "id"}]}')
    assert [tuple(row)[:3] for row in schema.tables(spark).collect()] == [
        ("_changes", 1, 1),
        ("items", 2, 2),
        ("odd name", 1, 1),
    ]
    verdicts = [{outcome.check: outcome.ok for outcome in report.outcomes} for report in schema.verdicts(spark)]
    unique = {"row_count(min=0)": True, "unique(id)": True}
    assert verdicts == [unique, {"row_count(min=0)": True, "not_null(made)": False}, unique]


@pytest.mark.soak
def test_a_table_that_cannot_be_written_is_named_and_the_others_are_written(spark: Any, tmp_path: Path) -> None:
    with contextlib.closing(Sqlite(tmp_path)) as shop:
        for name in ("a", "b", "c"):
            shop.run(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY)", f"INSERT INTO {name} VALUES (1)")
        (tmp_path / "copy").mkdir()
        (tmp_path / "copy" / "b").write_text("in the way")
        with pytest.raises(Exception, match=r"1 of 3 tables are not written, b: "):
            run(spark, shop, tmp_path)
        assert [copied(spark, tmp_path, name) for name in ("a", "c")] == [[1], [1]]
        (tmp_path / "copy" / "b").unlink()
        run(spark, shop, tmp_path)
    assert [copied(spark, tmp_path, name) for name in ("a", "b", "c")] == [[1], [1], [1]]


@pytest.mark.soak
def test_a_key_that_a_table_does_not_have_is_named_before_the_first_row_is_written(spark: Any, tmp_path: Path) -> None:
    with contextlib.closing(Sqlite(tmp_path)) as shop:
        shop.run("CREATE TABLE a (number INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1)")
        with pytest.raises(Exception, match=r'keyColumns +names "id" for a, whose columns are number; give a others'):
            run(spark, shop, tmp_path, keyColumns={"*": ["id"]})
        assert not (tmp_path / "copy" / "a").exists()
        with pytest.raises(Exception, match=r'keyColumns +names "A"; the table is a'):
            run(spark, shop, tmp_path, keyColumns={"A": ["number"]})
        assert not (tmp_path / "copy" / "a").exists()
        run(spark, shop, tmp_path, keyColumns={"*": ["id"], "a": ["Number"]})
        assert spark.read.format("delta").load(str(tmp_path / "copy" / "a")).count() == 1


@pytest.mark.soak
def test_an_upsert_goes_by_the_primary_key_of_each_table(spark: Any, tmp_path: Path) -> None:
    by_number = {"incremental": "incrementing", "incrementingColumn": "number"}
    with contextlib.closing(Sqlite(tmp_path)) as shop:
        shop.run("CREATE TABLE lines (number INTEGER, place TEXT, id INTEGER, PRIMARY KEY (number, place))")
        shop.run("INSERT INTO lines VALUES (1, 'a', 5), (1, 'b', 5)")
        run(spark, shop, tmp_path, by_number, operation="upsert")
        shop.run("INSERT INTO lines VALUES (2, 'a', 5), (1, 'c', 6)")
        run(spark, shop, tmp_path, by_number, operation="upsert")
        assert copied(spark, tmp_path, "lines") == [5, 5, 5], "ids are given once"
        (report,) = TargetSchema(f"{tmp_path}/copy/", "{}").verdicts(spark)
        assert "unique(number, place)" in [outcome.check for outcome in report.outcomes]
        shop.run("CREATE TABLE notes (number INTEGER)", "INSERT INTO notes VALUES (7)")
        with pytest.raises(Exception, match=r"keyColumns +lacks notes, which has no primary key; give it columns"):
            run(spark, shop, tmp_path, by_number, operation="upsert")
        assert not (tmp_path / "copy" / "notes").exists()
        run(spark, shop, tmp_path, by_number, operation="upsert", keys={"notes": ["number"]})
        assert spark.read.format("delta").load(str(tmp_path / "copy" / "notes")).count() == 1


@pytest.mark.soak
def test_rows_of_one_key_are_named_before_one_replaces_the_other(spark: Any, tmp_path: Path) -> None:
    with contextlib.closing(Sqlite(tmp_path)) as shop:
        shop.run("CREATE TABLE lines (number INTEGER PRIMARY KEY, count INTEGER)", "INSERT INTO lines VALUES (1, 5), (2, 5)")
        with pytest.raises(Exception, match=r"(?s)rows of lines have the same count, such as 5.*if lines has other columns"):
            run(spark, shop, tmp_path, keys={"*": ["count"]})
        assert not (tmp_path / "copy" / "lines").exists()
        run(spark, shop, tmp_path, keys={"*": ["number"]})
        shop.run("INSERT INTO lines VALUES (3, NULL)")
        with pytest.raises(Exception, match=r"(?s)rows of lines have no count, such as None.*give them as keyColumns(?!;)"):
            run(spark, shop, tmp_path, keys={"*": ["count"]})
        assert spark.read.format("delta").load(str(tmp_path / "copy" / "lines")).count() == 2


@pytest.mark.soak
def test_a_stream_of_ones_own_may_have_keys_of_rows_or_a_column_of_that_name(spark: Any, tmp_path: Path) -> None:
    def write(values: str, number: int = 0, query: str = "q", **options: Any) -> None:
        columns = """'a' table, '{"id":' || n || '}' row, 'id int' schema, key"""
        rows = spark.sql(f"SELECT {columns} FROM VALUES {values} t (n, key)")
        function: Any = fan_out(str(tmp_path / "copy"), **options)
        function.write(rows, Batch(function.sink.sink_id(), query, number))

    changed = "lacks a, whose primary key has just changed; start the query again, or give it columns"
    none = "lacks a, which has no primary key; give it columns"
    for values, text in (("(1, array('id')), (2, array('b'))", changed), ("(1, 5)", none)):
        with pytest.raises(Misconfigured, match=rf"keyColumns +{text}"):
            write(values, operation="upsert")
    with pytest.raises(Misconfigured, match=r'keyColumns +names "A"; the table is a'):
        write("(1, 5)", operation="upsert", keys={"A": ["id"]})
    for number in range(3):
        write("(1, 5), (2, 6)", number)
    assert copied(spark, tmp_path, "a") == [1, 1, 1, 2, 2, 2]
    write("(3, array('id'))", query="other", operation="upsert", onNewQuery="continue")
    (report,) = TargetSchema(f"{tmp_path}/copy/", "{}").verdicts(spark)
    assert [outcome.check for outcome in report.outcomes if not outcome.ok] == ["unique(id)"], "by the key of the newest batch"


@pytest.mark.soak
def test_with_replace_the_copy_loses_what_the_table_has_lost(spark: Any, tmp_path: Path) -> None:
    with contextlib.closing(Sqlite(tmp_path)) as shop:
        shop.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1), (2), (3)")
        for change, expected in (("SELECT 1", [1, 2, 3]), ("DELETE FROM a WHERE id = 2", [1, 3])):
            shop.run(change)
            run(spark, shop, tmp_path, {"incremental": "bulk"}, operation="replace")
            assert copied(spark, tmp_path, "a") == expected


def copied(spark: Any, folder: Path, table: str) -> list[int]:
    rows = spark.read.format("delta").load(str(folder / "copy" / table)).select("id").collect()
    return sorted(row.id for row in rows)


def run(spark: Any, shop: Sqlite, folder: Path, source: Mapping[str, str] | None = None, **copy: Any) -> None:
    options = {**shop.options(), "includeSchema": "true", **(source or {})}
    rows = spark.readStream.format("connectors.jdbc").options(**options).load()
    writer = rows.writeStream.foreachBatch(fan_out(str(folder / "copy"), **copy)).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"operation": "append", "keyColumns": {"a": ["id"]}}, "keyColumns"),
        ({"keyColumns": {"a": "id"}}, "keyColumns"),
        ({"keys": {"a": "id"}}, "keyColumns +must be lists of columns"),
        ({"keys": ["id"]}, "keyColumns +must be a JSON object"),
    ],
)
def test_options_of_the_copy_that_do_not_go_together_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(Misconfigured, match=named):
        fan_out("/tmp/copy", **options)
