"""Formats: text and bytes, their options, and one of your own."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from connectors.core import Misconfigured, Options
from connectors.formats import (
    BadRecord,
    Decoded,
    Format,
    JsonFormat,
    check_format,
    format_of,
    format_options,
    value_type,
)

from .decoding import BYTES, CSV, GOOD, GOOD_ROW, JSON, STRING, TYPED, bad, decode, values


def test_a_null_record_is_a_null_value_and_not_bad() -> None:
    for codec in (JSON, CSV, STRING, BYTES):
        assert values(codec, None, None) == [None, None]
        assert bad(codec, None, None) == []
    assert values(JSON, None, GOOD, None, b"x", GOOD) == [None, GOOD_ROW, None, None, GOOD_ROW]
    assert bad(JSON, None, GOOD, None, b"x", GOOD) == [3]


def test_no_records_are_no_values() -> None:
    for codec in (JSON, CSV, STRING, BYTES):
        assert values(codec) == []


def test_text_that_is_not_utf8_is_named() -> None:
    assert values(STRING, "é".encode(), b"\xff", b"", b"a\0b\nc") == ["é", None, "", "a\0b\nc"]
    assert bad(STRING, "é".encode(), b"\xff", b"") == [1]
    assert "at byte 1" in decode(STRING, b"x\xff").bad[0].error


def test_bytes_are_as_they_are() -> None:
    assert values(BYTES, b"\xff\0", b"", None) == [b"\xff\0", b"", None]


def test_many_records_that_only_python_can_read_cost_no_good_one() -> None:
    records = [b'{"f":"NaN","i":%d}' % n if n % 2 else b"{x}" if n % 3 else b'{"i":%d}' % n for n in range(500)]
    codec = JsonFormat(TYPED)
    assert bad(codec, *records) == [n for n in range(500) if n % 2 == 0 and n % 3]
    assert [row["i"] for row in values(codec, *records) if row] == [n for n in range(500) if n % 2 or n % 3 == 0]


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
    assert [failure.index for failure in decoded.bad] == [1]


@pytest.mark.parametrize("name", ["nowhere:Shouted", f"{__name__}:Nothing", f"{__name__}:Any", "shouted"])
def test_a_format_that_is_not_there_is_said(name: str) -> None:
    assert "module:Class" in problems(**{"value.format": name})["value.format"]


def test_options_of_another_format_are_told_from_typos() -> None:
    texts = problems(**{"value.format": "json", "schema": "a long", "value.avroSchema": '"long"'})
    assert texts["value.avroSchema"] == "has no use without value.format=avro; got value.format=json."
    assert "no use without schemaRegistry.url" in problems(**{"schemaRegistry.user": "x"})["schemaRegistry.user"]
    assert "needs the columns" in problems(**{"value.format": "avro"})["schema"]
