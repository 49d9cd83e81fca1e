"""``connectors.connect.merge``: a change log becomes its table, with repeats, reorders, interrupted snapshots, ALTER TABLE."""

from __future__ import annotations

import base64
import datetime
import json
import random
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from connectors import connect
from connectors.core import CommitRefused, Fatal, Misconfigured, StateError
from connectors.core.sink import Batch
from connectors.systems.delta.holes import may_have_holes
from tests.delta_log import delta
from tests.systems.change_logs import AGAIN, COLUMNS, PLAIN, Database, changes

DECIMAL = "org.apache.kafka.connect.data.Decimal"
ZONED = "io.debezium.time.ZonedTimestamp"


class Target:
    """A Delta table that batches of records are merged into."""

    def __init__(self, spark: Any, path: Path, **options: Any) -> None:
        self.spark, self.path, self.options = spark, path, options
        self.number = -1
        self.restart()

    def restart(self) -> None:
        """A new run of the query."""
        self.function: Any = connect.merge(str(self.path), **self.options)

    def merge(self, *records: dict[str, Any], number: int | None = None, query: str = "q") -> None:
        self.number = self.number + 1 if number is None else number
        rows = [(record["topic"], record["key"], record["value"], record.get("headers")) for record in records]
        frame = self.spark.createDataFrame(rows, COLUMNS).coalesce(1)
        self.function.write(frame, Batch(self.function.sink.sink_id(), query, self.number))

    def rows(self) -> list[dict[str, Any]]:
        table = self.spark.read.format("delta").load(str(self.path)).drop("_position")
        return sorted((row.asDict() for row in table.collect()), key=lambda row: row["id"])


_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(autouse=True)
def quick_merges(spark: Any) -> Iterator[None]:
    """Spark would compile for longer than it runs: a batch has few rows. The other tests of merges run compiled."""
    for name, value in _INTERPRETED.items():
        spark.conf.set(name, value)
    yield
    for name in _INTERPRETED:
        spark.conf.unset(name)


@pytest.fixture
def target(spark: Any, tmp_path: Path) -> Target:
    return Target(spark, tmp_path / "orders")


def expected(database: Database) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in database.fields} for _, row in sorted(database.rows.items())]


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


@pytest.mark.parametrize("seed", range(1))
def test_any_log_with_repeats_reorders_and_interrupted_snapshots_ends_equal_to_its_source(
    spark: Any, tmp_path: Path, seed: int
) -> None:
    _random_log(Target(spark, tmp_path / "orders", schema=PLAIN), seed, batches=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 21))
def test_any_log_at_length(spark: Any, tmp_path: Path, seed: int) -> None:
    _random_log(Target(spark, tmp_path / "orders", schema=PLAIN), seed, batches=12)


def _random_log(target: Target, seed: int, batches: int) -> None:
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


def test_a_new_column_is_added_and_filled_as_the_database_fills_it(target: Target) -> None:
    database = Database()
    old = [database.upsert(id=1, name="a", amount=1), database.upsert(id=2, name="b", amount=2)]
    target.merge(old[0])
    database.fields["extra"] = {"type": "int32", "optional": True, "default": 7}
    database.fields["note"] = {"type": "string", "optional": True}
    for row in database.rows.values():
        row["extra"] = 7
    target.merge(old[1], database.upsert(id=3, name="c", amount=3, extra=1, note="n"))
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_a_crash_before_the_default_is_filled_in_is_mended_by_the_next_start(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1))
    database.fields["extra"] = {"type": "int32", "optional": True, "default": 7}
    database.rows[1]["extra"] = 7
    committer = type(target.function.sink.committer())

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(committer, "_finish_filling", crash)
    batch = database.upsert(id=2, name="b", amount=2, extra=1)
    with pytest.raises(KeyboardInterrupt):
        target.merge(batch)
    monkeypatch.undo()
    target.restart()
    target.merge(batch, number=1)
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_a_wider_type_widens_the_column(target: Target) -> None:
    database = Database()
    database.fields["amount"] = {"type": "int32", "optional": True}
    target.merge(database.upsert(id=1, name="a", amount=1))
    database.fields["amount"] = {"type": "int64", "optional": True}
    target.merge(database.upsert(id=2, name="b", amount=1 << 40))
    assert target.rows() == expected(database)


