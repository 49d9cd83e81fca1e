"""Values of a change log as columns of Spark: no value is altered on its way, and what cannot be kept is an error."""

from __future__ import annotations

import base64
import datetime
import json
import re
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors import connect
from connectors.core import Misconfigured
from connectors.formats.text import json_objects
from connectors.systems.delta.column_types import common_type, fitted, united_types, widen
from connectors.systems.delta.fan_out import _columns, _types
from connectors.testing.servers import PostgresServer
from tests.connect.java_sources import DEBEZIUM, poll, rows_of, started
from tests.servers import required
from tests.systems.cdc.shop import Shop
from tests.systems.change_logs import Database, changes

TIME = "io.debezium.time"
LAST = datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, datetime.timezone.utc)
FIRST = datetime.datetime(1, 1, 1, tzinfo=datetime.timezone.utc)


def free_decimal(unscaled: int, scale: int) -> dict[str, Any]:
    """A ``numeric`` without precision, as Debezium writes it."""
    content = unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
    return {"scale": scale, "value": base64.b64encode(content).decode()}


def texts(frame: Any, *names: str) -> list[tuple[Any, ...]]:
    """The rows of ``frame`` as text, which also shows times that Python's own do not hold."""
    return [tuple(row) for row in frame.selectExpr(*(f"CAST({name} AS STRING)" for name in names)).collect()]


def test_infinity_is_the_first_or_last_time_that_there_is(spark: Any) -> None:
    database = Database()
    fields = {
        "zoned": {"type": "string", "name": f"{TIME}.ZonedTimestamp"},
        "micros": {"type": "int64", "name": f"{TIME}.MicroTimestamp"},
        "millis": {"type": "int64", "name": f"{TIME}.Timestamp"},
        "day": {"type": "int32", "name": f"{TIME}.Date"},
    }
    database.fields |= {name: {**field, "optional": True} for name, field in fields.items()}
    last, first = (9223372036825200000, -9223372036832400000)
    rows = [
        database.upsert(id=1, zoned="infinity", micros=last, millis=last // 1000, day=-2147472692),
        database.upsert(id=2, zoned="-infinity", micros=first, millis=first // 1000, day=-2147472691),
        database.upsert(id=3, zoned="2024-10-04T12:00:00.5Z", micros=1, millis=1, day=1),
        database.upsert(id=4),
    ]
    frame = changes(spark, *rows).frame.orderBy("id")
    session = "9999-12-31 23:59:59.999999", "0001-01-01 00:00:00"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert texts(frame, "zoned", "micros", "millis", "day") == [
        (session[0], session[0], session[0], "9999-12-31"),
        (session[1], session[1], session[1], "0001-01-01"),
        ("2024-10-04 12:00:00.5", "1970-01-01 00:00:00.000001", "1970-01-01 00:00:00.001", "1970-01-02"),
        (None, None, None, None),
    ]


@pytest.mark.soak
def test_a_numeric_without_precision_is_a_number_and_one_that_does_not_fit_is_an_error(spark: Any) -> None:
    database = Database()
    database.fields["free"] = {
        "type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "optional": True,
        "fields": [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}],
    }  # fmt: skip
    numbers = [(12345, 2), (-1, 18), (7, 0), (7, -3), (0, 0), (-(10**20) + 1, 0), (10**19 * 10**18, 18), (1000, 20)]
    rows = [database.upsert(id=at, free=free_decimal(*number)) for at, number in enumerate(numbers)]
    rows.append(database.upsert(id=99))
    found = [row["free"] for row in changes(spark, *rows).frame.orderBy("id").collect()]
    assert found == [*(Decimal(unscaled).scaleb(-scale) for unscaled, scale in numbers), None]
    for unscaled, scale in ((1, 19), (10**21, 0)):
        with pytest.raises(Exception, match=r"column free: .*decimal\.handling\.mode=string"):
            changes(spark, database.upsert(id=1, free=free_decimal(unscaled, scale))).frame.collect()


@pytest.mark.essential
@pytest.mark.environments("local", "connect")
def test_decimals_of_38_digits_keep_both_ends(environment: Any) -> None:
    spark, database = environment.spark, Database()
    kind = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "optional": True}
    database.fields["wide"] = {**kind, "parameters": {"scale": "0", "connect.decimal.precision": "38"}}
    ends = [10**38 - 1, -(10**38) + 1, 0, -1]
    rows = [database.upsert(id=at, wide=free_decimal(number, 0)["value"]) for at, number in enumerate(ends)]
    assert [row["wide"] for row in changes(spark, *rows).frame.orderBy("id").collect()] == [Decimal(end) for end in ends]


