"""The columns of JSON and CSV can be found in a sample."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from connectors.core import Misconfigured
from connectors.formats.infer import inferred
from connectors.systems.file_stream import FileStreamSource


def columns(name: str, *records: bytes) -> str:
    return inferred(name, pa.array(records, pa.binary()))


def test_fields_of_all_records_are_columns_and_numbers_widen() -> None:
    schema = columns("json", b'{"a":1,"z":null}', b"rotten", b'{"b":{"c":[true]},"a":1.5}', b'{"b":{"d":"x","c":[]}}')
    assert schema == "`a` double, `z` string, `b` struct<`c`: array<boolean>, `d`: string>"


def test_a_field_of_two_types_is_said() -> None:
    with pytest.raises(Misconfigured, match=r'inferSchema.*"o\.a" is bigint in one record and string in another'):
        columns("json", b'{"o":{"a":1}}', b'{"o":{"a":"x"}}')


def test_columns_of_csv_have_sparks_names() -> None:
    schema = columns("csv", b"1,x,0.5,2024-01-31,true,2024-01-31T12:00:00Z,", b'2,"a,b",1,2024-02-01,false,,', b"bad")
    assert schema == "`_c0` bigint, `_c1` string, `_c2` double, `_c3` date, `_c4` boolean, `_c5` timestamp, `_c6` string"


@pytest.mark.parametrize("name", ["json", "csv"])
def test_nothing_to_infer_from_is_said(name: str) -> None:
    with pytest.raises(Misconfigured, match="none of 0 records"):
        columns(name)


def source(folder: Path, **typed: str) -> FileStreamSource:
    options = {"path": f"{folder}/*.log", "value.format": "json", "inferSchema": "true", **typed}
    return FileStreamSource.of(options, streaming=True)


def test_lines_of_files_give_the_columns(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text('{"a":1}\n{"a":2.5}\n')
    (tmp_path / "b.log").write_text('{"b":"x"}\n{"unfinished')
    assert source(tmp_path).schema == "filename string, position long, value struct<`a` double, `b` string>"
    few = source(tmp_path, **{"inferSchema.records": "1"})
    assert few.schema == "filename string, position long, value struct<`a` bigint>"


def test_inferring_beside_a_schema_or_for_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="inferSchema   is given beside schema; give one of them"):
        source(tmp_path, schema="a long")
    with pytest.raises(Misconfigured, match=r"has no use without value\.format=json or csv; got value\.format=string"):
        source(tmp_path, **{"value.format": "string"})
    with pytest.raises(Misconfigured, match="none of 0 records"):
        source(tmp_path)
