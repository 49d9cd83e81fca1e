"""Snapshots and truncations in a change log that becomes a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.core import Batch, CommitRefused, Fatal
from connectors.core.commit import Commit
from connectors.core.ledger import Verdict
from connectors.systems.delta.change_target import ChangeTarget
from connectors.systems.delta.merge import ChangeTableCommitter
from tests.systems.change_logs import AGAIN, Database
from tests.systems.merge.targets import Target, binlog_change, expected


@pytest.mark.soak
def test_snapshot_inserts_updates_and_deletes_leave_the_table_equal_to_its_source(target: Target) -> None:
    database = Database()
    for key in range(4):
        database.upsert(id=key, name=f"n{key}", amount=key)
    target.merge(*database.snapshot())
    assert target.rows() == expected(database)
    changes = [database.upsert(id=9, name="new", amount=None), database.upsert(id=1, name="changed", amount=7)]
    target.merge(*changes, database.delete(2), database.tombstone(2), database.upsert(id=9, name="again", amount=1))
    assert target.rows() == expected(database)
    assert [field.simpleString() for field in target.spark.read.format("delta").load(str(target.path)).schema] == [
        "id:int", "name:string", "amount:bigint", "_position:string",
    ]  # fmt: skip


@pytest.mark.soak
def test_the_change_of_a_transaction_that_was_open_during_the_snapshot_wins(target: Target) -> None:
    """Its position is below that of the snapshot, which has not seen it."""
    database = Database()
    database.upsert(id=1, name="before", amount=1)
    snapshot = database.snapshot()
    committed = database.record("u", {"id": 1, "name": "after", "amount": 2}, database.lsn - 5)
    target.merge(*snapshot)
    target.merge(committed)
    assert target.rows() == [{"id": 1, "name": "after", "amount": 2}]


@pytest.mark.soak
def test_a_row_that_was_deleted_between_an_interrupted_snapshot_and_the_next_one_is_gone(target: Target) -> None:
    """Debezium streams from the second snapshot on: nothing else tells of the deletion."""
    database = Database()
    for key in range(4):
        database.upsert(id=key, name=f"n{key}", amount=key)
    target.merge(*database.snapshot(only=3))
    database.delete(1)
    open_during_snapshot = database.record("u", {"id": 3, "name": "late", "amount": 3}, database.lsn + 5)
    second = database.snapshot()
    target.merge(*second[:2])
    target.merge(*second[2:], open_during_snapshot)
    database.rows[3].update(name="late")
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_a_snapshot_that_is_taken_anew_wins_over_the_changes_before_it(target: Target) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1))
    database.upsert(id=1, name="lost with the slot", amount=2)
    target.merge(*database.snapshot())
    assert target.rows() == expected(database)
    database.upsert(id=1, name="lost again", amount=3)
    target.merge(database.record("u", {"id": 1, "name": "a", "amount": 1}, database.lsn - 5), *database.snapshot())
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_only_the_initial_snapshot_of_a_table_deletes_what_it_has_not_read(target: Target) -> None:
    """A blocking snapshot of a part ends with ``last`` as well. Of an emptied table a second snapshot has no row at all."""
    database = Database()
    for key in range(6):
        database.upsert(id=key, name=f"n{key}", amount=key)
    target.merge(*database.snapshot(only=4))
    database.delete(1)
    again = database.snapshot()
    again[0]["headers"] = AGAIN
    target.merge(*again)
    assert target.rows() == expected(database)
    target.merge(database.upsert(id=9, name="streamed", amount=9))
    part = Database(rows={key: database.rows[key] for key in (2, 3)}, lsn=database.lsn + 50)
    target.merge(*part.snapshot())
    target.merge(*part.incremental(2))
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_a_query_that_begins_while_another_one_does_changes_nothing(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its snapshot is another one, so all that the first has read would look like rows of an interrupted snapshot."""
    database, other = Database(), Target(target.spark, target.path)
    for key in range(3):
        database.upsert(id=key, name=f"n{key}", amount=key)
    first, second = database.snapshot(), database.snapshot()
    writers = {name: Commit(side.function.sink) for name, side in (("first", target), ("second", other))}
    batches = {name: Batch(commit.sink.sink_id(), name, 0) for name, commit in writers.items()}
    assert {commit.begin(batches[name]) for name, commit in writers.items()} == {Verdict.WRITE}
    merge = ChangeTableCommitter._merge

    def overtaken(committer: ChangeTableCommitter, *arguments: Any) -> None:
        monkeypatch.setattr(ChangeTableCommitter, "_merge", merge)
        with pytest.raises(CommitRefused, match="belongs to query first"):
            writers["second"].commit_frame(target.frame(*second), batches["second"])
        merge(committer, *arguments)

    monkeypatch.setattr(ChangeTableCommitter, "_merge", overtaken)
    writers["first"].commit_frame(target.frame(*first), batches["first"])
    assert target.rows() == expected(database)
    target.merge(database.upsert(id=9, name="streamed", amount=9), number=1, query="first")
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_a_query_that_begins_while_another_one_fills_a_column_leaves_that_to_it(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write the default over values that the first has merged since it looked."""
    database, other = Database(), Target(target.spark, target.path)
    columns = "1L AS id, 'old' AS name, cast(NULL AS {kind}) AS amount, '' AS _position"
    kind = {"int32": "int", "int64": "bigint"}[database.fields["amount"]["type"]]
    target.spark.sql(f"SELECT {columns.format(kind=kind)}").write.format("delta").save(str(target.path))
    database.fields["extra"] = {"type": "int32", "optional": True, "default": 7}
    writers = {name: Commit(side.function.sink) for name, side in (("first", target), ("second", other))}
    batches = {name: Batch(commit.sink.sink_id(), name, 0) for name, commit in writers.items()}
    assert {commit.begin(batches[name]) for name, commit in writers.items()} == {Verdict.WRITE}
    changes = target.frame(database.upsert(id=2, name="new", amount=1, extra=1))
    fill = ChangeTarget.fill
    filled: list[object] = []

    def overtaken(table: ChangeTarget, *arguments: Any) -> None:
        filled.append(table)
        if len(filled) == 1:
            with pytest.raises(CommitRefused, match="belongs to query first"):
                writers["second"].commit_frame(changes, batches["second"])
        fill(table, *arguments)

    monkeypatch.setattr(ChangeTarget, "fill", overtaken)
    writers["first"].commit_frame(changes, batches["first"])
    assert filled == [writers["first"].committer.target]
    assert [row["extra"] for row in target.rows()] == [7, 1]


@pytest.mark.soak
def test_rows_of_an_interrupted_snapshot_of_a_table_that_is_empty_now_are_gone(target: Target) -> None:
    database, users = Database(), Database(topic="shop.public.users")
    target.options["topic"] = database.topic
    target.restart()
    for key in range(4):
        database.upsert(id=key, name=f"n{key}", amount=key)
    target.merge(*database.snapshot(only=3))
    database.rows.clear()
    users.upsert(id=1, name="u", amount=1)
    begin = users.snapshot()
    begin[0]["headers"] = AGAIN
    target.merge(*begin)
    assert len(target.rows()) == 3
    target.merge(users.upsert(id=2, name="u", amount=1))
    assert target.rows() == []


@pytest.mark.soak
def test_an_incremental_snapshot_repairs_rows_and_brings_them_back(target: Target) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1), database.upsert(id=2, name="b", amount=2), database.delete(2))
    database.rows = {1: {"id": 1, "name": "repaired", "amount": 5}, 2: {"id": 2, "name": "back", "amount": 6}}
    target.merge(*database.incremental(1, 2))
    assert target.rows() == expected(database)
    target.merge(database.delete(2), database.upsert(id=1, name="later", amount=7))
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_a_truncation_stops_the_query_or_deletes_the_rows_before_it(target: Target) -> None:
    database = Database()
    late = database.upsert(id=1, name="late", amount=1)
    first = [database.upsert(id=2, name="b", amount=2), database.upsert(id=3, name="c", amount=3)]
    target.merge(*first)
    batch = [database.upsert(id=4, name="d", amount=4), database.truncate(), database.upsert(id=3, name="new", amount=5)]
    with pytest.raises(Fatal, match="truncate=delete"):
        target.merge(*batch, number=1)
    target.options["truncate"] = "delete"
    target.restart()
    target.merge(*batch, number=1)
    assert target.rows() == expected(database)
    target.merge(late)
    assert target.rows() == expected(database), "what was before the truncation stays gone"


@pytest.mark.soak
@pytest.mark.parametrize("order", ["log", "arrival"])
def test_a_truncation_is_done_by_the_replay_of_a_batch_that_died_before_its_merge(
    target: Target, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    database = Database()
    target.options |= {"truncate": "delete", "order": order}
    target.restart()
    target.merge(database.upsert(id=1, name="a", amount=1))
    batch = [database.truncate(), database.upsert(id=2, name="b", amount=2)]
    committer = type(target.function.sink.committer())
    monkeypatch.setattr(committer, "_merge", lambda *_: (_ for _ in ()).throw(ValueError("once")))
    with pytest.raises(ValueError, match="once"):
        target.merge(*batch, number=1)
    monkeypatch.undo()
    target.restart()
    target.merge(*batch, number=1)
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_chunks_of_an_incremental_snapshot_are_no_attempts_at_an_initial_one(spark: Any, tmp_path: Path) -> None:
    target = Target(spark, tmp_path / "orders", schema="id INT, name STRING")
    for chunk in (1, 2):
        rows = [binlog_change("x", "r", 2 * chunk + n, "incremental", file="bin.000001", pos=400 * chunk) for n in (0, 1)]
        target.merge(*rows)
    target.merge(binlog_change("y", key=2, file="bin.000001", pos=2000))
    assert [row["id"] for row in target.rows()] == [2, 3, 4, 5]


@pytest.mark.soak
def test_an_end_of_the_snapshot_that_was_merged_is_noted_behind_a_death(target: Target) -> None:
    """A blocking snapshot of a part comes next, which must not pass for another attempt at the initial one."""
    database = Database()
    for key in range(4):
        database.upsert(id=key, name=f"n{key}", amount=key)
    target.merge(*database.snapshot())
    target.restart()
    part = Database(rows={2: database.rows[2]}, lsn=database.lsn + 50)
    target.merge(*part.snapshot())
    target.merge(database.upsert(id=9, name="streamed", amount=9))
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_an_initial_snapshot_of_another_query_is_another_attempt_whatever_its_batches_are_called(target: Target) -> None:
    database = Database()
    for key in range(4):
        database.upsert(id=key, name=f"n{key}", amount=key)
    first = database.snapshot(only=3)
    target.merge(first[0])
    target.merge(*first[1:])
    database.delete(0)
    target.options["onNewQuery"] = "continue"
    target.restart()
    again = database.snapshot()
    target.merge(*again[:2], number=0, query="another")
    target.merge(again[2], number=1, query="another")
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_a_truncation_alone_needs_no_key_and_counts_once(target: Target) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1))
    truncation = database.truncate()
    with pytest.raises(Fatal, match="truncate=delete"):
        target.merge(truncation, number=1)
    target.options["truncate"] = "delete"
    target.restart()
    target.merge(truncation, number=1)
    assert target.rows() == []
    database.upsert(id=2, name="b", amount=1)
    target.merge(*database.incremental(2))
    target.merge(truncation)
    assert target.rows() == expected(database)