@pytest.mark.soak
def test_a_decimal_that_no_column_holds_is_an_error_that_names_it(spark: Any) -> None:
    database = Database()
    kind = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "optional": True}
    database.fields["wide"] = {**kind, "parameters": {"scale": "2", "connect.decimal.precision": "60"}}
    database.fields["odd"] = {**kind, "parameters": {"scale": "-2", "connect.decimal.precision": "3"}}
    number = database.upsert(id=1, wide="?")
    for record in (
        database.upsert(id=1, wide=free_decimal(10**50, 2)["value"]),
        {**number, "value": number["value"].replace('"?"', "1" * 50 + ".25")},
    ):
        with pytest.raises(Exception, match=r"column wide: .*decimal\.handling\.mode=string"):
            changes(spark, record).frame.select("wide").collect()
    assert changes(spark, database.upsert(id=1, odd=None)).columns["odd"].simpleString() == "decimal(5,0)"


ARRAYS = {
    "prices": ("numeric(10,2)[]", "ARRAY[1.5, NULL, -2]", "[1.50, null, -2.00]"),
    "frees": ("numeric[]", "ARRAY[1.25, 7]", "[1.250000000000000000, 7.000000000000000000]"),
    "days": ("date[]", "'{2020-02-29,infinity,-infinity}'::date[]", "[2020-02-29, 9999-12-31, 0001-01-01]"),
    "zoned": (
        "timestamptz[]",
        "'{2021-03-04 05:06:07.123456+02,infinity,-infinity}'::timestamptz[]",
        "[2021-03-04 03:06:07.123456, 9999-12-31 23:59:59.999999, 0001-01-01 00:00:00]",
    ),
    "times": ("timestamp[]", "ARRAY[timestamp '2021-03-04 05:06:07.123456']", "[2021-03-04 05:06:07.123456]"),
    "octets": ("bytea[]", "ARRAY['\\x4142'::bytea, NULL]", "[AB, null]"),
    "names": ("text[]", "ARRAY['a', NULL]", "[a, null]"),
    "numbers": ("int[]", "ARRAY[1, NULL]", "[1, null]"),
}
"""By column: its type in PostgreSQL, a value, and that value in Spark as text."""


@pytest.mark.soak
@pytest.mark.server
def test_the_elements_of_arrays_are_values_of_their_types(spark: Any, tmp_path: Path) -> None:
    shop = Shop(required(PostgresServer), tmp_path)
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in ARRAYS.items())
    shop.sql(
        f"CREATE TABLE arrays (id int PRIMARY KEY, {columns})",
        f"INSERT INTO arrays VALUES (1, {', '.join(value for _, value, _ in ARRAYS.values())})",
    )
    with started(shop.config(table__include__list="public.arrays"), DEBEZIUM) as host:
        (row,) = rows_of(poll(host, 1))
    shop.drop()
    record = {"topic": row["topic"], "key": row["key"].decode(), "value": row["value"].decode()}
    assert texts(changes(spark, record).frame, *ARRAYS) == [tuple(text for _, _, text in ARRAYS.values())]


def test_nanoseconds_keep_their_microseconds(spark: Any) -> None:
    database = Database()
    database.fields["at"] = {"type": "int64", "name": f"{TIME}.NanoTimestamp", "optional": True}
    micros = [1_700_000_000_123_400 + number for number in range(0, 200, 8)] + [-1]
    rows = [database.upsert(id=at, at=1000 * number + (at % 3)) for at, number in enumerate(micros)]
    frame = changes(spark, *rows).frame.orderBy("id").selectExpr("unix_micros(at) AS at")
    assert [row["at"] for row in frame.collect()] == micros