@pytest.mark.soak
def test_a_key_that_becomes_wider_is_remembered_as_deleted(target: Target) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1), database.delete(1))
    database.fields["id"] = {"type": "int64"}
    late = database.upsert(id=1 << 40, name="b", amount=2)
    target.merge(database.delete(1 << 40))
    target.merge(late, database.upsert(id=2, name="c", amount=3))
    assert target.rows() == expected(database)


_TEXT, _BASE64 = "__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
_UUID, _HSTORE = "b68a35a7-17ad-35b3-af2a-ae46edb4545a", f'{{"{_TEXT}":"{_TEXT}"}}'
_NUMBERS = list(_TEXT.encode())
HOLES: list[tuple[str, dict[str, Any], Any]] = [
    ("string", {"type": "string"}, _TEXT),
    ("string", {"type": "string"}, _BASE64),  # bytes in JSON without a schema
    ("string", {"type": "string"}, _HSTORE),
    ("binary", {"type": "bytes"}, _BASE64),
    ("array<string>", {"type": "array", "items": {"type": "string"}}, [_TEXT]),
    ("array<binary>", {"type": "array", "items": {"type": "bytes"}}, [_BASE64]),
    ("array<date>", {"type": "array", "items": {"type": "int32", "name": "io.debezium.time.Date"}}, _NUMBERS),
    ("array<string>", {"type": "array", "items": {"type": "string", "name": "io.debezium.data.Uuid"}}, [_UUID]),
    ("array<int>", {"type": "array", "items": {"type": "int32"}}, _NUMBERS),
    ("array<bigint>", {"type": "array", "items": {"type": "int64"}}, _NUMBERS),
    ("map<string,string>", {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}, {_TEXT: _TEXT}),
]
"""What Debezium 3.6 writes for a value of PostgreSQL that an update has not touched: type of the column, schema, JSON."""
VALUES: dict[str, Any] = {
    "string": "large", "binary": "AP8=", "array<string>": ["a", None, "b"], "array<int>": [95, 95], "array<bigint>": [],
    "array<binary>": ["AP8=", None], "array<date>": [1],
    "map<string,string>": {"a": "b", "c": "d"},
}  # fmt: skip


def test_a_value_that_an_update_has_not_touched_stays(target: Target) -> None:
    """PostgreSQL logs a large value only when it changes; Debezium writes a placeholder."""
    database = Database()
    for number, (_, schema, _) in enumerate(HOLES):
        database.fields[f"large{number}"] = {**schema, "optional": True}
    values = {f"large{number}": VALUES[kind] for number, (kind, _, _) in enumerate(HOLES)}
    holes = {f"large{number}": hole for number, (_, _, hole) in enumerate(HOLES)}
    target.merge(database.upsert(id=1, amount=1, **values))
    target.merge(
        database.upsert(id=1, amount=2, **holes),
        database.upsert(id=2, amount=3, **values),
        database.upsert(id=2, amount=4, **holes),
        database.record("u", {"id": 3, "amount": 5, **holes}, 900),
    )
    read = {**values, "large3": b"\x00\xff", "large5": [b"\x00\xff", None], "large6": [datetime.date(1970, 1, 2)]}
    assert target.rows() == [
        {"id": 1, "name": None, "amount": 2, **read},
        {"id": 2, "name": None, "amount": 4, **read},
        {"id": 3, "name": None, "amount": 5, **dict.fromkeys(values)},
    ]


def test_each_form_of_the_placeholder_is_seen_in_the_text_of_a_record(spark: Any) -> None:
    forms = [json.dumps({"large": hole}, separators=(",", ":")) for _, _, hole in HOLES]
    others = [json.dumps({"large": value}) for value in (*VALUES.values(), [95, 100], "__debezium")]
    frame = spark.createDataFrame([(text,) for text in (*forms, *others)], "value string")
    rows = frame.select("value", may_have_holes(frame["value"]).alias("holes")).collect()
    assert {row["value"] for row in rows if row["holes"]} == set(forms)


