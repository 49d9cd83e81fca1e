"""The source: finished files of a folder or glob, each once, without a list of them that grows for ever."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from connectors.core import Batch, DataLoss, Fatal, Misconfigured, Poison, ReadLimit
from connectors.core.commit import Commit
from connectors.core.planning import Offset, Planner
from connectors.core.progress import unpacked
from connectors.core.reading import read_slice
from connectors.core.writing import stage
from connectors.ground.state import dumps
from connectors.storage.local import LocalStorage
from connectors.systems.files import FilesSink, FilesSource
from connectors.systems.files import source as source_module
from connectors.systems.files.rolling import seal_folder
from connectors.systems.files.source import FilesEnumerator, ListedFile
from connectors.testing import SourceContext, SourceSuite

from .helpers import write

UTC = datetime.timezone.utc
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def put(file: Path, table: pa.Table, *, age: float = 0.0) -> None:
    """A finished Parquet file, last changed ``age`` seconds ago, that appears at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    growing = file.with_name(f".{file.name}")
    pq.write_table(table, growing)
    if age:
        os.utime(growing, (time.time() - age, time.time() - age))
    growing.rename(file)


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def age(folder: Path, name: str, seconds: float) -> None:
    """Makes the files in the hidden folder ``name`` of all sinks older."""
    for file in folder.glob(f".connectors/*/{name}/**/*.parquet"):
        os.utime(file, (time.time() - seconds, time.time() - seconds))


class FilesSourceContext(SourceContext):
    """A folder of finished files of one format, ten rows each."""

    source = FilesSource
    schema = SCHEMA
    limit: ClassVar[Mapping[str, str]] = {"maxFilesPerTrigger": "2"}
    kind: ClassVar[str] = "parquet"

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder), "fileFormat": self.kind}

    def write(self, count: int) -> list[dict[str, Any]]:
        rows = [{"id": number, "name": f"row {number}"} for number in range(count)]
        sink = FilesSink.of({"path": str(self.folder), "fileFormat": self.kind, "onNewQuery": "continue"})
        batches = [pa.RecordBatch.from_pylist(rows[first : first + 10], SCHEMA) for first in range(0, count, 10)]
        write(sink, 0, *batches, query=f"q{time.monotonic_ns()}")  # type: ignore[arg-type]
        return rows


class JsonContext(FilesSourceContext):
    kind = "json"


class AvroContext(FilesSourceContext):
    kind = "avro"


class TestParquet(SourceSuite):
    context = FilesSourceContext


class TestJson(SourceSuite):
    context = JsonContext


class TestAvro(SourceSuite):
    context = AvroContext


class ChangingListing:
    """A listing of files in memory."""

    name = "folder"

    def __init__(self) -> None:
        self.storage = LocalStorage("folder")
        self.files: dict[str, tuple[str, int]] = {}

    def __iter__(self) -> Iterator[ListedFile]:
        return (ListedFile(path, 1, changed) for path, changed in self.files.values())

    def add(self, path: str, changed: int) -> None:
        self.files[path] = (path, changed)


class Query:
    """A query over a folder, whose checkpoint is ``log``."""

    def __init__(self, path: object, schema: pa.Schema | None = None, **options: str) -> None:
        self.options = {"path": str(path), **options}
        self.schema = schema or pa.schema([("id", pa.int64())])
        self.log: list[Offset] = [{"v": 1, "phase": "initial"}]

    def rows(self, planner: Planner | None = None) -> list[dict[str, Any]]:
        """The rows of the next batch, by the query of ``planner``, or by one that was started anew."""
        planner = planner or self.planner()
        source = planner.source
        end = planner.latest(self.log[-1], source.limit())
        parts = [] if end == self.log[-1] else planner.slices(self.log[-1], end)
        self.log.append(json.loads(dumps(end)))
        return [row for part in parts for rows in read_slice(source, part, self.schema) for row in rows.to_pylist()]

    def planner(self) -> Planner:
        """One run of the query."""
        return Planner(FilesSource.of(self.options, streaming=True))

    def numbers(self, planner: Planner | None = None) -> list[int]:
        return sorted(row["id"] for row in self.rows(planner))

    def skipped(self) -> int | None:
        """How many files the newest batch has skipped, as its offset tells."""
        (folder,) = unpacked(self.log[-1])
        return folder.skipped