TYPES = [
    ("int", "decimal(10,2)", "decimal(12,2)"), ("int", "double", "double"), ("int", "bigint", "bigint"),
    ("decimal(10,2)", "decimal(10,4)", "decimal(12,4)"), ("bigint", "decimal(5,1)", "decimal(20,1)"),
    ("float", "double", "double"), ("double", "int", "double"), ("bigint", "double", None), ("string", "int", None),
    ("decimal(38,0)", "decimal(38,2)", None), ("timestamp", "timestamp", "timestamp"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "both"), TYPES)
def test_the_common_type_holds_all_values_of_both(one: str, other: str, both: str | None) -> None:
    from pyspark.sql.types import DataType

    kinds = [DataType.fromDDL(text) for text in (one, other)]
    common = common_type(*kinds)
    assert (common and common.simpleString()) == both
    assert common_type(*reversed(kinds)) == common


def test_a_column_of_integers_becomes_a_decimal_that_delta_gives_it(spark: Any, tmp_path: Path) -> None:
    """Delta asks for more digits than the values have: else no batch with the new type would ever be merged."""
    from pyspark.sql.types import DataType

    integers, decimals = ("tinyint", "smallint", "int", "bigint"), ("decimal(4,0)", "decimal(12,2)", "decimal(38,18)")
    known = {f"{one}_{number}": DataType.fromDDL(one) for one in integers for number, _ in enumerate(decimals)}
    declared = {f"{one}_{number}": DataType.fromDDL(kind) for one in integers for number, kind in enumerate(decimals)}
    types = united_types([declared], known)
    table = f"delta.`{tmp_path}/widened`"
    columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
    spark.sql(f"CREATE TABLE {table} ({columns}) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    widen(spark, table, known, types)
    assert [field.dataType.simpleString() for field in spark.table(table).schema] == [
        "decimal(10,0)", "decimal(12,2)", "decimal(38,18)", "decimal(10,0)", "decimal(12,2)", "decimal(38,18)",
        "decimal(10,0)", "decimal(12,2)", "decimal(38,18)", "decimal(20,0)", "decimal(22,2)", "decimal(38,18)",
    ]  # fmt: skip
    (large,) = united_types([{"big": DataType.fromDDL("decimal(38,19)")}], {"big": DataType.fromDDL("bigint")}).values()
    assert large.simpleString() == "bigint", "no decimal has room for both, so values must fit"


FITS = [("10.0D", "bigint", "10"), ("10.75D", "bigint", None), ("300", "tinyint", None), ("'42'", "bigint", "42"),
        ("'042'", "bigint", None), ("12.50BD", "decimal(5,1)", "12.5"), ("12.55BD", "decimal(5,1)", None),
        ("9007199254740993L", "double", None), ("CAST(NULL AS DOUBLE)", "bigint", None)]  # fmt: skip


def test_a_value_that_would_be_altered_is_an_error_that_names_the_column(spark: Any) -> None:
    from pyspark.sql.types import DataType

    for text, target, expected in FITS:
        frame = spark.range(1).selectExpr(f"{text} AS value")
        column = fitted(frame["value"], frame.schema["value"].dataType, DataType.fromDDL(target), "price")
        if expected is None and "NULL" not in text:
            with pytest.raises(Exception, match=re.escape(f"fit the column's type {target}")):
                frame.select(column.alias("value")).collect()
        else:
            assert texts(frame.select(column.alias("value")), "value") == [(expected,)], text


def test_a_column_becomes_wider_for_all_rows_of_a_batch_and_the_table(spark: Any) -> None:
    database = Database()
    database.fields["amount"] = {"type": "int32", "optional": True}
    old = database.upsert(id=1, amount=7)
    database.fields["amount"] = {"type": "double", "optional": True}
    found = changes(spark, old, database.upsert(id=2, amount=10.75), amount="int")
    assert found.columns["amount"].simpleString() == "double"
    assert [row["amount"] for row in found.frame.orderBy("id").collect()] == [7.0, 10.75]
    with pytest.raises(Exception, match=r"column amount: the value .*10\.75"):
        changes(spark, database.upsert(id=2, amount=10.75), amount="bigint").frame.collect()


@pytest.mark.soak
def test_plain_json_needs_the_columns_and_what_does_not_fit_them_is_an_error(spark: Any) -> None:
    database = Database(schemas=False)
    with pytest.raises(Misconfigured, match=r"schema .*the values carry no schema"):
        changes(spark, database.upsert(id=1, amount=10.75))
    with pytest.raises(Exception, match=r"10\.75"):
        changes(spark, database.upsert(id=1, amount=10.75), plain="id INT, amount BIGINT").frame.collect()
    found = changes(spark, database.upsert(id=1, amount=10.75), plain="id INT, amount DECIMAL(10,2)").frame.collect()
    assert found[0]["amount"] == Decimal("10.75")
    with pytest.raises(Exception, match="column amount"):
        changes(spark, database.upsert(id=1, amount=10.756), plain="id INT, amount DECIMAL(10,2)").frame.collect()


@pytest.mark.soak
def test_elements_of_arrays_in_plain_json_are_not_altered_either(spark: Any) -> None:
    database = Database(schemas=False)
    good = database.upsert(id=1, prices=[1.5, None], times=[["2024-10-04T12:00:00.5Z"]], names=["a", None])
    columns = "id INT, prices ARRAY<DECIMAL(10,2)>, times ARRAY<ARRAY<TIMESTAMP>>, names ARRAY<STRING>"
    found = texts(changes(spark, good, plain=columns).frame, "prices", "times", "names")
    assert found == [("[1.50, null]", "[[2024-10-04 12:00:00.5]]", "[a, null]")]
    for row in ({"prices": [1.239]}, {"times": [[1728043200000000]]}):
        with pytest.raises(Exception, match=r"column (prices: 1\.239 does not fit|times: \d+ is no text)"):
            changes(spark, database.upsert(id=3, **row), plain=columns).frame.collect()


NUMBERS = ["12345678901234567890", "1.10", "-0", "0E-10", "12345678901234567.89", "1.5e3", "-1.0E-400"]


def test_a_number_in_plain_json_that_becomes_a_text_keeps_its_own(spark: Any) -> None:
    """Spark's own reading has ``1.2345678901234567E19`` of the first one. Digits inside of texts are no numbers."""
    tricky = 'a "5", [6, -7.10] \\ "8" \\'
    others = {"t": tricky, "more": ["1.10", tricky, None, True], "inner": {"s": "x", "m": {"9": "9"}}, "none": None}
    columns = "id INT, t STRING, more ARRAY<STRING>, inner STRUCT<s: STRING, m: MAP<STRING, STRING>>, none STRING, v STRING"
    database = Database(schemas=False)
    rows = [database.upsert(id=at, **others, v="?") for at in range(len(NUMBERS))]
    rows = [{**row, "value": row["value"].replace('"?"', number)} for row, number in zip(rows, NUMBERS, strict=True)]
    numbers = {"more": [1.1, 5], "inner": {"s": 17, "m": {"a": 0.1}}, "v": {"b": 1.5, "a": [1, "1.10"]}}
    nested = database.upsert(id=90, **others | numbers)
    found = changes(spark, *rows, nested, plain=columns).frame.orderBy("id").collect()
    assert [row["v"] for row in found] == [*NUMBERS, '{"b":1.5,"a":[1,"1.10"]}']
    assert found[0]["t"] == tricky
    assert found[0]["more"] == ["1.10", tricky, None, "true"]
    assert (found[0]["inner"].asDict(recursive=True), found[0]["none"]) == (others["inner"], None)
    assert (found[-1]["more"], found[-1]["inner"].asDict(recursive=True)) == (["1.1", "5"], {"s": "17", "m": {"a": "0.1"}})
    altered = {**nested, "value": nested["value"].replace("1.5", "1.50")}
    with pytest.raises(Exception, match=r'column v: Spark would round a number of \{"b":1\.5'):
        changes(spark, altered, plain=columns).frame.collect()


def test_plain_json_whose_texts_could_not_be_kept_is_an_error(spark: Any) -> None:
    """Spark reads the first value of the record, and texts in single quotes, as it likes."""
    database = Database(schemas=False)
    good, other = database.upsert(id=1, v="a 5"), database.upsert(id=2, v="b 6")
    for text in (other["value"] + " {}", other["value"].replace('"b 6"', "'b 6'")):
        with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
            changes(spark, good, {**other, "value": text}, plain="id INT, v STRING").frame.collect()


def test_a_long_text_in_plain_json_is_read(spark: Any) -> None:
    value = {"id": 1, "t": '\\"-5' * 50_000, "more": ["x", "-"] * 50_000, "v": 1}
    record = Database(schemas=False).upsert(**value)
    row = changes(spark, record, plain="id INT, t STRING, more ARRAY<STRING>, v STRING").frame.collect()[0]
    assert (row["t"], row["more"], row["v"]) == (value["t"], value["more"], "1")


FITTING = ["12345678901234567890.12", "1.10", "0E-10", "1.2E+3", "-1.2000E-1", "0", "7.000", f"{'9' * 36}.5"]
UNFIT = ["1.239", "1E-3", "0.1234567890123456789012345678901234567890123456789", "1E40"]
NESTED = "id INT, d {0}, s STRUCT<x: {0}, y: BIGINT>, a ARRAY<STRUCT<x: {0}>>, m MAP<STRING, {0}>".format("DECIMAL(38,2)")


def decimals_of(spark: Any, numbers: list[str], columns: str = NESTED, **row: Any) -> list[Any]:
    database = Database(schemas=False)
    values = row or {"d": "?", "s": {"x": "?", "y": 1}, "a": [{"x": "?"}, None], "m": {"k": "?", "n": None}}
    records = [database.upsert(id=at, **values) for at in range(len(numbers))]
    records = [{**record, "value": record["value"].replace('"?"', text)} for record, text in zip(records, numbers, strict=True)]
    return list(changes(spark, *records, plain=columns).frame.orderBy("id").collect())


def test_decimals_of_plain_json_are_exact_at_any_depth(spark: Any) -> None:
    rows = decimals_of(spark, [*FITTING, "null", '"1.10"'])
    numbers = [*(Decimal(text).quantize(Decimal("1.00"), context=Context(prec=60)) for text in FITTING), None, Decimal("1.10")]
    for row, number in zip(rows, numbers, strict=True):
        assert (row["d"], row["s"]["x"], row["s"]["y"], row["a"][0]["x"], row["a"][1]) == (number, number, 1, number, None)
        assert row["m"] == {"k": number, "n": None}


@pytest.mark.soak
def test_a_decimal_of_plain_json_that_would_be_rounded_is_an_error_that_names_the_column(spark: Any) -> None:
    nested: dict[str, Any] = {"s.x": {"x": "?"}, "a.x": [{"x": "?"}], "m": {"k": "?"}}
    for name, value, number in [*(("d", "?", number) for number in UNFIT), *((*place, "1.239") for place in nested.items())]:
        with pytest.raises(Exception, match=re.escape(f"column {name}: {number} does not fit decimal(38,2)")):
            decimals_of(spark, [number], **{name.partition(".")[0]: value})


def test_columns_of_the_table_that_begin_like_debeziums_own_are_kept(spark: Any) -> None:
    value = {"id": 1, "__ver": 3, "__op": "c", "__deleted": "false", "__source_sequence": '["1","2"]'}
    fields = [{"field": "id", "type": "int32"}, {"field": "__ver", "type": "int32"}] + [
        {"field": name, "type": "string"} for name in ("__op", "__deleted", "__source_sequence")
    ]
    declared = {"schema": {"type": "struct", "fields": fields}, "payload": value}
    record = {"topic": "t", "key": '{"id": 1}', "value": json.dumps(declared)}
    found = changes(spark, record)
    assert list(found.columns) == ["id", "__ver"]
    assert found.order == "sequence"
    assert found.frame.select("__ver").collect()[0][0] == 3


@pytest.mark.soak
def test_the_default_of_a_new_column_is_read_as_its_values_are(spark: Any) -> None:
    database = Database()
    old = database.upsert(id=1, name="a")
    decimal = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    fields: dict[str, Any] = {
        "price": {**decimal, "default": "BOI="},
        "day": {"type": "int32", "name": f"{TIME}.Date", "default": 20000},
        "at": {"type": "int64", "name": f"{TIME}.MicroTimestamp", "default": 1_700_000_000_123_456},
        "seen": {"type": "string", "name": f"{TIME}.ZonedTimestamp", "default": "2024-10-04T14:00:00+02:00"},
        "raw": {"type": "bytes", "default": "AP8="},
        "tags": {"type": "array", "items": {"type": "string"}, "default": ["x", "y"]},
        "must": {"type": "array", "items": {"type": "string"}, "default": []},
        "flag": {"type": "boolean", "default": False},
    }
    database.fields |= {name: {**field, "optional": name != "must"} for name, field in fields.items()}
    frame = changes(spark, old, database.upsert(id=2, name="b", must=["z"])).frame
    row = frame.where("id = 1").selectExpr("price", "day", "at", "seen", "raw", "tags", "must", "flag").collect()[0]
    assert (row["price"], str(row["day"]), row["tags"], row["must"], bytes(row["raw"]), row["flag"]) == (
        Decimal("12.50"), "2024-10-04", ["x", "y"], [], b"\x00\xff", False,
    )  # fmt: skip
    assert row["at"].timestamp() == 1_700_000_000.123456
    assert row["seen"].timestamp() == 1728043200.0


def test_a_new_column_without_null_and_default_is_not_guessed(spark: Any) -> None:
    """Django adds a column with a default and drops that at once."""
    database = Database()
    old = database.upsert(id=1, name="a")
    database.fields["extra"] = {"type": "int32", "optional": False}
    new = database.upsert(id=2, name="b", extra=7)
    with pytest.raises(Misconfigured, match=r"fill .*new column extra: its default"):
        changes(spark, old, new)
    assert changes(spark, old, new, fills={"extra": 7}).frame.where("id = 1").collect()[0]["extra"] == 7
    assert changes(spark, old, new, fills={"extra": None}).frame.where("id = 1").collect()[0]["extra"] is None
    del database.fields["extra"]
    micros = {"type": "int64", "name": f"{TIME}.MicroTimestamp", "optional": False}
    database.fields["at"] = {**micros, "default": 0}  # what Debezium writes for now()
    with pytest.raises(Misconfigured, match=r"fill .*new column at: its default"):
        changes(spark, old, database.upsert(id=2, name="b", at=5))


FILLS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "octets": ({"type": "bytes"}, "QUI=", "AB"),
    "names": ({"type": "array", "items": {"type": "string"}}, ["a", None], "[a, null]"),
    "free": (
        {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": []}, 1.25, "1.250000000000000000",
    ),
}  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("name", FILLS)
def test_a_default_that_postgresql_does_not_tell_is_asked_for(spark: Any, name: str) -> None:
    field, value, text = FILLS[name]
    database = Database()
    old = database.upsert(id=1, name="a")
    database.fields["extra"] = {**field, "optional": True}
    new = database.upsert(id=2, name="b")
    with pytest.raises(Misconfigured, match=r"fill .*new column extra: its default"):
        changes(spark, old, new)
    assert texts(changes(spark, old, new, fills={"extra": value}).frame.where("id = 1"), "extra") == [(text,)]
    assert texts(changes(spark, old, new, fills={"*": None}).frame.where("id = 1"), "extra") == [(None,)]
    with pytest.raises(Misconfigured, match=r'fill .*"\*" stands for columns of any type'):
        connect.merge("/a", fill={"*": 1})


@pytest.mark.soak
def test_times_and_numbers_are_filled_in_as_spark_writes_them(spark: Any) -> None:
    database = Database()
    old = database.upsert(id=1, name="a")
    decimal = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    times = {"at": "MicroTimestamp", "day": "Date"}
    database.fields |= {name: {"type": "int64", "name": f"{TIME}.{kind}"} for name, kind in times.items()} | {"price": decimal}
    new = database.upsert(id=2, name="b", at=1, day=1, price="AQ==")
    fills = {"at": "2024-10-04 12:00:00.5", "day": "2024-10-04", "price": 12.5}
    frame = changes(spark, old, new, fills=fills).frame.where("id = 1")
    assert texts(frame, "at", "day", "price") == [("2024-10-04 12:00:00.5", "2024-10-04", "12.50")]


@pytest.mark.soak
def test_a_fan_out_alters_no_value_either(spark: Any) -> None:
    from pyspark.sql.types import DataType

    def amount(schema: str, value: Any, kind: pa.DataType, target: str) -> Any:
        (row,) = json_objects(pa.record_batch({"amount": pa.array([value], kind)})).to_pylist()
        frame = spark.createDataFrame([("t", row, schema)], "table string, row string, schema string")
        types = {"amount": DataType.fromDDL(target)}
        return _columns(frame, "t", schema, _types(schema), types).collect()[0]["amount"]

    small = pa.decimal128(10, 4)
    assert amount("amount DECIMAL(10,4)", Decimal("1.5000"), small, "decimal(10,2)") == Decimal("1.50")
    with pytest.raises(Exception, match=r"column t\.amount: the value .*1\.2345"):
        amount("amount DECIMAL(10,4)", Decimal("1.2345"), small, "decimal(10,2)")
    with pytest.raises(Exception, match=r"column t\.amount"):
        amount("amount DOUBLE", 10.75, pa.float64(), "bigint")
    for digits in ("12345678901234567890.123456789012345678", "-0.000000000000000001", "0"):
        assert amount("amount DECIMAL(38,18)", Decimal(digits), pa.decimal128(38, 18), "decimal(38,18)") == Decimal(digits)
    wide = Decimal("12345678901234567890.1234")
    large = pa.decimal128(38, 4)
    forms: dict[str, tuple[Any, Any, pa.DataType]] = {
        "MAP<STRING, {}>": ("a", [("a", wide)], pa.map_(pa.string(), large)),
        "STRUCT<a: {}>": ("a", {"a": wide}, pa.struct([("a", large)])),
        "ARRAY<{}>": (0, [wide], pa.list_(large)),
    }
    for form, (at, value, kind) in forms.items():
        kinds = [form.format(f"DECIMAL(38,{scale})") for scale in (4, 6, 2)]
        assert amount(f"amount {kinds[0]}", value, kind, kinds[1])[at] == wide
        with pytest.raises(Exception, match=r"column t\.amount: the value .*1234"):
            amount(f"amount {kinds[0]}", value, kind, kinds[2])


@pytest.mark.soak
def test_a_time_in_json_without_a_schema_is_text(spark: Any) -> None:
    columns = "id INT, at TIMESTAMP, day DATE"
    database = Database(schemas=False)
    good = [database.upsert(id=1, at="2024-10-04T12:00:00.5Z", day="2024-10-04"), database.upsert(id=2, at=None)]
    found = changes(spark, *good, plain=columns).frame.orderBy("id")
    assert texts(found, "at", "day") == [("2024-10-04 12:00:00.5", "2024-10-04"), (None, None)]
    for row in ({"at": 1728043200000000}, {"day": 20000}):
        with pytest.raises(Exception, match=r"column (at|day): \d+ is no text.*time\.precision\.mode"):
            changes(spark, database.upsert(id=3, **row), plain=columns).frame.collect()