def test_a_decimal_is_read_right_beside_other_fields_of_its_name(spark: Any) -> None:
    """Those of Debezium's ``source``, and those in a value of the row. Base64 may also look like a number."""
    database = Database()
    database.fields["tags"] = {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}
    database.fields["version"] = {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}, "optional": True}
    encoded = [database.upsert(id=1, tags={"version": "x"}, version=text) for text in ("BOI=", "1234", None)]
    numbers = [database.upsert(id=2, tags={"version": "x"}, version="?") for _ in range(3)]
    texts = ("12.50", "1E-2", "12345678901234567890.12")
    numbers = [as_number(record, number) for record, number in zip(numbers, texts, strict=True)]
    rows = changes(spark, *encoded, *numbers).frame.select("version").collect()
    decimals = [Decimal("12.50"), Decimal("-26588.24"), None, *map(Decimal, texts)]
    assert [row["version"] for row in rows] == decimals


@pytest.mark.soak
def test_types_that_json_lacks_are_those_of_the_database(target: Target) -> None:
    numbers = [Decimal("-123.45"), Decimal("0.01"), Decimal("98765432109876.54"), Decimal("-0.10")]
    debezium = "io.debezium.time"
    database = Database()
    precise = {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2", "connect.decimal.precision": "20"}}
    database.fields = {
        "id": {"type": "int32"},
        "price": {**precise, "optional": True},
        "day": {"type": "int32", "name": f"{debezium}.Date", "optional": True},
        "at": {"type": "int64", "name": f"{debezium}.MicroTimestamp", "optional": True},
        "seen": {"type": "string", "name": f"{debezium}.ZonedTimestamp", "optional": True},
        "raw": {"type": "bytes", "optional": True},
    }
    row = {"day": 20000, "at": 1_700_000_000_123_456, "seen": "2024-10-04T12:00:00.5Z", "raw": "AP8="}
    records = [database.upsert(id=key, price=unscaled_base64(number), **row) for key, number in enumerate(numbers)]
    target.merge(*records)
    for key, number in enumerate(numbers, len(numbers)):
        records.append(as_number(database.upsert(id=key, price="?", **row), str(number)))
    target.merge(*records[len(numbers) :])
    assert [row["price"] for row in target.rows()] == [*numbers, *numbers]
    first = target.rows()[0]
    assert str(first["day"]) == "2024-10-04"
    assert first["at"].timestamp() == 1_700_000_000.123456
    assert first["seen"].timestamp() == 1728043200.5
    assert bytes(first["raw"]) == b"\x00\xff"


def as_number(record: dict[str, Any], number: str) -> dict[str, Any]:
    """The record with a number in place of the text "?", as ``decimal.format=NUMERIC`` has it."""
    return {**record, "value": record["value"].replace('"?"', number)}


def unscaled_base64(number: Decimal) -> str:
    """A decimal with two digits behind the point, as Connect's JSON has it by default."""
    unscaled = int(number.scaleb(2))
    return base64.b64encode(unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)).decode()


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
def test_an_unwrapped_form_that_hides_deletions_is_refused(spark: Any) -> None:
    """Debezium 3 makes a null value of a deletion by default, and ``__op`` is in no null value."""
    for value in ({"id": 1, "name": "x"}, {"id": 1, "name": "x", "__op": "c", "__source_lsn": 5}):
        with pytest.raises(Misconfigured, match=r"delete\.tombstone\.handling\.mode=rewrite"):
            changes(spark, {"topic": "t", "key": '{"id": 1}', "value": json.dumps(value)}, plain="id INT, name STRING")


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
def test_a_record_without_key_needs_key_columns(target: Target, spark: Any, tmp_path: Path) -> None:
    record = {**Database().upsert(id=1, name="a", amount=1), "key": None}
    with pytest.raises(Misconfigured, match="keyColumns"):
        target.merge(record)
    named = Target(spark, tmp_path / "named", keyColumns="id")
    named.merge(record)
    assert len(named.rows()) == 1


@pytest.mark.soak
def test_a_crash_between_the_deleted_keys_and_the_merge_is_mended_by_the_replay(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1), database.upsert(id=2, name="b", amount=1))
    batch = [database.delete(1), database.upsert(id=2, name="c", amount=2)]
    committer = type(target.function.sink.committer())

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(committer, "_merge", crash)
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


