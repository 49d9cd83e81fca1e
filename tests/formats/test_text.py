"""JSON lines of Arrow columns: what Spark's own writer makes of the same values."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Misconfigured
from connectors.core.dead_letters import to_json
from connectors.formats import text
from connectors.formats.text import text_of, to_json_lines


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


class TestTimes:
    @pytest.mark.parametrize(
        ("zone", "second", "expected"),
        [
            ("Europe/Berlin", 2540000000, "2050-06-28T05:33:20.000+02:00"),
            ("Europe/Berlin", 327403382400, "+12345-01-01T01:00:00.000+01:00"),
            ("Europe/Berlin", -63549360000, "-0044-03-15T00:53:28.000+00:53:28"),
            ("America/St_Johns", 0, "1969-12-31T20:30:00.000-03:30"),
            ("UTC", 9000000000000, "+287168-08-24T16:00:00.000Z"),
            ("GMT+2", 0, "1970-01-01T02:00:00.000+02:00"),
            ("-5:30", 0, "1969-12-31T18:30:00.000-05:30"),
            ("+01:02:03", 0, "1970-01-01T01:02:03.000+01:02:03"),
            (None, -1, "1969-12-31T23:59:59.000"),
        ],
    )
    def test_a_time_has_the_offset_of_its_zone_in_any_year(self, zone: str | None, second: int, expected: str) -> None:
        assert texts([second * 1_000_000, None], pa.timestamp("us", zone)) == [expected, None]

    def test_microseconds_are_cut_off_before_1970_too(self) -> None:
        assert texts([-1], pa.timestamp("us")) == ["1969-12-31T23:59:59.999"]

    def test_a_zone_that_only_java_knows_is_refused_by_name(self) -> None:
        with pytest.raises(Misconfigured, match=r'timeZone.*is "PST", which only Java knows; set a region'):
            texts([0], pa.timestamp("us", "PST"))

    def test_times_of_the_day_have_as_many_digits_as_they_need(self) -> None:
        assert texts([36_000_000_000_000, 100_000, 3_000], pa.time64("ns")) == ["10:00:00", "00:00:00.0001", "00:00:00.000003"]


class TestSingleRows:
    def test_they_are_json_also_with_nan_and_maps(self) -> None:
        rows = pa.record_batch(
            {"x": [math.nan], "m": pa.array([[(True, -math.inf)]], pa.map_(pa.bool_(), pa.float64())), "n": pa.nulls(1)}
        )
        (row,) = rows.to_pylist()
        assert json.loads(to_json(row), parse_constant=pytest.fail) == {"x": "NaN", "m": {"true": "-Infinity"}, "n": None}