class TestFiles:
    def test_hidden_files_and_folders_are_passed_over(self, tmp_path: Path) -> None:
        names = ["a.parquet", ".b.parquet", "_c.parquet", ".d/e.parquet", "_f/g.parquet", "_h=1/i.parquet"]
        for number, name in enumerate(names):
            put(tmp_path / name, ids(number))
        assert Query(tmp_path, recursiveFileLookup="true").numbers() == [0, 5]

    def test_folders_are_entered_only_when_asked(self, tmp_path: Path) -> None:
        put(tmp_path / "a.parquet", ids(1))
        put(tmp_path / "deep/er/b.parquet", ids(2))
        assert Query(tmp_path).numbers() == [1]
        assert Query(tmp_path, recursiveFileLookup="true").numbers() == [1, 2]

    @pytest.mark.parametrize("pattern", ["", "*", "year=*", "year=2024/*"])
    def test_folders_of_columns_are_always_entered(self, tmp_path: Path, pattern: str) -> None:
        put(tmp_path / "year=2024/month=1/a.parquet", ids(1))
        put(tmp_path / "year=2024/month=1/deep/b.parquet", ids(2))
        assert Query(tmp_path / pattern).numbers() == [1]

    def test_what_the_sink_has_put_into_folders_comes_back(self, tmp_path: Path) -> None:
        rows = pa.record_batch({"id": [1, 2, 3], "day": ["a", "/ %=é", None]})
        write(FilesSink.of({"path": str(tmp_path), "partitionBy": "day"}), 0, rows)  # type: ignore[arg-type]
        assert sorted(Query(tmp_path, rows.schema).rows(), key=lambda row: int(row["id"])) == rows.to_pylist()

    @pytest.mark.parametrize(("before", "after"), [("2024/*.parquet", "*/*.parquet"), ("2024", "2025"), ("*/*", "2024/*")])
    def test_a_path_with_another_root_is_refused(self, tmp_path: Path, before: str, after: str) -> None:
        put(tmp_path / "2024/a.parquet", ids(1))
        put(tmp_path / "2025/a.parquet", ids(2))  # of the same name, relative to its folder
        query = Query(tmp_path / before)
        query.rows()
        query.options["path"] = str(tmp_path / after)
        with pytest.raises(Misconfigured, match="files would be read twice, or not at all"):
            query.rows()
        with pytest.raises(Misconfigured, match="files would be read twice, or not at all"):
            query.planner().slices(*query.log[-2:])

    @pytest.mark.parametrize("after", ["{0}/*.parquet", "{0}/{{a,b}}.parquet", "{0}/", "file://{0}", "."])
    def test_a_path_with_the_same_root_goes_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
        monkeypatch.chdir(tmp_path)
        put(tmp_path / "a.parquet", ids(1))
        query = Query(tmp_path)
        assert query.numbers() == [1]
        put(tmp_path / "b.parquet", ids(2))
        query.options["path"] = after.format(tmp_path)
        assert query.numbers() == [2]

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("*.parquet", [1]),
            ("day-*", [2, 3]),
            ("day-?/b*", [2]),
            ("*/[b-c].parquet", [2, 3]),
            ("day-1/b.parquet", [2]),
            ("x*", []),
        ],
    )
    def test_a_glob_names_files_or_folders(self, tmp_path: Path, pattern: str, expected: list[int]) -> None:
        put(tmp_path / "a.parquet", ids(1))
        put(tmp_path / "day-1/b.parquet", ids(2))
        put(tmp_path / "day-2/c.parquet", ids(3))
        assert Query(tmp_path / pattern).numbers() == expected

    def test_a_folder_that_appears_later_is_no_error(self, tmp_path: Path) -> None:
        query = Query(tmp_path / "later")
        assert query.numbers() == []
        put(tmp_path / "later/a.parquet", ids(1))
        assert query.numbers() == [1]

    def test_each_file_is_read_once_also_one_that_appears_late(self, tmp_path: Path) -> None:
        query = Query(tmp_path)
        put(tmp_path / "b.parquet", ids(1))
        assert query.numbers() == [1]
        put(tmp_path / "a.parquet", ids(2), age=600)
        put(tmp_path / "c.parquet", ids(3))
        assert query.numbers() == [2, 3]
        assert query.numbers() == []

    def test_files_with_one_time_are_told_apart(self, tmp_path: Path) -> None:
        for number in range(5):
            put(tmp_path / f"{number}.parquet", ids(number))
            os.utime(tmp_path / f"{number}.parquet", (1e9, 1e9))
        query = Query(tmp_path, maxFilesPerTrigger="2")
        assert [query.numbers() for _ in range(4)] == [[0, 1], [2, 3], [4], []]

    def test_a_limit_of_bytes_takes_one_file_at_least(self, tmp_path: Path) -> None:
        for number in range(3):
            put(tmp_path / f"{number}.parquet", ids(number), age=100 - number)
        size = (tmp_path / "0.parquet").stat().st_size
        assert [Query(tmp_path, maxBytesPerTrigger=str(limit)).numbers() for limit in (1, 2 * size)] == [[0], [0, 1]]

    def test_a_file_from_the_future_hides_none(self, tmp_path: Path) -> None:
        query = Query(tmp_path)
        put(tmp_path / "a.parquet", ids(1), age=-30 * 86400)
        assert query.numbers() == [1]
        put(tmp_path / "b.parquet", ids(2))
        assert query.numbers() == [2]
        assert query.numbers() == []

    def test_what_is_remembered_does_not_grow_for_ever(self, tmp_path: Path) -> None:
        for number in range(300):
            put(tmp_path / f"{number}.parquet", ids(number), age=100_000 - number * 60)
        query, sizes, numbers = Query(tmp_path, maxFilesPerTrigger="10"), [], []
        while batch := query.numbers():
            numbers += batch
            sizes.append(len(dumps(query.log[-1])))
        assert numbers == list(range(300))
        assert max(sizes[15:]) <= max(sizes[:15]) + 2, "an hour of files, one a minute; the count of old ones has more digits"
        assert max(sizes) < 8000

    @pytest.mark.parametrize("times", ["of their own", "one"])
    def test_many_files_of_one_hour_do_not_make_offsets_large(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: str
    ) -> None:
        monkeypatch.setattr(source_module, "MOST_NAMES", 20)
        (tmp_path / "x.parquet").touch()
        now = time.time()
        for number in range(200):
            file = tmp_path / f"{number:03}.parquet"
            put(file, ids(number))
            at = now - 600 + number if times == "of their own" else now - 600
            os.utime(file, (at, at))
        (tmp_path / "x.parquet").unlink()
        query, numbers = Query(tmp_path, maxFilesPerTrigger="7"), []
        while batch := query.numbers():
            numbers += batch
            assert len(query.log[-1]["at"]["seen"]) <= 20
        assert numbers == list(range(200))
        put(tmp_path / "zzz.parquet", ids(200), age=590 if times == "one" else 395)
        assert query.numbers() == [200], "behind few others"
        put(tmp_path / "late.parquet", ids(-1), age=650)
        with pytest.raises(DataLoss, match=r"1 file appeared .* or 20 files, behind the newest"):
            query.numbers()

    @pytest.mark.parametrize("seed", range(10))
    def test_files_that_come_and_go_at_any_time_are_read_once_unless_they_come_too_late(
        self, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(source_module, "MOST_NAMES", 12)
        chance, now = random.Random(seed), time.time_ns()
        listing, away, taken = ChangingListing(), [], list[str]()
        at: Any = {}
        for number in range(300):
            step = chance.random() if number < 299 else 1.0
            read = [path for path in listing.files if path in taken]
            if step < 0.5:
                listing.add(f"{chance.random():.6f}", now + number * 10 - chance.choice((0, 0, 20, 300)))
            elif step < 0.6 and read:
                away.append(listing.files.pop(chance.choice(read)))
            elif step < 0.65 and away:
                listing.add(*away.pop())
            else:
                enumerator = FilesEnumerator(listing, 3600, 1000, fail=False)  # type: ignore[arg-type]
                limit = ReadLimit(files=chance.randint(1, 9) if number < 299 else None)
                end = json.loads(dumps(enumerator.advance(at, enumerator.head(), limit)))
                taken += [file[0] for file in end["files"]] if end != at else []
                at = end
        assert len(taken) == len(set(taken))
        assert [file for file in listing if file.path not in taken and file.place >= tuple(at["old"][:2])] == []

    def test_a_stream_has_at_most_a_thousand_files_in_an_offset(self, tmp_path: Path) -> None:
        for number in range(1001):
            (tmp_path / f"{number:04}.txt").write_text("x\n")
        query = Query(tmp_path, pa.schema([("value", pa.string())]), fileFormat="text")
        assert [len(query.rows()) for _ in range(2)] == [1000, 1]

    def test_a_file_that_is_gone_before_it_is_read_is_named(self, tmp_path: Path) -> None:
        put(tmp_path / "a.parquet", ids(1))
        for fail in ("true", "false"):
            source = FilesSource.of({"path": str(tmp_path), "failOnDataLoss": fail}, streaming=True)
            planner = Planner(source)
            end = planner.latest({"v": 1, "phase": "initial"})
            (tmp_path / "a.parquet").rename(tmp_path / "gone")
            parts = planner.slices({"v": 1, "phase": "initial"}, end)
            if fail == "true":
                with pytest.raises(DataLoss, match=r"a\.parquet was deleted(.|\n)*failOnDataLoss=false"):
                    list(read_slice(source, parts[0], SCHEMA))
                (tmp_path / "gone").rename(tmp_path / "a.parquet")
            else:
                assert list(read_slice(source, parts[0], SCHEMA)) == []

    def test_a_file_that_grew_after_it_was_listed_was_not_finished(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("one\n")
        schema = pa.schema([("value", pa.string())])
        source = FilesSource.of({"path": str(tmp_path), "fileFormat": "text"}, streaming=True)
        planner = Planner(source)
        initial = {"v": 1, "phase": "initial"}
        parts = planner.slices(initial, planner.latest(initial))
        (tmp_path / "a.txt").write_text("one\ntwo\n")
        with pytest.raises(DataLoss, match="had 4 bytes when it was listed and has 8 now"):
            list(read_slice(source, parts[0], schema))

    def test_whatever_fsspec_reads_is_read(self) -> None:
        import fsspec

        memory = fsspec.filesystem("memory")
        for name in ("one.txt", "deep/two.txt", "_hidden.txt"):
            memory.pipe_file(f"/read-{id(memory)}/{name}", name.encode() + b"\n")
        source = FilesSource.of({"path": f"memory://read-{id(memory)}/*", "fileFormat": "text"}, streaming=False)
        parts = Planner(source).whole()
        schema = pa.schema([("value", pa.string())])
        lines = [line for part in parts for batch in read_slice(source, part, schema) for line in batch.column(0).to_pylist()]
        assert sorted(lines) == ["deep/two.txt", "one.txt"]

    def test_a_protocol_that_nobody_knows_is_one_clear_error(self) -> None:
        with pytest.raises(Misconfigured, match=r"storageOptions .*Protocol not known: gopher"):
            FilesSource.of({"path": "gopher://host/x"}).schema  # noqa: B018


HOUR, DAY = 3600, 86400


class TestSkippedFiles:
    """Files that appear more than ``maxFileAge`` behind the newest file read."""

    @pytest.mark.parametrize("restart", [False, True])
    def test_a_file_that_appears_too_late_is_an_error_until_it_is_touched(self, tmp_path: Path, restart: bool) -> None:
        query = Query(tmp_path)
        run = query.planner()
        put(tmp_path / "a.parquet", ids(1))
        assert query.numbers(run) == [1]
        put(tmp_path / "old.parquet", ids(2), age=DAY)
        for _ in range(2):
            with pytest.raises(DataLoss, match=r"1 file appeared more than maxFileAge .*old\.parquet(.|\n)*=false"):
                query.numbers(None if restart else run)
        (tmp_path / "old.parquet").touch()
        assert query.numbers(None if restart else run) == [2]

    @pytest.mark.parametrize("rolling", ["onBatch", "policy"])
    def test_what_a_sink_publishes_hours_after_it_was_staged_is_read(self, tmp_path: Path, rolling: str) -> None:
        """Tasks that end hours apart, and hidden parts that are sealed after the machine was down."""
        sink = FilesSink.of({"path": str(tmp_path), "rolling": rolling})
        query = Query(tmp_path)
        put(tmp_path / "a.parquet", ids(1))
        assert query.numbers() == [1]
        batch = Batch(sink.sink_id(), "q", 0)
        rows = ids(2, 3).to_batches()[0]
        staged = [stage(sink, batch, rows.schema, 0, iter([rows]))]
        age(tmp_path, "stage", 3 * HOUR)
        Commit(sink).finish(batch, staged)
        age(tmp_path, "parts", 2 * HOUR)
        seal_folder(str(tmp_path))
        assert query.numbers() == [2, 3]

    def test_an_old_file_that_is_moved_in_while_the_query_runs_is_counted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        query = Query(tmp_path, failOnDataLoss="false")
        run = query.planner()
        put(tmp_path / "a.parquet", ids(1))
        assert (query.numbers(run), query.skipped()) == ([1], 0)
        put(tmp_path / "old.parquet", ids(2), age=DAY)
        put(tmp_path / "older.parquet", ids(3), age=2 * DAY)
        assert query.numbers(run) == []
        (warning,) = caplog.records
        assert "2 files appeared more than maxFileAge (3600 s), or 10,000 files, behind" in warning.getMessage()
        assert "An example is old.parquet." in warning.getMessage()
        put(tmp_path / "b.parquet", ids(4))
        assert (query.numbers(run), query.skipped()) == ([4], 2)

    def test_a_run_warns_once_and_counts_on(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        query = Query(tmp_path, failOnDataLoss="false")
        run = query.planner()
        for number in range(4):
            put(tmp_path / f"{number}.parquet", ids(number))
            assert query.numbers(run) == [number]
            put(tmp_path / f"old-{number}.parquet", ids(-1), age=DAY)
        assert query.skipped() == 3
        assert len(caplog.records) == 1

    @pytest.mark.parametrize("before", [0, 3])
    def test_old_files_that_are_moved_in_while_the_query_is_down_are_counted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, before: int
    ) -> None:
        query = Query(tmp_path, failOnDataLoss="false")
        for number in range(before):
            put(tmp_path / f"read-{number}.parquet", ids(number), age=10 * DAY)
        put(tmp_path / "a.parquet", ids(100))
        assert query.numbers() == [*range(before), 100]
        for number in range(2):
            put(tmp_path / f"old-{number}.parquet", ids(-1), age=(3 - number) * DAY)
        put(tmp_path / "b.parquet", ids(101))
        assert (query.numbers(), query.skipped()) == ([101], 2)
        (warning,) = caplog.records
        assert "2 files appeared" in warning.getMessage()
        assert "old-1.parquet" in warning.getMessage()
        assert ("among the 5 files" in warning.getMessage()) == bool(before)

    def test_what_was_skipped_is_counted_once_over_restarts(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        query = Query(tmp_path, failOnDataLoss="false")
        put(tmp_path / "a.parquet", ids(0))
        query.rows()
        put(tmp_path / "old.parquet", ids(-1), age=DAY)
        for number in range(1, 4):
            assert query.numbers() == []
            put(tmp_path / f"{number}.parquet", ids(number))
            assert (query.numbers(), query.skipped()) == ([number], 1)
        assert len(caplog.records) == 2, "the run that found nothing to read, and the one after it: no batch had told it before"

    @pytest.mark.parametrize("restart", [False, True])
    def test_files_that_were_read_and_are_forgotten_are_not_counted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, restart: bool
    ) -> None:
        query = Query(tmp_path, maxFilesPerTrigger="3")
        run = query.planner()
        for number in range(30):
            put(tmp_path / f"{number}.parquet", ids(number), age=40 * HOUR - number * HOUR)
        batches = [query.numbers(query.planner() if restart else run) for _ in range(11)]
        assert batches == [[first, first + 1, first + 2] for first in range(0, 30, 3)] + [[]]
        assert (query.skipped(), caplog.records) == (0, [])
        assert len(query.log[-1]["at"]["seen"]) < 3, "most are forgotten"

    def test_files_within_the_limit_are_not_counted(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        query = Query(tmp_path)
        put(tmp_path / "a.parquet", ids(0))
        query.rows()
        put(tmp_path / "late.parquet", ids(1), age=HOUR - 60)
        assert (query.numbers(), query.skipped(), caplog.records) == ([1], 0, [])

    @pytest.mark.parametrize("deleted", ["before the last batch", "while the query is down"])
    def test_deleted_files_hide_others_at_most(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, deleted: str
    ) -> None:
        query = Query(tmp_path, failOnDataLoss="false")
        for number in range(3):
            put(tmp_path / f"read-{number}.parquet", ids(number), age=10 * DAY)
        put(tmp_path / "a.parquet", ids(3))
        query.rows()
        if deleted == "before the last batch":
            (tmp_path / "read-0.parquet").unlink()
            put(tmp_path / "b.parquet", ids(4))
            query.rows()
        else:
            (tmp_path / "read-0.parquet").unlink()
        put(tmp_path / "old.parquet", ids(-1), age=DAY)
        put(tmp_path / "c.parquet", ids(5))
        expected = 1 if deleted == "before the last batch" else 0
        assert (query.numbers(), query.skipped(), len(caplog.records)) == ([5], expected, expected)

    def test_deletions_while_the_query_runs_hide_nothing(self, tmp_path: Path) -> None:
        query = Query(tmp_path, failOnDataLoss="false")
        run = query.planner()
        put(tmp_path / "read.parquet", ids(0), age=DAY)
        put(tmp_path / "a.parquet", ids(1))
        query.rows(run)
        (tmp_path / "read.parquet").unlink()
        put(tmp_path / "old.parquet", ids(-1), age=DAY)
        put(tmp_path / "b.parquet", ids(2))
        assert (query.numbers(run), query.skipped()) == ([2], 1)

    def test_files_that_waited_and_were_away_until_it_was_too_late_are_an_error(self, tmp_path: Path) -> None:
        """As those of a disk that was unmounted, beside another one."""
        query = Query(tmp_path, recursiveFileLookup="true", maxFilesPerTrigger="1")
        run = query.planner()
        for number in range(3):
            put(tmp_path / f"disk/{number}.parquet", ids(number), age=DAY - number)
        assert query.numbers(run) == [0]
        (tmp_path / "disk").rename(tmp_path / ".disk")
        put(tmp_path / "other.parquet", ids(3))
        assert query.numbers(run) == [3]
        (tmp_path / ".disk").rename(tmp_path / "disk")
        with pytest.raises(DataLoss, match=r"2 files appeared .* An example is disk/2\.parquet"):
            query.numbers(run)

    @pytest.mark.parametrize("age", ["10m", "30d"])
    def test_another_max_file_age_reads_no_file_again_and_counts_none_that_was_read(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, age: str
    ) -> None:
        query = Query(tmp_path)
        for number, hours in enumerate((50, 0.5, 0.4, 0.1)):
            put(tmp_path / f"{number}.parquet", ids(number), age=hours * HOUR)
            assert query.numbers() == [number]
        query.options["maxFileAge"] = age
        assert query.numbers() == []
        for number in (4, 5):
            put(tmp_path / f"{number}.parquet", ids(number))
            assert (query.numbers(), query.skipped(), caplog.records) == ([number], 0, [])

    def test_a_shorter_max_file_age_passes_over_no_file_that_waits(self, tmp_path: Path) -> None:
        query = Query(tmp_path, maxFilesPerTrigger="1")
        put(tmp_path / "0.parquet", ids(0))
        assert query.numbers() == [0]
        for number in (1, 2):
            put(tmp_path / f"{number}.parquet", ids(number), age=HOUR / 2 - number)
        query.options["maxFileAge"] = "10m"
        run = query.planner()
        assert [query.numbers(run) for _ in range(3)] == [[1], [2], []]

    def test_names_that_are_remembered_in_a_run_are_as_many_as_the_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(source_module, "_SPARE_NAMES", 5)
        late = source_module.LateFiles("folder", 60.0, fail=False)
        for number in range(1000):
            late.count({}, [ListedFile(f"{number}-{n}", 1, number) for n in range(10)], [])
        assert len(late._names or ()) <= 35


class TestFormats:
    @pytest.mark.parametrize("kind", ["parquet", "json", "csv", "avro", "orc"])
    def test_what_the_sink_writes_comes_back(self, tmp_path: Path, kind: str) -> None:
        fields: dict[str, tuple[pa.DataType, list[Any]]] = {
            "text": (pa.string(), ['a "quoted", ü', None, "two\nlines" if kind != "json" else "x"]),
            "number": (pa.int64(), [1, None, -(2**62)]),
            "small": (pa.int32(), [1, None, 3]),
            "real": (pa.float64(), [0.5, None, -1e300]),
            "flag": (pa.bool_(), [True, None, False]),
            "exact": (pa.decimal128(20, 3), [Decimal("1.500"), None, Decimal("-12345678901234567.890")]),
            "time": (pa.timestamp("us", "UTC"), [datetime.datetime(2025, 3, 30, 1, 30, tzinfo=UTC), None, None]),
            "day": (pa.date32(), [datetime.date(2025, 2, 28), None, None]),
        }
        if kind == "orc":
            del fields["time"]  # refused: see test_same_content
        if kind != "csv":
            fields["bytes"] = (pa.binary(), [b"\x00\xff", None, b""])
            fields["items"] = (pa.list_(pa.int32()), [[1, None], None, []])
            nested = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
            fields["nested"] = (nested, [{"a": 1, "b": ["x", None]}, None, None])
        schema = pa.schema([(name, kind_) for name, (kind_, _) in fields.items()])
        rows = pa.RecordBatch.from_arrays([pa.array(values, kind_) for kind_, values in fields.values()], schema=schema)
        write(FilesSink.of({"path": str(tmp_path), "fileFormat": kind}), 0, rows)  # type: ignore[arg-type]
        assert Query(tmp_path, schema, fileFormat=kind).rows() == rows.to_pylist()

    @pytest.mark.parametrize("ending", ["", ".gz"])
    def test_lines_of_text_end_in_any_way(self, tmp_path: Path, ending: str) -> None:
        content = "one\r\ntwo\n\nlast ü".encode()
        (tmp_path / f"a.txt{ending}").write_bytes(gzip.compress(content) if ending else content)
        rows = Query(tmp_path, pa.schema([("value", pa.string())]), fileFormat="text").rows()
        assert [row["value"] for row in rows] == ["one", "two", "", "last ü"]

    def test_a_bad_line_is_told_with_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text('{"id": 1}\n\n{"id": "x"}\n')
        with pytest.raises(Poison, match=r"line 3 of .*a\.json"):
            Query(tmp_path, fileFormat="json").rows()

    def test_a_column_of_another_type_is_named(self, tmp_path: Path) -> None:
        put(tmp_path / "a.parquet", pa.table({"id": ["no number"]}))
        with pytest.raises(Fatal, match=r'the column "id" is string in .*a\.parquet and int64'):
            Query(tmp_path).rows()

    def test_narrower_numbers_and_missing_columns_are_no_trouble(self, tmp_path: Path) -> None:
        put(tmp_path / "a.parquet", pa.table({"id": pa.array([1], pa.int16()), "more": ["x"]}))
        assert Query(tmp_path, SCHEMA).rows() == [{"id": 1, "name": None}]

    def test_folders_tell_columns(self, tmp_path: Path) -> None:
        put(tmp_path / "year=2024/who=a%2Fb/a.parquet", ids(1))
        put(tmp_path / "year=2025/who=__HIVE_DEFAULT_PARTITION__/a.parquet", ids(2))
        schema = pa.schema([("id", pa.int64()), ("year", pa.int32()), ("who", pa.string())])
        rows = Query(tmp_path, schema, recursiveFileLookup="true").rows()
        assert sorted(rows, key=lambda row: row["id"]) == [
            {"id": 1, "year": 2024, "who": "a/b"},
            {"id": 2, "year": 2025, "who": None},
        ]

    @pytest.mark.parametrize("kind", ["parquet", "orc", "avro"])
    def test_columns_come_from_the_newest_file(self, tmp_path: Path, kind: str) -> None:
        if kind == "avro":
            write(FilesSink.of({"path": str(tmp_path), "fileFormat": kind}), 0, ids(1).to_batches()[0])  # type: ignore[arg-type]
        elif kind == "orc":
            orc.write_table(ids(1), tmp_path / "a.orc")
        else:
            columns_ = {"id": [1], "a b": [{"x": pa.scalar(1)}], "t": pa.array([1], pa.timestamp("ns"))}
            put(tmp_path / "a.parquet", pa.table(columns_))
        columns = FilesSource.of({"path": str(tmp_path), "fileFormat": kind}).schema
        more = ", `a b` struct<`x`: bigint>, `t` timestamp_ntz" if kind == "parquet" else ""
        assert columns == f"`id` bigint{more}"

    def test_columns_that_no_file_tells_must_be_given(self, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured, match=r"no file yet; give \.schema"):
            _ = FilesSource.of({"path": str(tmp_path)}).schema
        (tmp_path / "a.json").write_text("{}\n")
        with pytest.raises(Misconfigured, match=r"json needs \.schema"):
            _ = FilesSource.of({"path": str(tmp_path), "fileFormat": "json"}).schema
