"""Files by Spark's own writers (``foreach_batch``): folders, time zones, types; and the modes of ``df.write``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

import connectors
from connectors.core import Batch, Fatal, Misconfigured
from connectors.spark.foreach_batch import ForeachBatch

from ..reference_contexts import FilesContext
from .test_sink import sink

pytestmark = pytest.mark.spark


def write(frame: Any, folder: Path, number: int = 0, **options: str) -> None:
    files_sink = sink(folder, onLostLedger="notWritten", **options)
    ForeachBatch(files_sink).write(frame, Batch(files_sink.sink_id(), "q", number))


def folders(folder: Path) -> list[str]:
    return sorted({file.parent.relative_to(folder).as_posix() for file in FilesContext(folder).files()})


def by_folder(folder: Path, column: str) -> dict[str, list[Any]]:
    content: dict[str, list[Any]] = {}
    for file in FilesContext(folder).files():
        place = content.setdefault(file.parent.relative_to(folder).as_posix(), [])
        place += pq.ParquetFile(file).read().column(column).to_pylist()
    return {place: sorted(values, key=str) for place, values in content.items()}


class TestBuckets:
    @pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"], indirect=True)
    @pytest.mark.parametrize(
        ("bucket_zone", "expected"),
        [
            ("UTC", ["2025/03/30-01", "2025/03/30-02", "2025/10/26-00", "2025/10/26-01"]),
            ("Europe/Berlin", ["2025/03/30-03", "2025/03/30-04", "2025/10/26-02"]),
            ("+05:30", ["2025/03/30-07", "2025/03/30-08", "2025/10/26-06", "2025/10/26-07"]),
        ],
        ids=["UTC", "region", "offset"],
    )
    @pytest.mark.usefixtures("zone")
    def test_times_fall_into_the_bucket_of_their_zone_whatever_the_session_has(
        self, spark: Any, tmp_path: Path, bucket_zone: str, expected: list[str]
    ) -> None:
        times = ["2025-03-30T01:30:00Z", "2025-03-30T02:30:00Z", "2025-10-26T00:30:00Z", "2025-10-26T01:30:00Z", None]
        frame = spark.createDataFrame([(time,) for time in times], "t string").selectExpr("cast(t as timestamp) t")
        write(frame, tmp_path, **{"bucket": "yyyy/MM/dd-HH", "bucket.timeColumn": "t", "bucket.timeZone": bucket_zone})
        assert folders(tmp_path) == [*expected, "bucket=__HIVE_DEFAULT_PARTITION__"]

    def test_the_pattern_may_hold_text_and_the_time_column_stays(self, spark: Any, tmp_path: Path) -> None:
        frame = spark.sql("SELECT timestamp'2025-01-02 03:04:05' AS `at.time`, 7 AS id")
        pattern = "'year='yyyy/'month='MM/'a b, \"c\" 100% é='HH"
        write(frame, tmp_path, **{"bucket": pattern, "bucket.timeColumn": "at.time"})
        assert by_folder(tmp_path, "id") == {'year=2025/month=01/a b, "c" 100% é=03': [7]}
        assert by_folder(tmp_path, "at.time")

    @pytest.mark.parametrize("pattern", ["'_hidden='yyyy", "'../'yyyy", "'/abs/'yyyy", "'a/.b/'yyyy"])
    def test_a_bucket_that_hides_or_leaves_the_folder_is_refused(self, spark: Any, tmp_path: Path, pattern: str) -> None:
        frame = spark.sql("SELECT timestamp'2025-01-02 03:04:05' AS t")
        with pytest.raises(Misconfigured, match=r"bucket .*must lie below"):
            write(frame, tmp_path / "target", bucket=pattern, **{"bucket.timeColumn": "t"})
        assert [entry.name for entry in tmp_path.iterdir()] == ["target"]

    @pytest.mark.parametrize("option", ["bucket", "partitionBy"])
    def test_a_column_that_is_not_there_is_named_with_those_that_are(self, spark: Any, tmp_path: Path, option: str) -> None:
        options = {"bucket": "yyyy", "bucket.timeColumn": "when"} if option == "bucket" else {"partitionBy": "when"}
        with pytest.raises(Misconfigured, match=r'(timeColumn|partitionBy) .*"when".*id, t'):
            write(spark.sql("SELECT 1 AS id, 2 AS t"), tmp_path, **options)

    def test_values_that_are_too_long_together_are_refused_before_a_record(self, spark: Any, tmp_path: Path) -> None:
        with pytest.raises(Fatal, match=r'the column "a" or "b" .* 401 bytes'):
            write(spark.sql("SELECT 1 AS id, repeat('x', 200) AS a, repeat('y', 200) AS b"), tmp_path, bucket="{a}-{b}")
        write(spark.sql("SELECT 2 AS id, 'x' AS a, 'y' AS b"), tmp_path, bucket="{a}-{b}")
        assert by_folder(tmp_path, "id") == {"x-y": [2]}

    def test_columns_of_a_bucket_must_be_there_and_name_a_folder(self, spark: Any, tmp_path: Path) -> None:
        frame = spark.sql("SELECT 1 AS id, 0.5D AS share")
        with pytest.raises(Misconfigured, match=r'bucket .*names "region", but the columns are id, share'):
            write(frame, tmp_path, bucket="{region}")
        with pytest.raises(Misconfigured, match=r'bucket .*names "share", which must be a column of text'):
            write(frame, tmp_path, bucket="{id}/{share}")


class TestPartitions:
    def test_columns_become_folders_and_leave_the_files(self, spark: Any, tmp_path: Path) -> None:
        frame = spark.createDataFrame([(1, "x", 5), (2, None, 5), (3, "a/b:c", None)], "id int, kind string, day int")
        write(frame, tmp_path, partitionBy="kind,day")
        content = {unquote(place): ids for place, ids in by_folder(tmp_path, "id").items()}
        null = "__HIVE_DEFAULT_PARTITION__"
        assert content == {"kind=x/day=5": [1], f"kind={null}/day=5": [2], f"kind=a/b:c/day={null}": [3]}
        assert pq.ParquetFile(FilesContext(tmp_path).files()[0]).schema_arrow.names == ["id"]
        read = spark.read.parquet(str(tmp_path)).orderBy("id").collect()
        assert [(row.kind, row.day) for row in read] == [("x", 5), (None, 5), ("a/b:c", None)]

    def test_an_empty_frame_makes_no_file(self, spark: Any, tmp_path: Path) -> None:
        write(spark.range(0), tmp_path)
        write(spark.sql("SELECT id, 1 AS p FROM range(0)"), tmp_path, number=1, partitionBy="p")
        assert FilesContext(tmp_path).files() == []

    def test_a_folder_with_blanks_and_signs_is_written_where_it_says(self, spark: Any, tmp_path: Path) -> None:
        target = tmp_path / "a b%20c é { x}"
        write(spark.range(3), target)
        assert len(FilesContext(target).files()) >= 1
        assert [entry.name for entry in tmp_path.iterdir()] == [target.name]


TYPES = """
    SELECT id, IF(id = 1, NULL, 'ü "q"') text, cast(id AS decimal(20,3)) exact, date'1582-01-01' day,
      timestamp'2025-03-30 01:30:00.000001' time, timestamp_ntz'1969-12-31 23:59:59.999999' naive, X'00FF' bytes,
      array(1, NULL) items, named_struct('a', id, 'b', array(named_struct('c', cast(NULL AS string)))) nested
    FROM range(2)
