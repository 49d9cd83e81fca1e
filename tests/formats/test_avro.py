"""Avro: schemas given and derived, how they may change, and what Spark makes of them."""

from __future__ import annotations

import io
import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from connectors.core import Misconfigured
from connectors.formats import AvroFormat, FormatSettings
from connectors.formats.avro import AvroReader, AvroSchema


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields], **more}


def body(schema: Any, row: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def read(writer: Any, row: Any, kind: pa.DataType | None = None, reader: Any = None) -> Any:
    schema = AvroSchema(json.dumps(writer))
    decoder = AvroReader(schema, kind or schema.type, AvroSchema(json.dumps(reader)) if reader else None)
    decoded = decoder.decode(pa.array([body(writer, row)] * 2, pa.binary()))
    decoded.values.validate(full=True)
    assert list(decoded.bad) == []
    assert decoded.values[0].as_py() == decoded.values[1].as_py()
    return decoded.values[0].as_py()


LOGICAL = [
    ({"type": "int", "logicalType": "date"}, 19_000, pa.date32()),
    ({"type": "long", "logicalType": "timestamp-millis"}, -1, pa.timestamp("us", "UTC")),
    ({"type": "long", "logicalType": "timestamp-micros"}, 5, pa.timestamp("us", "UTC")),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, 5, pa.timestamp("us")),
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-1.28"), pa.decimal128(9, 2)),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
        Decimal(-(10**37)),
        pa.decimal128(38, 0),
    ),
    (
        {"type": "fixed", "name": "F", "size": 20, "logicalType": "decimal", "precision": 9, "scale": 2},
        Decimal(1),
        None,
    ),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string()),
    ({"type": "fixed", "name": "G", "size": 3}, b"abc", pa.binary()),
    ({"type": "array", "items": {"type": "map", "values": ["null", "float"]}}, [{"a": 0.5, "b": None}, {}], None),
]


@pytest.mark.parametrize(("schema", "value", "kind"), LOGICAL, ids=str)
def test_every_type_is_read_as_fastavro_reads_it(schema: Any, value: Any, kind: pa.DataType | None) -> None:
    writer = record(("x", schema), ("after", "string"))
    if kind is not None:
        assert AvroSchema(json.dumps(writer)).type.field("x").type == kind
    raw = body(writer, {"x": value, "after": "!"})
    expected = fastavro.schemaless_reader(io.BytesIO(raw), fastavro.parse_schema(writer))
    got = read(writer, {"x": value, "after": "!"})
    assert got["after"] == "!"
    if schema["type"] == "array":
        assert [dict(item) for item in got["x"]] == expected["x"]
    else:
        assert got["x"] == expected["x"]


def test_a_union_of_several_types_has_members_as_spark_has_them() -> None:
    writer = record(("x", ["null", "long", "string"]))
    for value, expected in ((7, (7, None)), ("t", (None, "t"))):
        assert read(writer, {"x": value})["x"] == dict(zip(("member0", "member1"), expected, strict=True))
    assert read(writer, {"x": None})["x"] is None
    assert read(record(("x", ["int", "null", "long"])), {"x": 2**40})["x"] == 2**40
    codec = AvroFormat(AvroSchema(json.dumps(writer)).type, FormatSettings(avro_schema=json.dumps(writer)))
    rows = pa.array(
        [{"x": {"member0": 1, "member1": None}}, {"x": {"member0": None, "member1": "é"}}, {"x": None}], codec.kind
    )
    assert codec.decode(codec.encode(rows)).values.equals(rows)


WIDER = [("int", 7, pa.int64()), ("int", 7, pa.float64()), ("long", 7, pa.float32()), ("float", 0.5, pa.float64())]


@pytest.mark.parametrize(("kind", "value", "target"), WIDER, ids=str)
def test_a_number_is_read_as_a_wider_one(kind: str, value: Any, target: pa.DataType) -> None:
    assert read(record(("x", kind)), {"x": value}, pa.struct([("x", target)])) == {"x": value}


NARROWER = [("long", pa.int32()), ("double", pa.float32()), ("string", pa.int64()), ("long", pa.timestamp("us"))]


