"""JSON lines of Arrow columns: what Spark's own writer makes of the same values."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Misconfigured
from connectors.core.dead_letters import to_json
from connectors.formats import text
from connectors.formats.text import json_lines, json_text, text_of


def to_json_lines(rows: pa.RecordBatch) -> bytes:
    return b"".join(json_lines(rows))


def lines(**columns: pa.Array) -> list[str]:
    return to_json_lines(pa.record_batch(columns)).decode().split("\n")[:-1]


def texts(values: list[Any], kind: pa.DataType) -> list[str | None]:
    result: list[str | None] = text_of(pa.array(values, kind)).to_pylist()
    return result


class TestObjects:
    def test_null_fields_are_left_out_also_where_a_whole_row_is_null(self) -> None:
        columns = {"a": pa.array([1, None, None]), "b": pa.array([None, None, "x"])}
        assert lines(**columns) == ['{"a":1}', "{}", '{"b":"x"}']

    def test_nulls_stay_in_arrays_and_maps(self) -> None:
        kind = pa.map_(pa.string(), pa.list_(pa.int32()))
        assert lines(m=pa.array([[("a", [1, None]), ("b", None)], None, []], kind)) == [
            '{"m":{"a":[1,null],"b":null}}',
            "{}",
            '{"m":{}}',
        ]

    def test_a_slice_has_only_its_own_rows(self) -> None:
        rows = pa.record_batch({"l": pa.array([[1], None, [2, 3]]), "s": pa.array([{"x": [1]}, {"x": []}, None])})
        assert to_json_lines(rows.slice(1)) == b'{"s":{"x":[]}}\n{"l":[2,3]}\n'
        assert to_json_lines(rows.slice(0, 0)) == b""

    def test_rows_without_columns_are_empty_objects(self) -> None:
        assert to_json_lines(pa.record_batch({"a": [1, 2]}).select([])) == b"{}\n{}\n"
        assert lines(s=pa.array([{}, None], pa.struct([]))) == ['{"s":{}}', "{}"]

    def test_large_batches_become_text_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = pa.record_batch({"id": range(1000)})
        whole = to_json_lines(rows)
        monkeypatch.setattr(text, "_LARGEST", 1000)
        assert len(text.json_lines(rows)) > 4
        assert to_json_lines(rows) == whole


    def test_null_fields_stay_where_they_are_asked_for(self) -> None:
        rows = pa.array([{"a": None, "s": {"b": None}}, {"a": 1, "s": None}, None])
        assert json_text(rows).to_pylist() == ['{"a":null,"s":{"b":null}}', '{"a":1,"s":null}', None]

    def test_keys_of_maps_are_the_texts_of_their_values(self) -> None:
        kind = pa.map_(pa.timestamp("us", "UTC"), pa.decimal128(5, 2))
        assert lines(m=pa.array([[(1, Decimal("1.50"))]], kind)) == ['{"m":{"1970-01-01T00:00:00.000001Z":1.50}}']
        assert lines(m=pa.array([[(b"\xff", 1)]], pa.map_(pa.binary(), pa.int8()))) == ['{"m":{"/w==":1}}']


class TestTexts:
    def test_every_sign_comes_back(self) -> None:
        signs = [chr(code) for code in (*range(0x250), 0x2028, 0xFFFE, 0x1F600)]
        assert [json.loads(line)["t"] for line in lines(t=pa.array(signs))] == signs

    def test_bytes_that_are_no_utf8_are_replaced(self) -> None:
        odd = pa.array([b"a\xffb", b"\xed\xa0\x80", None], pa.binary()).view(pa.string())
        assert lines(t=odd) == ['{"t":"a�b"}', '{"t":"�"}', "{}"]


class TestNumbers:
    @pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
    def test_what_is_no_number_is_text_in_json(self, kind: pa.DataType) -> None:
        output = lines(x=pa.array([math.nan, math.inf, -math.inf, -0.0, None], kind))
        assert output == ['{"x":"NaN"}', '{"x":"Infinity"}', '{"x":"-Infinity"}', '{"x":-0.0}', "{}"]

    def test_doubles_have_the_form_of_java(self) -> None:
        values = [1.0, 9999999.0, 1e7, -12345678.5, 1e-3, 9.99e-4, 1e22, 5e-324, 1e-323, 2.2250738585072014e-308]
        assert texts(values, pa.float64()) == [
            *("1.0", "9999999.0", "1.0E7", "-1.23456785E7", "0.001", "9.99E-4", "1.0E22"),
            *("4.9E-324", "9.9E-324", "2.2250738585072014E-308"),
        ]

    def test_floats_have_their_own_digits(self) -> None:
        assert texts([0.1, 16777216, 3.3e-5, 1.4e-45], pa.float32()) == ["0.1", "1.6777216E7", "3.3E-5", "1.4E-45"]


    def test_decimals_have_all_digits_and_no_exponent(self) -> None:
        assert texts([Decimal("0"), Decimal("-1E-7"), None], pa.decimal128(38, 18)) == [
            "0.000000000000000000",
            "-0.000000100000000000",
            None,
        ]


class TestTimes:
    @pytest.mark.parametrize(
        ("zone", "second", "expected"),
        [
            ("Europe/Berlin", 2540000000, "2050-06-28T03:33:20.000000Z"),
            ("PST", 327403382400, "+12345-01-01T00:00:00.000000Z"),
            ("UTC", -63549360000, "-0044-03-15T00:00:00.000000Z"),
            (None, -1, "1969-12-31T23:59:59.000000"),
        ],
    )
    def test_a_time_with_a_zone_is_in_utc_in_any_year(self, zone: str | None, second: int, expected: str) -> None:
        assert texts([second * 1_000_000, None], pa.timestamp("us", zone)) == [expected, None]

    def test_microseconds_stay_and_nanoseconds_are_cut_off(self) -> None:
        assert texts([-1], pa.timestamp("us")) == ["1969-12-31T23:59:59.999999"]
        assert texts([1999], pa.timestamp("ns", "UTC")) == ["1970-01-01T00:00:00.000001Z"]

    def test_an_interval_is_a_number_of_seconds(self) -> None:
        assert lines(i=pa.array([90_000_001, None], pa.duration("us"))) == ['{"i":90.000001}', "{}"]

    def test_the_longest_intervals_keep_their_microseconds(self) -> None:
        intervals = pa.array([2**63 - 1, -(2**63), 2**53 + 1, -1, 10**13], pa.duration("us"))
        assert text_of(intervals).to_pylist() == [
            "9223372036854.775807", "-9223372036854.775808", "9007199254.740993", "-0.000001", "10000000.000000"
        ]  # fmt: skip

    def test_times_of_the_day_have_as_many_digits_as_they_need(self) -> None:
        assert texts([36_000_000_000_000, 100_000, 3_000], pa.time64("ns")) == ["10:00:00", "00:00:00.0001", "00:00:00.000003"]


def test_a_type_without_a_text_is_refused_by_name() -> None:
    with pytest.raises(Misconfigured, match=r"values of the type month_day_nano_interval have no text; cast them"):
        lines(x=pa.array([pa.MonthDayNano([1, 2, 3])]))


class TestSingleRows:
    def test_they_are_json_also_with_nan_and_maps(self) -> None:
        rows = pa.record_batch(
            {"x": [math.nan], "m": pa.array([[(True, -math.inf)]], pa.map_(pa.bool_(), pa.float64())), "n": pa.nulls(1)}
        )
        (row,) = rows.to_pylist()
        assert json.loads(to_json(row), parse_constant=pytest.fail) == {"x": "NaN", "m": {"true": "-Infinity"}, "n": None}
