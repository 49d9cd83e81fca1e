"""Numbers that a float would alter are in their columns as the answer has them, or an error."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import ConnectorError, Fatal
from connectors.systems.http import HttpSource

from .answers import QUICK, Asked, Reply, Rows, answers, read

BESIDE: list[Any] = [[], [("price", pa.decimal128(10, 2))]]
LONG = 18446744073709551617
"""A whole number of 65 bits."""


def rows(records: str, *columns: tuple[str, pa.DataType], **resource: Any) -> Rows:
    """The rows of ``records``, which are JSON text, each line on a page of its own."""
    pages = records.splitlines()

    def page(asked: Asked) -> Reply:
        number = int(asked.query["page"])
        return Reply(f"[{pages[number - 1]}]".encode() if number <= len(pages) else [])

    with answers() as server:
        server.rule = page
        return read(server, {"paging": {"kind": "page"}, **resource}, pa.schema(columns))


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize(
    "number",
    ["12345678901234567.89", "0.1234567890123456789", "-9007199254740993.0", "1E+400", "1E-400", "2.5", str(LONG)],
)
def test_numbers_in_text_columns_keep_their_digits(number: str, beside: list[Any]) -> None:
    record = f'{{"v": {number}, "deep": {{"a": [{number}, 7, true, {LONG}]}}}}'
    (row,) = rows(record, ("v", pa.string()), ("deep", pa.string()), *beside)
    assert (row["v"], row["deep"]) == (number, f'{{"a":[{number},7,true,{LONG}]}}')


@pytest.mark.parametrize("beside", BESIDE)
def test_a_number_that_no_float_has_room_for_is_an_error_whatever_is_beside_it(beside: list[Any]) -> None:
    with pytest.raises(Fatal, match="field v: must be a number; got Decimal"):
        rows(f'{{"v": 1e400, "id": {LONG}}}', ("v", pa.float64()), *beside)


@pytest.mark.parametrize("beside", BESIDE)
def test_a_number_of_which_there_is_no_decimal_is_an_error_of_the_source(beside: list[Any]) -> None:
    with pytest.raises(ConnectorError, match=r"answers what is no JSON: .*1e99999999999999999999"):
        rows('{"v": 1}\n{"v": 1e99999999999999999999}', ("v", pa.string()), *beside)


@pytest.mark.parametrize("number", ["0.10000000000000001", "1e400", str(LONG / 3)])
def test_digits_that_a_float_has_no_room_for_make_no_other_column(number: str) -> None:
    with answers() as server:
        server.rule = lambda _: Reply(f'[{{"v": 1.5}}, {{"v": {number}}}]'.encode())
        config = json.dumps({"baseUrl": server.url, "resources": [{"name": "r", "path": "r"}]})
        assert HttpSource.of({"config": config, **QUICK}).schema == "`v` double"


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("word", ["NaN", "Infinity"])
def test_words_for_numbers_are_never_null_in_text_columns(word: str, beside: list[Any]) -> None:
    (row,) = rows(
        f'{{"v": {word}, "deep": [{word}], "id": {LONG}}}', ("v", pa.string()), ("deep", pa.string()), *beside
    )
    assert (row["v"], row["deep"]) == (word, f"[{word}]")


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize(
    ("first", "second"),
    [("0.12345678901234567891", "0.12345678901234567892"), ("12345678901234567.89", '"12345678901234567.89"')],
)
def test_keys_that_only_a_float_takes_for_the_same_tell_records_apart(
    first: str, second: str, beside: list[Any]
) -> None:
    records = f'{{"id": {first}, "n": 1}}\n{{"id": {second}, "n": 2}}'
    assert [row["n"] for row in rows(records, ("n", pa.int64()), *beside, key=["id"])] == [1, 2]
