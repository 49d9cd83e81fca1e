"""Files become one without being decoded, and every reader understands the result."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.json as js
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.systems.files.join import Footer, join_parquet, read_struct, written

from .helpers import rolling, rows, visible, write

NEW_YEAR = datetime.datetime(2025, 1, 1, tzinfo=datetime.timezone.utc)


def parquet(table: pa.Table, **options: Any) -> io.BytesIO:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    out.seek(0)
    return out


def joined(*files: io.BytesIO) -> bytes:
    out = io.BytesIO()
    join_parquet(files, out)
    return out.getvalue()


def table(start: int, count: int) -> pa.Table:
    numbers = list(range(start, start + count))
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "text": [None if n % 7 == 0 else f"text {n % 5}" for n in numbers],
            "items": [[n, None] if n % 3 else None for n in numbers],
            "nested": [{"a": n, "b": {"c": str(n)}} for n in numbers],
            "exact": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(20, 2)),
            "at": pa.array([NEW_YEAR + datetime.timedelta(hours=n) for n in numbers], pa.timestamp("us", "UTC")),
            "bytes": [bytes([n % 256]) for n in numbers],
        }
    )


WRITERS = {
    "plain": {},
    "gzip, small groups": {"compression": "gzip", "row_group_size": 7},
    "no dictionary": {"use_dictionary": False, "compression": "none"},
    "page index and version 2": {"write_page_index": True, "data_page_version": "2.0", "data_page_size": 64},
    "no statistics": {"write_statistics": False},
}


@pytest.mark.parametrize("options", WRITERS.values(), ids=WRITERS.keys())
def test_parquet_is_joined_by_row_groups(tmp_path: Path, options: dict[str, Any]) -> None:
    tables = [table(0, 50), table(50, 1), table(51, 40)]
    file = tmp_path / "joined.parquet"
    file.write_bytes(joined(*(parquet(part, **options) for part in tables)))
    expected = pa.concat_tables(tables)
    assert pq.read_table(file).equals(expected)
    metadata = pq.ParquetFile(file).metadata
    assert metadata.num_rows == 91
    columns = [metadata.row_group(group).column(0) for group in range(metadata.num_row_groups)]
    assert not any(column.has_offset_index or column.has_column_index for column in columns), "they would point elsewhere"
    assert duckdb.sql(f"SELECT id, text, nested.b.c, exact FROM '{file}' WHERE id >= 49 ORDER BY id").fetchall() == [
        (n, None if n % 7 == 0 else f"text {n % 5}", str(n), Decimal(n) / 4) for n in range(49, 91)
    ]


def test_one_column_of_one_row_group_is_read_from_the_right_place(tmp_path: Path) -> None:
    content = joined(*(parquet(table(n * 10, 10)) for n in range(20)))
    file = pq.ParquetFile(io.BytesIO(content))
    for group in range(20):
        assert file.read_row_group(group, columns=["id"]).column(0).to_pylist() == list(range(group * 10, group * 10 + 10))


def test_a_joined_file_can_be_joined_again() -> None:
    once = [io.BytesIO(joined(parquet(table(n, 5)), parquet(table(n + 5, 5)))) for n in (0, 10)]
    assert pq.read_table(io.BytesIO(joined(*once))).equals(table(0, 20))


def test_other_columns_are_not_joined() -> None:
    file, other = parquet(table(0, 1)), parquet(table(0, 1).drop_columns(["text"]))
    with pytest.raises(ValueError, match="other columns"):
        joined(file, other)


def test_what_is_no_parquet_has_no_footer() -> None:
    assert Footer.of(io.BytesIO(b"")) is None
    assert Footer.of(io.BytesIO(b"PAR1 and then nothing")) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=40), min_size=1, max_size=5), st.integers(1, 20))
def test_any_rows_in_any_groups_come_back_in_order(files: list[list[int]], size: int) -> None:
    parts = [parquet(pa.table({"n": pa.array(numbers, pa.int64())}), row_group_size=size) for numbers in files]
    values = pq.read_table(io.BytesIO(joined(*parts))).column("n").to_pylist()
    assert values == [number for numbers in files for number in numbers]


def test_a_footer_that_is_not_changed_comes_out_as_it_went_in() -> None:
    file = parquet(table(0, 30), write_page_index=True, row_group_size=10, store_schema=True)
    footer = Footer.of(file)
    assert footer is not None
    file.seek(footer.at)
    raw = file.read()[:-8]
    assert read_struct(written(footer.fields)) == footer.fields
    assert len(written(footer.fields)) == len(raw)


def test_bytes_that_are_no_footer_are_refused() -> None:
    with pytest.raises(ValueError, match="compact protocol"):
        read_struct(b"\x1c")


@pytest.mark.parametrize("codec", ["none", "gzip", "bzip2"])
@pytest.mark.parametrize("kind", ["json", "csv", "text"])
def test_lines_are_joined_by_what_every_reader_understands(tmp_path: Path, kind: str, codec: str) -> None:
    sink = rolling(tmp_path, fileFormat=kind, compression=codec)
    for number in range(3):
        batch = rows(number) if kind != "text" else rows(number).select(["name"])
        write(sink, number, batch, batch)
    sink.sealer().seal(ending=True)
    (file,) = visible(tmp_path)
    unpack = {"none": bytes, "gzip": gzip.decompress, "bzip2": bz2.decompress}[codec]
    lines = unpack(file.read_bytes()).decode().splitlines()
    assert len(lines) == 6
    if kind == "json":
        assert [row["id"] for row in js.read_json(file).to_pylist()] == [0, 0, 1, 1, 2, 2]
    if kind == "csv":
        names = csv.ReadOptions(column_names=["id", "name"])
        assert csv.read_csv(file, read_options=names).column("id").to_pylist() == [0, 0, 1, 1, 2, 2]
    if kind != "text" and codec != "bzip2":
        read_ = f"read_{kind}('{file}')" if kind == "json" else f"read_csv('{file}', header=false)"
        assert len(duckdb.sql(f"SELECT * FROM {read_}").fetchall()) == 6
