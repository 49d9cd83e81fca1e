"""Formats read records one by one: a bad record is named, and never hides or shifts a good one."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.core import Misconfigured, Options
from connectors.core.formats import (
    BadRecord,
    BytesFormat,
    CsvFormat,
    Decoded,
    Format,
    JsonFormat,
    StringFormat,
    check_format,
    format_of,
    format_options,
    value_type,
)

KIND = pa.struct([("a", pa.int64()), ("s", pa.string())])
JSON, CSV, STRING, BYTES = JsonFormat(KIND), CsvFormat(KIND), StringFormat(pa.string()), BytesFormat(pa.binary())


def decode(made: Format, *records: bytes | None) -> Decoded:
    return made.decode(pa.array(records, pa.binary()))


def values(made: Format, *records: bytes | None) -> list[Any]:
    decoded = decode(made, *records)
    assert len(decoded.values) == len(records)
    assert decoded.values.type == made.kind
    decoded.values.validate(full=True)
    return list(decoded.values.to_pylist())


def bad(made: Format, *records: bytes | None) -> list[int]:
    decoded = decode(made, *records)
    assert all(decoded.values[one.index].as_py() is None and one.error for one in decoded.bad)
    return [one.index for one in decoded.bad]


GOOD = b'{"a":1,"s":"x"}'
GOOD_ROW = {"a": 1, "s": "x"}

HOSTILE = {
    "two objects": b'{"a":1}{"a":2}',
    "two objects on two lines": b'{"a":1}\n{"a":2}',
    "an object and a half": b'{"a":1}{"a":',
    "a half": b'{"a":',
    "the other half": b"1}",
    "an open string": b'{"s":"}',
    "the end of a string": b'"}',
    "open braces": b'{"a":{}',
    "an open list": b'{"z":[{}',
    "an array": b"[1]",
    "an array of objects": b'[{"a":1}]',
    "a number": b"1",
    "null": b"null",
    "nothing": b"",
    "a space": b" ",
    "line ends": b"\r\n\n",
    "a comment": b'{"a":1}/*{}*/',
    "a line comment": b"{} // {}",
    "a trailing comma": b'{"a":1,}',
    "a bare name": b"{a:1}",
    "single quotes": b"{'a':1}",
    "a key twice": b'{"a":1,"a":2}',
    "a line end in a string": b'{"s":"x\ny"}',
    "a tab in a string": b'{"s":"x\ty"}',
    "a zero byte in a string": b'{"s":"x\0y"}',
    "a zero byte after the object": b'{"a":1}\0',
    "a zero byte between objects": b'{"a":1}\0{}',
    "a zero byte before the end": b'{"a":1\0}',
    "a byte order mark": b'\xef\xbb\xbf{"a":1}',
    "no UTF-8 in a value": b'{"s":"\xff"}',
    "no UTF-8 in a field that is passed over": b'{"z":"\xff"}',
    "no UTF-8 in a key": b'{"\xff":1}',
    "half a character": b'{"s":"\xe2\x82"}',
    "a lonely surrogate": b'{"s":"\\ud800"}',
    "text for a number": b'{"a":"1"}',
    "a fraction for a whole number": b'{"a":1.5}',
    "a number too large": b'{"a":9223372036854775808}',
    "a truth for a number": b'{"a":true}',
    "a number for text": b'{"s":5}',
    "an object for text": b'{"s":{}}',
    "a list for text": b'{"s":[]}',
    "a number between objects": b"{} 1 {}",
    "a list between objects": b'{"a":1}[{"a":2}]{"a":3}',
    "null between objects": b"{}null{}",
    "too many braces": b'{"a":1}}',
    "deep and open": b'{"z":' + b"[" * 100_000 + b"}",
}


@pytest.mark.parametrize("record", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_bad_record_of_json_is_named_and_nothing_else_is_touched(record: bytes) -> None:
    assert bad(JSON, record) == [0]
    assert values(JSON, GOOD, record, GOOD) == [GOOD_ROW, None, GOOD_ROW]
    assert bad(JSON, GOOD, record, GOOD) == [1]


@pytest.mark.parametrize("second", HOSTILE.values(), ids=HOSTILE.keys())
def test_two_bad_records_of_json_do_not_add_up_to_good_ones(second: bytes) -> None:
    for first in HOSTILE.values():
        if len(first) + len(second) < 1000:
            assert bad(JSON, first, second) == [0, 1]


FINE = {
    b"{}": {"a": None, "s": None},
    b' {"a":1}\r\n': {"a": 1, "s": None},
    b'{"a":\n1}': {"a": 1, "s": None},
    b'{"z":{"y":[1,{"x":"}{"}]},"a":1}': {"a": 1, "s": None},
    b'{"a":null,"s":null}': {"a": None, "s": None},
    b'{"s":"}{\\n\\u00e9\\"","a":-9223372036854775808}': {"a": -(2**63), "s": '}{\né"'},
    '{"s":"\U0001f600"}'.encode(): {"a": None, "s": "\U0001f600"},
    b'{"z":' + b"[" * 100_000 + b"]" * 100_000 + b',"a":1}': {"a": 1, "s": None},
}


@pytest.mark.parametrize(("record", "row"), FINE.items(), ids=[str(key[:30]) for key in FINE])
def test_a_good_record_of_json_is_read(record: bytes, row: dict[str, Any]) -> None:
    assert values(JSON, record, GOOD) == [row, GOOD_ROW]
    assert bad(JSON, record, GOOD) == []


def test_a_null_record_is_a_null_value_and_not_bad() -> None:
    for made in (JSON, CSV, STRING, BYTES):
        assert values(made, None, None) == [None, None]
        assert bad(made, None, None) == []
    assert values(JSON, None, GOOD, None, b"x", GOOD) == [None, GOOD_ROW, None, None, GOOD_ROW]
    assert bad(JSON, None, GOOD, None, b"x", GOOD) == [3]


def test_no_records_are_no_values() -> None:
    for made in (JSON, CSV, STRING, BYTES):
        assert values(made) == []


def test_fields_whose_type_changes_and_that_nobody_wants_do_no_harm() -> None:
    assert values(JSON, b'{"z":1,"a":1}', b'{"z":"x","a":2}', b'{"z":{},"a":3}') == [
        {"a": n, "s": None} for n in (1, 2, 3)
    ]


def test_a_part_of_a_column_is_read_like_a_whole_one() -> None:
    column = pa.array([b"x", GOOD, None, GOOD, b"y"], pa.binary())[1:4]
    decoded = JSON.decode(column)
    assert decoded.values.to_pylist() == [GOOD_ROW, None, GOOD_ROW]
    assert not decoded.bad


def test_json_of_nested_columns_and_times_is_read() -> None:
    made = JsonFormat(pa.struct([("t", pa.timestamp("us")), ("l", pa.list_(pa.struct([("x", pa.float64())])))]))
    (row,) = values(made, b'{"t":"2024-02-29T12:00:00","l":[{"x":1},{"x":2.5},{}]}')
    assert row["t"].isoformat() == "2024-02-29T12:00:00"
    assert row["l"] == [{"x": 1.0}, {"x": 2.5}, {"x": None}]
    assert bad(made, b'{"l":[{"x":"no"}]}') == [0]


ROWS = st.fixed_dictionaries(
    {}, optional={"a": st.none() | st.integers(-(2**63), 2**63 - 1), "s": st.none() | st.text(), "z": st.text()}
)
GOOD_RECORDS = ROWS.flatmap(
    lambda row: st.sampled_from([None, 1]).flatmap(
        lambda indent: st.booleans().map(lambda plain: json.dumps(row, indent=indent, ensure_ascii=plain))
    )
).map(lambda text: text.encode("utf-8", "surrogatepass"))
PIECES = [
    b"{",
    b"}",
    b'{"a":',
    b'"s":"',
    b'"',
    b"1",
    b",",
    b"\n",
    b"\0",
    b"[",
    b"]",
    b"\xff",
    b"\\",
    b" ",
    b"null",
    b'{"a":1}',
    b":",
]
BAD_RECORDS = st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join) | st.binary(max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.lists(GOOD_RECORDS | BAD_RECORDS | st.none() | st.sampled_from(list(HOSTILE.values())[:30]), max_size=8))
def test_what_a_record_means_does_not_depend_on_its_neighbours(records: list[bytes | None]) -> None:
    together = decode(JSON, *records)
    alone = [decode(JSON, record) for record in records]
    assert together.values.to_pylist() == [one.values[0].as_py() for one in alone]
    assert [one.index for one in together.bad] == [index for index, one in enumerate(alone) if one.bad]


@settings(max_examples=200, deadline=None)
@given(st.lists(ROWS, max_size=6))
def test_good_records_come_out_as_they_went_in(rows: list[dict[str, Any]]) -> None:
    expected = [{"a": row.get("a"), "s": row.get("s")} for row in rows]
    assert values(JSON, *(json.dumps(row).encode() for row in rows)) == expected


@settings(max_examples=300, deadline=None)
@given(BAD_RECORDS)
def test_what_python_does_not_take_for_one_object_is_bad(record: bytes) -> None:
    try:
        is_object = isinstance(json.loads(record.decode()), dict)
    except (ValueError, RecursionError):
        is_object = False
    assert is_object or bad(JSON, record) == [0]


def test_csv_is_read_in_the_order_of_the_schema() -> None:
    assert values(CSV, b"1,x", b'2,"a,b"', b'3,"say ""hi"""', b",", b"4,", b"5,x\r\n") == [
        {"a": 1, "s": "x"},
        {"a": 2, "s": "a,b"},
        {"a": 3, "s": 'say "hi"'},
        {"a": None, "s": None},
        {"a": 4, "s": None},
        {"a": 5, "s": "x"},
    ]


