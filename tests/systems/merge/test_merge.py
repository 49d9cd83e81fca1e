"""``connectors.connect.merge``: a change log becomes its table, with repeats, reorders, restarts and crashes."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from connectors.core import CommitRefused, Misconfigured, StateError
from connectors.systems.delta.change_target import ChangeTarget
from connectors.systems.delta.sink import TablePlace
from connectors.systems.delta.transaction import Merges
from tests.delta_log import delta
from tests.systems.change_logs import PLAIN, Database
from tests.systems.merge.targets import Target, binlog_change, expected


@pytest.mark.soak
def test_a_replayed_batch_changes_nothing(target: Target) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1))
    versions = len(list((target.path / "_delta_log").glob("*.json")))
    target.restart()
    target.merge(database.record("u", {"id": 1, "name": "other", "amount": 2}, 9999), number=0)
    assert target.rows() == expected(database)
    assert len(list((target.path / "_delta_log").glob("*.json"))) == versions


@pytest.mark.soak
def test_an_older_checkpoint_and_another_query_are_refused(target: Target) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1), number=0)
    target.merge(database.upsert(id=1, name="b", amount=1))
    target.restart()
    with pytest.raises(CommitRefused, match="older checkpoint"):
        target.merge(database.upsert(id=1, name="c", amount=1), number=0)
    with pytest.raises(CommitRefused, match="already belongs to query"):
        target.merge(database.upsert(id=1, name="c", amount=1), number=0, query="another")


def test_a_batch_writes_the_rows_that_have_changed_and_not_their_files(target: Target) -> None:
    database = Database()
    target.merge(*(database.upsert(id=key, name="a", amount=1) for key in range(5)))
    target.merge(database.upsert(id=1, name="b", amount=2), database.delete(2))
    history = target.spark.sql(f"DESCRIBE HISTORY delta.`{target.path}` LIMIT 1")
    (newest,) = history.select("operation", "operationMetrics").collect()
    copied, updated = (int(newest[1][f"numTargetRows{kind}"]) for kind in ("Copied", "Updated"))
    assert (newest[0], copied, updated) == ("MERGE", 0, 1)
    assert target.rows() == expected(database)
    assert delta(target.path).drop("_position").sort_by("id").to_pylist() == expected(database)


@pytest.mark.soak
def test_a_batch_without_changes_is_recorded_too(target: Target) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1))
    old = database.record("u", {"id": 1, "name": "old", "amount": 0}, 50)
    target.merge(old)
    target.merge(database.tombstone(1))
    target.restart()
    assert target.function.sink.committer().last("q").batch == 2
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_an_older_change_that_comes_late_neither_changes_a_row_nor_brings_a_deleted_one_back(target: Target) -> None:
    database = Database()
    late = [database.upsert(id=1, name="first", amount=1), database.upsert(id=2, name="first", amount=1)]
    newest = [database.upsert(id=1, name="second", amount=2), database.delete(2)]
    target.merge(*newest)
    assert target.rows() == expected(database)
    target.merge(*late)
    assert target.rows() == expected(database)
    target.merge(database.upsert(id=2, name="inserted anew", amount=3))
    assert target.rows() == expected(database)


@pytest.mark.parametrize("seed", range(1))
def test_any_log_with_repeats_reorders_and_interrupted_snapshots_ends_equal_to_its_source(
    spark: Any, tmp_path: Path, seed: int
) -> None:
    random_log(Target(spark, tmp_path / "orders", schema=PLAIN), seed, batches=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 21))
def test_any_log_at_length(spark: Any, tmp_path: Path, seed: int) -> None:
    random_log(Target(spark, tmp_path / "orders", schema=PLAIN), seed, batches=12)


def random_log(target: Target, seed: int, batches: int) -> None:
    """The changes since the first snapshot come in any order and more than once; its repeats come before them."""
    chance, database = random.Random(seed), Database(schemas=seed % 2 == 0)
    for _ in range(8):
        database.random_change(chance)
    log = [*database.snapshot(only=3)]
    changes = [database.random_change(chance) for _ in range(4)]
    target.merge(*log)
    target.merge(*database.snapshot())
    pending = changes  # a slot gives what came after the first snapshot, also what the second one has seen
    for _ in range(batches):
        pending += [database.random_change(chance) for _ in range(6)]
        chance.shuffle(pending)
        batch, pending = pending[:8], pending[8:]
        target.merge(*batch, *chance.sample(batch, 2))
        if chance.random() < 0.5:
            pending += chance.sample(batch, 3)
        if chance.random() < 0.3:
            target.restart()
    target.merge(*pending, database.upsert(id=99, name="end", amount=0))
    assert target.rows() == expected(database), f"seed {seed}"


@pytest.mark.soak
def test_the_unwrapped_form_of_mariadb_is_ordered_by_file_and_position(spark: Any, tmp_path: Path) -> None:
    target = Target(spark, tmp_path / "orders", schema="id INT, name STRING")

    def record(key: int, name: str, file: str, pos: int, deleted: bool = False) -> dict[str, Any]:
        value = {"id": key, "name": name, "__op": "u", "__deleted": str(deleted).lower()}
        value |= {"__source_file": file, "__source_pos": pos, "__source_row": 0}
        return {"topic": "t", "key": json.dumps({"id": key}), "value": json.dumps(value)}

    target.merge(record(1, "new", "bin.000010", 5), record(1, "old", "bin.000009", 900), record(2, "x", "bin.000009", 1))
    target.merge(record(1, "older", "bin.000010", 4), record(2, "x", "bin.000010", 9, deleted=True))
    assert target.rows() == [{"id": 1, "name": "new"}]


@pytest.mark.soak
def test_two_topics_need_a_choice(target: Target, spark: Any, tmp_path: Path) -> None:
    orders, users = Database(), Database(topic="shop.public.users")
    records = [orders.upsert(id=1, name="order", amount=1), users.upsert(id=2, name="user", amount=2)]
    with pytest.raises(Misconfigured, match="2 topics"):
        target.merge(*records)
    chosen = Target(spark, tmp_path / "users", topic="shop.public.users")
    chosen.merge(*records)
    assert chosen.rows() == expected(users)


@pytest.mark.soak
def test_a_crash_between_the_deleted_keys_and_the_merge_is_mended_by_the_replay(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1), database.upsert(id=2, name="b", amount=1))
    batch = [database.delete(1), database.upsert(id=2, name="c", amount=2)]

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(target.function.sink.committer()), "_merge", crash)
    with pytest.raises(KeyboardInterrupt):
        target.merge(*batch)
    monkeypatch.undo()
    target.restart()
    target.merge(*batch, number=1)
    assert target.rows() == expected(database)


def test_a_crash_after_the_merge_is_known_by_the_ledger(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    from connectors.systems.delta import DeltaCommitter

    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1))

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DeltaCommitter, "note", crash)
    with pytest.raises(KeyboardInterrupt):
        target.merge(database.upsert(id=1, name="b", amount=2))
    monkeypatch.undo()
    versions = len(list((target.path / "_delta_log").glob("*.json")))
    target.restart()
    target.merge(database.record("u", {"id": 1, "name": "never", "amount": 0}, 9999), number=1)
    assert target.rows() == expected(database)
    assert len(list((target.path / "_delta_log").glob("*.json"))) == versions
    assert delta(target.path).num_rows == 1


@pytest.mark.soak
def test_the_order_of_the_log_is_not_the_order_of_lsn(target: Target) -> None:
    """B inserts key 7 and waits for C; A deletes 7 and commits; C rolls back, and B commits: d at 256, then c at 192."""
    database = Database()
    row = {"id": 7, "name": "seventh", "amount": 7}
    target.merge(database.record("c", row, 100, commit=50))
    deletion = database.record("d", {"id": 7}, 256, commit=150)
    insertion = database.record("c", {**row, "name": "again"}, 192, commit=300)
    target.merge(deletion)
    target.merge(insertion)
    assert target.rows() == [{**row, "name": "again"}]
    target.merge(deletion, insertion)
    assert target.rows() == [{**row, "name": "again"}], "repeats change nothing"


@pytest.mark.soak
def test_changes_of_one_position_count_in_the_order_of_their_arrival(target: Target) -> None:
    """SQL Server gives the changes of a statement one ``change_lsn``; a time is no position at all."""

    def change(name: str, **source: Any) -> dict[str, Any]:
        payload = {"op": "u", "before": None, "after": {"id": 1, "name": name}, "source": {"ts_ms": 5, **source}}
        return {"topic": "t", "key": '{"id": 1}', "value": json.dumps(payload)}

    target.options["schema"] = "id INT, name STRING"
    target.restart()
    lsn = {"commit_lsn": "0000002b:00000b48:0004", "change_lsn": "0000002b:00000b48:0003"}
    target.merge(change("first", **lsn, event_serial_no=1))
    target.merge(change("second", **lsn, event_serial_no=2))
    target.merge(change("third", **lsn, event_serial_no=2))
    target.merge(change("old", **lsn, event_serial_no=1))
    assert target.rows() == [{"id": 1, "name": "third"}]


@pytest.mark.soak
def test_a_table_remembers_its_topic_and_heartbeats_are_no_topic(target: Target) -> None:
    orders, users = Database(), Database(topic="shop.public.users")
    heartbeat = {"topic": "__debezium-heartbeat.shop", "key": '{"serverName": "shop"}', "value": '{"ts_ms": 5}'}
    target.merge(orders.upsert(id=1, name="order", amount=1), heartbeat)
    target.merge(heartbeat)
    target.restart()
    with pytest.raises(Misconfigured, match=r"topic .*fed from shop\.public\.orders.*shop\.public\.users"):
        target.merge(users.upsert(id=1, name="user", amount=1))
    assert target.rows() == expected(orders)


@pytest.mark.soak
def test_another_server_stops_the_query_and_order_arrival_goes_on(target: Target) -> None:
    def change(name: str, server: int, pos: int) -> dict[str, Any]:
        source = {"file": f"bin.{pos:06d}", "pos": pos, "row": 0, "server_id": server, "gtid": None}
        payload = {"op": "u", "before": None, "after": {"id": 1, "name": name}, "source": source}
        return {"topic": "t", "key": '{"id": 1}', "value": json.dumps(payload)}

    target.options["schema"] = "id INT, name STRING"
    target.restart()
    target.merge(change("before", 1, 900))
    with pytest.raises(StateError, match="order=arrival"):
        target.merge(change("behind the failover", 2, 4), number=1)
    target.options["order"] = "arrival"
    target.restart()
    target.merge(change("behind the failover", 2, 4), number=1)
    assert target.rows() == [{"id": 1, "name": "behind the failover"}]


@pytest.mark.soak
def test_the_order_of_a_binary_log_is_that_of_file_and_position(spark: Any, tmp_path: Path) -> None:
    target = Target(spark, tmp_path / "orders", schema="id INT, name STRING")
    target.merge(binlog_change("new", file="bin.000010", pos=5))
    target.merge(binlog_change("old", file="bin.000009", pos=900))
    assert target.rows() == [{"id": 1, "name": "new"}]
    with pytest.raises(StateError, match="order=arrival"):
        target.merge(binlog_change("other", file="bin.000011", pos=5, server_id=2))


@pytest.mark.soak
def test_a_topic_with_a_word_that_spark_hides_starts_a_second_time(target: Target) -> None:
    database = Database(topic="shop.public.access_tokens")
    target.merge(database.upsert(id=1, name="a", amount=1))
    target.restart()
    target.merge(database.upsert(id=1, name="b", amount=1))
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_deletions_of_a_table_that_was_here_before_are_forgotten(target: Target) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1), database.delete(1))
    shutil.rmtree(target.path)
    target.restart()
    database.lsn = 100
    target.merge(database.upsert(id=1, name="anew", amount=1), number=0)
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_a_crash_while_the_table_is_made_anew_leaves_no_deletions_of_the_old_one(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1), database.delete(1))
    shutil.rmtree(target.path)
    target.restart()
    database.lsn = 100
    batch = database.upsert(id=1, name="anew", amount=1)

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(target.function.sink.committer()), "_claim", crash)
    with pytest.raises(KeyboardInterrupt):
        target.merge(batch, number=0)
    monkeypatch.undo()
    target.restart()
    target.merge(batch, number=0)
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_a_batch_that_failed_in_the_middle_is_done_by_the_same_function_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1))
    database.fields["url"] = {"type": "string", "optional": True, "default": "it's \\ \"x\""}
    monkeypatch.setattr(ChangeTarget, "fill", lambda *_: (_ for _ in ()).throw(ValueError("once")))
    batch = database.upsert(id=2, name="b", amount=1, url="u")
    with pytest.raises(ValueError, match="once"):
        target.merge(batch, number=1)
    monkeypatch.undo()
    target.merge(database.record("u", database.rows[2], database.lsn), number=1)
    assert [row["url"] for row in target.rows()] == ["it's \\ \"x\"", "u"]


@pytest.mark.soak
def test_a_batch_before_the_first_change_is_recorded(target: Target) -> None:
    """A stream of several tables has the other ones' changes first; the next run must not take the ledger for lost."""
    database, users = Database(), Database(topic="shop.public.users")
    target.options["topic"] = database.topic
    target.restart()
    target.merge(users.upsert(id=1, name="u", amount=1))
    target.restart()
    assert target.function.sink.committer().last("q").batch == 0
    target.merge(database.upsert(id=1, name="a", amount=1))
    assert target.rows() == expected(database)


