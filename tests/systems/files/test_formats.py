"""Every format and type that Python writes, read back by others."""

from __future__ import annotations

import bz2
import datetime
import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from connectors.core import Misconfigured

from ..batches import write
from .helpers import visible
from .test_sink import IDS, LINES, sink


def rows_with_every_type() -> pa.RecordBatch:
    fields = {
        "text": (pa.string(), ['a "quoted", ü', None, ""]),
        "number": (pa.int64(), [1, None, -(2**62)]),
        "real": (pa.float64(), [0.5, None, -1e300]),
        "flag": (pa.bool_(), [True, None, False]),
        "exact": (pa.decimal128(20, 3), [Decimal("1.500"), None, Decimal("-12345678901234567.890")]),
        "time": (pa.timestamp("us", "UTC"), [datetime.datetime(2025, 3, 30, 1, 30, tzinfo=datetime.timezone.utc), None, None]),
        "naive": (pa.timestamp("us"), [datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), None, None]),
        "day": (pa.date32(), [datetime.date(2025, 2, 28), None, datetime.date(1582, 1, 1)]),
        "bytes": (pa.binary(), [b"\x00\xff", None, b""]),
        "items": (pa.list_(pa.int32()), [[1, None], None, []]),
        "nested": (
            pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]),
            [{"a": 1, "b": ["x", None]}, None, {"a": None, "b": None}],
        ),
    }
    arrays = [pa.array(values, kind) for kind, values in fields.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(fields))


class TestFormats:
    @pytest.mark.parametrize(("kind", "read"), [("parquet", pq.read_table), ("orc", orc.read_table)])
    def test_every_type_comes_back_as_it_was(self, tmp_path: Path, kind: str, read: Any) -> None:
        rows = rows_with_every_type()
        if kind == "orc":  # has no times by Python, and old dates by the Julian calendar
            rows = rows.drop_columns(["time", "naive", "day"])
        write(sink(tmp_path, fileFormat=kind), rows)
        assert read(visible(tmp_path)[0]).to_pylist() == rows.to_pylist()

    def test_json_lines_hold_every_type(self, tmp_path: Path) -> None:
        write(sink(tmp_path, fileFormat="json"), rows_with_every_type())
        full, null, _ = [json.loads(line) for line in visible(tmp_path)[0].read_text().splitlines()]
        assert full["text"] == 'a "quoted", ü'
        assert (full["day"], full["bytes"], full["items"]) == ("2025-02-28", "AP8=", [1, None])
        assert datetime.datetime.fromisoformat(full["time"]).timestamp() == 1743298200
        assert null == {}

    def test_csv_is_quoted_as_rfc_4180_has_it(self, tmp_path: Path) -> None:
        rows = pa.record_batch({"a": ['x "y", z', None, "line\nend"], "n": pa.array([1, None, 3], pa.int64())})
        write(sink(tmp_path, fileFormat="csv"), rows)
        options = csv.ReadOptions(column_names=["a", "n"])
        parsing = csv.ParseOptions(newlines_in_values=True)
        convert = csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
        table = csv.read_csv(visible(tmp_path)[0], read_options=options, parse_options=parsing, convert_options=convert)
        assert table.to_pylist() == rows.to_pylist()

    def test_text_is_one_line_a_row(self, tmp_path: Path) -> None:
        write(sink(tmp_path, fileFormat="text"), LINES)
        (file,) = visible(tmp_path)
        assert (file.suffix, file.read_bytes()) == (".txt", b"one\n\ndrei\n")

    @pytest.mark.parametrize("rows", [IDS, rows_with_every_type()], ids=["numbers", "many"])
    def test_text_takes_one_column_of_strings(self, tmp_path: Path, rows: Any) -> None:
        with pytest.raises(Misconfigured, match=f"fileFormat.*{rows.schema.names[0]}"):
            write(sink(tmp_path, fileFormat="text"), rows)
        assert visible(tmp_path) == []

    @pytest.mark.parametrize(
        ("kind", "column"),
        [
            ("json", pa.duration("us")),
            ("json", pa.map_(pa.binary(), pa.int32())),
            ("json", pa.list_(pa.map_(pa.struct([("a", pa.int32())]), pa.int32()))),
            ("csv", pa.duration("us")),
            ("csv", pa.null()),
            ("csv", pa.list_(pa.int32())),
            ("parquet", pa.list_(pa.duration("us"))),
            ("parquet", pa.struct([("a", pa.null())])),
            ("orc", pa.timestamp("us", "UTC")),
            ("orc", pa.list_(pa.timestamp("us"))),
            ("orc", pa.time64("ns")),
            ("avro", pa.time64("ns")),
            ("avro", pa.map_(pa.int32(), pa.int32())),
            ("avro", pa.duration("us")),
        ],
        ids=str,
    )
    def test_columns_that_python_cannot_write_as_spark_does_are_named(
        self, tmp_path: Path, kind: str, column: pa.DataType
    ) -> None:
        rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.nulls(1, column)], names=["id", "odd"])
        with pytest.raises(Misconfigured, match=rf'fileFormat +{kind} .*"odd" of type .*(another fileFormat|Take json)'):
            write(sink(tmp_path, fileFormat=kind), rows)
        assert visible(tmp_path) == []

    @pytest.mark.parametrize(
        ("codec", "ending", "unpack"), [("gzip", ".gz", gzip.decompress), ("bzip2", ".bz2", bz2.decompress)]
    )
    @pytest.mark.parametrize("kind", ["json", "csv", "text"])
    def test_lines_are_compressed_as_their_name_says(
        self, tmp_path: Path, kind: str, codec: str, ending: str, unpack: Any
    ) -> None:
        write(sink(tmp_path, fileFormat=kind, compression=codec), LINES)
        (file,) = visible(tmp_path)
        assert file.name.endswith({"text": ".txt"}.get(kind, f".{kind}") + ending)
        assert b"drei" in unpack(file.read_bytes())

    @pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4"])
    def test_parquet_is_compressed_as_asked(self, tmp_path: Path, codec: str) -> None:
        write(sink(tmp_path, compression=codec), IDS)
        compression = pq.ParquetFile(visible(tmp_path)[0]).metadata.row_group(0).column(0).compression
        assert compression == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())

    @pytest.mark.parametrize("codec", ["none", "snappy", "zlib", "zstd", "lz4"])
    def test_orc_is_compressed_as_asked(self, tmp_path: Path, codec: str) -> None:
        write(sink(tmp_path, fileFormat="orc", compression=codec), IDS)
        compression = orc.ORCFile(visible(tmp_path)[0]).compression
        assert compression == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())

    @pytest.mark.parametrize(("kind", "codec"), [("parquet", "gzp"), ("json", "snappy"), ("orc", "bzip2")])
    def test_a_wrong_compression_is_told_with_the_right_ones(self, tmp_path: Path, kind: str, codec: str) -> None:
        with pytest.raises(Misconfigured, match=f'compression.*none.*for {kind}; got "{codec}"'):
            sink(tmp_path, fileFormat=kind, compression=codec)
