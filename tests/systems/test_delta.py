"""``connectors.delta``: once per batch, with the ledger in the table's own history."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest
from pyspark import inheritable_thread_target

import connectors
from connectors.core import Batch, CommitRefused, Fatal, Misconfigured, Sink
from connectors.core.commit import Commit
from connectors.core.ledger import Verdict
from connectors.ground.retry import waits_until
from connectors.systems.delta import DeltaSink
from connectors.systems.delta.fan_out import DeltaTables, DeltaTablesCommitter
from connectors.systems.delta.routed import RoutedCommitter
from connectors.systems.delta.sink import DeltaCommitter
from connectors.systems.delta.tables import side_by_side
from connectors.systems.delta.transaction import own_session
from connectors.testing import SinkContext, same_records
from connectors.testing.spark_suites import SparkSinkSuite, spark_query
from tests.delta_log import delta


class DeltaContext(SinkContext):
    sink = DeltaSink
    carriers = ("foreach_batch",)

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder / "table")}

    def rows(self) -> list[dict[str, Any]]:
        return list(delta(self.folder / "table").to_pylist())


class TestDelta(SparkSinkSuite):
    context = DeltaContext


@pytest.fixture
def target(tmp_path: Path) -> DeltaContext:
    return DeltaContext(tmp_path)


def test_an_older_checkpoint_is_refused(spark: Any, target: DeltaContext, tmp_path: Path) -> None:
    query = spark_query(target, tmp_path, "foreach_batch", rows=10)
    query.run(spark)
    shutil.copytree(query.checkpoint, tmp_path / "older")
    query.source_options["end"] = "30"
    query.run(spark)
    shutil.rmtree(query.checkpoint)
    (tmp_path / "older").rename(query.checkpoint)
    with pytest.raises(Exception, match="older checkpoint"):
        query.run(spark)
    same_records([target.row(number) for number in range(1, 31)], target.rows())


@pytest.mark.soak
def test_a_lost_table_stops_until_the_user_says_what_was_written(
    spark: Any, target: DeltaContext, tmp_path: Path
) -> None:
    query = spark_query(target, tmp_path, "foreach_batch", rows=10)
    query.run(spark)
    shutil.rmtree(target.options()["path"])
    query.source_options["end"] = "20"
    with pytest.raises(Exception, match="onLostLedger"):
        query.run(spark)
    query.sink_options["onLostLedger"] = "notWritten"
    query.run(spark)
    same_records([target.row(number) for number in range(11, 21)], target.rows())


@pytest.mark.soak
def test_batches_without_rows_are_recorded_and_missing_ones_stop(spark: Any, tmp_path: Path) -> None:
    tables = spark.createDataFrame([("orders", '{"id": 1}', "id int")], "table string, row string, schema string")
    sinks = [({"sink": "delta"}, spark.range(3)), ({"sink": DeltaTables, "keyColumns": {"orders": ["id"]}}, tables)]
    for number, (options, rows) in enumerate(sinks):
        for batch, frame in enumerate([rows, rows.limit(0), rows.limit(0)]):
            write: Any = connectors.foreach_batch(**options, path=str(tmp_path / f"{number}"))  # as another run of the query
            write.write(frame, Batch(write.sink.sink_id(), "q", batch))
        assert write.sink.committer().last("q").batch == 2
        write.write(rows, Batch(write.sink.sink_id(), "q", 3))
        with pytest.raises(CommitRefused, match="batch 4 never came"):
            write.write(rows, Batch(write.sink.sink_id(), "q", 5))


def test_a_batch_that_is_said_to_be_written_is_recorded_or_refused(spark: Any, tmp_path: Path) -> None:
    """Else each batch behind it would pass for written, too."""
    tables = spark.createDataFrame([("orders", '{"id": 1}', "id int")], "table string, row string, schema string")
    several: Any = connectors.foreach_batch(DeltaTables, {"path": str(tmp_path), "onLostLedger": "written"})
    several.write(tables, Batch(several.sink.sink_id(), "q", 3))
    assert several.sink.committer().last("q").batch == 3
    single: Any = connectors.foreach_batch(DeltaSink, {"path": str(tmp_path / "gone"), "onLostLedger": "written"})
    with pytest.raises(CommitRefused, match=r"no table .*gone.*batch 3"):
        single.write(spark.range(3), Batch(single.sink.sink_id(), "q", 3))


def rows_of(spark: Any, sink: type[Sink]) -> Any:
    """What a batch of ``sink`` holds: two rows."""
    if sink is DeltaSink:
        return spark.range(2)
    rows = [("items", "id int", f'{{"id": {number}}}') for number in range(2)]
    return spark.createDataFrame(rows, "table string, schema string, row string")


@pytest.mark.soak
@pytest.mark.parametrize("is_late", [True, False], ids=["late", "at once"])
@pytest.mark.parametrize("sink", [DeltaSink, DeltaTables])
def test_of_two_queries_that_begin_at_one_table_one_writes(spark: Any, tmp_path: Path, sink: type[Sink], is_late: bool) -> None:
    frame, options = rows_of(spark, sink), {"path": str(tmp_path / "table")}
    commits = {query: Commit(sink.of(options)) for query in ("left", "right")}
    batches = {query: Batch(commit.sink.sink_id(), query, 0) for query, commit in commits.items()}
    assert [commit.begin(batches[query]) for query, commit in commits.items()] == [Verdict.WRITE, Verdict.WRITE]
    refused = []

    def write(query: str) -> None:
        try:
            commits[query].commit_frame(frame, batches[query])
        except CommitRefused as late:
            refused.append(str(late))

    if is_late:
        for query in commits:
            write(query)
    else:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(inheritable_thread_target(spark)(write), commits))
    assert len(refused) == 1
    assert "onNewQuery" in refused[0]
    assert delta(tmp_path / "table" / ("" if sink is DeltaSink else "items")).num_rows == 2
    winner = "left" if "this is query right" in refused[0] else "right"
    commit = Commit(sink.of({**options, "onNewQuery": "continue"}))
    assert commit.begin(replace(batches[winner], number=1)) is Verdict.WRITE
    third = replace(batches[winner], query="third")
    assert commit.begin(third) is Verdict.WRITE
    commit.commit_frame(frame, third)
    assert Commit(sink.of(options)).begin(replace(third, number=1)) is Verdict.WRITE


def write_item(spark: Any, function: Any, number: int, run: str = "") -> None:
    row = ("items", "id int, n int", f'{{"id": 1, "n": {number}}}')
    frame = spark.createDataFrame([row], "table string, schema string, row string")
    function.write(frame, Batch(function.sink.sink_id(), "q", number, run=run))


@pytest.mark.soak
def test_a_driver_that_stood_still_puts_no_older_row_back(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"path": str(tmp_path), "keyColumns": {"items": ["id"]}}
    late, current = (connectors.foreach_batch(DeltaTables, options) for _ in range(2))
    merge = DeltaTablesCommitter._merge

    def stood_still(committer: DeltaTablesCommitter, *arguments: Any) -> None:
        monkeypatch.setattr(DeltaTablesCommitter, "_merge", merge)
        for number in (1, 2):
            write_item(spark, current, number)
        merge(committer, *arguments)

    write_item(spark, late, 0)
    monkeypatch.setattr(DeltaTablesCommitter, "_merge", stood_still)
    with contextlib.suppress(CommitRefused):
        write_item(spark, late, 1)
    assert delta(tmp_path / "items").to_pylist() == [{"id": 1, "n": 2}]


@pytest.mark.soak
@pytest.mark.parametrize("keys", [{"items": ["n"]}, {}], ids=["merged", "appended"])
def test_a_batch_that_a_restore_has_taken_away_from_a_table_of_many_stops(
    spark: Any, tmp_path: Path, keys: dict[str, list[str]]
) -> None:
    """Delta would skip it. In the name of another sink it is written, and once."""
    options: dict[str, Any] = {"path": str(tmp_path), "onLostLedger": "notWritten", **({"keyColumns": keys} if keys else {})}
    for number in (0, 1):
        write_item(spark, connectors.foreach_batch(DeltaTables, options), number)
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/items` TO VERSION AS OF 0")
    shutil.rmtree(tmp_path / "_batches")
    with pytest.raises(CommitRefused, match=r"RESTORE of .*items has taken away batch 1"):
        write_item(spark, connectors.foreach_batch(DeltaTables, options), 1)
    for _ in range(2):  # a death after the tables and before the ledger
        shutil.rmtree(tmp_path / "_batches", ignore_errors=True)
        write_item(spark, connectors.foreach_batch(DeltaTables, {**options, "sinkId": "own"}), 1)
    assert sorted(delta(tmp_path / "items")["n"].to_pylist()) == [0, 1]


@pytest.mark.soak
def test_an_older_checkpoint_is_refused_by_the_tables_whose_ledger_is_lost(spark: Any, tmp_path: Path) -> None:
    """Delta would skip its batches, whose rows are others."""
    options = {"path": str(tmp_path), "onLostLedger": "notWritten"}
    for number in range(3):
        write_item(spark, connectors.foreach_batch(DeltaTables, options), number)
    shutil.rmtree(tmp_path / "_batches")
    with pytest.raises(CommitRefused, match="batch 1 is older than batch 2"):
        write_item(spark, connectors.foreach_batch(DeltaTables, options), 1)
    write_item(spark, connectors.foreach_batch(DeltaTables, options), 2)
    write_item(spark, connectors.foreach_batch(DeltaTables, options), 3)
    assert sorted(delta(tmp_path / "items")["n"].to_pylist()) == [0, 1, 2, 3]


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


@pytest.mark.soak
def test_a_merge_has_all_settings_of_the_session_of_its_run(spark: Any, tmp_path: Path) -> None:
    """Also those that Spark has no entry for: the key of a storage is one."""
    function = connectors.foreach_batch(DeltaTables, {"path": str(tmp_path), "keyColumns": {"items": ["id"]}})
    for number in (0, 1):
        write_item(spark, function, number, run="first")
    later = spark.newSession()
    later.conf.set("spark.sql.parquet.compression.codec", "zstd")
    later.conf.set("fs.azure.account.key.of.this.test", "key")
    try:
        write_item(later, function, 2, run="second")
    finally:
        spark.createDataFrame([], "id long")  # makes it the thread's session again
    assert len(list(tmp_path.glob("items/*.zstd.parquet"))) == 1
    assert own_session(later).conf.get("fs.azure.account.key.of.this.test") == "key"


@pytest.mark.soak
def test_a_first_batch_that_delta_skips_is_refused(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta knows the number of a claim for longer than its history tells whose it was."""
    monkeypatch.setattr("connectors.systems.delta.sink._RECENT", 1)
    path = str(tmp_path / "table")
    commits = {query: Commit(DeltaSink.of({"path": path})) for query in ("first", "late", "next")}
    batches = {query: Batch(commit.sink.sink_id(), query, 0) for query, commit in commits.items()}
    for query in ("first", "late"):
        assert commits[query].begin(batches[query]) is Verdict.WRITE
    commits["first"].commit_frame(spark.range(2), batches["first"])
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.checkpointInterval = 1)")
    with pytest.raises(CommitRefused, match="belongs to query first"):
        commits["late"].commit_frame(spark.range(2), batches["late"])
    *old, _ = sorted((tmp_path / "table" / "_delta_log").glob("*.json"))
    for commit in old:  # as Delta removes them one day, behind a checkpoint
        commit.unlink()
    assert commits["next"].begin(batches["next"]) is Verdict.WRITE
    with pytest.raises(CommitRefused, match=r"(?s)no longer tells.*sinkId of its own"):
        commits["next"].commit_frame(spark.range(2), batches["next"])
    assert spark.read.format("delta").load(path).count() == 2