def test_an_incremental_snapshot_repairs_rows_and_brings_them_back(target: Target) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1), database.upsert(id=2, name="b", amount=2), database.delete(2))
    database.rows = {1: {"id": 1, "name": "repaired", "amount": 5}, 2: {"id": 2, "name": "back", "amount": 6}}
    target.merge(*database.incremental(1, 2))
    assert target.rows() == expected(database)
    target.merge(database.delete(2), database.upsert(id=1, name="later", amount=7))
    assert target.rows() == expected(database)


def test_a_table_remembers_its_topic_and_heartbeats_are_no_topic(target: Target) -> None:
    orders, users = Database(), Database(topic="shop.public.users")
    heartbeat = {"topic": "__debezium-heartbeat.shop", "key": '{"serverName": "shop"}', "value": '{"ts_ms": 5}'}
    target.merge(orders.upsert(id=1, name="order", amount=1), heartbeat)
    target.merge(heartbeat)
    target.restart()
    with pytest.raises(Misconfigured, match=r"topic .*fed from shop\.public\.orders.*shop\.public\.users"):
        target.merge(users.upsert(id=1, name="user", amount=1))
    assert target.rows() == expected(orders)


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


def test_typed_defaults_fill_the_rows_that_are_there_and_types_widen(target: Target) -> None:
    database = Database()
    database.fields["amount"] = {"type": "int32", "optional": True}
    target.merge(database.upsert(id=1, name="a", amount=7))
    micros = {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "optional": True, "default": 1_700_000_000_123_456}
    price = {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}, "optional": True, "default": "BOI="}
    raw = {"type": "bytes", "optional": True, "default": "AP8="}
    database.fields |= {"at": micros, "price": price, "raw": raw, "amount": {"type": "double", "optional": True}}
    target.merge(database.upsert(id=2, name="b", amount=10.75))
    row = target.rows()[0]
    assert (row["at"].timestamp(), row["price"], bytes(row["raw"])) == (1_700_000_000.123456, Decimal("12.50"), b"\x00\xff")
    assert [row["amount"] for row in target.rows()] == [7.0, 10.75]
    database.fields["must"] = {"type": "int32", "optional": False}
    batch = database.upsert(id=3, name="c", amount=1.5, must=1)
    with pytest.raises(Misconfigured, match="fill"):
        target.merge(batch, number=2)
    target.options["fill"] = {"must": 7}
    target.restart()
    target.merge(batch, number=2)
    assert [row["must"] for row in target.rows()] == [7, 7, 1]


KEYS: list[tuple[str, dict[str, Any], Any, Any]] = [
    ("zoned", {"type": "string", "name": ZONED}, "2024-10-04T14:00:00+02:00", "2024-10-04T12:00:00Z"),
    ("real", {"type": "float"}, 0.1, 0.1),
    ("zero", {"type": "double"}, 0.0, -0.0),
    ("binary", {"type": "bytes"}, "AP8=", "AP8="),
]


def test_a_key_finds_its_row_however_it_is_written(spark: Any, tmp_path: Path) -> None:
    """Times in another zone, floats, both zeros, bytes: all keys of one table, so that each must match."""
    database = Database()
    target = Target(spark, tmp_path / "keyed", keyColumns=",".join(["id", *(name for name, *_ in KEYS)]))
    database.fields |= {name: {**schema, "optional": False} for name, schema, _, _ in KEYS}
    first, second = ({name: values[at] for name, _, *values in KEYS} for at in (0, 1))
    target.merge(database.record("c", {"id": 1, **first, "amount": 1}, 200))
    target.merge(database.record("u", {"id": 1, **second, "amount": 2}, 300))
    assert [row["amount"] for row in target.rows()] == [2]
    target.merge(database.record("d", {"id": 1, **second}, 400))
    assert target.rows() == []


def test_a_text_that_is_a_number_finds_the_row_with_that_number(spark: Any, tmp_path: Path) -> None:
    database = Database(schemas=False)
    first = Target(spark, tmp_path / "orders", schema="id BIGINT, name STRING")
    first.merge(database.record("c", {"id": 42, "name": "a"}, 200))
    target = Target(spark, tmp_path / "orders", schema="id STRING, name STRING")
    target.merge(database.record("u", {"id": "42", "name": "b"}, 300), number=1)
    assert target.rows() == [{"id": 42, "name": "b"}]


