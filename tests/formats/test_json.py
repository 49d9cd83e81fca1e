"""JSON: a bad record is named, and never hides or shifts a good one."""

from __future__ import annotations

import datetime
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.formats import JsonFormat, format_options, value_type

from .decoding import GOOD, GOOD_ROW, JSON, TYPED, bad, decode, values

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
    "a number of which there is no decimal": b'{"a":1e99999999999999999999}',
    "such a number that is passed over": b'{"z":1e99999999999999999999}',
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
    codec = JsonFormat(pa.struct([("t", pa.timestamp("us")), ("l", pa.list_(pa.struct([("x", pa.float64())])))]))
    (row,) = values(codec, b'{"t":"2024-02-29T12:00:00","l":[{"x":1},{"x":2.5},{}]}')
    assert row["t"].isoformat() == "2024-02-29T12:00:00"
    assert row["l"] == [{"x": 1.0}, {"x": 2.5}, {"x": None}]
    assert bad(codec, b'{"l":[{"x":"no"}]}') == [0]


def test_times_of_the_day_and_intervals_come_back_as_they_were_written() -> None:
    at, took = datetime.time(13, 0, 0, 100), datetime.timedelta(days=200_000, microseconds=1)
    kind = pa.struct(
        [("t", pa.time64("ns")), ("m", pa.map_(pa.time64("us"), pa.list_(pa.time64("ns")))), ("i", pa.duration("us"))]
    )
    rows = [{"t": at, "m": [(datetime.time(0), [at, None])], "i": took}, {"t": None, "m": None, "i": None}]
    codec = JsonFormat(kind)
    assert codec.decode(codec.encode(pa.array(rows, kind))).values.equals(pa.array(rows, kind))
    times = JsonFormat(pa.struct([("t", pa.time64("ns"))]))
    assert bad(times, b'{"t":"13:00:00+02:00"}', b'{"t":"24:00:01"}', b'{"t":13}', b'{"t":"13:00:00.123456789"}') == [0, 1, 2]


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


@settings(max_examples=100, deadline=None)
@given(st.lists(GOOD_RECORDS | BAD_RECORDS | st.none() | st.sampled_from(list(HOSTILE.values())[:30]), max_size=8))
def test_what_a_record_means_does_not_depend_on_its_neighbours(records: list[bytes | None]) -> None:
    together = decode(JSON, *records)
    alone = [decode(JSON, record) for record in records]
    assert together.values.to_pylist() == [result.values[0].as_py() for result in alone]
    assert [failure.index for failure in together.bad] == [index for index, result in enumerate(alone) if result.bad]


@settings(max_examples=200, deadline=None)
@given(st.lists(ROWS, max_size=6))
def test_good_records_come_out_as_they_went_in(rows: list[dict[str, Any]]) -> None:
    expected = [{"a": row.get("a"), "s": row.get("s")} for row in rows]
    assert values(JSON, *(json.dumps(row).encode() for row in rows)) == expected


@settings(max_examples=100, deadline=None)
@given(BAD_RECORDS)
def test_what_python_does_not_take_for_one_object_is_bad(record: bytes) -> None:
    try:
        is_object = isinstance(json.loads(record.decode()), dict)
    except (ValueError, RecursionError):
        is_object = False
    assert is_object or bad(JSON, record) == [0]


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
    for codec in (JsonFormat(TYPED), JsonFormat(pa.struct([*TYPED, ("b", pa.binary())]))):  # by Arrow, and by Python
        single, many = values(codec, record.encode()), values(codec, *[record.encode()] * 40)
        assert [str(row[name]) for row in (*single, *many)] == [text] * 41


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
    (failure,) = decode(JsonFormat(TYPED), record.encode()).bad
    assert failure.error.startswith(error)


@pytest.mark.parametrize("number", ["12345678", '"12345678"', "1234567890.5", "1e8", "-1e8"])
def test_a_decimal_with_more_digits_before_the_point_than_its_column_is_bad(number: str) -> None:
    record = f'{{"m":{number}}}'.encode()
    for codec in (JsonFormat(TYPED), JsonFormat(pa.struct([*TYPED, ("b", pa.binary())]))):  # by Arrow, and by Python
        assert bad(codec, record) == [0]
        assert bad(codec, b'{"m":9999999.99}', record, b'{"m":-9999999.99}') == [1]


def test_a_number_beyond_those_of_a_float_is_bad() -> None:
    codec = JsonFormat(pa.struct([("f", pa.float32())]))
    assert bad(codec, b'{"f":1e39}', b'{"f":-3.4028235E38}', b'{"f":"NaN"}', b'{"f":1e-50}') == [0]


def test_a_decimal_of_38_digits_has_no_room_for_one_more() -> None:
    codec = JsonFormat(pa.struct([("m", pa.decimal128(38, 18))]))
    assert bad(codec, b'{"m":99999999999999999999}', b'{"m":100000000000000000000}') == [1]


def test_json_of_other_writers_loses_and_gains_fields_and_widens_numbers() -> None:
    assert values(JSON, b'{"a":1,"s":"x","new":[1]}', b'{"s":"y"}') == [{"a": 1, "s": "x"}, {"a": None, "s": "y"}]
    assert values(JsonFormat(pa.struct([("a", pa.float64())])), b'{"a":1}', b'{"a":1.5}') == [{"a": 1.0}, {"a": 1.5}]
    assert bad(JSON, b'{"a":1.5}', b'{"a":1}') == [0]


def test_three_bad_records_of_json_do_not_add_up_to_three_good_ones() -> None:
    assert bad(JSON, b'{"s":"}', b'{"}', b"{}{}") == [0, 1, 2]


def test_the_type_of_the_value_follows_from_the_format() -> None:
    def kind(**typed: str) -> str:
        return value_type(format_options("string").parse("connectors.toy", typed))

    assert kind() == "string"
    assert kind(**{"value.format": "bytes"}) == "binary"
    assert kind(**{"value.format": "JSON", "schema": "a long, s string"}) == "struct<a long, s string>"


def test_a_float_is_written_with_its_own_digits_as_sparks_to_json_does() -> None:
    kind = pa.struct([("f", pa.float32()), ("d", pa.float64())])
    for value in (1.1, 3.4e38, 1e-45, 16_777_216.0, -0.1):
        column = pa.array([{"f": value, "d": value}], kind)
        (record,) = JsonFormat(kind).encode(column).to_pylist()
        assert float(str(np.float32(json.loads(record)["f"]))) == value
        assert JsonFormat(kind).decode(pa.array([record], pa.binary())).values.equals(column)
    odd = pa.array([{"f": float("nan")}, {"f": float("-inf")}], kind)
    assert JsonFormat(kind).encode(odd).to_pylist() == [b'{"f":"NaN"}', b'{"f":"-Infinity"}']