@pytest.mark.soak
@pytest.mark.parametrize("number", [0, 1], ids=["first batch", "a later one"])
def test_a_driver_that_wakes_with_other_rules_is_refused(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Delta skips its rows without a word, and its other sinks would get those that do not belong to them."""
    path, original = str(tmp_path / "table"), DeltaCommitter.commit_frame
    sink = connectors.foreach_batch("delta", path=path, sinkId=path)
    rules = {"slow": spark.range(3), "quick": spark.range(3, 6)}
    for earlier in range(number):
        sink.write(spark.range(1), Batch(path, "q", earlier, recipe="earlier"))

    def write(recipe: str) -> None:
        sink = connectors.foreach_batch("delta", path=path, sinkId=path)
        sink.write(rules[recipe], Batch(path, "q", number, run=recipe, recipe=recipe))

    def commit_frame(self: DeltaCommitter, frame: Any, batch: Batch) -> None:
        if batch.recipe == "slow":
            write("quick")
            spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('a' = 'b')")
        original(self, frame, batch)

    monkeypatch.setattr("connectors.systems.delta.sink._RECENT", 1)
    monkeypatch.setattr(DeltaCommitter, "commit_frame", commit_frame)
    for _ in range(2):  # as it writes, and as it replays
        with pytest.raises(CommitRefused, match="was split by other rules"):
            write("slow")
    assert sorted(row.id for row in spark.read.format("delta").load(path).collect()) == [0, 3, 4, 5][1 - number :]


@pytest.mark.soak
@pytest.mark.parametrize(
    "how", ["VERSION AS OF 0", "TIMESTAMP AS OF '{}'"]
)
def test_a_table_that_was_set_back_by_a_restore_stops(spark: Any, target: DeltaContext, how: str) -> None:
    """Delta would skip a batch that it has seen before the RESTORE, and the table lacks the rows of others."""
    path = target.options()["path"]
    sink: Any = connectors.foreach_batch(DeltaSink, {"path": path})
    runs = map(str, count())

    def write(number: int) -> None:
        sink.write(spark.range(number, number + 1), Batch(sink.sink.sink_id(), "q", number, run=next(runs)))

    for number in range(2):
        write(number)
    first = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where("version = 0").selectExpr("CAST(timestamp AS STRING)").head()[0]
    spark.sql(f"RESTORE TABLE delta.`{path}` TO {how.format(first)}")
    for number in (1, 2):
        with pytest.raises(CommitRefused, match=r"RESTORE .* batch 1"):
            write(number)
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 1")
    write(2)
    assert sorted(row["id"] for row in target.rows()) == [0, 1, 2]


def test_a_table_by_name_is_made_with_the_first_batch(spark: Any, tmp_path: Path) -> None:
    rows = spark.readStream.format("connectors.sequence").option("end", 5).load()
    writer = rows.writeStream.foreachBatch(connectors.foreach_batch("delta", table="sequence_by_name"))
    try:
        for _ in range(2):
            writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
        assert sorted(row.value for row in spark.table("sequence_by_name").collect()) == [1, 2, 3, 4, 5]
        with pytest.raises(Exception, match="onNewQuery"):
            writer.option("checkpointLocation", str(tmp_path / "new")).start().awaitTermination()
    finally:
        spark.sql("DROP TABLE IF EXISTS sequence_by_name")


def test_an_upsert_without_keys_is_refused_also_where_they_are_empty() -> None:
    for keys in ({}, {"keyColumns": {}}):
        with pytest.raises(Misconfigured, match=r"keyColumns +missing; operation=upsert needs them by table"):
            connectors.foreach_batch(DeltaTables, {"path": "a", "operation": "upsert", **keys})
    connectors.foreach_batch(DeltaTables, {"path": "a", "operation": "append", "keyColumns": {}})


def test_path_and_table_exclude_each_other() -> None:
    with pytest.raises(Misconfigured, match=r"table +is given beside path; give one of them"):
        connectors.foreach_batch("delta", {"path": "a", "table": "b"})


def test_the_carrier_format_is_refused_by_name(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="takes foreach_batch only"):
        spark.range(3).write.format("connectors.delta").mode("append").save(str(tmp_path))


def orders_of(spark: Any, cells: Sequence[tuple[int, str | None]]) -> Any:
    return spark.createDataFrame(list(cells), "id int, region string")


def routed(spark: Any, options: dict[str, Any], number: int, cells: Sequence[tuple[int, str | None]]) -> None:
    function: Any = connectors.foreach_batch("delta", options)
    function.write(orders_of(spark, cells), Batch(function.sink.sink_id(), "q", number))


def test_rows_go_to_the_tables_that_columns_name(spark: Any, schema: str) -> None:
    options = {"table": f"{schema}.orders_{{region}}", "onLostLedger": "notWritten"}
    for number, cells in enumerate([[(1, "eu"), (2, "us"), (3, "eu")], [(4, "us"), (5, "ch")]]):
        for dies in (True, False):  # behind the tables and before the ledger
            routed(spark, options, number, cells)
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
    write = RoutedCommitter._write

    def die(self: Any, rows: Any, table: str, batch: Batch) -> None:
        if table == "us":
            raise ZeroDivisionError
        write(self, rows, table, batch)

    cells = [(1, "eu"), (2, "us")]
    routed(spark, options, 0, cells)
    with monkeypatch.context() as patched:
        patched.setattr(RoutedCommitter, "_write", die)
        with pytest.raises(Fatal, match="1 of 2 tables are not written"):
            routed(spark, options, 1, cells)
    routed(spark, options, 1, cells)
    assert [sorted(delta(tmp_path / name)["id"].to_pylist()) for name in ("eu", "us")] == [[1, 1], [2, 2]]


def test_rows_that_name_no_table_or_too_many_are_refused_before_any_is_written(spark: Any, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "orders" / "{region}"), "maxTables": "2"}
    with pytest.raises(Fatal, match=r"1 rows have no region, so that \{region\} names no table"):
        routed(spark, options, 0, [(1, "eu"), (2, None)])
    with pytest.raises(Fatal, match="names 3 tables, and maxTables is 2"):
        routed(spark, options, 0, [(1, "eu"), (2, "us"), (3, "ch")])
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
