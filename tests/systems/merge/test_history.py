"""``history=true``: all versions of the rows of a table, and when each of them held."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Misconfigured, StateError
from tests.systems.change_logs import AGAIN, PLAIN, Database
from tests.systems.merge.targets import Target, expected
from tests.systems.merge.versions import UNTOUCHED, Log, assert_current, current, history


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
