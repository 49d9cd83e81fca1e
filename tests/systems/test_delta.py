"""``connectors.delta``: once per batch, with the ledger in the table's own history."""

from __future__ import annotations

import contextlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark import inheritable_thread_target

import connectors
from connectors.core import Batch, CommitRefused, Misconfigured, Sink
from connectors.core.commit import Commit
from connectors.core.ledger import Verdict
from connectors.systems.delta import DeltaSink
from connectors.systems.delta.fan_out import DeltaTables, DeltaTablesCommitter
from connectors.systems.delta.sink import DeltaCommitter
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


def test_path_and_table_exclude_each_other() -> None:
    with pytest.raises(Misconfigured, match=r"table +is given beside path; give one of them"):
        connectors.foreach_batch("delta", {"path": "a", "table": "b"})


def test_the_carrier_format_is_refused_by_name(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="takes foreach_batch only"):
        spark.range(3).write.format("connectors.delta").mode("append").save(str(tmp_path))
