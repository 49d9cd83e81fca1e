"""How the source reads one file: times and types of other writers, files without the wanted columns, files that are broken."""

from __future__ import annotations

import datetime
import gzip
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from connectors.core import Fatal, Misconfigured, Poison
from connectors.systems.files import FilesSink, FilesSource
from connectors.systems.files.source import FilesReader, Listing, WholeFile

from .helpers import write

UTC = datetime.timezone.utc
TIMES = [datetime.datetime(year, 12, 31, 23, 59, 59, 999999, tzinfo=UTC) for year in (1, 1500, 2024, 9999)]


def read(folder: Path, kind: str, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of all files below ``folder``."""
    listing = Listing(str(folder), {}, recursive=True)
    reader = FilesReader(listing, kind, schema, True)
    files = [WholeFile(file.path, file.size, file.changed) for file in listing]
    return [row for file in files for rows in reader.read(file) for row in rows.to_pylist()]


def columns(folder: Path) -> str:
    return FilesSource.of({"path": str(folder)}).schema


def test_times_that_spark_has_written_as_int96_are_read_as_they_are(tmp_path: Path) -> None:
    times = pa.array(TIMES, pa.timestamp("us", "UTC"))
    nested = pa.array([[{"at": time}] for time in TIMES], pa.list_(pa.struct([("at", times.type)])))
    rows = pa.table({"at": times, "id": [1, 2, 3, 4], "nested": nested})
    pq.write_table(rows, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert columns(tmp_path) == "`at` timestamp, `id` bigint, `nested` array<struct<`at`: timestamp>>"
    assert read(tmp_path, "parquet", rows.schema) == rows.to_pylist()


def test_a_time_without_a_zone_has_none(tmp_path: Path) -> None:
    rows = pa.table({"at": pa.array([datetime.datetime(2024, 1, 1)], pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "a.parquet")
    assert columns(tmp_path) == "`at` timestamp_ntz"


def test_numbers_that_spark_lacks_have_wider_types(tmp_path: Path) -> None:
    kinds = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    rows = pa.table({str(kind): pa.array([2**kind.bit_width - 1], kind) for kind in kinds})
    pq.write_table(rows.append_column("pair", pa.array([[1, 2]], pa.list_(pa.int32(), 2))), tmp_path / "a.parquet")
    wide = "`uint8` smallint, `uint16` int, `uint32` bigint, `uint64` decimal(20,0)"
    assert columns(tmp_path) == f"{wide}, `pair` array<int>"
    schema = pa.schema([("uint8", pa.int16()), ("uint32", pa.int64()), ("uint64", pa.decimal128(20, 0))])
    assert read(tmp_path, "parquet", schema) == [{"uint8": 255, "uint32": 2**32 - 1, "uint64": 2**64 - 1}]


def test_a_column_without_a_type_in_spark_is_named(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "opens": pa.array([datetime.time(8)], pa.time64("us"))})
    pq.write_table(rows, tmp_path / "a.parquet")
    with pytest.raises(Misconfigured, match=r'schema.*"opens".*time64'):
        columns(tmp_path)


def test_a_csv_of_one_column_has_its_nulls(tmp_path: Path) -> None:
    rows = pa.record_batch({"name": pa.array(["a", None, "b", ""])})
    write(FilesSink.of({"path": str(tmp_path), "fileFormat": "csv"}), 0, rows)  # type: ignore[arg-type]
    assert read(tmp_path, "csv", rows.schema) == rows.to_pylist()


def test_a_decimal_of_csv_fits_its_column_or_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("price", pa.decimal128(5, 2)), ("name", pa.string())])
    (tmp_path / "a.csv").write_text("123.45,a\n 1.5 ,b\n,c\n")
    assert [row["price"] for row in read(tmp_path, "csv", schema)] == [Decimal("123.45"), Decimal("1.50"), None]
    (tmp_path / "a.csv").write_text("1234.5,a\n")
    with pytest.raises(Poison, match=r"a\.csv cannot be read as csv: Decimal value does not fit in precision 5"):
        read(tmp_path, "csv", schema)


def test_a_row_of_csv_may_be_long_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    (tmp_path / "a.csv").write_text(f"1,x\n2,{'y' * (5 << 20)}\n3,z\n")
    assert [len(row["name"]) for row in read(tmp_path, "csv", schema)] == [1, 5 << 20, 1]
    (tmp_path / "a.csv").write_text(f"1,x\n2,{'y' * (33 << 20)}\n3,z\n")
    with pytest.raises(Poison, match=r"a\.csv") as refused:
        read(tmp_path, "csv", schema)
    assert "16 MB" in str(refused.value)


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro", "json", "csv", "text"])
@pytest.mark.parametrize("wanted", ["year", "new"])
def test_a_file_with_none_of_the_wanted_columns_has_its_rows(tmp_path: Path, kind: str, wanted: str) -> None:
    if wanted == "new" and kind in ("csv", "text"):
        pytest.skip("these files have no names of columns")
    folder = tmp_path / "year=2024"
    folder.mkdir()
    rows = pa.table({"name": ["a", "b", "c"]})
    if kind == "orc":
        orc.write_table(rows, folder / "a.orc")
    else:
        write(FilesSink.of({"path": str(folder), "fileFormat": kind}), 0, *rows.to_batches())  # type: ignore[arg-type]
    schema = pa.schema([(wanted, pa.int32())])
    assert read(tmp_path, kind, schema) == [{wanted: 2024 if wanted == "year" else None}] * 3


def test_the_column_of_text_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert read(tmp_path, "text", pa.schema([("line", pa.string())])) == [{"line": "one"}, {"line": "two"}]


@pytest.mark.parametrize("content", [b'{"id": 1}\n', gzip.compress(b'{"id": 1}\n' * 10_000)[:40]], ids=["plain", "cut"])
def test_a_file_that_cannot_be_unpacked_is_named_and_not_waited_for(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json.gz").write_bytes(content)
    with pytest.raises(Fatal, match=r"a\.json\.gz") as failure:
        read(tmp_path / "a.json.gz", "json", pa.schema([("id", pa.int64())]))
    assert "move the file away" in str(failure.value)


def test_an_orc_that_has_a_time_beyond_nanoseconds_is_named(tmp_path: Path) -> None:
    """Arrow reads times of ORC in nanoseconds only."""
    orc.write_table(pa.table({"at": pa.array([1 << 60], pa.timestamp("s"))}), tmp_path / "a.orc")
    with pytest.raises(Fatal, match=r"a\.orc"):
        read(tmp_path, "orc", pa.schema([("at", pa.timestamp("us", "UTC"))]))


def test_an_orc_of_the_sink_has_its_old_dates_back(tmp_path: Path) -> None:
    last, first = datetime.date(1582, 10, 4), datetime.date(1582, 10, 15)  # ORC has no day between them
    old = map(datetime.date.fromordinal, range(1, last.toordinal(), 97))
    days = [*old, last, first, datetime.date(2025, 1, 31)]
    nested = pa.array([[{"day": day}, None] for day in days], pa.list_(pa.struct([("day", pa.date32())])))
    rows = pa.record_batch({"day": pa.array([*days[:-1], None], pa.date32()), "nested": nested})
    write(FilesSink.of({"path": str(tmp_path), "fileFormat": "orc"}), 0, rows)  # type: ignore[arg-type]
    assert read(tmp_path, "orc", rows.schema) == rows.to_pylist()


def test_a_file_that_may_not_be_read_is_no_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text('{"id": 1}\n')

    def refuse(self: Listing, path: str) -> None:
        raise PermissionError(13, os.strerror(13), path)

    monkeypatch.setattr(Listing, "open", refuse)
    with pytest.raises(Fatal, match=r"a\.json cannot be read.*Permission denied"):
        read(tmp_path, "json", pa.schema([("id", pa.int64())]))


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("*.json", "ab"),
        ("{a,c}.json", "a"),
        ("{a,b}.js*", "ab"),
        ("[b-z].json", "b"),
        ("[^b].json", "a"),
        ("{x,[b]}{.txt,.json}", "b"),
    ],
)
def test_a_glob_may_be_relative_and_have_alternatives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, glob: str, names: str
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.json").touch()
    monkeypatch.chdir(tmp_path)
    for path in (glob, f"{tmp_path}/{glob}"):
        assert sorted(file.path for file in Listing(path, {}, recursive=False)) == [f"{name}.json" for name in names]


def test_what_is_shown_of_a_location_has_no_password() -> None:
    listing = Listing("memory://user:hunter2@host/in/*.json", {}, recursive=False)
    shown = [listing.name, listing.full("a.json"), str(listing.not_found())]
    assert not [text for text in shown if "hunter2" in text]
