"""``history=true``: all versions of the rows of a table, and when each of them held."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Misconfigured, StateError
from connectors.systems.delta.history import ChangeHistory
from connectors.systems.delta.merge import ChangeTableCommitter
from connectors.systems.delta.transaction import Merges
from tests.systems.change_logs import AGAIN, PLAIN, Database
from tests.systems.merge.targets import Target, expected

UNTOUCHED = "__debezium_unavailable_value"
Version = tuple[Any, ...]
"""Key, name, amount, the seconds from which and to which it holds; is it current; is it an end."""


def history(spark: Any, path: Path, *more: str) -> list[Version]:
    rows = spark.read.format("delta").load(f"{path}_history")
    columns = ["id", "name", "amount", *more, "unix_seconds(valid_from)", "unix_seconds(valid_to)", "is_current", "is_deleted"]
    return sorted(map(tuple, rows.selectExpr(*columns).collect()), key=repr)


class Log:
    """What has really happened in a database, and when."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.changes: list[tuple[int, int, dict[str, Any] | None]] = []

    def note(self, record: dict[str, Any]) -> dict[str, Any]:
        """Notes the change that ``record`` tells of, the newest one of the database."""
        key = json.loads(record["key"])["id"]
        row = self.database.rows.get(key)
        self.changes.append((self.database.lsn, key, dict(row) if row else None))
        return record

    def read(self, records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Notes what a snapshot has read of rows that the log does not tell of."""
        records = list(records)
        for record in records:
            key = json.loads(record["key"])["id"]
            self.changes.append((self.database.lsn, key, dict(self.database.rows[key])))
        return records

    def versions(self) -> list[Version]:
        versions: list[Version] = []
        for key in {key for _, key, _ in self.changes}:
            own = [(at, row) for at, changed, row in self.changes if changed == key]
            for number, (at, row) in enumerate(own):
                follows = own[number + 1][0] if number + 1 < len(own) else None
                if row is None:
                    versions.append((key, None, None, at, at, False, True))
                else:
                    versions.append((key, row["name"], row["amount"], at, follows, follows is None, False))
        return sorted(versions, key=repr)


def current(versions: list[Version]) -> list[dict[str, Any]]:
    rows = [{"id": row[0], "name": row[1], "amount": row[2]} for row in versions if row[-2]]
    return sorted(rows, key=lambda row: row["id"])


def assert_current(spark: Any, target: Target) -> None:
    """The rows that hold are those of the table, column by column."""
    table, held = spark.read.format("delta").load(str(target.path)), spark.read.format("delta").load(f"{target.path}_history")
    if "deleted_at" in table.columns:
        table = table.where("deleted_at IS NULL").drop("deleted_at")
    names = [f"`{name.replace('`', '``')}`" for name in table.columns if name != "_position"]
    rows = (sorted(map(repr, frame.select(*names).collect())) for frame in (table, held.where("is_current")))
    assert next(rows) == next(rows)


@pytest.fixture
def kept(spark: Any, tmp_path: Path) -> Target:
    return Target(spark, tmp_path / "orders", history=True)


def test_each_version_of_a_row_has_its_time(spark: Any, kept: Target) -> None:
    database = Database()
    log = Log(database)
    first = [log.note(database.upsert(id=key, name="a", amount=1)) for key in (1, 2)]
    kept.merge(*first, log.note(database.upsert(id=1, name="b", amount=1)))
    kept.merge(log.note(database.delete(1)), first[1])
    kept.merge(log.note(database.upsert(id=1, name="again", amount=None)))
    versions = history(spark, kept.path)
    assert versions == log.versions()
    assert versions == [
        (1, "a", 1, 110, 130, False, False), (1, "again", None, 150, None, True, False), (1, "b", 1, 130, 140, False, False),
        (1, None, None, 140, 140, False, True), (2, "a", 1, 120, None, True, False),
    ]  # fmt: skip
    assert current(versions) == kept.rows() == expected(database)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_any_log_with_repeats_and_late_changes_is_told_as_it_was(spark: Any, tmp_path: Path, seed: int) -> None:
    chance, database = random.Random(seed), Database(schemas=seed % 2 == 0)
    log, target = Log(database), Target(spark, tmp_path / "orders", schema=PLAIN, history=True)
    for _ in range(6):
        database.random_change(chance)
    target.merge(*log.read(database.snapshot()))
    pending: list[dict[str, Any]] = []
    for _ in range(6):
        pending += [log.note(database.random_change(chance)) for _ in range(8)]
        chance.shuffle(pending)
        batch, pending = pending[:10], pending[10:]
        target.merge(*batch, *chance.sample(batch, 2))
        if chance.random() < 0.5:
            pending += chance.sample(batch, 3)
        if chance.random() < 0.3:
            target.restart()
            target.merge(*batch, number=target.number)
    target.merge(*pending)
    versions = history(spark, target.path)
    assert versions == log.versions(), f"seed {seed}"
    assert current(versions) == target.rows() == expected(database)


@pytest.mark.soak
def test_a_snapshot_adds_what_the_log_does_not_tell(spark: Any, kept: Target) -> None:
    database = Database()
    log = Log(database)
    for key in (1, 2, 3):
        database.upsert(id=key, name="a", amount=1)
    kept.merge(*log.read(database.snapshot(only=3)))  # it is interrupted
    late = [log.note(database.upsert(id=1, name="b", amount=1)), log.note(database.delete(2))]
    again = [{**record, "headers": AGAIN} for record in database.snapshot()]
    kept.merge(*again)
    assert current(history(spark, kept.path)) == kept.rows() == expected(database)
    kept.merge(*late)
    assert history(spark, kept.path) == log.versions()
    database.rows[3] = {"id": 3, "name": "repaired", "amount": 9}
    repair = log.read(database.incremental(3))
    kept.merge(*repair, *database.incremental(1))
    kept.merge(*repair)
    assert history(spark, kept.path) == log.versions()
    assert current(history(spark, kept.path)) == kept.rows() == expected(database)


@pytest.mark.soak
def test_rows_that_only_an_interrupted_snapshot_had_have_ended(spark: Any, kept: Target) -> None:
    database, users = Database(), Database(topic="shop.public.users")
    kept.options["topic"] = database.topic
    kept.restart()
    for key in (1, 2):
        database.upsert(id=key, name="a", amount=1)
    kept.merge(*database.snapshot(only=2))
    users.upsert(id=1, name="u", amount=1)
    begin = users.snapshot()
    begin[0]["headers"] = AGAIN
    kept.merge(*begin)
    kept.merge(users.upsert(id=2, name="u", amount=1))
    versions = history(spark, kept.path)
    assert current(versions) == kept.rows() == []
    assert [row[0] for row in versions if row[-1]] == [1, 2]


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
def test_a_history_that_dies_as_it_begins_begins_again(spark: Any, kept: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    database, create = Database(), ChangeHistory._create
    first = database.upsert(id=1, name="a", amount=1)

    def dying(self: ChangeHistory, spark: Any) -> None:
        create(self, spark)
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ChangeHistory, "_create", dying)
        with pytest.raises(RuntimeError, match="killed"):
            kept.merge(first)
    kept.restart()
    kept.merge(first, number=kept.number)
    assert [row[:3] for row in history(spark, kept.path)] == [(1, "a", 1)]
    assert_current(spark, kept)


@pytest.mark.soak
def test_a_version_has_the_values_that_a_change_has_not_touched(spark: Any, kept: Target) -> None:
    database = Database()
    log = Log(database)
    kept.merge(log.note(database.upsert(id=1, name="large", amount=1)))
    records = []
    for amount in (2, 3):
        record = database.upsert(id=1, name=UNTOUCHED, amount=amount)
        database.rows[1] = {"id": 1, "name": "large", "amount": amount}
        records.append(log.note(record))
    kept.merge(*records)
    kept.merge(records[0], log.note(database.upsert(id=1, name="small", amount=4)))
    assert history(spark, kept.path) == log.versions()


@pytest.mark.soak
def test_columns_come_and_go_and_types_become_wider(spark: Any, kept: Target) -> None:
    database = Database()
    kept.merge(database.upsert(id=1, name="a", amount=1))
    database.fields["note"] = {"type": "string", "optional": True}
    database.fields["id"] = {"type": "int64", "optional": False}
    kept.merge(database.upsert(id=1, name="b", amount=1, note="n"), database.upsert(id=2, name="b", amount=1, note="m"))
    del database.fields["note"]
    kept.merge(database.upsert(id=1 << 40, name="c", amount=1), database.upsert(id=1, name="c", amount=1))
    assert [row[:4] for row in history(spark, kept.path, "note")] == [
        (1, "a", 1, None), (1, "b", 1, "n"), (1, "c", 1, "n"), (1 << 40, "c", 1, None), (2, "b", 1, "m"),
    ]  # fmt: skip
    assert_current(spark, kept)
    table, held = (spark.read.format("delta").load(path).dtypes for path in (str(kept.path), f"{kept.path}_history"))
    assert set(table) - {("_position", "string")} <= set(held)


@pytest.mark.soak
def test_a_new_column_has_its_default_in_the_versions_before_and_makes_no_new_ones(spark: Any, kept: Target) -> None:
    database = Database()
    database.fields["before"] = {"type": "string", "optional": True}
    first = [database.upsert(id=1, name=name, amount=1, before=name) for name in "ab"]
    kept.merge(*first, database.upsert(id=2, name="a", amount=1), database.delete(2))
    database.fields["note"] = {"type": "string", "optional": True, "default": "x"}
    kept.merge(*first, database.upsert(id=1, name="c", amount=1, before="c", note="n"))
    notes = [(*row[:2], row[3]) for row in history(spark, kept.path, "note")]
    assert notes == [(1, "a", "x"), (1, "b", "x"), (1, "c", "n"), (2, "a", "x"), (2, None, None)]
    assert_current(spark, kept)


@pytest.mark.soak
def test_a_row_of_columns_that_its_source_has_no_more_keeps_them_unless_it_is_another(spark: Any, kept: Target) -> None:
    database = Database()
    late = database.upsert(id=1, name="a", amount=1)
    database.fields["note"] = {"type": "string", "optional": True}
    database.rows[1]["note"] = "n"
    kept.merge(*database.snapshot())
    kept.merge(late)
    del database.fields["note"]
    kept.merge(database.upsert(id=1, name="b", amount=1))
    assert_current(spark, kept)


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_a_row_that_begins_again_has_no_value_of_a_column_that_was_dropped(spark: Any, tmp_path: Path, deletes: str) -> None:
    database = Database()
    target = Target(spark, tmp_path / "orders", history=True, deletes=deletes)
    target.merge(*(database.upsert(id=key, name="a", amount=1) for key in (1, 2)))
    del database.fields["amount"]
    target.merge(database.upsert(id=2, name="b"))
    target.restart()
    target.merge(database.delete(1), database.upsert(id=2, name="c"), *(database.upsert(id=1, name=name) for name in "de"))
    assert [(row["name"], row["amount"]) for row in target.rows()] == [("e", None), ("c", 1)]
    assert_current(spark, target)


@pytest.mark.soak
def test_names_of_any_kind_and_values_at_their_limits_make_versions(spark: Any, kept: Target) -> None:
    database = Database()
    text = {"type": "string", "optional": True}
    numbers = {name: {"type": kind, "optional": True} for name, kind in {"A.b": "double", "f": "float"}.items()}
    time = {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp"}
    database.fields |= {"Old": text, "new": text, "value": text, "i.d`x`": text, "raw": {"type": "bytes", "optional": True}}
    database.fields |= {**numbers, "at": time}
    rows: list[dict[str, Any]] = [
        {"Old": "o", "new": "n", "value": "v", "i.d`x`": "", "A.b": -0.0, "f": "NaN", "raw": "AAE=", "at": -62135596800000000},
        {"Old": "o", "new": "n", "value": "v", "i.d`x`": "", "A.b": 0.0, "f": 0.1, "raw": "", "at": 253402300799999999},
        {},
    ]
    records = [database.upsert(id=1, name="a", amount=1, **row) for row in rows]
    kept.merge(records[0])
    kept.merge(*records)
    kept.merge(*reversed(records))
    assert len(history(spark, kept.path)) == 3
    assert_current(spark, kept)


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
def test_the_rows_of_a_snapshot_that_was_interrupted_end_by_their_whole_key(spark: Any, tmp_path: Path) -> None:
    database = Database()
    database.fields |= {name: {"type": kind, "optional": True} for name, kind in {"id": "int32", "name": "string"}.items()}
    target = Target(spark, tmp_path / "orders", history=True, keyColumns="id,name", topic=database.topic)
    database.rows = {1: {"id": 1, "name": None, "amount": 1}, 2: {"id": 2, "name": "b", "amount": 1}}
    target.merge(*database.snapshot(only=2))
    target.merge(*({**record, "headers": AGAIN} for record in database.snapshot()))
    assert not [row for row in history(spark, target.path) if row[-1]]
    assert_current(spark, target)


@pytest.mark.soak
def test_the_time_of_a_change_is_that_of_the_database_and_goes_never_back(spark: Any, tmp_path: Path) -> None:
    target = Target(spark, tmp_path / "orders", history=True, schema="id INT, name STRING, amount INT", order="arrival")
    times = {"__source_ts_ms": 1000, "__ts_ms": 9000, "__ts_us": 9000000}
    row = {"id": 1, "name": "a", "amount": 1, "__deleted": "false", "__op": "c", **times}
    target.merge({"topic": "t", "key": '{"id": 1}', "value": json.dumps(row)})
    assert history(spark, target.path) == [(1, "a", 1, 1, None, True, False)]
    row |= {"name": "b", "__source_ts_ms": 500}  # its clock was set back
    target.merge({"topic": "t", "key": '{"id": 1}', "value": json.dumps(row)})
    assert history(spark, target.path) == [(1, "a", 1, 1, 1, False, False), (1, "b", 1, 1, None, True, False)]


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


@pytest.mark.soak
def test_what_a_history_cannot_be_is_an_error_that_says_why(spark: Any, tmp_path: Path, kept: Target) -> None:
    with pytest.raises(Misconfigured, match=r"truncate=delete"):
        Target(spark, tmp_path / "a", history=True, truncate="delete")
    database = Database()
    spark.range(1).write.format("delta").save(f"{kept.path}_history")
    with pytest.raises(Misconfigured, match=r"history +would be in .*orders_history, where there is a table"):
        kept.merge(database.upsert(id=1, name="a", amount=1))
    other = Target(spark, tmp_path / "b", history=True)
    other.merge(database.upsert(id=1, name="b", amount=1))
    (tmp_path / "b_history").rename(tmp_path / "away")
    other.restart()
    with pytest.raises(StateError, match=r"the history .*b_history is gone"):
        other.merge(database.upsert(id=1, name="c", amount=1))
    database.fields["Valid_To"] = {"type": "string", "optional": True}
    with pytest.raises(Misconfigured, match=r"history +needs a column Valid_To, and shop.public.orders has one"):
        Target(spark, tmp_path / "c", history=True).merge(database.upsert(id=1, name="c", amount=1, Valid_To="x"))
    record = {"topic": "t", "key": '{"id": 1}', "value": '{"id": 1, "__deleted": "false"}'}
    del database.fields["Valid_To"]
    without = Target(spark, tmp_path / "e")
    database.fields["is_current"] = {"type": "string", "optional": True}
    without.merge(database.upsert(id=1, name="c", amount=1, is_current="x"))
    del database.fields["is_current"]
    without.options["history"] = True
    without.restart()
    with pytest.raises(Misconfigured, match=r"history +needs a column is_current"):
        without.merge(database.upsert(id=1, name="d", amount=1))
    with pytest.raises(Exception, match=r"history needs the time of each change"):
        Target(spark, tmp_path / "d", history=True, schema="id INT").merge(record)
