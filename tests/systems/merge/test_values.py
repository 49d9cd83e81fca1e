"""Columns, types, keys and values of a change log that becomes a table."""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Misconfigured, StateError
from connectors.systems.delta.change_defaults import columns_of
from connectors.systems.delta.change_log import _declared_form
from connectors.systems.delta.change_target import ChangeTarget
from connectors.systems.delta.holes import may_have_holes
from tests.systems.change_logs import Database, changes, field_schemas
from tests.systems.merge.targets import Target, expected

DECIMAL = "org.apache.kafka.connect.data.Decimal"
ZONED = "io.debezium.time.ZonedTimestamp"
ENUM = "io.debezium.data.Enum"


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


@pytest.mark.parametrize("is_optional", [pytest.param(True, marks=pytest.mark.soak), False])
def test_older_rows_have_the_default_that_a_column_came_with_whatever_it_is_later(target: Target, is_optional: bool) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1))
    records = [database.upsert(id=2, name="a", amount=1)]
    for number, default in enumerate(({"default": 7}, {"default": 8}, {})):
        database.fields["extra"] = {"type": "int32", "optional": is_optional, **default}
        records.append(database.upsert(id=3 + number, name="a", amount=1, extra=number))
    target.merge(*records)
    assert [row["extra"] for row in target.rows()] == [7, 7, 0, 1, 2]


@pytest.mark.soak
def test_a_crash_before_the_default_is_filled_in_is_mended_by_the_next_start(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database()
    target.merge(database.upsert(id=1, name="a", amount=1))
    database.fields["extra"] = {"type": "int32", "optional": True, "default": 7}
    database.rows[1]["extra"] = 7

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ChangeTarget, "fill", crash)
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


@pytest.mark.soak
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
def test_an_unwrapped_form_that_hides_deletions_is_refused(spark: Any) -> None:
    """Debezium 3 makes a null value of a deletion by default, and ``__op`` is in no null value."""
    for value in ({"id": 1, "name": "x"}, {"id": 1, "name": "x", "__op": "c", "__source_lsn": 5}):
        with pytest.raises(Misconfigured, match=r"delete\.tombstone\.handling\.mode=rewrite"):
            changes(spark, {"topic": "t", "key": '{"id": 1}', "value": json.dumps(value)}, plain="id INT, name STRING")


@pytest.mark.soak
def test_a_record_without_key_needs_key_columns(target: Target, spark: Any, tmp_path: Path) -> None:
    record = {**Database().upsert(id=1, name="a", amount=1), "key": None}
    with pytest.raises(Misconfigured, match="keyColumns"):
        target.merge(record)
    named = Target(spark, tmp_path / "named", keyColumns="id")
    named.merge(record)
    assert len(named.rows()) == 1


@pytest.mark.soak
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


@pytest.mark.parametrize("default", ["it''s", 'a ""b""', "C:\\new", "N'abc'", "TRUE"])
def test_a_text_that_is_told_as_sql_has_it_fills_no_row(default: str) -> None:
    """Debezium decodes no default of MySQL and MariaDB; those of PostgreSQL come from its catalog."""
    field = {"field": "note", "type": "string", "optional": True, "default": default}
    (column,), (of_postgres,) = columns_of([field], is_postgres=False), columns_of([field], is_postgres=True)
    assert (column.default, column.needs_fill) == (None, True)
    assert (of_postgres.default, of_postgres.needs_fill) == (default, False)


@pytest.mark.parametrize("default", ["it's", "Nothing", "", None])
def test_a_text_that_means_one_thing_fills_rows(default: str | None) -> None:
    (column,) = columns_of([{"field": "note", "type": "string", "optional": True, "default": default}], is_postgres=False)
    assert (column.default, column.needs_fill) == (default, False)


