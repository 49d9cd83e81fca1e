"""What a format has written, it reads again; and bytes that nobody has written do no harm, and hide no good record."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.formats import AvroFormat, BytesFormat, CsvFormat, Format, FormatSettings, JsonFormat, StringFormat
from connectors.formats.avro import AvroSchema

from .columns import FLAT, NESTED, columns, same

FEW = settings(max_examples=40, deadline=None)


def again(codec: Format, column: pa.Array) -> pa.Array:
    written = codec.encode(column)
    assert written.type == pa.binary()
    assert written.is_valid().equals(column.is_valid())
    decoded = codec.decode(written)
    assert decoded.bad == () or decoded.bad == []
    decoded.values.validate(full=True)
    return decoded.values


@FEW
@given(columns(NESTED))
def test_what_json_has_written_it_reads(column: pa.Array) -> None:
    assert same(again(JsonFormat(column.type), column), column)


@FEW
@given(columns(NESTED))
def test_what_avro_has_written_it_reads(column: pa.Array) -> None:
    assert same(again(AvroFormat(column.type), column), column)


@FEW
@given(columns(FLAT))
def test_what_csv_has_written_it_reads(column: pa.Array) -> None:
    texts = [
        name
        for name in ("a", "b", "c", "d")[: column.type.num_fields]
        if pa.types.is_binary(column.type.field(name).type)
    ]
    rows = [
        row and {key: b"x" if key in texts and row[key] is not None else value for key, value in row.items()}
        for row in column.to_pylist()
    ]
    column = pa.array(rows, column.type)
    assert same(again(CsvFormat(column.type), column), column)


@FEW
@given(st.lists(st.none() | st.text()), st.lists(st.none() | st.binary()))
def test_text_and_bytes_stay_as_they_are(texts: list[str | None], parts: list[bytes | None]) -> None:
    column, binary = pa.array(texts, pa.string()), pa.array(parts, pa.binary())
    assert again(StringFormat(pa.string()), column).equals(column)
    assert again(BytesFormat(pa.binary()), binary).equals(binary)


@FEW
@given(columns(NESTED))
def test_json_is_written_as_python_reads_it(column: pa.Array) -> None:
    for text in JsonFormat(column.type).encode(column).to_pylist():
        assert text is None or isinstance(json.loads(text, parse_constant=pytest.fail), dict)


KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("d", pa.decimal128(9, 2)),
        ("l", pa.list_(pa.struct([("x", pa.float64()), ("y", pa.list_(pa.string()))]))),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("t", pa.timestamp("us", "UTC")),
        ("o", pa.bool_()),
    ]
)
ROW = {
    "id": 7,
    "n": -3,
    "s": "é",
    "b": b"\0",
    "d": None,
    "l": [{"x": 0.5, "y": ["a", None]}, None],
    "m": [("k", 1)],
    "t": 5,
    "o": True,
}
AVRO = AvroFormat(KIND)
JSON = JsonFormat(KIND)
GOOD_AVRO = AVRO.encode(pa.array([ROW], KIND))[0].as_py()
GOOD_JSON = JSON.encode(pa.array([ROW], KIND))[0].as_py()


CSV = CsvFormat(pa.struct([("id", pa.int64()), ("s", pa.string()), ("x", pa.float64()), ("t", pa.timestamp("us", "UTC"))]))
GOOD_CSV = b'7,"a ""b"", c",0.5,2024-02-29T12:00:00Z'


def mutated(good: bytes) -> st.SearchStrategy[bytes]:
    """Good bytes with a few changed, cut, doubled or put in between; and any bytes at all."""
    place = st.integers(0, len(good))
    changed = st.lists(st.tuples(place, st.binary(max_size=3)), min_size=1, max_size=3).map(
        lambda some: _changed(good, some)
    )
    cut = st.tuples(place, place).map(lambda two: good[min(two) : max(two)])
    return changed | cut | st.binary(max_size=40) | st.just(good)


def _changed(good: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    for place, put in changes:
        good = good[:place] + put + good[place + len(put) :]
    return good


@pytest.mark.parametrize(
    ("codec", "good"), [(AVRO, GOOD_AVRO), (JSON, GOOD_JSON), (CSV, GOOD_CSV)], ids=["avro", "json", "csv"]
)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_a_hostile_record_is_the_same_alone_and_among_others(codec: Format, good: bytes, data: Any) -> None:
    hostile = data.draw(st.lists(st.none() | mutated(good), min_size=1, max_size=6))
    records = [record for each in hostile for record in (each, good)]
    together = codec.decode(pa.array(records, pa.binary()))
    together.values.validate(full=True)
    alone = [codec.decode(pa.array([record], pa.binary())) for record in records]
    assert [failure.index for failure in together.bad] == [index for index, result in enumerate(alone) if result.bad]
    assert repr(together.values.to_pylist()) == repr([result.values[0].as_py() for result in alone])
    assert all(value is not None for value in together.values.to_pylist()[1::2])


@settings(max_examples=200, deadline=None)
@given(mutated(GOOD_AVRO))
def test_avro_reads_what_fastavro_reads_and_no_more(record: bytes) -> None:
    schema = AVRO._schema(null_first=False).root
    body = io.BytesIO(record)
    try:
        expected = fastavro.schemaless_reader(body, schema)
        whole = body.read() == b""
    except Exception:  # it raises whatever comes
        whole = False
    decoded = AVRO.decode(pa.array([record], pa.binary()))
    if decoded.bad:
        return
    assert whole
    row = decoded.values[0].as_py()
    assert (row["id"], row["n"], row["s"], row["o"]) == tuple(expected[name] for name in ("id", "n", "s", "o"))
    assert row["d"] == expected["d"]
    assert repr(row["l"]) == repr(expected["l"])
    assert row["m"] is None or dict(row["m"]) == expected["m"]


HUGE = [b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff" * 9 + b"\x01", b"\x80" * 9 + b"\x02", b"\xff" * 11, b"\x01"]


@pytest.mark.parametrize("length", HUGE, ids=range(len(HUGE)))
@pytest.mark.parametrize(
    "schema", ["string", "bytes", {"type": "array", "items": "long"}, {"type": "map", "values": "long"}], ids=str
)
def test_no_length_of_avro_is_believed(schema: Any, length: bytes) -> None:
    text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "x", "type": schema}]})
    codec = AvroFormat(AvroSchema(text).type, FormatSettings(avro_schema=text))
    before = pa.total_allocated_bytes()
    decoded = codec.decode(pa.array([length + b"abc"] * 3, pa.binary()))
    assert [failure.index for failure in decoded.bad] == [0, 1, 2]
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize(
    "last", ["double", "float", "boolean", "string", "long", {"type": "fixed", "name": "F", "size": 3}], ids=str
)
def test_no_part_of_an_avro_record_is_a_record_and_none_takes_from_the_next(last: Any) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "x", "type": last}]}
    value = {"double": 0.5, "float": 0.5, "boolean": True, "string": "xyz", "long": 2**62}.get(str(last), b"abc")
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"a": 7, "x": value})
    good = out.getvalue()
    parts = [good[:end] for end in range(len(good))]
    text = json.dumps(schema)
    codec = AvroFormat(AvroSchema(text).type, FormatSettings(avro_schema=text))
    decoded = codec.decode(pa.array([record for part in parts for record in (part, good)], pa.binary()))
    assert [failure.index for failure in decoded.bad] == list(range(0, 2 * len(parts), 2))
    assert decoded.values.to_pylist()[1::2] == [{"a": 7, "x": value}] * len(parts)


def test_a_record_that_ended_long_ago_is_read_no_further() -> None:
    names = [f"f{number}" for number in range(100)]
    fields = [{"name": name, "type": {"type": "array", "items": "double"}} for name in names[:50]]
    fields += [{"name": name, "type": "double"} for name in names[50:]]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    codec = AvroFormat(AvroSchema(text).type, FormatSettings(avro_schema=text))
    decoded = codec.decode(pa.array([b"", b"\0" * 50, b"\x02"], pa.binary()))
    assert [failure.index for failure in decoded.bad] == [0, 1, 2]


def test_the_error_of_a_bad_avro_record_is_the_first_one() -> None:
    kind = pa.struct([("a", pa.int64()), ("s", pa.string()), ("b", pa.string())])
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": "string"} for name in "sb"]})
    codec = AvroFormat(kind, FormatSettings(avro_schema=text))
    decoded = codec.decode(pa.array([b"\x02\xff\x02", b"\x99\x02\x02x\x02y", b"\x02x\x02y"], pa.binary()))
    assert [failure.error.split(":")[0] for failure in decoded.bad] == ["s", "s"]


def test_a_number_of_more_than_64_bits_is_bad_and_one_of_64_is_read() -> None:
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})
    codec = AvroFormat(AvroSchema(text).type, FormatSettings(avro_schema=text))
    decoded = codec.decode(
        pa.array([b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x03", b"\xfe" + b"\xff" * 8 + b"\x01"], pa.binary())
    )
    assert decoded.values.to_pylist() == [{"n": -(2**63)}, None, {"n": 2**63 - 1}]
    assert "more than 64 bits" in decoded.bad[0].error


def test_json_keeps_what_a_timestamp_and_a_decimal_have() -> None:
    kind = pa.struct(
        [("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(38, 18)), ("f", pa.float64()), ("b", pa.binary())]
    )
    row = {"t": 1, "d": None, "f": float("nan"), "b": b"\xff\0"}
    (text,) = JsonFormat(kind).encode(pa.array([row], kind)).to_pylist()
    assert json.loads(text) == {
        "t": "1970-01-01T00:00:00.000001Z",
        "f": "NaN",
        "b": base64.b64encode(b"\xff\0").decode(),
    }


def test_a_list_of_many_items_is_read() -> None:
    kind = pa.struct([("l", pa.list_(pa.int64()))])
    column = pa.array([{"l": list(range(3000))}, {"l": []}, {"l": [1, 2]}], kind)
    assert again(AvroFormat(kind), column).equals(column)
