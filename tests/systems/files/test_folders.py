"""``partitionBy`` and ``bucket`` without Spark; that Spark chooses the same folders is in test_native.py."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Batch, Fatal, Misconfigured
from connectors.systems.files import FilesSink
from connectors.systems.files.folders import DatePattern
from connectors.systems.files.writer import FilesWriter
from connectors.workbench.settings import library

from .helpers import visible, write

NULL = "__HIVE_DEFAULT_PARTITION__"
UTC = datetime.timezone.utc


def sink(folder: Path, **options: str) -> FilesSink:
    files_sink: FilesSink = FilesSink.of({"path": str(folder), **options})  # type: ignore[assignment]
    return files_sink


def by_folder(folder: Path, column: str = "id") -> dict[str, list[Any]]:
    folders: dict[str, list[Any]] = {}
    for file in visible(folder):
        folders.setdefault(file.parent.relative_to(folder).as_posix(), []).extend(
            pq.ParquetFile(file).read().column(column).to_pylist()
        )
    return folders


def bucketed(folder: Path, pattern: str, zone: str = "UTC") -> FilesSink:
    return sink(folder, **{"bucket": pattern, "bucket.timeColumn": "t", "bucket.timeZone": zone})


def may_hide_folders() -> bool:
    """True where a process may have mounts of its own without being an administrator."""
    hides = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /usr/share/zoneinfo"]
    return shutil.which("unshare") is not None and subprocess.run(hides, capture_output=True).returncode == 0


NO_ZONES = """
import datetime, sys
import pyarrow as pa
from connectors.core import Misconfigured
from connectors.systems.files import FilesSink
from connectors.systems.files.folders import Folders

def folder(zone, kind):
    values = {"path": sys.argv[1], "bucket": "HH", "bucket.timeColumn": "t", "bucket.timeZone": zone}
    rows = pa.record_batch({"t": pa.array([datetime.datetime(2024, 7, 1, 22 if kind else 0)], pa.timestamp("us", kind))})
    try:
        return next(Folders("connectors.files", FilesSink.of(values).values, rows.schema).split(rows))[0]
    except Misconfigured as error:
        return str(error)