def test_a_merge_that_another_writer_was_faster_than_is_done_again(spark: Any, tmp_path: Path) -> None:
    """The rows of the first try come when the other one is done."""
    from pyspark.sql import functions as F

    place, begun, done = TablePlace(str(tmp_path / "table"), is_path=True), tmp_path / "begun", tmp_path / "done"
    spark.range(3).selectExpr("id", "0 AS n").write.format("delta").save(place.location)

    @F.udf(returnType="bigint", useArrow=False)
    def late(key: int) -> int:
        begun.touch()
        while not done.exists():
            time.sleep(0.05)
        return key

    def statement(target: str, source: str) -> str:
        return f"MERGE INTO {target} old USING {source} new ON old.id = new.id WHEN MATCHED THEN UPDATE SET n = old.n + 1"

    rows = spark.range(0, 3, 1, 1).select(late("id").alias("id"))  # one task, so that the other writer has a core
    merge = threading.Thread(target=lambda: Merges().merge(rows, "connectors_late", place, None, statement))
    merge.start()
    while not begun.exists():
        time.sleep(0.05)
    spark.sql(f"UPDATE {place.sql} SET n = 10 WHERE id = 1")
    done.touch()
    merge.join(120)
    assert {row.id: row.n for row in spark.read.format("delta").load(place.location).collect()} == {0: 1, 1: 11, 2: 1}
