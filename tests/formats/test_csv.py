"""CSV: a bad line is named, and never hides or shifts a good one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connectors.core import Misconfigured
from connectors.formats import CsvFormat

from .decoding import CSV, bad, values


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
    codec = CsvFormat(pa.struct([("s", pa.string()), ("n", pa.int64())]))
    assert values(codec, b'"x,",', b'"",') == [{"s": "x,", "n": None}, {"s": "", "n": None}]
    assert values(CSV, b'1,"x,') == [{"a": 1, "s": "x,"}]


def test_two_bad_lines_of_csv_do_not_add_up_to_good_ones() -> None:
    assert values(CSV, b'1,"x', b'y"\n2,z') == [{"a": 1, "s": "x"}, None]
    assert bad(CSV, b'1,"x', b'y"\n2,z') == [1]


def test_csv_treats_a_byte_order_mark_the_same_in_every_record() -> None:
    mark = "\ufeff"
    codec = CsvFormat(pa.struct([("s", pa.string()), ("n", pa.int64())]))
    assert values(codec, f"{mark}x,1".encode(), f"{mark}x,1".encode()) == [{"s": f"{mark}x", "n": 1}] * 2


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


def test_a_decimal_of_csv_with_more_digits_before_the_point_than_its_column_is_bad() -> None:
    assert bad(CsvFormat(pa.struct([("m", pa.decimal128(5, 2))])), b"999.99", b"1000", b"-999.99", b"12345") == [1, 3]
    lines = (b"99999999999999999999", b" 1.5 ", b"100000000000000000000")
    assert bad(CsvFormat(pa.struct([("m", pa.decimal128(38, 18))])), *lines) == [2]


def test_csv_adds_nothing_to_a_value_whose_quotes_stay_open() -> None:
    assert values(CSV, b'1,"x') == [{"a": 1, "s": "x"}]


def test_csv_keeps_a_line_end_inside_quotes() -> None:
    assert values(CSV, b'1,"x\n2,y"') == [{"a": 1, "s": "x\n2,y"}]


def test_csv_has_no_room_for_lists() -> None:
    with pytest.raises(Misconfigured, match="no room for lists, maps and structs: l"):
        CsvFormat(pa.struct([("a", pa.int64()), ("l", pa.list_(pa.int64()))]))


def test_csv_reads_times_with_and_without_a_zone() -> None:
    codec = CsvFormat(pa.struct([("t", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us")), ("d", pa.date32())]))
    same = ["2024-02-29T12:00:00Z", "2024-02-29 12:00:00", "2024-02-29T14:00:00.000+02:00"]
    rows = values(codec, *[f"{text},2024-02-29 12:00:00.5,2024-02-29".encode() for text in same], b"2024-02-29,,")
    assert {str(row["t"]) for row in rows[:3]} == {"2024-02-29 12:00:00+00:00"}
    assert str(rows[0]["n"]) == "2024-02-29 12:00:00.500000"
    assert str(rows[3]["t"]) == "2024-02-29 00:00:00+00:00"
    assert bad(codec, b"yesterday,,") == [0]


def test_csv_of_another_number_of_columns_is_bad() -> None:
    assert bad(CSV, b"1,x,new", b"1", b"1,x") == [0, 1]