@pytest.mark.parametrize(("kind", "target"), NARROWER, ids=str)
def test_what_may_not_fit_is_refused(kind: str, target: pa.DataType) -> None:
    with pytest.raises(ValueError, match=f"x was written as {kind} and cannot be read as"):
        AvroReader(AvroSchema(json.dumps(record(("x", kind)))), pa.struct([("x", target)]))


def test_a_decimal_may_have_more_digits_before_the_point_and_not_after_it() -> None:
    writer = record(("x", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}))
    assert read(writer, {"x": Decimal("1.25")}, pa.struct([("x", pa.decimal128(20, 2))])) == {"x": Decimal("1.25")}
    with pytest.raises(ValueError, match="cannot be read as decimal"):
        AvroReader(AvroSchema(json.dumps(writer)), pa.struct([("x", pa.decimal128(20, 3))]))


def test_a_field_that_was_dropped_is_null_or_the_readers_default() -> None:
    writer, row = (
        record(("a", "long"), ("gone", {"type": "array", "items": "string"}), ("z", "string")),
        {"a": 1, "gone": ["x"], "z": "e"},
    )
    kind = pa.struct([("z", pa.string()), ("new", pa.int64()), ("b", pa.binary()), ("a", pa.int64())])
    assert read(writer, row, kind) == {"z": "e", "new": None, "b": None, "a": 1}
    reader = record(("a", "long"))
    reader["fields"] += [
        {"name": "new", "type": "long", "default": 7},
        {"name": "b", "type": "bytes", "default": "\u00ff"},
    ]
    assert read(writer, row, kind, reader) == {"z": "e", "new": 7, "b": b"\xff", "a": 1}


def test_a_field_is_found_by_its_earlier_name() -> None:
    reader = record(("town", ["null", "string"]), ("id", "int"))
    reader["fields"][0] |= {"default": None, "aliases": ["place", "city"]}
    kind = AvroSchema(json.dumps(reader)).type
    assert read(record(("city", "string"), ("id", "int")), {"city": "Bern", "id": 1}, kind, reader) == {"town": "Bern", "id": 1}
    both = record(("town", "string"), ("city", "string"), ("id", "int"))
    assert read(both, {"town": "Bern", "city": "CH", "id": 1}, kind, reader) == {"town": "Bern", "id": 1}


def test_bytes_after_the_last_field_are_an_error() -> None:
    schema = AvroSchema(json.dumps(record(("x", "long"))))
    decoded = AvroReader(schema, schema.type).decode(pa.array([b"\x02", b"\x02\x02", b"", b"\x80"], pa.binary()))
    assert decoded.values.to_pylist() == [{"x": 1}, None, None, None]
    assert [failure.error for failure in decoded.bad] == [
        "has more bytes than its schema",
        "ends within x",
        "ends within x",
    ]


def test_two_records_that_lend_each_other_bytes_are_both_bad() -> None:
    schema = AvroSchema(json.dumps(record(("s", "string"))))
    decoded = AvroReader(schema, schema.type).decode(pa.array([b"\x08ab", b"cd\x02x"], pa.binary()))
    assert [failure.index for failure in decoded.bad] == [0, 1]


WRONG = {
    "no JSON": ("{", "not an Avro schema"),
    "no schema": ('{"type": "nothing"}', "not an Avro schema"),
    "recursive": (json.dumps(record(("next", ["null", "R"]))), "contains itself"),
}


@pytest.mark.parametrize(("text", "why"), WRONG.values(), ids=WRONG)
def test_a_schema_that_is_none_is_said_with_its_option(text: str, why: str) -> None:
    with pytest.raises(Misconfigured, match=rf"value\.avroSchema.*{why}"):
        AvroFormat(pa.struct([("x", pa.int64())]), FormatSettings(avro_schema=text))


@pytest.mark.parametrize("raw", [b"\x04\x27\x10", b"\x22\x01" + b"\0" * 16, b"\xa0\x1f" + b"\xff" * 2000])
def test_a_decimal_with_more_digits_than_its_type_is_bad(raw: bytes) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    schema = AvroSchema(json.dumps(record(("x", kind))))
    decoded = AvroReader(schema, schema.type).decode(pa.array([b"\x04\x27\x0f", raw], pa.binary()))
    assert decoded.values.to_pylist() == [{"x": Decimal("99.99")}, None]
    assert "more digits" in decoded.bad[0].error


