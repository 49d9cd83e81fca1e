"""A new column whose log comes late: behind a snapshot that has it, or in a partition of the topic that is behind another."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Fatal
from connectors.systems.delta.change_target import ChangeTarget
from connectors.systems.delta.evolution import Evolution
from connectors.systems.delta.log_state import LogState, Origin
from tests.systems.change_logs import Database
from tests.systems.merge.targets import Target, expected
from tests.systems.merge.versions import assert_current

Records = list[dict[str, Any]]


def add_column(database: Database, **default: Any) -> None:
    database.fields["extra"] = {"type": "int32", "optional": True, **default}
    for row in database.rows.values():
        row["extra"] = default.get("default")


def begun(target: Target) -> Database:
    database = Database()
    target.merge(*(database.upsert(id=key, name="a", amount=1) for key in (1, 2)))
    return database


@pytest.mark.soak
def test_rows_of_the_log_before_a_column_have_its_default_behind_a_snapshot_that_has_it(spark: Any, kept: Target) -> None:
    database = begun(kept)
    before = [database.upsert(id=3, name="b", amount=1), database.delete(2), database.upsert(id=2, name="b", amount=2)]
    add_column(database, default=7)
    snapshot = [record for record in database.snapshot() if '"id": 1,' in record["value"]]
    kept.merge(*snapshot)
    kept.restart()
    for record in before:
        kept.merge(record)
    assert kept.rows() == expected(database)
    kept.merge(database.upsert(id=4, name="d", amount=4, extra=5))
    kept.merge(*before)
    kept.restart()
    kept.merge(before[0], database.upsert(id=5, name="e", amount=5, extra=None), before[1])
    assert kept.rows() == expected(database)
    assert_current(spark, kept)


@pytest.mark.soak
def test_rows_before_a_column_have_its_default_where_their_partition_is_behind_and_none_behind_the_drop(target: Target) -> None:
    database = begun(target)
    before = [database.upsert(id=3, name="b", amount=1), database.delete(2), database.upsert(id=2, name="b", amount=2)]
    add_column(database, default=7)
    target.merge(database.upsert(id=4, name="d", amount=4, extra=5))
    del database.fields["extra"]
    behind = database.upsert(id=6, name="f", amount=6)
    target.merge(before[0], before[1])
    target.restart()
    database.upsert(id=7, name="g", amount=7)
    target.merge(before[2], behind, *database.incremental(7))
    assert [(row["id"], row["extra"]) for row in target.rows()] == [(1, 7), (2, 7), (3, 7), (4, 5), (6, None), (7, None)]


@pytest.mark.soak
def test_a_record_from_before_a_column_has_its_default_behind_a_snapshot_of_its_batch(spark: Any, kept: Target) -> None:
    database = begun(kept)
    before = [database.upsert(id=key, name="b", amount=1) for key in (3, 4)]
    add_column(database, default=7)
    kept.merge(*database.snapshot()[:1], before[0])
    strict = Target(spark, kept.path, history=True, onSchemaChange="exception")
    strict.number = kept.number
    strict.merge(before[1])
    assert strict.rows() == expected(database)
    assert_current(spark, strict)


@pytest.mark.soak
def test_no_row_has_the_default_of_a_column_that_is_gone_once_the_order_is_that_of_the_arrival(target: Target) -> None:
    """A place in the log says nothing then: the server may be another one."""
    database = begun(target)
    add_column(database, default=7)
    target.merge(database.upsert(id=3, name="b", amount=1, extra=5))
    target.options["order"] = "arrival"
    target.restart()
    del database.fields["extra"]
    target.merge(database.upsert(id=4, name="b", amount=1))
    assert [row["extra"] for row in target.rows()] == [7, 7, 5, None]


@pytest.mark.soak
@pytest.mark.parametrize("is_apart", [pytest.param(True, marks=pytest.mark.soak), False])
def test_a_late_record_that_lacks_a_column_drops_none(target: Target, is_apart: bool) -> None:
    database = begun(target)
    before = [database.upsert(id=key, name="b", amount=1) for key in (3, 4)]
    add_column(database, default=7)
    target.merge(database.upsert(id=5, name="b", amount=1, extra=5))
    target.options["onSchemaChange"] = "exception"
    target.restart()
    after = database.upsert(id=6, name="b", amount=1, extra=6)
    for batch in [before[:1], [after, before[1]]] if is_apart else [[after, *before]]:
        target.merge(*batch)
    assert target.rows() == expected(database)
    del database.fields["extra"]
    with pytest.raises(Fatal, match=r"drop.column extra"):
        target.merge(database.upsert(id=7, name="b", amount=1))


@pytest.mark.soak
def test_a_snapshot_widens_a_column_that_the_log_has_not_reached(target: Target) -> None:
    database = begun(target)
    before = [database.upsert(id=key, name="b", amount=1) for key in (3, 4)]
    add_column(database, default=7)
    target.merge(*database.snapshot()[:1])
    database.fields["extra"] = {"type": "int64", "optional": True, "default": 7}
    target.merge(before[0], *database.snapshot()[:1])
    target.options["onSchemaChange"] = "exception"
    target.restart()
    target.merge(before[1], database.upsert(id=5, name="b", amount=1, extra=1 << 40))
    assert target.rows() == expected(database)


@pytest.mark.soak
@pytest.mark.parametrize("is_apart", [pytest.param(True, marks=pytest.mark.soak), False])
def test_the_log_before_a_snapshot_leaves_the_value_that_it_has_read(target: Target, is_apart: bool) -> None:
    """The value is of no default that the log tells: it is in the snapshot alone."""
    target = Target(target.spark, target.path, fill={"extra": None})
    database = begun(target)
    before = [database.upsert(id=3, name="b", amount=1), database.upsert(id=3, name="c", amount=1)]
    database.fields["extra"] = {"type": "int64", "optional": False}
    for key, row in database.rows.items():
        row["extra"] = 100 + key  # DEFAULT nextval(…)
    snapshot = database.snapshot()
    for batch in [[record] for record in (*snapshot, *before)] if is_apart else [[*snapshot, *before]]:
        target.merge(*batch)
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_a_row_of_a_snapshot_that_was_deleted_gives_no_value_to_one_that_begins_behind_the_drop(target: Target) -> None:
    database = begun(target)
    add_column(database, default=7)
    target.merge(*database.snapshot(), database.upsert(id=2, name="b", amount=1, extra=8))
    del database.fields["extra"]
    target.merge(database.delete(1), database.upsert(id=1, name="b", amount=1))
    assert [row["extra"] for row in target.rows()] == [None, 8]


@pytest.mark.soak
def test_a_row_behind_the_drop_has_no_default_also_where_the_log_reaches_the_column_in_that_batch(target: Target) -> None:
    database = begun(target)
    before = database.upsert(id=3, name="b", amount=1)
    add_column(database, default=7)
    target.merge(*database.snapshot()[:1])
    told = database.upsert(id=4, name="d", amount=1, extra=8)
    del database.fields["extra"]
    target.merge(before, told, database.upsert(id=5, name="e", amount=1))
    assert [row["extra"] for row in target.rows()] == [7, 7, 7, 8, None]


@pytest.mark.soak
def test_a_column_that_the_log_has_not_reached_is_not_gone(target: Target) -> None:
    database = begun(target)
    before = database.upsert(id=3, name="b", amount=1)
    add_column(database, default=7)
    target.merge(*database.snapshot())
    strict = Target(target.spark, target.path, onSchemaChange="exception")
    strict.number = target.number
    strict.merge(before)
    strict.merge(database.upsert(id=4, name="b", amount=1, extra=1))
    assert strict.rows() == expected(database)
    del database.fields["extra"]
    with pytest.raises(Fatal, match=r"drop.column extra"):
        strict.merge(database.upsert(id=5, name="b", amount=1))


@pytest.mark.soak
def test_a_default_survives_a_crash_between_its_column_and_its_rows(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    database = begun(target)
    before = database.upsert(id=3, name="b", amount=1)
    add_column(database, default=7)
    snapshot = database.snapshot()[:1]

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ChangeTarget, "fill", crash)
        with pytest.raises(KeyboardInterrupt):
            target.merge(*snapshot)
    target.restart()
    target.merge(*snapshot, number=1)
    target.merge(before)
    assert target.rows() == expected(database)


def test_origins_follow_their_columns() -> None:
    origins = {name: Origin("9", "int", f'{{"v": {value}}}') for value, name in enumerate(("extra", "note", "id"))}
    evolution = Evolution({}, {}, renames={"Extra": "More"}, drops=["note"])
    state = evolution.state(LogState("t", origins=origins))
    assert LogState.of(state.text(), "t").origins == {"more": origins["extra"], "id": origins["id"]}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 40))])
def test_the_table_is_the_database_whatever_comes_late(spark: Any, tmp_path: Path, seed: int) -> None:
    """The log is in two partitions, and a snapshot of some rows comes before its place in the log."""
    chance = random.Random(seed)
    target = Target(spark, tmp_path / "orders", deletes=chance.choice(["hard", "soft"]))
    database = begun(target)
    partitions: tuple[Records, Records] = ([], [])

    def change() -> None:
        record = database.random_change(chance, keys=6)
        key = next(key for key in range(6) if record["key"] == f'{{"id": {key}}}')
        partitions[key % 2].append(record)

    for _ in range(chance.randrange(2, 8)):
        change()
    add_column(database, default=7)
    for _ in range(chance.randrange(6)):
        change()
    keys = {key for key in database.rows if chance.random() < 0.6}
    snapshot = [record for record, key in zip(database.snapshot(), list(database.rows), strict=True) if key in keys]
    places = [len(partition) for partition in partitions]
    for _ in range(6):
        change()
    read = [chance.randrange(place + 1) for place in places]  # when the snapshot comes
    parts = [[partition[:at], partition[at:]] for partition, at in zip(partitions, read, strict=True)]
    is_apart = chance.random() < 0.5
    for late in (False, True):
        queues = [part[late] for part in parts]
        if late and not is_apart:
            behind = [queue.pop(0) for queue in queues for _ in range(len(queue) // 2)]
            target.merge(*snapshot, *behind)
        while any(queues):
            pieces = ([queue.pop(0) for _ in range(min(len(queue), chance.randrange(4)))] for queue in queues)
            batch = list(itertools.chain(*pieces))
            if batch:
                target.merge(*batch)
            if chance.random() < 0.2:
                target.restart()
        if not late and is_apart:
            target.merge(*snapshot)
    rows = [{name: row[name] for name in database.fields} for row in target.rows() if row.get("deleted_at") is None]
    assert rows == expected(database)