def test_csv_tells_nothing_at_the_end_of_a_line_from_empty_text_after_a_value_in_quotes() -> None:
    made = CsvFormat(pa.struct([("s", pa.string()), ("n", pa.int64())]))
    assert values(made, b'"x,",', b'"",') == [{"s": "x,", "n": None}, {"s": "", "n": None}]
    assert values(CSV, b'1,"x,') == [{"a": 1, "s": "x,"}]


def test_two_bad_lines_of_csv_do_not_add_up_to_good_ones() -> None:
    assert values(CSV, b'1,"x', b'y"\n2,z') == [{"a": 1, "s": "x"}, None]
    assert bad(CSV, b'1,"x', b'y"\n2,z') == [1]


def test_csv_treats_a_byte_order_mark_the_same_in_every_record() -> None:
    mark = "\ufeff"
    made = CsvFormat(pa.struct([("s", pa.string()), ("n", pa.int64())]))
    assert values(made, f"{mark}x,1".encode(), f"{mark}x,1".encode()) == [{"s": f"{mark}x", "n": 1}] * 2


@pytest.mark.parametrize("text", ["NA", "null", "NULL", "nan", "N/A", "#N/A", "true"])
def test_csv_keeps_words_that_look_like_nothing(text: str) -> None:
    assert values(CSV, f"1,{text}".encode()) == [{"a": 1, "s": text}]