def binlog_change(name: str, op: str = "u", key: int = 1, snapshot: str = "false", **source: Any) -> dict[str, Any]:
    """A record of MySQL or MariaDB; their events have the field ``sequence``, too, which is null."""
    place = {"sequence": None, "snapshot": snapshot, "server_id": 1, "gtid": None, "row": 0, **source}
    payload = {"op": op, "before": None, "after": {"id": key, "name": name}, "source": place}
    return {"topic": "t", "key": json.dumps({"id": key}), "value": json.dumps(payload)}


def test_the_order_of_a_binary_log_is_that_of_file_and_position(spark: Any, tmp_path: Path) -> None:
    target = Target(spark, tmp_path / "orders", schema="id INT, name STRING")
    target.merge(binlog_change("new", file="bin.000010", pos=5))
    target.merge(binlog_change("old", file="bin.000009", pos=900))
    assert target.rows() == [{"id": 1, "name": "new"}]
    with pytest.raises(StateError, match="order=arrival"):
        target.merge(binlog_change("other", file="bin.000011", pos=5, server_id=2))


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


def test_another_key_stops_the_query(target: Target) -> None:
    database = Database()
    first = database.upsert(id=1, name="a", amount=1)
    wide = {**database.upsert(id=1, name="b", amount=1), "key": json.dumps({"id": 1, "name": "b"})}
    with pytest.raises(Misconfigured, match=r"keys of \(id\) and \(id, name\)"):
        target.merge(first, wide, number=0)
    target.merge(first, number=0)
    with pytest.raises(StateError, match=r"\(id, name\) now, and was \(id\)"):
        target.merge(wide, number=1)


def test_a_large_value_of_a_row_whose_key_changes_is_not_lost_in_silence(target: Target) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="large", amount=1))
    target.options["fill"] = {"name": "of older rows"}  # it tells of another row
    target.restart()
    before = [database.record(op, {"id": 2, "name": "another row", "amount": 1}, lsn) for op, lsn in (("c", 210), ("d", 220))]
    moved = [database.record("d", {"id": 1}, 300), database.record("c", {"id": 2, "name": _TEXT, "amount": 1}, 300)]
    later = database.record("u", {"id": 2, "name": _TEXT, "amount": 2}, 400)
    with pytest.raises(Exception, match="column name: the key of a row has changed"):
        target.merge(*before, *moved, later, number=1)
    assert target.rows() == expected(database)
    target.merge(before[0], number=1)
    with pytest.raises(Exception, match="column name: the key of a row has changed"):
        target.merge(before[1], *moved, number=2)
    target.options["fill"] = {"name": None}
    target.restart()
    target.merge(before[1], *moved, later, number=2)
    assert target.rows() == [{"id": 2, "name": None, "amount": 2}]


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


@pytest.mark.soak
def test_a_batch_that_failed_in_the_middle_is_done_by_the_same_function_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1))
    database.fields["url"] = {"type": "string", "optional": True, "default": "it's \\ \"x\""}
    committer = type(target.function.sink.committer())
    monkeypatch.setattr(committer, "_finish_filling", lambda *_: (_ for _ in ()).throw(ValueError("once")))
    batch = database.upsert(id=2, name="b", amount=1, url="u")
    with pytest.raises(ValueError, match="once"):
        target.merge(batch, number=1)
    monkeypatch.undo()
    target.merge(database.record("u", database.rows[2], database.lsn), number=1)
    assert [row["url"] for row in target.rows()] == ["it's \\ \"x\"", "u"]


@pytest.mark.soak
def test_keys_may_have_any_name_and_a_change_that_names_no_row_is_an_error(spark: Any, tmp_path: Path) -> None:
    database = Database()
    database.fields |= {name: {"type": "int32", "optional": True} for name in ("new", "gone", "old")}
    target = Target(spark, tmp_path / "orders", keyColumns="id,new,gone,old")
    keys = {"id": 1, "new": 2, "gone": 3, "old": 4}
    target.merge(database.record("c", {**keys, "name": "a"}, 200))
    target.merge(database.record("d", keys, 300), database.record("c", {**keys, "name": "b"}, 400))
    assert [row["name"] for row in target.rows()] == ["b"]
    with pytest.raises(Exception, match="REPLICA IDENTITY FULL"):
        target.merge(database.record("d", {"id": 1}, 500))


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
