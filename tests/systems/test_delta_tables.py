"""Many Delta tables of one sink: those of a stream of tables, and those that columns name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest

import connectors
from connectors.core import Batch, CommitRefused, Fatal, Misconfigured
from connectors.ground.retry import waits_until
from connectors.systems.delta import DeltaSink
from connectors.systems.delta.fan_out import DeltaTables, DeltaTablesCommitter
from connectors.systems.delta.routing import RoutingCommitter
from connectors.systems.delta.tables import side_by_side
from connectors.systems.delta.transaction import own_session
from tests.delta_log import delta


@pytest.fixture
def schema(spark: Any, tmp_path: Path) -> Iterator[str]:
    """An empty schema of the catalog."""
    name = f"copies_{uuid4().hex[:8]}"
    spark.sql(f"CREATE SCHEMA {name} LOCATION '{tmp_path / 'schema'}'")
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE")


def tables_of(spark: Any, rows: Sequence[tuple[str, int, int]]) -> Any:
    """A batch of a stream of tables: rows of a table, with ``id`` and ``n``."""
    cells = [(table, "id int, n int", f'{{"id": {id}, "n": {n}}}') for table, id, n in rows]
    return spark.createDataFrame(cells, "table string, schema string, row string")


BATCHES = ([("Items", 1, 0), ("Items", 2, 0), ("log", 1, 0)], [("Items", 1, 1), ("order_lines", 7, 1), ("log", 1, 1)])


@pytest.mark.parametrize(
    ("options", "items", "log"),
    [
        ({"keyColumns": {"*": ["id"], "log": ["id", "n"]}}, [(1, 1), (2, 0)], [(1, 0), (1, 1)]),
        pytest.param({}, [(1, 0), (1, 1), (2, 0)], [(1, 0), (1, 1)], marks=pytest.mark.soak),
        pytest.param({"operation": "replace"}, [(1, 1)], [(1, 1)], marks=pytest.mark.soak),
    ],
    ids=["merged", "appended", "replaced"],
)
def test_tables_of_a_schema_have_each_batch_once(
    spark: Any, schema: str, options: dict[str, Any], items: list[tuple[int, int]], log: list[tuple[int, int]]
) -> None:
    options = {"schema": schema, "onLostLedger": "notWritten", **options}
    for number, rows in enumerate(BATCHES):
        for dies in (True, False):  # behind the tables and before the ledger
            function: Any = connectors.foreach_batch(DeltaTables, options)
            function.write(tables_of(spark, rows), Batch(function.sink.sink_id(), "q", number))
            if dies:
                spark.sql(f"DROP TABLE {schema}._batches")
    found = {name: spark.table(f"{schema}.`{name}`").collect() for name in ("Items", "order_lines", "log")}
    assert {name: sorted(map(tuple, rows)) for name, rows in found.items()} == {
        "Items": items, "order_lines": [(7, 1)], "log": log,
    }  # fmt: skip
    spark.sql(f"DROP TABLE {schema}._batches")
    function = connectors.foreach_batch(DeltaTables, options)
    with pytest.raises(CommitRefused, match="batch 0 is older than batch 1"):  # Delta would skip its rows
        function.write(tables_of(spark, [("order_lines", 8, 0)]), Batch(function.sink.sink_id(), "q", 0))


def test_a_merge_names_the_catalog_which_its_own_session_does_not_know(
    spark: Any, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = []

    def observed(parent: Any) -> Any:
        own = own_session(parent)
        run = own.sql
        monkeypatch.setattr(own, "sql", lambda text: statements.append(text) or run(text))
        return own

    monkeypatch.setattr("connectors.systems.delta.transaction.own_session", observed)
    function: Any = connectors.foreach_batch(DeltaTables, {"schema": schema, "keyColumns": {"*": ["id"]}})
    for number in (0, 1):
        function.write(tables_of(spark, [("items", 1, number)]), Batch(function.sink.sink_id(), "q", number))
    assert [f"INTO `spark_catalog`.`{schema}`.`items` AS" in text for text in statements] == [True]
    assert [tuple(row) for row in spark.table(f"{schema}.items").collect()] == [(1, 1)]


def test_two_tables_that_a_schema_cannot_tell_apart_are_refused(spark: Any, schema: str) -> None:
    for number, rows in enumerate([[("items", 1, 0)], [("Items", 1, 1)]]):
        function: Any = connectors.foreach_batch(DeltaTables, {"schema": schema})
        with pytest.raises(Fatal, match="Items and items would be one") if number else contextlib.nullcontext():
            function.write(tables_of(spark, rows), Batch(function.sink.sink_id(), "q", number))
    assert [tuple(row) for row in spark.table(f"{schema}.items").collect()] == [(1, 0)]


@pytest.mark.parametrize("name", ["_batches", "_BATCHES"])
def test_no_table_of_a_schema_is_its_ledger(name: str) -> None:
    committer = DeltaTablesCommitter(DeltaTables.of({"schema": "main.shop"}))
    assert committer.place(name).sql == f"main.shop.`%5F{name[1:]}`"


@pytest.mark.soak
def test_each_table_has_a_folder_of_its_own_whatever_its_name(spark: Any, tmp_path: Path) -> None:
    names = ["..", ".", "_batches", "a/b", "item s"]
    rows = [(name, f'{{"n": {number}}}', "n INT") for number, name in enumerate(names)]
    frame = spark.createDataFrame(rows, "table string, row string, schema string")
    function = connectors.foreach_batch(DeltaTables, {"path": str(tmp_path / "tables")})
    function.write(frame, Batch(function.sink.sink_id(), "q", 0))
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
    folders = ["%2E.", "%2E", "%5Fbatches", "a%2Fb", "item s"]
    assert [delta(tmp_path / "tables" / name)["n"].to_pylist() for name in folders] == [[0], [1], [2], [3], [4]]


def test_tables_side_by_side_belong_to_the_query_and_have_own_properties(spark: Any) -> None:
    """Spark notes there which execution a thread is in, and which settings its tasks have."""
    together, context, seen = Barrier(2), spark.sparkContext, {}

    def write(table: str) -> None:
        group = context.getLocalProperty("spark.test.group")
        context.setLocalProperty("spark.test.table", table)
        together.wait(30)
        seen[table] = (group, context.getLocalProperty("spark.test.table"))

    context.setLocalProperty("spark.test.group", "query")
    side_by_side(spark, {table: partial(write, table) for table in ("items", "orders")}, "connectors.delta_tables")
    context.setLocalProperty("spark.test.group", None)
    assert seen == {table: ("query", table) for table in ("items", "orders")}


def test_the_error_of_a_query_that_is_stopped_is_its_own(spark: Any) -> None:
    """Spark tells by its text whether the query has failed."""

    def interrupted() -> None:
        raise OSError("An error occurred while calling o1.save.\n: java.lang.InterruptedException: no more")

    with waits_until(lambda: True), pytest.raises(OSError, match="InterruptedException"):
        side_by_side(spark, {"items": interrupted, "orders": interrupted}, "connectors.delta_tables")
    with pytest.raises(Fatal, match=r"2 of 2 tables are not written, items: java\.lang\.InterruptedException: no more; orders"):
        side_by_side(spark, {"items": interrupted, "orders": interrupted}, "connectors.delta_tables")


def orders_of(spark: Any, cells: Sequence[tuple[int, str | None]]) -> Any:
    return spark.createDataFrame(list(cells), "id int, region string")


def write_orders(spark: Any, options: dict[str, Any], number: int, cells: Sequence[tuple[int, str | None]]) -> None:
    function: Any = connectors.foreach_batch("delta", options)
    function.write(orders_of(spark, cells), Batch(function.sink.sink_id(), "q", number))


def test_rows_go_to_the_tables_that_columns_name(spark: Any, schema: str) -> None:
    options = {"table": f"{schema}.orders_{{region}}", "onLostLedger": "notWritten"}
    for number, cells in enumerate([[(1, "eu"), (2, "us"), (3, "eu")], [(4, "us"), (5, "ch")]]):
        for dies in (True, False):  # behind the tables and before the ledger
            write_orders(spark, options, number, cells)
            if dies:
                spark.sql(f"DROP TABLE {schema}._batches")
    found = {name: sorted(map(tuple, spark.table(f"{schema}.orders_{name}").collect())) for name in ("eu", "us", "ch")}
    assert found == {"eu": [(1, "eu"), (3, "eu")], "us": [(2, "us"), (4, "us")], "ch": [(5, "ch")]}
    recorded = spark.table(f"{schema}._batches").where("batch = 1").select("table", "rows").collect()
    assert sorted(map(tuple, recorded)) == [("orders_ch", 1), ("orders_us", 1)]


def test_a_batch_that_died_between_the_tables_that_columns_name_is_finished(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"path": str(tmp_path / "{region}")}
    write = RoutingCommitter._write

    def die(self: Any, rows: Any, table: str, batch: Batch) -> None:
        if table == "us":
            raise ZeroDivisionError
        write(self, rows, table, batch)

    cells = [(1, "eu"), (2, "us")]
    write_orders(spark, options, 0, cells)
    with monkeypatch.context() as patched:
        patched.setattr(RoutingCommitter, "_write", die)
        with pytest.raises(Fatal, match="1 of 2 tables are not written"):
            write_orders(spark, options, 1, cells)
    write_orders(spark, options, 1, cells)
    assert [sorted(delta(tmp_path / name)["id"].to_pylist()) for name in ("eu", "us")] == [[1, 1], [2, 2]]


def test_rows_that_name_no_table_or_too_many_are_refused_before_any_is_written(spark: Any, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "orders" / "{region}"), "maxTables": "2"}
    with pytest.raises(Fatal, match=r"1 rows have no region, so that \{region\} names no table"):
        write_orders(spark, options, 0, [(1, "eu"), (2, None)])
    with pytest.raises(Fatal, match="names 3 tables, and maxTables is 2"):
        write_orders(spark, options, 0, [(1, "eu"), (2, "us"), (3, "ch")])
    function: Any = connectors.foreach_batch("delta", {"path": f"{tmp_path}/{{id}}"})
    with pytest.raises(Misconfigured, match=r"id in .* must be a column of string.*; it is double\. Cast it"):
        function.write(spark.createDataFrame([(1.5,)], "id double"), Batch(function.sink.sink_id(), "q", 0))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "options", [{"path": "/lake/{region}/orders"}, {"table": "orders_{region}"}, {"table": "main.{region}.orders_{region}"}]
)
def test_only_the_last_part_of_a_target_has_columns(options: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match="must have columns in its last part only"):
        DeltaSink.of(options)
