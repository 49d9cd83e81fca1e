"""Many Delta tables of one sink: those of a stream of tables, and those that columns name."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import connectors
from connectors.core import Batch, CommitRefused, Fatal, Misconfigured
from connectors.ground.retry import waits_until
from connectors.systems.delta import DeltaSink
from connectors.systems.delta.fan_out import DeltaTables, DeltaTablesCommitter
from connectors.systems.delta.routing import RoutingCommitter
from connectors.systems.delta.tables import side_by_side
from connectors.systems.delta.transaction import own_session
from connectors.testing.spark_suites import SparkSinkSuite
from tests.delta_log import delta

from .test_delta import DeltaContext


class RoutingContext(DeltaContext):
    """Three tables, by the remainder of the number."""

    schema = DeltaContext.schema.append(pa.field("region", pa.int64()))
    select = (*DeltaContext.select, "value % 3 AS region")

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder / "tables" / "{region}")}

    def row(self, number: int) -> dict[str, Any]:
        return {**super().row(number), "region": number % 3}

    def rows(self) -> list[dict[str, Any]]:
        return [row for region in range(3) for row in delta(self.folder / "tables" / f"{region}").to_pylist()]


class TestTablesThatColumnsName(SparkSinkSuite):
    context = RoutingContext


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


@pytest.mark.soak
@pytest.mark.parametrize("options", [{"keyColumns": {"*": ["id"]}}, {}], ids=["merged", "appended"])
def test_columns_may_have_any_name_also_one_that_comes_later(spark: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    function: Any = connectors.foreach_batch(DeltaTables, {"path": str(tmp_path), **options})
    names: list[str] = []
    for number, name in enumerate(("n", "order date", "{net; gross=1}")):
        names.append(name)
        cells = ", ".join(f'"{own}": {number}' for own in names)
        row = ("items", ", ".join(("id int", *(f"`{own}` int" for own in names))), f'{{"id": {number}, {cells}}}')
        frame = spark.createDataFrame([row], "table string, schema string, row string")
        function.write(frame, Batch(function.sink.sink_id(), "q", number))
    rows = spark.read.format("delta").load(f"{tmp_path}/items").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(0, 0, None, None), (1, 1, 1, None), (2, 2, 2, 2)]


@pytest.mark.soak
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


@pytest.mark.soak
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


@contextlib.contextmanager
def death(monkeypatch: pytest.MonkeyPatch, place: str) -> Iterator[None]:
    """Whoever writes to the table ``place`` dies there."""
    write, record = RoutingCommitter._write, RoutingCommitter._record

    def dying_write(committer: Any, rows: Any, table: str, batch: Batch) -> None:
        if table == place:
            raise ZeroDivisionError
        write(committer, rows, table, batch)

    def dying_record(committer: Any, spark: Any, rows: Any, batch: Batch) -> None:
        if place == "_batches" and batch.claim is None:
            raise ZeroDivisionError
        record(committer, spark, rows, batch)

    with monkeypatch.context() as patched:
        patched.setattr(RoutingCommitter, "_write", dying_write)
        patched.setattr(RoutingCommitter, "_record", dying_record)
        with pytest.raises((Fatal, ZeroDivisionError)):
            yield


def test_a_batch_that_died_between_the_tables_that_columns_name_is_finished(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, cells = {"path": str(tmp_path / "{region}")}, [(1, "eu"), (2, "us")]
    write_orders(spark, options, 0, cells)
    with death(monkeypatch, "us"):
        write_orders(spark, options, 1, cells)
    write_orders(spark, options, 1, cells)
    assert [sorted(delta(tmp_path / name)["id"].to_pylist()) for name in ("eu", "us")] == [[1, 1], [2, 2]]


def test_rows_that_name_no_table_or_too_many_are_refused_before_any_is_written(spark: Any, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "orders" / "{region}"), "maxTables": "2"}
    with pytest.raises(Fatal, match=r"2 rows have no region, so that \{region\} names no table"):
        write_orders(spark, options, 0, [(1, "eu"), (2, None), (3, "")])
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


@pytest.mark.soak
def test_a_name_that_the_catalog_refuses_stops_the_batch_before_any_table_is_written(spark: Any, schema: str) -> None:
    options = {"table": f"{schema}.orders_{{region}}"}
    with pytest.raises(Fatal, match="1 of 2 tables are not written, orders_e-u: "):
        write_orders(spark, options, 0, [(1, "us"), (2, "e-u")])
    assert spark.table(f"{schema}.orders_us").count() == 0
    write_orders(spark, options, 0, [(1, "us"), (2, "eu")])
    assert [spark.table(f"{schema}.orders_{name}").count() for name in ("us", "eu")] == [1, 1]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("place", "cells", "text"),
    [
        ("us", [(2, "us"), (3, "ch")], "0 rows of ch, now 1; 1 rows of eu, now 0"),
        ("_batches", [(1, "eu"), (2, "us"), (3, "us")], "1 rows of us, now 2"),
        pytest.param("us", [], "1 rows of eu, now 0; 1 rows of us, now 0", marks=pytest.mark.soak),
    ],
)
def test_an_interrupted_batch_that_comes_again_with_other_rows_is_refused(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, cells: list[tuple[int, str]], text: str
) -> None:
    options, first = {"path": str(tmp_path / "{region}")}, [(1, "eu"), (2, "us")]
    with death(monkeypatch, place):
        write_orders(spark, options, 0, first)
    with pytest.raises(CommitRefused, match=rf"(?s)batch 0 comes again with other rows: {text}.*onReplayMismatch=skip"):
        write_orders(spark, options, 0, cells)
    assert delta(tmp_path / "ch").num_rows == 0
    write_orders(spark, options, 0, first)
    assert [delta(tmp_path / name)["id"].to_pylist() for name in ("eu", "us")] == [[1], [2]]


@pytest.mark.soak
def test_an_interrupted_batch_is_finished_with_other_rows_where_the_user_says_so(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"path": str(tmp_path / "{region}"), "onReplayMismatch": "skip"}
    with death(monkeypatch, "us"):
        write_orders(spark, options, 0, [(1, "eu"), (2, "us")])
    write_orders(spark, options, 0, [(1, "eu"), (3, "eu"), (4, "us"), (5, "ch")])
    assert [delta(tmp_path / name)["id"].to_pylist() for name in ("eu", "us", "ch")] == [[1], [4], [5]]


@pytest.mark.soak
def test_a_recorded_batch_that_comes_again_with_other_rows_is_refused(spark: Any, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "{region}")}
    first: Any = connectors.foreach_batch("delta", options)
    batch = Batch(first.sink.sink_id(), "q", 0)
    for function in (first, first, connectors.foreach_batch("delta", options)):
        function.write(orders_of(spark, [(1, "eu"), (2, "us")]), batch)
    for function in (first, connectors.foreach_batch("delta", options)):
        with pytest.raises(CommitRefused, match="batch 0 is committed with 2 rows, its replay has 3 rows"):
            function.write(orders_of(spark, [(1, "eu"), (2, "us"), (3, "us")]), batch)


@pytest.mark.soak
def test_a_recorded_batch_without_rows_that_comes_again_with_rows_is_refused(spark: Any, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "{region}"), "maxTables": "1"}
    write_orders(spark, options, 0, [])
    write_orders(spark, options, 0, [])
    with pytest.raises(CommitRefused, match="batch 0 is committed with 0 rows, its replay has 1 rows"):
        write_orders(spark, options, 0, [(1, "eu")])
    write_orders(spark, options, 1, [(1, "eu")])
    assert delta(tmp_path / "eu")["id"].to_pylist() == [1]


@pytest.mark.soak
def test_tables_of_earlier_runs_count_and_those_of_other_sinks_do_not(spark: Any, tmp_path: Path) -> None:
    orders, users = ({"path": f"{tmp_path}/{name}_{{region}}", "maxTables": "2"} for name in ("orders", "users"))
    for options in (orders, users):
        write_orders(spark, options, 0, [(1, "eu"), (2, "us")])
    with pytest.raises(Fatal, match="names 3 tables, and maxTables is 2"):
        write_orders(spark, orders, 1, [(3, "ch")])
    assert not (tmp_path / "orders_ch").exists()
    write_orders(spark, orders, 1, [(3, "us")])


@pytest.mark.soak
@pytest.mark.parametrize("restarts", [True, False], ids=["restarted", "running"])
@pytest.mark.parametrize("kind", ["delta", DeltaTables])
def test_a_table_of_earlier_batches_that_is_gone_is_not_begun_anew(
    spark: Any, tmp_path: Path, kind: Any, restarts: bool
) -> None:
    options = {"path": str(tmp_path / ("{region}" if kind == "delta" else ""))}
    function: Any = connectors.foreach_batch(kind, options)

    def write(number: int) -> None:
        rows = orders_of(spark, [(number, "eu"), (number, "us")])
        frame = rows if kind == "delta" else tables_of(spark, [(row.region, row.id, 0) for row in rows.collect()])
        function.write(frame, Batch(function.sink.sink_id(), "q", number))

    write(0)
    shutil.rmtree(tmp_path / "eu")
    function = connectors.foreach_batch(kind, options) if restarts else function
    with pytest.raises(CommitRefused, match=r"(?s)the table eu is gone from .* restore the table"):
        write(1)
    assert not (tmp_path / "eu").exists()
    assert delta(tmp_path / "us").num_rows == 1 or (kind is DeltaTables and not restarts)
