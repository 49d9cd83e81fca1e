"""Columns that a source has dropped: a row keeps its value, and one that begins again has none, also in the history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Misconfigured
from tests.systems.change_logs import Database

from .targets import Target
from .versions import UNTOUCHED, assert_current, history


def notes(target: Target) -> list[Any]:
    return [row["note"] for row in target.rows()]


def begun(target: Target, *keys: int, **note: Any) -> Database:
    """A database whose rows have a note, which ``target`` has, too."""
    database = Database()
    database.fields["note"] = {"type": "string", "optional": True, **note}
    target.merge(*(database.upsert(id=key, name="a", amount=1, note="n") for key in keys))
    return database


def drop(database: Database) -> None:
    del database.fields["note"]
    for row in database.rows.values():
        row.pop("note", None)


def unwrapped(record: dict[str, Any]) -> dict[str, Any]:
    """``record`` as ``ExtractNewRecordState`` writes it, without a schema and without the operation."""
    change = json.loads(record["value"])["payload"]
    source = {f"__source_{name}": change["source"][name] for name in ("ts_ms", "sequence", "lsn")}
    value = {**(change["after"] or change["before"]), "__deleted": str(change["op"] == "d").lower(), **source}
    return {**record, "value": json.dumps(value)}


@pytest.mark.soak
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_a_row_that_begins_again_has_no_value(spark: Any, tmp_path: Path, deletes: str) -> None:
    target = Target(spark, tmp_path / "orders", history=True, deletes=deletes)
    database = begun(target, 1, 2)
    drop(database)
    target.merge(database.upsert(id=2, name="b"))
    target.restart()
    target.merge(database.delete(1), database.upsert(id=2, name="c"), *(database.upsert(id=1, name=name) for name in "de"))
    assert [(row["name"], row["note"]) for row in target.rows()] == [("e", None), ("c", "n")]
    assert_current(spark, target)


@pytest.mark.soak
def test_a_batch_from_before_and_behind_the_drop_tells_values_of_the_rows_before_it_alone(spark: Any, kept: Target) -> None:
    database = begun(kept, 1, 2, 3, 4, default="new")
    before = [database.upsert(id=key, name="b", amount=1, note="m") for key in (2, 3)]
    drop(database)
    behind = [database.upsert(id=key, name="c", amount=2) for key in (1, 3)]
    kept.merge(*before, *behind, database.delete(4), database.upsert(id=4, name="d", amount=1))
    assert [(row["name"], row["note"]) for row in kept.rows()] == [("c", "n"), ("b", "m"), ("c", "m"), ("d", None)]
    assert_current(spark, kept)


@pytest.mark.soak
def test_a_column_that_came_and_went_in_a_batch_needs_no_value_of_rows_behind_it(spark: Any, tmp_path: Path) -> None:
    target, database = Target(spark, tmp_path / "orders"), Database()
    database.fields["note"] = {"type": "string", "optional": False}
    first = database.upsert(id=1, name="a", amount=1, note="n")
    drop(database)
    target.merge(first, database.upsert(id=2, name="b", amount=1))
    assert notes(target) == ["n", None]


@pytest.mark.soak
@pytest.mark.parametrize("apart", [pytest.param(True, marks=pytest.mark.soak), False])
@pytest.mark.parametrize("form", ["unwrapped", "incremental"])
def test_a_row_begins_again_behind_its_deletion_also_where_no_record_says_so(
    spark: Any, tmp_path: Path, form: str, apart: bool
) -> None:
    target = Target(spark, tmp_path / "orders", history=True, deletes="soft")
    database = begun(target, 1, 2)
    drop(database)
    target.options["schema"] = "id INT, name STRING, amount BIGINT"
    target.restart()
    target.merge(database.upsert(id=2, name="b", amount=1))
    deletion, creation = database.delete(1), database.upsert(id=1, name="c", amount=1)
    records = [deletion, *database.incremental(1)] if form == "incremental" else [unwrapped(deletion), unwrapped(creation)]
    for batch in [[record] for record in records] if apart else [records]:
        target.merge(*batch)
    assert notes(target) == [None, "n"]
    assert_current(spark, target)


@pytest.mark.soak
@pytest.mark.parametrize("deletes", ["hard", pytest.param("soft", marks=pytest.mark.soak)])
def test_a_row_that_a_snapshot_reads_behind_a_truncation_begins_again(spark: Any, tmp_path: Path, deletes: str) -> None:
    target = Target(spark, tmp_path / "orders", truncate="delete", deletes=deletes)
    database = begun(target, 1, 2)
    drop(database)
    target.merge(database.upsert(id=2, name="b", amount=1))
    cut = database.truncate()
    database.upsert(id=1, name="c", amount=1)
    target.merge(cut, *database.incremental(1))
    assert notes(target)[0] is None


@pytest.mark.soak
def test_without_positions_a_row_of_a_batch_ends_and_is_there_again(spark: Any, tmp_path: Path) -> None:
    target, database = Target(spark, tmp_path / "orders", history=True, order="arrival"), Database()
    target.merge(database.upsert(id=1, name="a"), database.delete(1), database.upsert(id=1, name="a"))
    assert [version[-2:] for version in history(spark, target.path)].count((True, False)) == 1
    assert_current(spark, target)


@pytest.mark.soak
def test_a_column_that_came_and_went_in_a_batch_is_an_orphan_behind_it(spark: Any, kept: Target) -> None:
    database = Database()
    first = database.upsert(id=2, name="a", amount=1)
    database.fields["note"] = {"type": "string", "optional": True, "default": "new"}
    second = database.upsert(id=1, name="a", amount=1, note="n")
    drop(database)
    kept.merge(first, second, *(database.upsert(id=key, name="b", amount=1) for key in (1, 3)))
    assert notes(kept) == ["n", "new", None], "of two records with the same schema, one is older than the column"
    kept.merge(*(record for key in (1, 2) for record in (database.delete(key), database.upsert(id=key, name="c", amount=1))))
    assert notes(kept) == [None, None, None]
    assert_current(spark, kept)


@pytest.mark.soak
def test_places_in_the_log_tell_what_was_before_a_column_came_or_went(spark: Any, kept: Target) -> None:
    """Partitions of a topic interleave, and a connector that starts again repeats records."""
    database = begun(kept, 1, 2)
    old = database.upsert(id=3, name="b", amount=1, note="m")
    database.fields["more"] = {"type": "string", "optional": True, "default": "new"}
    new = database.upsert(id=2, name="b", amount=1, note="m", more="x")
    kept.merge(new, old)
    drop(database)
    kept.merge(database.upsert(id=1, name="c", amount=1, more="y"), new)
    assert [(row["name"], row["note"], row["more"]) for row in kept.rows()] == [
        ("c", "n", "y"), ("b", "m", "x"), ("b", "m", "new"),
    ]  # fmt: skip
    assert_current(spark, kept)


@pytest.mark.soak
def test_records_that_come_again_leave_the_values_of_columns_that_they_lack(spark: Any, kept: Target) -> None:
    database = begun(kept, 1)
    drop(database)
    update, creation = database.upsert(id=1, name="b", amount=1), database.upsert(id=2, name="b", amount=1)
    kept.merge(update, creation)
    database.fields["more"] = {"type": "string", "optional": True, "default": "new"}
    last = database.upsert(id=3, name="b", amount=1, more="m")
    kept.merge(last)
    kept.merge(creation)
    database.fields["note"] = {"type": "string", "optional": True, "default": "d"}
    kept.merge(update, last, database.upsert(id=3, name="c", amount=1, more="m", note="x"))
    assert [(row["note"], row["more"]) for row in kept.rows()] == [("n", "new"), (None, "new"), ("x", "m")]
    assert_current(spark, kept)


@pytest.mark.parametrize("apart", [pytest.param(True, marks=pytest.mark.soak), False])
def test_an_update_that_does_not_touch_a_new_column_leaves_its_default(spark: Any, kept: Target, apart: bool) -> None:
    database = Database()
    records = [database.upsert(id=1, name="a", amount=1)]
    database.fields["note"] = {"type": "string", "optional": True, "default": "new"}
    records += [database.upsert(id=key, name="b", amount=1, note=note) for key, note in ((2, "n"), (1, UNTOUCHED))]
    for batch in [[record] for record in records] if apart else [records]:
        kept.merge(*batch)
    assert notes(kept) == ["new", "n"]
    assert_current(spark, kept)


@pytest.mark.soak
def test_a_column_whose_name_has_another_case_is_the_same_one(spark: Any, kept: Target) -> None:
    database = begun(kept, 1, 2)
    before = database.upsert(id=1, name="b", amount=1, note="m")
    database.fields["Note"] = database.fields["note"]
    drop(database)
    kept.merge(before, database.upsert(id=3, name="c", amount=1, Note="x"))
    assert notes(kept) == ["m", "n", "x"]
    del database.fields["Note"]
    database.rows[3].pop("Note")
    kept.merge(database.upsert(id=1, name="d", amount=1), database.delete(3), database.upsert(id=3, name="d", amount=1))
    assert notes(kept) == ["m", "n", None], "also where it is an orphan"
    assert_current(spark, kept)


def test_a_batch_behind_the_drop_of_a_key_column_makes_no_row_of_another_key(spark: Any, tmp_path: Path) -> None:
    target = Target(spark, tmp_path / "orders", keyColumns=["id", "note"])
    database = begun(target, 1)
    before = database.upsert(id=1, name="b", amount=1, note="n")
    drop(database)
    with pytest.raises(Misconfigured, match="note is no column of the changes, which have id, name, amount"):
        target.merge(before, database.upsert(id=1, name="c", amount=1))
