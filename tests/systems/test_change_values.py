"""Values of a change log as columns of Spark: no value is altered on its way, and what cannot be kept is an error."""

from __future__ import annotations

import base64
import datetime
import json
import re
from decimal import Decimal
from typing import Any

import pytest

from connectors.core import Misconfigured
from connectors.systems.delta.column_types import common_type, fitted
from connectors.systems.delta.fan_out import _columns, _types
from tests.systems.change_logs import Database, changes

DEBEZIUM = "io.debezium.time"
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
        "zoned": {"type": "string", "name": f"{DEBEZIUM}.ZonedTimestamp"},
        "micros": {"type": "int64", "name": f"{DEBEZIUM}.MicroTimestamp"},
        "millis": {"type": "int64", "name": f"{DEBEZIUM}.Timestamp"},
        "day": {"type": "int32", "name": f"{DEBEZIUM}.Date"},
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


def test_decimals_of_38_digits_keep_both_ends(spark: Any) -> None:
    database = Database()
    kind = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "optional": True}
    database.fields["wide"] = {**kind, "parameters": {"scale": "0", "connect.decimal.precision": "38"}}
    ends = [10**38 - 1, -(10**38) + 1, 0, -1]
    rows = [database.upsert(id=at, wide=free_decimal(number, 0)["value"]) for at, number in enumerate(ends)]
    assert [row["wide"] for row in changes(spark, *rows).frame.orderBy("id").collect()] == [Decimal(end) for end in ends]


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


def test_nanoseconds_keep_their_microseconds(spark: Any) -> None:
    database = Database()
    database.fields["at"] = {"type": "int64", "name": f"{DEBEZIUM}.NanoTimestamp", "optional": True}
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


def test_the_default_of_a_new_column_is_read_as_its_values_are(spark: Any) -> None:
    database = Database()
    old = database.upsert(id=1, name="a")
    decimal = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    fields: dict[str, Any] = {
        "price": {**decimal, "default": "BOI="},
        "day": {"type": "int32", "name": f"{DEBEZIUM}.Date", "default": 20000},
        "at": {"type": "int64", "name": f"{DEBEZIUM}.MicroTimestamp", "default": 1_700_000_000_123_456},
        "seen": {"type": "string", "name": f"{DEBEZIUM}.ZonedTimestamp", "default": "2024-10-04T14:00:00+02:00"},
        "raw": {"type": "bytes", "default": "AP8="},
        "tags": {"type": "array", "items": {"type": "string"}, "default": ["x", "y"]},
        "flag": {"type": "boolean", "default": False},
    }
    database.fields |= {name: {**field, "optional": True} for name, field in fields.items()}
    frame = changes(spark, old, database.upsert(id=2, name="b")).frame
    row = frame.where("id = 1").selectExpr("price", "day", "at", "seen", "raw", "tags", "flag").collect()[0]
    assert (row["price"], str(row["day"]), row["tags"], bytes(row["raw"]), row["flag"]) == (
        Decimal("12.50"), "2024-10-04", ["x", "y"], b"\x00\xff", False,
    )  # fmt: skip
    assert row["at"].timestamp() == 1_700_000_000.123456
    assert row["seen"].timestamp() == 1728043200.0


def test_a_new_column_without_null_and_default_is_not_guessed(spark: Any) -> None:
    """Django adds a column with a default and drops that at once."""
    database = Database()
    old = database.upsert(id=1, name="a")
    database.fields["extra"] = {"type": "int32", "optional": False}
    new = database.upsert(id=2, name="b", extra=7)
    with pytest.raises(Misconfigured, match=r"fill .*extra allows no null"):
        changes(spark, old, new)
    assert changes(spark, old, new, fills={"extra": 7}).frame.where("id = 1").collect()[0]["extra"] == 7
    assert changes(spark, old, new, fills={"extra": None}).frame.where("id = 1").collect()[0]["extra"] is None
    del database.fields["extra"]
    micros = {"type": "int64", "name": f"{DEBEZIUM}.MicroTimestamp", "optional": False}
    database.fields["at"] = {**micros, "default": 0}  # what Debezium writes for now()
    with pytest.raises(Misconfigured, match=r"fill .*at allows no null"):
        changes(spark, old, database.upsert(id=2, name="b", at=5))


def test_a_fan_out_alters_no_value_either(spark: Any) -> None:
    from pyspark.sql.types import DataType

    def amount(schema: str, row: dict[str, Any], target: str) -> Any:
        frame = spark.createDataFrame([("t", json.dumps(row), schema)], "table string, row string, schema string")
        types = {"amount": DataType.fromDDL(target)}
        return _columns(frame, "t", schema, _types(schema), types).collect()[0]["amount"]

    assert amount("amount DECIMAL(10,4)", {"amount": "1.5000"}, "decimal(10,2)") == Decimal("1.50")
    with pytest.raises(Exception, match=r"column t\.amount: the value .*1\.2345"):
        amount("amount DECIMAL(10,4)", {"amount": "1.2345"}, "decimal(10,2)")
    with pytest.raises(Exception, match=r"column t\.amount"):
        amount("amount DOUBLE", {"amount": 10.75}, "bigint")