def test_csv_tells_empty_text_in_quotes_from_none() -> None:
    assert values(CSV, b'1,""', b"1,") == [{"a": 1, "s": ""}, {"a": 1, "s": None}]


@pytest.mark.parametrize(
    "record", [b"", b"\n", b"1", b"1,x,2", b"x,1", b"1.5,x", b"1,x\n2,y", b"1,\xff", b"9223372036854775808,x"]
)
def test_a_bad_record_of_csv_is_named(record: bytes) -> None:
    assert bad(CSV, b"1,x", record, b"2,y") == [1]
    assert values(CSV, b"1,x", record, b"2,y") == [{"a": 1, "s": "x"}, None, {"a": 2, "s": "y"}]


def test_csv_adds_nothing_to_a_value_whose_quotes_stay_open() -> None:
    assert values(CSV, b'1,"x') == [{"a": 1, "s": "x"}]


def test_csv_keeps_a_line_end_inside_quotes() -> None:
    assert values(CSV, b'1,"x\n2,y"') == [{"a": 1, "s": "x\n2,y"}]


def test_text_that_is_not_utf8_is_named() -> None:
    assert values(STRING, "é".encode(), b"\xff", b"", b"a\0b\nc") == ["é", None, "", "a\0b\nc"]
    assert bad(STRING, "é".encode(), b"\xff", b"") == [1]
    assert "at byte 1" in decode(STRING, b"x\xff").bad[0].error


def test_bytes_are_as_they_are() -> None:
    assert values(BYTES, b"\xff\0", b"", None) == [b"\xff\0", b"", None]