def test_a_list_of_values_without_bytes_is_refused() -> None:
    schema = AvroSchema(json.dumps(record(("x", {"type": "array", "items": "null"}))))
    with pytest.raises(ValueError, match="has no bounds"):
        AvroReader(schema, schema.type)


def test_blocks_that_tell_their_size_are_read() -> None:
    schema = AvroSchema(json.dumps(record(("x", {"type": "array", "items": "long"}))))
    reader = AvroReader(schema, schema.type)
    decoded = reader.decode(
        pa.array([b"\x03\x04\x02\x04\x02\x06\x00", b"\x00", b"\x03\xfe\x7f\x02\x04\x00"], pa.binary())
    )
    assert decoded.values.to_pylist() == [{"x": [1, 2, 3]}, {"x": []}, None]


def test_null_is_the_second_branch_of_what_is_derived_as_it_is_in_sparks_to_avro() -> None:
    kind = pa.struct([("a", pa.int64()), ("s", pa.string()), ("n", pa.int32())])
    decoded = AvroFormat(kind).decode(pa.array([b"\x00\x02\x00\x02x\x02"], pa.binary()))
    assert decoded.values.to_pylist() == [{"a": 1, "s": "x", "n": None}]


def written(schema: Any, kind: pa.DataType, row: Any) -> Any:
    """``row`` as ``schema`` has it, read by fastavro."""
    (raw,) = AvroFormat(kind, FormatSettings(avro_schema=json.dumps(schema))).encode(pa.array([row], kind)).to_pylist()
    return fastavro.schemaless_reader(io.BytesIO(raw), fastavro.parse_schema(schema))


def test_null_is_written_as_null_and_never_as_the_default() -> None:
    schema = record()
    schema["fields"] = [
        {"name": "n", "type": ["int", "null"], "default": 5},
        {"name": "m", "type": "boolean", "default": True},
    ]
    kind = pa.struct([("n", pa.int32()), ("m", pa.bool_())])
    assert written(schema, kind, {"n": None, "m": False}) == {"n": None, "m": False}
    with pytest.raises(ValueError, match="m is null, which its Avro schema does not take"):
        written(schema, kind, {"n": 1, "m": None})


def test_a_field_without_a_column_is_written_with_its_default_or_as_null() -> None:
    inner = {**record(("a", "int"), ("b", "int")), "name": "I"}
    inner["fields"][1]["default"] = 2
    schema = record(("id", "long"), ("maybe", ["int", "null"]), ("raw", "bytes"), ("n", "int"), ("inner", inner))
    for field, default in zip(schema["fields"][2:], ("\u00ff", 7, {"a": 1}), strict=True):
        field["default"] = default
    row = written(schema, pa.struct([("id", pa.int64())]), {"id": 1})
    assert row == {"id": 1, "maybe": None, "raw": b"\xff", "n": 7, "inner": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    ("column", "place"), [(("mayb", pa.int32()), "mayb"), (("l", pa.list_(pa.struct([("b", pa.int32())]))), "l.b")], ids=str
)
def test_a_column_that_the_schema_lacks_is_refused_and_not_left_out(column: tuple[str, pa.DataType], place: str) -> None:
    item = {**record(("a", ["null", "int"])), "name": "I"}
    schema = record(("id", "long"), ("maybe", ["null", "int"]), ("l", ["null", {"type": "array", "items": item}]))
    codec = AvroFormat(pa.struct([("id", pa.int64()), column]), FormatSettings(avro_schema=json.dumps(schema)))
    with pytest.raises(ValueError, match=f"^{place} is no field of the Avro schema"):
        codec.check_encode()


def test_a_column_is_written_as_the_branch_that_takes_its_type() -> None:
    schema = record(("x", [{"type": "long", "logicalType": "timestamp-millis"}, "string", "null"]))
    assert written(schema, pa.struct([("x", pa.string())]), {"x": "t"}) == {"x": "t"}


