"""Histories whose drivers die or meet, and whose changes come again, late or behind a snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.core import Misconfigured
from connectors.systems.delta.history import ChangeHistory
from connectors.systems.delta.merge import ChangeTableCommitter
from connectors.systems.delta.transaction import Merges
from tests.systems.change_logs import AGAIN, Database
from tests.systems.merge.targets import Target, expected
from tests.systems.merge.versions import UNTOUCHED, Log, assert_current, current, history


@pytest.mark.soak
@pytest.mark.parametrize("dies", ["before the table", "before the history"])
def test_a_crash_between_history_and_table_doubles_no_version(
    spark: Any, kept: Target, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    database = Database()
    log = Log(database)
    kept.merge(log.note(database.upsert(id=1, name="a", amount=1)))
    batch = [log.note(database.upsert(id=1, name="b", amount=2)), log.note(database.delete(1))]
    dying = {"before the table": ChangeTableCommitter, "before the history": ChangeHistory}[dies]
    with monkeypatch.context() as patch:
        patch.setattr(dying, "_merge", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            kept.merge(*batch)
    kept.restart()
    kept.merge(*batch, log.note(database.upsert(id=2, name="more", amount=1)), number=kept.number)
    assert history(spark, kept.path) == log.versions()
    assert kept.rows() == expected(database)


@pytest.mark.soak
def test_a_history_that_dies_as_it_begins_begins_again(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, database, create = Target(spark, tmp_path / "orders"), Database(), ChangeHistory._create
    target.merge(database.upsert(id=1, name="a", amount=1))
    target.options["history"] = True
    target.restart()
    second = database.upsert(id=2, name="a", amount=1)

    def dying(self: ChangeHistory, spark: Any) -> None:
        create(self, spark)
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ChangeHistory, "_create", dying)
        with pytest.raises(RuntimeError, match="killed"):
            target.merge(second)
    target.restart()
    database.fields["note"] = {"type": "string", "optional": True, "default": "new"}
    target.merge(second, database.upsert(id=3, name="a", amount=1, note="n"), number=target.number)
    notes = [(row[0], row[3]) for row in history(spark, target.path, "note")]
    assert notes == [(1, "new"), (2, "new"), (3, "n")]
    assert_current(spark, target)


@pytest.mark.soak
def test_changes_that_come_again_behind_a_later_snapshot_make_no_version(spark: Any, kept: Target) -> None:
    database = Database()
    first = [database.upsert(id=1, name="large", amount=1), database.upsert(id=1, name=UNTOUCHED, amount=2)]
    database.rows[1] = {"id": 1, "name": "large", "amount": 2}
    kept.merge(*first)
    database.rows[1] = {"id": 1, "name": "repaired", "amount": 9}
    database.lsn += 10
    kept.merge(*database.incremental(1))
    versions = history(spark, kept.path)
    kept.merge(*first)
    assert history(spark, kept.path) == versions
    kept.merge(first[1], database.upsert(id=1, name="small", amount=3))  # the one that it takes values from is not there
    amounts = [row[1:3] for row in history(spark, kept.path)]
    assert amounts == [("large", 1), ("large", 2), ("repaired", 9), ("small", 3)]
    assert_current(spark, kept)


@pytest.mark.soak
def test_a_log_that_begins_anew_goes_on_behind_a_snapshot_that_found_nothing_new(spark: Any, kept: Target) -> None:
    database = Database()
    database.lsn = 1000
    kept.merge(database.upsert(id=1, name="a", amount=1))
    kept.merge(*database.incremental(1))
    record = database.record("u", {"id": 1, "name": "b", "amount": 1}, 50)
    kept.merge({**record, "value": record["value"].replace('"ts_ms": 50000', '"ts_ms": 2000000')})
    assert [row[1] for row in history(spark, kept.path) if row[-2]] == ["b"]
    assert_current(spark, kept)


@pytest.mark.soak
def test_changes_of_one_position_and_those_of_a_log_without_positions_are_versions_each(spark: Any, kept: Target) -> None:
    database = Database()
    database.upsert(id=1, name="x", amount=1)
    ties = [database.record("u", {"id": 1, "name": name, "amount": 1}, 500) for name in "aba"]
    kept.merge(*ties)
    kept.merge(*ties)
    assert [row[1] for row in history(spark, kept.path)] == ["a", "a", "b"]
    assert_current(spark, kept)
    kept.options["order"] = "arrival"
    kept.restart()
    kept.merge(ties[1])
    kept.merge(ties[1], number=kept.number)
    kept.merge(database.delete(1))
    assert [row[1] for row in history(spark, kept.path)] == ["a", "a", "b", "b", None]
    assert_current(spark, kept)


@pytest.mark.soak
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_a_late_change_does_not_undo_a_deletion_from_before_the_history(spark: Any, tmp_path: Path, deletes: str) -> None:
    database = Database()
    target = Target(spark, tmp_path / "orders", deletes=deletes)
    first = database.upsert(id=1, name="a", amount=1)
    late = database.upsert(id=1, name="b", amount=1)
    target.merge(first, database.delete(1))
    target.options["history"] = True
    target.restart()
    target.merge(database.upsert(id=2, name="b", amount=1))
    target.merge(late)
    assert [row[0] for row in history(spark, target.path) if row[-2]] == [2]
    assert_current(spark, target)


@pytest.mark.soak
def test_a_row_that_was_deleted_in_part_of_a_snapshot_before_the_history_does_not_end_in_it(spark: Any, tmp_path: Path) -> None:
    database, users = Database(), Database(topic="shop.public.users")
    target = Target(spark, tmp_path / "orders", deletes="soft", topic=database.topic)
    for key in (1, 2):
        database.upsert(id=key, name="a", amount=1)
    target.merge(*database.snapshot(only=2))
    database.delete(2)
    target.merge(*({**record, "headers": AGAIN} for record in database.snapshot()))
    target.options["history"] = True
    target.restart()
    target.merge(users.upsert(id=1, name="u", amount=1))
    assert [row[0] for row in history(spark, target.path)] == [1]
    assert_current(spark, target)


@pytest.mark.soak
def test_a_version_that_is_erased_while_a_batch_is_written_does_not_come_back(
    spark: Any, kept: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, merge = Database(), Merges.merge
    kept.merge(database.upsert(id=1, name="secret", amount=1))

    def merge_behind_erasure(self: Merges, rows: Any, view: str, place: Any, *more: Any) -> bool:
        if place.location.endswith("_history"):
            rows = spark.createDataFrame(rows.collect(), rows.schema)  # as another process would erase it, behind the reading
            spark.sql(f"DELETE FROM {place.sql} WHERE id = 1")
        return merge(self, rows, view, place, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Merges, "merge", merge_behind_erasure)
        kept.merge(database.upsert(id=1, name="new", amount=1))
    assert [row[1] for row in history(spark, kept.path)] == ["new"]


@pytest.mark.soak
def test_a_driver_that_stood_still_as_another_went_on_alters_no_version(
    spark: Any, kept: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, merge = Database(), Merges.merge
    kept.merge(database.upsert(id=1, name="a", amount=1))
    changes = [database.upsert(id=1, name=name, amount=1) for name in "bc"]

    def late_merge(self: Merges, rows: Any, *more: Any) -> bool:
        monkeypatch.undo()
        rows = spark.createDataFrame(rows.collect(), rows.schema)  # as another process has read them
        other = Target(spark, kept.path, history=True)
        for number, change in enumerate(changes, start=1):
            other.merge(change, number=number)
        return merge(self, rows, *more)

    monkeypatch.setattr(Merges, "merge", late_merge)
    kept.merge(changes[0])
    assert [row[1] for row in history(spark, kept.path)] == ["a", "b", "c"]
    assert_current(spark, kept)


@pytest.mark.soak
def test_a_driver_that_stood_still_as_another_began_the_history_leaves_it_as_it_is(
    spark: Any, kept: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, create = Database(), ChangeHistory._create
    log = Log(database)
    changes = [log.note(database.upsert(id=1, name=name, amount=1)) for name in "abc"]

    def late_create(self: ChangeHistory, spark: Any) -> None:
        monkeypatch.undo()
        other = Target(spark, kept.path, history=True)
        for change in changes:
            other.merge(change)
        create(self, spark)

    monkeypatch.setattr(ChangeHistory, "_create", late_create)
    kept.merge(changes[0])
    assert history(spark, kept.path) == log.versions()
    assert_current(spark, kept)


@pytest.mark.soak
def test_changes_from_before_the_history_that_come_again_behind_a_snapshot_end_as_the_table(spark: Any, tmp_path: Path) -> None:
    database = Database()
    target = Target(spark, tmp_path / "orders")
    changes = [database.upsert(id=1, name=name, amount=1) for name in "abc"]
    target.merge(*changes)
    target.options["history"] = True
    target.restart()
    target.merge(*database.incremental(1))
    target.merge(changes[1])
    assert_current(spark, target)
    target.merge(*changes[1:])
    assert_current(spark, target)
    versions = history(spark, target.path)
    target.merge(*changes[1:])
    assert history(spark, target.path) == versions
    assert_current(spark, target)


@pytest.mark.soak
def test_a_change_from_before_a_deletion_does_not_take_the_place_of_a_later_snapshot(spark: Any, kept: Target) -> None:
    database = Database()
    first, late = (database.upsert(id=1, name=name, amount=1) for name in "ab")
    kept.merge(first, database.delete(1))
    database.rows[1] = {"id": 1, "name": "c", "amount": 1}
    database.lsn += 10
    kept.merge(*database.incremental(1))
    kept.merge(late)
    assert sorted(row[1] for row in history(spark, kept.path) if row[1]) == ["a", "b", "c"]
    assert_current(spark, kept)


@pytest.mark.soak
def test_a_batch_without_positions_that_is_done_again_in_another_order_doubles_no_version(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database()
    target = Target(spark, tmp_path / "orders", history=True, order="arrival")
    batch = [database.upsert(id=key, name="a", amount=1) for key in (1, 2)]
    with monkeypatch.context() as patch:
        patch.setattr(ChangeTableCommitter, "_merge", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            target.merge(*batch)
    target.restart()
    target.merge(*reversed(batch), number=target.number)
    assert [row[:2] for row in history(spark, target.path)] == [(1, "a"), (2, "a")]
    assert_current(spark, target)


@pytest.mark.soak
def test_a_history_that_begins_later_has_the_rows_of_that_time_and_then_stays(spark: Any, tmp_path: Path) -> None:
    database = Database()
    log, path = Log(database), tmp_path / "orders"
    target = Target(spark, path)
    first = [*database.snapshot(), database.upsert(id=1, name="a", amount=1), database.upsert(id=2, name="a", amount=1)]
    target.merge(*first)
    target.options["history"] = True
    target.restart()
    late = log.note(database.upsert(id=1, name="b", amount=1))
    target.merge(first[0], late)
    versions = history(spark, path)
    assert [(*row[:3], *row[4:]) for row in versions if row[0] == 2] == [(2, "a", 1, None, True, False)]
    assert [row[1] for row in versions if row[0] == 1] == ["a", "b"]
    assert current(versions) == target.rows() == expected(database)
    target.options["history"] = False
    target.restart()
    with pytest.raises(Misconfigured, match=r"history +must be true: else .*orders_history would lack"):
        target.merge(late)