def test_csv_has_no_room_for_lists() -> None:
    with pytest.raises(Misconfigured, match="no room for lists, maps and structs: l"):
        CsvFormat(pa.struct([("a", pa.int64()), ("l", pa.list_(pa.int64()))]))


def test_csv_reads_times_with_and_without_a_zone() -> None:
    made = CsvFormat(pa.struct([("t", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us")), ("d", pa.date32())]))
    same = ["2024-02-29T12:00:00Z", "2024-02-29 12:00:00", "2024-02-29T14:00:00.000+02:00"]
    rows = values(made, *[f"{one},2024-02-29 12:00:00.5,2024-02-29".encode() for one in same], b"2024-02-29,,")
    assert {str(row["t"]) for row in rows[:3]} == {"2024-02-29 12:00:00+00:00"}
    assert str(rows[0]["n"]) == "2024-02-29 12:00:00.500000"
    assert str(rows[3]["t"]) == "2024-02-29 00:00:00+00:00"
    assert bad(made, b"yesterday,,") == [0]


TYPED = pa.struct(
    [
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
        ("d", pa.date32()),
        ("m", pa.decimal128(9, 2)),
        ("f", pa.float64()),
        ("i", pa.int32()),
    ]
)
LENIENT = {
    '{"t":"2024-02-29T12:00:00.123456789Z"}': ("t", "2024-02-29 12:00:00.123456+00:00"),
    '{"t":"2024-02-29T12:00:00"}': ("t", "2024-02-29 12:00:00+00:00"),
    '{"t":"2024-02-29 12:00:00.5"}': ("t", "2024-02-29 12:00:00.500000+00:00"),
    '{"t":"2024-02-29T14:00:00+02:00"}': ("t", "2024-02-29 12:00:00+00:00"),
    '{"t":"2024-02-29"}': ("t", "2024-02-29 00:00:00+00:00"),
    '{"n":"2024-02-29T14:00:00+02:00"}': ("n", "2024-02-29 12:00:00"),
    '{"n":"2024-02-29T14:00:00"}': ("n", "2024-02-29 14:00:00"),
    '{"t":0}': ("t", "1970-01-01 00:00:00+00:00"),
    '{"d":"2024-02-29"}': ("d", "2024-02-29"),
    '{"m":1.5}': ("m", "1.50"),
    '{"m":"1.5"}': ("m", "1.50"),
    '{"f":"NaN"}': ("f", "nan"),
    '{"f":"-Infinity"}': ("f", "-inf"),
    '{"f":7}': ("f", "7.0"),
}


@pytest.mark.parametrize(("record", "cell"), LENIENT.items(), ids=LENIENT)
def test_json_reads_types_as_sparks_from_json_does(record: str, cell: tuple[str, str]) -> None:
    name, text = cell
    for made in (JsonFormat(TYPED), JsonFormat(pa.struct([*TYPED, ("b", pa.binary())]))):  # by Arrow, and by Python
        one, many = values(made, record.encode()), values(made, *[record.encode()] * 40)
        assert [str(row[name]) for row in (*one, *many)] == [text] * 41


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ('{"i":"x"}', "field i: must be a whole number"),
        ('{"i":2147483648}', "field i: must be a whole number"),
        ('{"d":"29.2.2024"}', "field d: must be a date"),
        ('{"m":1.234}', "field m: must be a number that fits decimal128"),
        ('{"t":"soon"}', "field t: must be a timestamp"),
        ('{"f":1e999}', "field f: must be a number"),
        ("[]", "not a JSON object"),
        ('{"i":1', "not a JSON object"),
    ],
)
def test_the_error_of_a_bad_record_of_json_says_what_is_wrong(record: str, error: str) -> None:
    (one,) = decode(JsonFormat(TYPED), record.encode()).bad
    assert one.error.startswith(error)


def test_many_records_that_only_python_can_read_cost_no_good_one() -> None:
    records = [b'{"f":"NaN","i":%d}' % n if n % 2 else b"{x}" if n % 3 else b'{"i":%d}' % n for n in range(500)]
    made = JsonFormat(TYPED)
    assert bad(made, *records) == [n for n in range(500) if n % 2 == 0 and n % 3]
    assert [row["i"] for row in values(made, *records) if row] == [n for n in range(500) if n % 2 or n % 3 == 0]


def test_json_of_other_writers_loses_and_gains_fields_and_widens_numbers() -> None:
    assert values(JSON, b'{"a":1,"s":"x","new":[1]}', b'{"s":"y"}') == [{"a": 1, "s": "x"}, {"a": None, "s": "y"}]
    assert values(JsonFormat(pa.struct([("a", pa.float64())])), b'{"a":1}', b'{"a":1.5}') == [{"a": 1.0}, {"a": 1.5}]
    assert bad(JSON, b'{"a":1.5}', b'{"a":1}') == [0]


def test_csv_of_another_number_of_columns_is_bad() -> None:
    assert bad(CSV, b"1,x,new", b"1", b"1,x") == [0, 1]


def problems(**typed: str) -> dict[str, str]:
    try:
        (format_options("string") | Options()).parse("connectors.toy", typed, check_format)
    except Misconfigured as error:
        return {problem.option: problem.text for problem in error.problems}
    return {}


def test_options_of_formats_are_checked_together() -> None:
    assert problems() == problems(errors="skip") == problems(errors="deadLetter", deadLetterPath="/x") == {}
    assert "needs the columns" in problems(**{"value.format": "json"})["schema"]
    assert "needs a folder" in problems(errors="deadLetter")["deadLetterPath"]
    assert "no use" in problems(deadLetterPath="/x")["deadLetterPath"]
    assert "one of bytes, string, json, csv" in problems(**{"value.format": "yaml"})["value.format"]


def test_keys_have_options_of_their_own_where_there_are_keys() -> None:
    keyed = format_options("bytes", key="bytes")
    typed = {"key.format": "json", "key.schema": "k long", "value.format": "csv", "schema": "a long"}
    values = keyed.parse("connectors.toy", typed, check_format)
    assert (value_type(values, "key"), value_type(values)) == ("struct<k long>", "struct<a long>")
    assert value_type(keyed.parse("connectors.toy", {}, check_format), "key") == "binary"
    with pytest.raises(Misconfigured, match=r"key\.schema +missing"):
        keyed.parse("connectors.toy", {"key.format": "json"}, check_format)
    assert "no option" in problems(**{"key.format": "json"})["key.format"]


class Shouted(Format):
    name = "shouted"
    column = "string"

    def decode(self, records: pa.Array) -> Decoded:
        texts = pc.utf8_upper(records.cast(self.kind))
        quiet = pc.indices_nonzero(pc.equal(texts, "QUIET")).to_pylist()
        return Decoded(texts, [BadRecord(index, "too quiet") for index in quiet])


def test_a_format_of_ones_own_is_one_small_class_that_is_named_by_its_module() -> None:
    typed = {"value.format": f"{__name__}:Shouted"}
    values = format_options("string").parse("connectors.toy", typed, check_format)
    assert value_type(values) == "string"
    decoded = format_of(values, pa.string()).decode(pa.array([b"a", b"quiet"], pa.binary()))
    assert decoded.values[0].as_py() == "A"
    assert [one.index for one in decoded.bad] == [1]


@pytest.mark.parametrize("name", ["nowhere:Shouted", f"{__name__}:Nothing", f"{__name__}:Any", "shouted"])
def test_a_format_that_is_not_there_is_said(name: str) -> None:
    assert "module:Class" in problems(**{"value.format": name})["value.format"]


def test_three_bad_records_of_json_do_not_add_up_to_three_good_ones() -> None:
    assert bad(JSON, b'{"s":"}', b'{"}', b"{}{}") == [0, 1, 2]


def test_options_of_another_format_are_told_from_typos() -> None:
    found = problems(**{"value.format": "json", "schema": "a long", "value.avroSchema": '"long"'})
    assert "it is for avro" in found["value.avroSchema"]
    assert "no use without schemaRegistry.url" in problems(**{"schemaRegistry.user": "x"})["schemaRegistry.user"]
    assert "needs the columns" in problems(**{"value.format": "avro"})["schema"]


def test_the_type_of_the_value_follows_from_the_format() -> None:
    def kind(**typed: str) -> str:
        return value_type(format_options("string").parse("connectors.toy", typed))

    assert kind() == "string"
    assert kind(**{"value.format": "bytes"}) == "binary"
    assert kind(**{"value.format": "JSON", "schema": "a long, s string"}) == "struct<a long, s string>"