"""


class TestCarriers:
    @pytest.mark.parametrize(
        ("kind", "codec", "ending"),
        [("json", "gzip", ".json.gz"), ("csv", "bzip2", ".csv.bz2"), ("parquet", "lz4", ".parquet")],
    )
    def test_both_carriers_compress_alike(self, spark: Any, tmp_path: Path, kind: str, codec: str, ending: str) -> None:
        frame = spark.sql("SELECT 1 AS id, 'x \"y\", z' AS text")
        write(frame, tmp_path / "native", fileFormat=kind, compression=codec)
        options = {"path": str(tmp_path / "arrow"), "fileFormat": kind, "compression": codec}
        frame.write.format("connectors.files").options(**options).mode("append").save()
        for name in ("native", "arrow"):
            (file,) = FilesContext(tmp_path / name).files()
            assert file.name.endswith(ending)
            read = spark.read.schema(frame.schema).option("escape", '"').format(kind).load(str(tmp_path / name))
            assert read.collect() == frame.collect()
        if kind == "parquet":
            groups = [pq.ParquetFile(file).metadata.row_group(0) for file in FilesContext(tmp_path).files()]
            assert [group.column(0).compression for group in groups] == ["LZ4", "LZ4"]

    @pytest.mark.parametrize(
        "options",
        [
            {"partitionBy": "kind,day,number"},
            {"bucket": "'y='yyyy/MM-dd/HHmm.SSS", "bucket.timeColumn": "time", "bucket.timeZone": "Europe/Berlin"},
            {"bucket": "yyyy-DDD HH", "bucket.timeColumn": "naive", "bucket.timeZone": "+05:30"},
            {"bucket": "yy/M/d", "bucket.timeColumn": "day", "bucket.timeZone": "-08:00"},
            {"bucket": "{kind}"},
            {"bucket": "'of '{kind}-{number}/yyyy/'on '{day}", "bucket.timeColumn": "time"},
        ],
        ids=["columns", "time", "naive", "date", "column in a bucket", "columns and time"],
    )
    @pytest.mark.parametrize("zone", ["Europe/Berlin"], indirect=True)
    @pytest.mark.usefixtures("zone")
    def test_both_carriers_choose_the_same_folders(self, spark: Any, tmp_path: Path, options: dict[str, str]) -> None:
        signs = "".join(chr(code) for code in range(1, 128))
        frame = spark.sql(
            "SELECT id, IF(id = 3, NULL, element_at(array('x', '', 'é ü', 'a=b', 'x'), cast(id + 1 AS int))) kind,"
            " id % 2 = 0 number, date'2024-02-28' + cast(id AS int) day,"
            " timestamp'2025-03-30 00:30:00.012Z' + make_interval(0, 0, 0, 0, cast(id AS int)) time,"
            " timestamp_ntz'2025-03-30 02:30:00' + make_interval(0, 0, 0, 0, cast(id AS int)) naive FROM range(5)"
        ).unionByName(spark.createDataFrame([(signs,)], "kind string"), allowMissingColumns=True)
        write(frame, tmp_path / "native", **options)
        writer = frame.write.format("connectors.files").options(**options).option("path", str(tmp_path / "arrow"))
        writer.mode("append").save()
        native, arrow = (by_folder(tmp_path / name, "id") for name in ("native", "arrow"))
        assert native == arrow
        assert len(native) >= 3

    def test_overwrite_is_refused_by_name(self, spark: Any, tmp_path: Path) -> None:
        writer = spark.range(3).write.format("connectors.files").option("path", str(tmp_path))
        writer.mode("append").save()
        with pytest.raises(Exception, match="overwrite"):
            writer.mode("overwrite").save()
        assert sorted(row["id"] for row in FilesContext(tmp_path).rows()) == [0, 1, 2]

    def test_lines_by_spark_are_the_lines_by_arrow(self, spark: Any, tmp_path: Path) -> None:
        frame = spark.sql("SELECT * FROM VALUES ('one'), (NULL), ('drei') AS t(value)").coalesce(1)
        connectors.foreach_batch("file_stream", path=str(tmp_path / "native")).write(frame, Batch("s", "q", 0))  # type: ignore[attr-defined]
        frame.write.format("connectors.file_stream").option("path", str(tmp_path / "arrow")).mode("append").save()
        contents = [file.read_bytes() for name in ("native", "arrow") for file in FilesContext(tmp_path / name).files()]
        assert contents == [b"one\n\ndrei\n"] * 2

    def test_a_line_sink_names_the_column_it_wants(self, spark: Any, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured, match=r"file_stream cannot start(.|\n)*value .*id bigint"):
            connectors.foreach_batch("file_stream", path=str(tmp_path)).write(spark.range(1), Batch("s", "q", 0))  # type: ignore[attr-defined]

    def test_buffered_takes_nested_rows_in_a_batch(self, spark: Any, tmp_path: Path) -> None:
        writer = connectors.foreach_batch("buffered", path=str(tmp_path))
        writer.write(spark.sql(TYPES), Batch("s", "q", 0))  # type: ignore[attr-defined]
        (file,) = FilesContext(tmp_path).files()
        assert [json.loads(line)["nested"]["a"] for line in sorted(file.read_text().splitlines())] == [0, 1]