MILLIS, NANOS = ({"type": "long", "logicalType": f"timestamp-{part}"} for part in ("millis", "nanos"))
AT = datetime(2024, 1, 31, 12, 0, 0, 123456, timezone.utc)
EXACT: list[tuple[Any, pa.DataType, Any, Any]] = [
    (MILLIS, pa.int64(), 1_700_000_000_123, datetime.fromtimestamp(1_700_000_000, timezone.utc).replace(microsecond=123000)),
    (NANOS, pa.timestamp("us", "UTC"), AT, int(AT.timestamp()) * 10**9 + 123_456_000),
    (["int", "long"], pa.int64(), 2**40, 2**40),
    (["double", "long"], pa.int64(), 2**53 + 1, 2**53 + 1),
    (["float", "double"], pa.float64(), 0.1, 0.1),
    ("double", pa.int64(), 2**53, 2.0**53),
]


@pytest.mark.parametrize(("kind", "column", "value", "expected"), EXACT, ids=str)
def test_a_number_is_written_as_it_is(kind: Any, column: pa.DataType, value: Any, expected: Any) -> None:
    assert written(record(("x", kind)), pa.struct([("x", column)]), {"x": value}) == {"x": expected}


ALTERED: list[tuple[Any, pa.DataType, Any]] = [
    ("int", pa.int64(), 2**31),
    ("int", pa.float64(), 1.5),
    ("long", pa.decimal128(5, 2), Decimal("1.50")),
    (MILLIS, pa.date32(), date(2024, 1, 31)),
    ("float", pa.float64(), 0.1),
    ("float", pa.int32(), 2**24 + 1),
    ("double", pa.int64(), -(2**53) - 1),
    ("double", pa.decimal128(38, 18), Decimal("0.1")),
    ("boolean", pa.int64(), 5),
]


@pytest.mark.parametrize(("kind", "column", "value"), ALTERED, ids=str)
def test_a_number_that_would_be_another_one_is_refused(kind: Any, column: pa.DataType, value: Any) -> None:
    with pytest.raises(ValueError, match="x is "):
        written(record(("x", kind)), pa.struct([("x", column)]), {"x": value})


def test_a_member_of_a_union_is_written_as_its_own_branch() -> None:
    schema = json.dumps(record(("x", ["double", "long", "null"])))
    codec = AvroFormat(AvroSchema(schema).type, FormatSettings(avro_schema=schema))
    rows = [{"x": {"member0": None, "member1": 5}}, {"x": {"member0": 5.0, "member1": None}}, {"x": None}]
    assert codec.decode(codec.encode(pa.array(rows, codec.kind))).values.to_pylist() == rows


DEFAULTS: list[tuple[Any, Any, Any]] = [
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        1_700_000_000_000,
        datetime.fromtimestamp(1.7e9, timezone.utc),
    ),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        1_700_000_000_000_000,
        datetime.fromtimestamp(1.7e9, timezone.utc),
    ),
    ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, "\u00ff\u0080", Decimal("-1.28")),
    (["null", "int"], None, None),
    (["string", "null"], "x", "x"),
    ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
    ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
    (record(("b", "bytes"), ("c", ["null", "int"]), name="D"), {"b": "\u00ff", "c": None}, {"b": b"\xff", "c": None}),
]


@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS, ids=str)
def test_a_default_of_the_reader_is_a_value_of_its_type(kind: Any, default: Any, value: Any) -> None:
    reader = record(("a", "int"))
    reader["fields"].append({"name": "new", "type": kind, "default": default})
    target = AvroSchema(json.dumps(reader)).type
    assert read(record(("a", "int")), {"a": 1}, target, reader) == {"a": 1, "new": value}


def test_records_in_lists_and_maps_have_the_defaults_of_the_reader() -> None:
    def schema(*more: Any) -> Any:
        item = {**record(("a", "int"), name="I"), "name": "I"}
        item["fields"] += more
        return record(
            ("l", {"type": "array", "items": item}), ("m", ["null", {"type": "map", "values": ["null", "I"]}])
        )

    reader = schema({"name": "b", "type": "int", "default": 9})
    row = read(schema(), {"l": [{"a": 1}], "m": {"k": {"a": 2}}}, AvroSchema(json.dumps(reader)).type, reader)
    assert row == {"l": [{"a": 1, "b": 9}], "m": [("k", {"a": 2, "b": 9})]}