NOT_TOLD: list[tuple[dict[str, Any], bool | None]] = [
    *(
        ({"type": kind, "name": f"io.debezium.{name}", "default": default}, is_postgres)
        for kind, name, default in (
            ("int32", "time.Date", 0),
            ("int64", "time.Timestamp", 0),
            ("int64", "time.MicroTimestamp", 0),
            ("string", "time.ZonedTimestamp", "1970-01-01T00:00:00.000000Z"),
            ("string", "time.IsoTimestamp", "1970-01-01T00:00:00Z"),
            ("string", "data.Uuid", "00000000-0000-0000-0000-000000000000"),
        )
        for is_postgres in (True, False)
    ),
    ({"type": "int32", "name": "io.debezium.time.Date", "default": 169560311}, True),  # infinity
    ({"type": "int64", "name": "io.debezium.time.MicroTimestamp", "default": -9223372036853775810}, True),
    ({"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}}, True),  # money
    ({"type": "string", "name": "io.debezium.time.ZonedTime"}, True),
    ({"type": "bytes"}, None),
    ({"type": "string", "default": "it''s"}, None),
    ({"type": "string", "default": "ab "}, False),
    ({"type": "string", "name": ENUM, "parameters": {"allowed": "A,B"}, "default": "a"}, False),
    ({"type": "string", "name": f"{ENUM}Set", "parameters": {"allowed": "a,b"}, "default": "b,a"}, False),
]


@pytest.mark.parametrize(("schema", "is_postgres"), NOT_TOLD, ids=str)
def test_a_value_that_the_log_does_not_tell_is_asked_for_of_a_column_that_may_be_null(
    spark: Any, schema: dict[str, Any], is_postgres: bool | None
) -> None:
    """Such as ``now()``, for which Debezium writes 1970."""
    (column,) = columns_of([{"field": "new", "optional": True, **schema}], is_postgres=is_postgres)
    assert (column.default, column.needs_fill) == (None, True)


@pytest.mark.parametrize(
    ("schema", "is_postgres"),
    [
        ({"type": "string", "name": ENUM, "parameters": {"allowed": "A,B"}, "default": "B"}, False),
        ({"type": "string", "name": f"{ENUM}Set", "parameters": {"allowed": "a,b,c"}, "default": "a,c"}, False),
        ({"type": "bytes", "name": "io.debezium.data.Bits", "default": "BQ=="}, None),
        ({"type": "bytes", "name": "io.debezium.data.Bits"}, True),
        ({"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2", "connect.decimal.precision": "9"}}, True),
    ],
    ids=str,
)
def test_a_default_that_the_log_tells_fills_rows(spark: Any, schema: dict[str, Any], is_postgres: bool | None) -> None:
    (column,) = columns_of([{"field": "new", "optional": True, **schema}], is_postgres=is_postgres)
    assert (column.default, column.needs_fill) == (schema.get("default"), False)


def test_an_unwrapped_form_without_a_place_in_a_log_may_be_of_postgresql(spark: Any) -> None:
    database = Database()
    database.fields |= {"data": {"type": "bytes", "optional": True}, "__deleted": {"type": "string", "optional": True}}
    for place, is_asked in (("__gtid", False), ("__lsn", True), ("__op", True)):
        fields = field_schemas({**database.fields, place: {"type": "string", "optional": True}})
        form = _declared_form(json.dumps({"type": "struct", "fields": fields}))
        assert {column.name: column.needs_fill for column in form.row}["data"] is is_asked, place


KEYS: list[tuple[str, dict[str, Any], Any, Any]] = [
    ("zoned", {"type": "string", "name": ZONED}, "2024-10-04T14:00:00+02:00", "2024-10-04T12:00:00Z"),
    ("real", {"type": "float"}, 0.1, 0.1),
    ("zero", {"type": "double"}, 0.0, -0.0),
    ("binary", {"type": "bytes"}, "AP8=", "AP8="),
]


@pytest.mark.soak
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


@pytest.mark.soak
def test_a_text_that_is_a_number_finds_the_row_with_that_number(spark: Any, tmp_path: Path) -> None:
    database = Database(schemas=False)
    first = Target(spark, tmp_path / "orders", schema="id BIGINT, name STRING")
    first.merge(database.record("c", {"id": 42, "name": "a"}, 200))
    target = Target(spark, tmp_path / "orders", schema="id STRING, name STRING")
    target.merge(database.record("u", {"id": "42", "name": "b"}, 300), number=1)
    assert target.rows() == [{"id": 42, "name": "b"}]


@pytest.mark.soak
def test_another_key_stops_the_query(target: Target) -> None:
    database = Database()
    first = database.upsert(id=1, name="a", amount=1)
    wide = {**database.upsert(id=1, name="b", amount=1), "key": json.dumps({"id": 1, "name": "b"})}
    with pytest.raises(Misconfigured, match=r"keys of \(id\) and \(id, name\)"):
        target.merge(first, wide, number=0)
    target.merge(first, number=0)
    with pytest.raises(StateError, match=r"\(id, name\) now, and was \(id\)"):
        target.merge(wide, number=1)


@pytest.mark.soak
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


@pytest.mark.soak
def test_columns_may_have_any_name_also_one_that_comes_later(spark: Any, tmp_path: Path) -> None:
    """Delta takes spaces and some other letters only where it maps names: in the table, its history and its deletions."""
    database, path = Database(), tmp_path / "orders"
    database.fields["order date"] = {"type": "string", "optional": False}
    target = Target(spark, path, history=True, keyColumns="id,order date")
    target.merge(*(database.record("c", {"id": key, "order date": "d", "name": "a", "amount": 1}, 200 + key) for key in (1, 2)))
    database.fields |= {name: {"type": "string", "optional": True, "default": "x"} for name in ("a.b", "{net; gross=1}")}
    row = {"name": "b", "amount": 2, "a.b": "n", "{net; gross=1}": "m"}
    deletion = database.record("d", {"id": 2, "order date": "d"}, 310)
    target.merge(database.record("u", {"id": 1, "order date": "d", **row}, 300), deletion)
    target.restart()
    late = database.record("u", {"id": 2, "order date": "d", **row}, 305)
    target.merge(late, database.record("c", {"id": 3, "order date": "d", **row}, 320))
    assert target.rows() == [{"id": key, "order date": "d", **row} for key in (1, 3)]
    history = spark.read.format("delta").load(f"{path}_history").orderBy("id", "valid_from").collect()
    assert [(line["id"], line["{net; gross=1}"], line["is_deleted"]) for line in history] == [
        (1, "x", False), (1, "m", False), (2, "x", False), (2, "m", False), (2, None, True), (3, "m", False),
    ]  # fmt: skip


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