print(folder("UTC", "UTC"), folder("Europe/Berlin", None), folder("Europe/Berlin", "UTC"), sep="|")
"""


class TestPartitions:
    def test_columns_become_folders_in_order_and_leave_the_files(self, tmp_path: Path) -> None:
        kinds = pa.array(["x", None, "a/b:c", "", "x"])
        days = pa.array([5, 5, None, 6, 5], pa.int32())
        rows = pa.record_batch({"kind": kinds, "id": pa.array([1, 2, 3, 4, 5]), "day": days})
        write(sink(tmp_path, partitionBy="day,kind"), 0, rows)
        assert by_folder(tmp_path) == {
            "day=5/kind=x": [1, 5],
            f"day=5/kind={NULL}": [2],
            f"day={NULL}/kind=a%2Fb%3Ac": [3],
            f"day=6/kind={NULL}": [4],
        }
        assert {tuple(pq.ParquetFile(file).schema_arrow.names) for file in visible(tmp_path)} == {("id",)}

    @pytest.mark.parametrize(("value", "text"), [("ü" * 200, "402 bytes"), ("a\0b", "NUL")])
    def test_a_value_that_can_name_no_folder_is_refused_before_anything_is_recorded(
        self, tmp_path: Path, value: str, text: str
    ) -> None:
        files_sink = sink(tmp_path, partitionBy="k")
        with pytest.raises(Fatal, match=f'the column "k" .*{text}'):
            write(files_sink, 0, pa.record_batch({"id": [1], "k": [value]}))
        write(files_sink, 0, pa.record_batch({"id": [2], "k": ["short"]}))
        assert by_folder(tmp_path) == {"k=short": [2]}

    def test_dates_and_flags_name_folders_too(self, tmp_path: Path) -> None:
        rows = pa.record_batch({"d": [datetime.date(2024, 2, 29)], "f": [True], "id": [1]})
        write(sink(tmp_path, partitionBy="d,f"), 0, rows)
        assert by_folder(tmp_path) == {"d=2024-02-29/f=true": [1]}

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"id": [1], "p": [0.5]}, r'"p" of type double.*foreach_batch'),
            ({"id": [1]}, r'partitionBy .*names "p", but the columns are id'),
            ({"p": ["x"]}, "every column"),
        ],
        ids=["a number with a point", "missing", "all"],
    )
    def test_columns_that_cannot_name_a_folder_are_told(self, tmp_path: Path, columns: Any, message: str) -> None:
        with pytest.raises(Misconfigured, match=message):
            write(sink(tmp_path, partitionBy="p"), 0, pa.record_batch(columns))
        assert visible(tmp_path) == []

    def test_few_files_are_open_and_rows_that_come_late_get_a_file_of_their_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(FilesWriter, "most_open", 2)
        files_sink = sink(tmp_path, partitionBy="p")
        schema = pa.schema([("id", pa.int64()), ("p", pa.int64())])
        writer = files_sink.writer(Batch(files_sink.sink_id(), "q", 0), schema, 0)
        for number in [0, 1, 0, 2, 1]:  # 1 waits longest when 2 comes, then 0
            writer.write(pa.record_batch({"id": [number], "p": [number]}, schema=schema))
            assert len(writer._open) <= 2
        staged = writer.prepare()
        assert [folder for _, folder, _ in staged.data["files"]] == ["p=0", "p=1", "p=2", "p=1"]
        assert (staged.rows, len(writer._open)) == (5, 0)

    @pytest.mark.parametrize("kind", ["json", "csv", "avro", "orc", "text"])
    def test_every_format_can_be_divided(self, tmp_path: Path, kind: str) -> None:
        rows = pa.record_batch({"value": ["a", "b"], "p": [1, 2]})
        write(sink(tmp_path, partitionBy="p", fileFormat=kind), 0, rows)
        assert sorted(file.parent.name for file in visible(tmp_path)) == ["p=1", "p=2"]


class TestBuckets:
    times = pa.array([1743298200, 1761438600, None], pa.timestamp("s")).cast(pa.timestamp("us", "UTC"))

    @pytest.mark.parametrize(
        ("zone", "expected"),
        [
            ("UTC", ["2025/03/30-01", "2025/10/26-00"]),
            ("Europe/Berlin", ["2025/03/30-03", "2025/10/26-02"]),
            ("+05:30", ["2025/03/30-07", "2025/10/26-06"]),
        ],
    )
    def test_times_fall_into_the_bucket_of_their_zone(self, tmp_path: Path, zone: str, expected: list[str]) -> None:
        write(bucketed(tmp_path, "yyyy/MM/dd-HH", zone), 0, pa.record_batch({"t": self.times, "id": [0, 1, 2]}))
        assert by_folder(tmp_path) == {expected[0]: [0], expected[1]: [1], f"bucket={NULL}": [2]}
        assert len(by_folder(tmp_path, "t")) == 3, "the time column stays"

    @pytest.mark.skipif(not may_hide_folders(), reason="needs Linux, where a process may hide folders from itself")
    def test_a_machine_without_time_zone_data_knows_utc_and_says_what_it_lacks(self, tmp_path: Path) -> None:
        hidden = f"mount -t tmpfs none /usr/share/zoneinfo && exec {sys.executable} -c '{NO_ZONES}' {tmp_path}"
        environment = {**os.environ, "PYTHONPATH": str(library())}
        command = ["unshare", "-rm", "sh", "-c", hidden]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        utc, naive, berlin = ran.stdout.split("|")
        assert (utc, naive) == ("22", "00"), ran.stderr
        assert "bucket.timeZone   \"Europe/Berlin\" cannot be read: this machine has no time zone data." in berlin

    def test_times_without_a_zone_and_dates_are_taken_as_they_are(self, tmp_path: Path) -> None:
        for number, kind in enumerate([pa.timestamp("us"), pa.date32()]):
            time = pa.array([datetime.datetime(1969, 12, 31, 23) if number == 0 else datetime.date(1969, 12, 31)], kind)
            write(bucketed(tmp_path, "yyyyMMdd'T'HH", "+05:30"), number, pa.record_batch({"t": time, "id": [number]}))
        assert by_folder(tmp_path) == {"19691231T23": [0], "19691231T00": [1]}

    def test_columns_in_braces_are_parts_of_the_folder_and_stay_in_the_files(self, tmp_path: Path) -> None:
        kinds = ["x", None, "../a:c", "", "_b", "x"]
        rows = pa.record_batch({"kind": kinds, "id": [1, 2, 3, 4, 5, 6], "on": [True, True, False, True, True, True]})
        write(sink(tmp_path, bucket="'{{ '{kind}/{on}"), 0, rows)
        none = {f"bucket={NULL}": [2, 4]}
        assert by_folder(tmp_path) == {"{ x/true": [1, 6], "{ %2E.%2Fa%3Ac/false": [3], "{ %5Fb/true": [5], **none}
        assert {tuple(pq.ParquetFile(file).schema_arrow.names) for file in visible(tmp_path)} == {("kind", "id", "on")}

    def test_times_and_columns_name_a_folder_together(self, tmp_path: Path) -> None:
        kinds = pa.array(["x", None, "dd"])
        days = pa.array([datetime.date(2024, 2, 29), datetime.date(2024, 3, 1), datetime.date(2024, 3, 1)])
        rows = pa.record_batch({"t": self.times.take(pa.array([0, 0, 1])), "kind": kinds, "day": days, "id": [0, 1, 2]})
        write(bucketed(tmp_path, "yyyy-{kind}/MM{day}"), 0, rows)
        assert by_folder(tmp_path) == {"2025-x/032024-02-29": [0], "2025-dd/102024-03-01": [2], f"bucket={NULL}": [1]}

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"id": [1], "kind": [0.5]}, 'bucket .*names "kind", which must be a column of text, .* Cast it'),
            ({"id": [1]}, r'bucket .*names "kind", but the columns are id'),
        ],
        ids=["a number with a point", "missing"],
    )
    def test_columns_that_cannot_name_a_bucket_are_told(self, tmp_path: Path, columns: Any, message: str) -> None:
        with pytest.raises(Misconfigured, match=message):
            write(sink(tmp_path, bucket="{kind}"), 0, pa.record_batch(columns))
        assert visible(tmp_path) == []

    @pytest.mark.parametrize(("value", "text"), [("ü" * 200, "400 bytes"), ("a\0b", "NUL")])
    def test_a_value_that_can_name_no_bucket_is_refused(self, tmp_path: Path, value: str, text: str) -> None:
        with pytest.raises(Fatal, match=f'the column "k" .*(?s:{text}.*out of bucket)'):
            write(sink(tmp_path, bucket="{k}"), 0, pa.record_batch({"id": [1], "k": [value]}))

    def test_values_that_are_too_long_together_are_refused_before_anything_is_recorded(self, tmp_path: Path) -> None:
        files_sink = sink(tmp_path, bucket="{a}-{b}")
        with pytest.raises(Fatal, match=r'the column "a" or "b" .* 401 bytes'):
            write(files_sink, 0, pa.record_batch({"id": [1], "a": ["x" * 200], "b": ["y" * 200]}))
        write(files_sink, 0, pa.record_batch({"id": [2], "a": ["x"], "b": ["y"]}))
        assert by_folder(tmp_path) == {"x-y": [2]}

    def test_the_name_that_stands_for_no_value_is_none_as_in_spark(self, tmp_path: Path) -> None:
        write(sink(tmp_path, bucket="{k}"), 0, pa.record_batch({"id": [1], "k": [NULL]}))
        assert by_folder(tmp_path) == {f"bucket={NULL}": [1]}

    @pytest.mark.parametrize("pattern", ["'_hidden='yyyy", "'../'yyyy", "'/abs/'yyyy", "'a/.b/'yyyy"])
    def test_a_bucket_that_hides_or_leaves_the_folder_is_refused(self, tmp_path: Path, pattern: str) -> None:
        with pytest.raises(Misconfigured, match=r"bucket .*must lie below"):
            write(bucketed(tmp_path / "t", pattern), 0, pa.record_batch({"t": self.times, "id": [0, 1, 2]}))

    def test_a_column_that_is_no_time_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured, match='names "t" of type string; it must be a timestamp'):
            write(bucketed(tmp_path, "yyyy"), 0, pa.record_batch({"t": ["now"]}))

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("yy-M-d H:m:s", "24-3-5 7:8:9"),
            ("yyyyMMdd'T'HHmmss.SSS", "20240305T070809.012"),
            ("DDD 'o''clock' ''", "065 o'clock '"),
            ("SSSSSSSSS uuuu é", "012345000 2024 é"),
        ],
    )
    def test_patterns_are_those_of_spark(self, pattern: str, expected: str) -> None:
        assert DatePattern("x", pattern).shown(datetime.datetime(2024, 3, 5, 7, 8, 9, 12345)) == expected

    @pytest.mark.parametrize(("pattern", "sign"), [("yyyy-'W'w", "w"), ("EEE", "EEE"), ("dd-MMM", "MMM"), ("yyyy[MM]", "[")])
    def test_a_pattern_that_only_spark_knows_is_told(self, pattern: str, sign: str) -> None:
        with pytest.raises(Misconfigured, match=rf'bucket .*has "{re.escape(sign)}", which only Spark'):
            DatePattern("x", pattern)
