"""A success file in the folder of a bucket that is finished. No Spark; see test_success_files_on_spark.py."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Batch, Committable, Misconfigured
from connectors.core.commit import Commit
from connectors.core.folder import SinkFolder
from connectors.core.ledger import app_query
from connectors.core.writing import stage
from connectors.storage import Storage
from connectors.systems.files import FilesSink
from connectors.systems.files.folders import DatePattern
from connectors.systems.files.rolling import seal_folder
from connectors.testing import SinkContext
from connectors.testing.contexts import open_context

from .contexts import HdfsContext, S3Context
from .helpers import TimedSink, visible, write

UTC = datetime.timezone.utc
DAY = {"bucket": "'day='yyyy-MM-dd", "bucket.timeColumn": "t", "bucket.successFile": "_DONE", "bucket.finishedAfter": "1 hour"}
HIDDEN = {"rolling": "policy"}


def sink(folder: Path, kind: type[FilesSink] = FilesSink, **options: str) -> FilesSink:
    files_sink: FilesSink = kind.of({"path": str(folder), **DAY, **options})  # type: ignore[assignment]
    return files_sink


def times(*texts: str | None, kind: pa.DataType | None = None) -> pa.RecordBatch:
    """Rows at ISO times of March 2024, such as ``05T10:00``."""
    moments = [text and datetime.datetime.fromisoformat(text if text[4:5] == "-" else f"2024-03-{text}") for text in texts]
    zoned = [moment.replace(tzinfo=moment.tzinfo or UTC) if moment else None for moment in moments]  # type: ignore[union-attr]
    column = pa.array(zoned, pa.timestamp("us", "UTC"))
    ids = pa.array([text or "" for text in texts], pa.string())
    return pa.record_batch({"id": ids, "t": column.cast(pa.timestamp("us")).cast(kind) if kind else column})


def finished(folder: Path) -> list[str]:
    return sorted(file.parent.relative_to(folder).as_posix() for file in folder.rglob("_DONE"))


def seen(folder: Path) -> list[str]:
    return sorted(id_ for file in visible(folder) for id_ in pq.ParquetFile(file).read().column("id").to_pylist())


def marks(files_sink: FilesSink) -> list[str]:
    folder = files_sink.folder()
    return sorted(folder.storage.names(folder.hidden("open")))


class TestTime:
    def test_a_folder_is_finished_when_a_row_is_so_much_later_than_its_end(self, tmp_path: Path) -> None:
        for number, time in enumerate(["05T00:00", "05T23:59", "06T00:59:59.999999"]):
            write(sink(tmp_path), number, times(time))
            assert finished(tmp_path) == []
        write(sink(tmp_path), 3, times("06T01:00"))
        assert finished(tmp_path) == ["day=2024-03-05"]
        assert (tmp_path / "day=2024-03-05/_DONE").read_bytes() == b""
        assert len(marks(sink(tmp_path))) == 1

    def test_the_newest_row_of_any_task_counts_and_old_ones_do_not_set_time_back(self, tmp_path: Path) -> None:
        batch, rows = Batch(sink(tmp_path).sink_id(), "q", 0), [times("07T00:30"), times("05T10:00", "04T12:00"), times(None)]
        tasks = [stage(sink(tmp_path), batch, rows[0].schema, index, iter(part)) for index, part in enumerate((rows, rows[1:]))]
        Commit(sink(tmp_path)).finish(batch, tasks)
        assert finished(tmp_path) == ["day=2024-03-04", "day=2024-03-05"]
        write(sink(tmp_path), 1, times("06T08:00"))
        write(sink(tmp_path), 2, times("07T00:59"))
        assert finished(tmp_path) == ["day=2024-03-04", "day=2024-03-05"]
        write(sink(tmp_path), 3, times("07T01:00"))
        assert finished(tmp_path)[2:] == ["day=2024-03-06"]

    def test_rows_of_a_task_that_failed_bring_time_no_further(self, tmp_path: Path) -> None:
        files_sink = sink(tmp_path)
        write(files_sink, 0, times("05T10:00"))
        batch = Batch(files_sink.sink_id(), "q", 1)
        stage(files_sink, batch, times("06T10:00").schema, 0, iter([times("06T10:00")]))
        write(files_sink, 1, times("05T11:00"))
        assert finished(tmp_path) == []

    def test_time_is_known_after_any_number_of_batches_and_to_another_process(self, tmp_path: Path) -> None:
        write(sink(tmp_path), 0, times("05T10:00", "06T00:30"))
        for number in range(1, 110):  # the ledger has the newest hundred
            write(sink(tmp_path), number, times("06T00:10"))
        assert finished(tmp_path) == []
        write(sink(tmp_path), 110, times("04T10:00"))
        assert finished(tmp_path) == ["day=2024-03-04"], "by the row of the first batch"
        write(sink(tmp_path), 111, times("06T02:00"))
        assert finished(tmp_path) == ["day=2024-03-04", "day=2024-03-05"]
        assert len(marks(sink(tmp_path))) == 1

    def test_a_row_from_the_future_does_not_finish_what_is_not_over(self, tmp_path: Path) -> None:
        zoned, naive = (sink(tmp_path / name, type("Timed", (TimedSink,), {})) for name in ("zoned", "naive"))
        today = datetime.datetime.fromtimestamp(TimedSink.clock.now, UTC)  # 2023-11-14, 22:13
        yesterday, ahead = (f"{today + datetime.timedelta(days=days):%Y-%m-%dT12:00}" for days in (-1, 1))
        late = f"{today + datetime.timedelta(hours=14):%Y-%m-%dT%H:%M}"
        for files_sink, kind, at in ((zoned, None, f"{today:%Y-%m-%dT22:00}"), (naive, pa.timestamp("us"), late)):
            write(files_sink, 0, times(yesterday, f"{today:%Y-%m-%dT12:00}", ahead, at, "2090-01-01T00:00", kind=kind))
        assert finished(tmp_path / "zoned") == ["day=2023-11-13"]
        assert finished(tmp_path / "naive") == ["day=2023-11-13", "day=2023-11-14"], "in some zone that day is over"
        write(sink(tmp_path / "zoned"), 1, times("05T10:00"))
        assert finished(tmp_path / "zoned") == ["day=2023-11-13", "day=2023-11-14", "day=2023-11-15"]

    @pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.date32()])
    def test_times_without_a_zone_and_dates_are_taken_as_they_are(self, tmp_path: Path, kind: pa.DataType) -> None:
        for number, time in enumerate(["05T10:00", "06T00:59"]):
            write(sink(tmp_path, **{"bucket.timeZone": "Asia/Tokyo"}), number, times(time, kind=kind))
            assert finished(tmp_path) == []
        write(sink(tmp_path), 2, times("07T01:00", kind=kind))
        assert finished(tmp_path) == ["day=2024-03-05"] + (["day=2024-03-06"] if kind == pa.timestamp("us") else [])

    @pytest.mark.parametrize(
        ("begin", "first", "last"),
        [
            ("2025-10-25T23:30Z", "2025-10-26T00:59:59Z", "2025-10-26T01:00Z"),  # 01:30, and 02:00 comes twice
            ("2025-10-26T00:30Z", "2025-10-26T01:59:59Z", "2025-10-26T02:00Z"),  # 02:30, which comes twice
            ("2025-03-30T00:30Z", "2025-03-30T00:59:59Z", "2025-03-30T01:00Z"),  # 01:30, and 02:00 never comes
        ],
    )
    def test_an_hour_ends_when_it_does_in_its_zone(self, tmp_path: Path, begin: str, first: str, last: str) -> None:
        hours = {"bucket": "yyyy/MM/dd/HH", "bucket.timeZone": "Europe/Berlin", "bucket.finishedAfter": "0s"}
        write(sink(tmp_path, **hours), 0, times(begin.replace("Z", "+00:00")))
        write(sink(tmp_path, **hours), 1, times(first.replace("Z", "+00:00")))
        before = len(finished(tmp_path))
        write(sink(tmp_path, **hours), 2, times(last.replace("Z", "+00:00")))
        assert len(finished(tmp_path)) > before

    @pytest.mark.parametrize("options", [{}, HIDDEN], ids=["onBatch", "policy"])
    def test_time_is_known_also_if_its_row_is_of_a_folder_without_an_end(self, tmp_path: Path, options: dict[str, str]) -> None:
        write(sink(tmp_path, **options), 0, times("05T10:00", "9999-12-31T00:00"))
        assert finished(tmp_path) == ["day=2024-03-05"]
        (tmp_path / "day=2024-03-05/_DONE").unlink()
        write(sink(tmp_path, **options), 1, times("05T11:00"))
        assert "05T11:00" in seen(tmp_path)
        assert finished(tmp_path) == ["day=2024-03-05"]
        assert len(marks(sink(tmp_path))) == 1

    def test_rows_without_a_time_are_never_finished(self, tmp_path: Path) -> None:
        write(sink(tmp_path), 0, times(None))
        write(sink(tmp_path), 1, times("05T10:00", None))
        write(sink(tmp_path), 2, times("07T10:00"))
        assert finished(tmp_path) == ["day=2024-03-05"]
        assert seen(tmp_path)[:2] == ["", ""]

    @pytest.mark.parametrize(
        ("pattern", "folder", "end"),
        [
            ("yyyy", "2024", (2025, 1, 1)),
            ("'y='uuuu/'m='MM", "y=2024/m=12", (2025, 1, 1)),
            ("yyyy/MM/yyyy-MM-dd", "2024/02/2024-02-29", (2024, 3, 1)),
            ("yyyy/M/d", "2024/12/31", (2025, 1, 1)),
            ("yyyyMMdd'T'HHmm", "20240305T2359", (2024, 3, 6)),
            ("ss mm HH dd MM yyyy", "59 01 02 03 04 2024", (2024, 4, 3, 2, 2)),
            ("yyyy-MM", "2024-13", None),
            ("yyyy", "9999", None),
            ("yyyy", "__HIVE_DEFAULT_PARTITION__", None),
        ],
    )
    def test_a_folder_tells_its_end(self, pattern: str, folder: str, end: tuple[int, int, int] | None) -> None:
        span = DatePattern("x", pattern).span(folder)
        assert (span and span[1]) == (end and datetime.datetime(*end))
        sink(Path("/data"), bucket=pattern)


class TestOptions:
    @pytest.mark.parametrize(
        "pattern",
        [
            *("MM-dd", "yyyy/dd", "yyyy-MM HH", "yyyyMd", "yy-MM-dd", "yyyy-DDD", "'all'"),
            *("yyyy-'W'w", "yyyy-MMM", "ss.SSS", "yyyy//MM", "yyyy/"),
        ],
    )
    def test_a_pattern_that_does_not_tell_when_a_folder_ends_is_refused(self, tmp_path: Path, pattern: str) -> None:
        with pytest.raises(Misconfigured, match=r"bucket +must tell when a folder ends, for bucket.successFile: yyyy.*; got"):
            sink(tmp_path, bucket=pattern)
        sink(tmp_path, bucket=f"'{'x' * 190}'yyyy")
        with pytest.raises(Misconfigured, match="must tell when"):
            sink(tmp_path, bucket=f"'{'x' * 200}'yyyy")

    def test_columns_in_the_bucket_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured, match=r"bucket +must have no columns for bucket.successFile; .* with shop"):
            sink(tmp_path, bucket="{shop}/yyyy-MM-dd")

    @pytest.mark.parametrize("name", ["done", "_a/b", "_day=1", "_" * 256])
    def test_a_name_that_readers_take_for_rows_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(Misconfigured, match=r"bucket.successFile +must begin with _"):
            sink(tmp_path, **{"bucket.successFile": name})

    def test_what_it_needs_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured, match=r"bucket.finishedAfter +missing.*how late rows may be"):
            FilesSink.of({"path": str(tmp_path), **{key: text for key, text in DAY.items() if "After" not in key}})
        with pytest.raises(Misconfigured, match=r"bucket.successFile.*bucket"):
            FilesSink.of({"path": str(tmp_path), "bucket.successFile": "_DONE", "bucket.finishedAfter": "0s"})


class TestLaterRows:
    @pytest.mark.parametrize("options", [{}, HIDDEN], ids=["onBatch", "policy"])
    def test_a_late_row_is_written_all_the_same_and_leaves_the_success_file_as_it_is(
        self, tmp_path: Path, options: dict[str, str]
    ) -> None:
        write(sink(tmp_path, **options), 0, times("05T10:00", "06T10:00"))
        file = tmp_path / "day=2024-03-05/_DONE"
        before = file.stat().st_mtime_ns
        write(sink(tmp_path, **options), 1, times("05T11:00"))
        assert "05T11:00" in seen(tmp_path), "also with rolling=policy, where rows of other folders wait"
        assert file.stat().st_mtime_ns == before
        assert len(marks(sink(tmp_path))) == 1
        file.unlink()  # its reader has done its work
        write(sink(tmp_path, **options), 2, times("06T11:00"))
        assert finished(tmp_path) == []
        write(sink(tmp_path, **options), 3, times("05T12:00"))
        assert finished(tmp_path) == ["day=2024-03-05"]

    def test_folders_from_before_the_option_get_none_unless_rows_come(self, tmp_path: Path) -> None:
        without = {key: text for key, text in DAY.items() if key in ("bucket", "bucket.timeColumn")}
        write(FilesSink.of({"path": str(tmp_path), **without}), 0, times("04T10:00", "05T10:00"))  # type: ignore[arg-type]
        write(sink(tmp_path), 1, times("05T11:00"))
        write(sink(tmp_path), 2, times("06T10:00"))
        assert finished(tmp_path) == ["day=2024-03-05"]
        write(FilesSink.of({"path": str(tmp_path), **without}), 3, times("07T10:00"))  # type: ignore[arg-type]
        assert finished(tmp_path) == ["day=2024-03-05"]
        write(sink(tmp_path), 4, times("08T10:00"))
        assert finished(tmp_path) == ["day=2024-03-05", "day=2024-03-06"]

    def test_another_pattern_and_zone_leave_what_is_open_as_it_was(self, tmp_path: Path) -> None:
        write(sink(tmp_path), 0, times("05T10:00"))
        write(sink(tmp_path, bucket="yyyy-MM", **{"bucket.timeZone": "Asia/Tokyo"}), 1, times("06T10:00"))
        assert finished(tmp_path) == ["day=2024-03-05"]


def test_what_a_process_leaves_that_dies_while_it_marks_a_folder_is_swept(tmp_path: Path) -> None:
    write(sink(tmp_path), 0, times("05T10:00"))
    (mark,) = marks(sink(tmp_path))
    unfinished = tmp_path / sink(tmp_path).folder().hidden("open") / f".{'a' * 32}"
    unfinished.touch()
    write(sink(tmp_path, stagingRetention="0s"), 1, times("05T11:00"))
    assert not unfinished.exists()
    assert marks(sink(tmp_path)) == [mark.replace("_1709632800", "_1709636400")], "the newest time"


class TestHiddenParts:
    def test_the_parts_of_a_finished_folder_are_sealed_and_the_others_wait(self, tmp_path: Path) -> None:
        files_sink = sink(tmp_path, **HIDDEN)
        write(files_sink, 0, times("05T10:00", "06T00:10"), times("05T11:00"))
        assert (seen(tmp_path), finished(tmp_path)) == ([], [])
        write(files_sink, 1, times("06T10:00"))
        assert seen(tmp_path) == ["05T10:00", "05T11:00"]
        assert len(visible(tmp_path)) == 1
        assert finished(tmp_path) == ["day=2024-03-05"]

    def test_a_batch_write_that_finishes_a_folder_seals_the_parts_of_the_query(self, tmp_path: Path) -> None:
        write(sink(tmp_path, **HIDDEN), 0, times("05T10:00", "06T00:10"))
        write(sink(tmp_path, **HIDDEN), 1, times("06T10:00"), query=app_query("nightly"))
        assert seen(tmp_path) == ["05T10:00", "06T10:00"]
        assert finished(tmp_path) == ["day=2024-03-05"]


class Died(BaseException):
    """The process is gone: nothing may catch this and tidy up."""


class Dying:
    """A storage that lets so many changes happen and then dies, before the next one or after it."""

    def __init__(self, storage: Storage, allowed: int, *, after: bool) -> None:
        self._storage, self._left, self._after = storage, allowed, after

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._storage, name)
        changes = ("put_if_absent", "delete", "delete_folder", "create", "replace")
        return self._counted(attribute) if name in changes else attribute

    def publish_all(self, files: Sequence[tuple[str, str]], journal: str) -> list[str]:
        return [name for name, final in files if self._counted(self._storage.publish)(name, final, journal)]

    def _counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if self._left == 0 and not self._after:
                raise Died
            result = change(*args)
            if self._left == 0:
                if hasattr(result, "close"):  # a file, which the end of a process closes
                    result.close()
                raise Died
            self._left -= 1
            return result

        return call


class DyingSink(FilesSink):
    """A sink whose driver dies; tasks go by another one."""

    storage: Any

    def folder(self) -> SinkFolder:
        return SinkFolder(self.storage, self.sink_id())


def dying(folder: Path, allowed: int, *, after: bool, **options: str) -> DyingSink:
    files_sink: DyingSink = DyingSink.of({"path": str(folder), **DAY, **options})  # type: ignore[assignment]
    files_sink.storage = Dying(sink(folder).folder().storage, allowed, after=after)
    return files_sink


def staged(files_sink: FilesSink, batch: Batch, *tasks: pa.RecordBatch) -> list[Committable]:
    return [stage(files_sink, batch, rows.schema, index, iter([rows])) for index, rows in enumerate(tasks)]


class TestDeaths:
    @pytest.mark.parametrize("options", [{}, HIDDEN], ids=["onBatch", "policy"])
    @pytest.mark.parametrize("last", [["05T12:00"], []], ids=["with its last row", "without a row of it"])
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    def test_a_driver_that_dies_at_any_step_leaves_no_early_success_file_and_the_next_one_puts_it(
        self, tmp_path: Path, options: dict[str, str], last: list[str], after: bool
    ) -> None:
        steps, early, of_day = 0, 0, ["05T10:00", "05T11:00", *last]
        while True:
            folder = tmp_path / str(steps)
            files_sink = sink(folder, **options)
            write(files_sink, 0, times("05T10:00"), times("05T11:00"))
            batch = Batch(files_sink.sink_id(), "q", 1)
            rows = staged(files_sink, batch, times(*last), times("06T00:10", "06T10:00"))
            driver = dying(folder, steps, after=after, **options)
            try:
                Commit(driver).finish(batch, rows)
            except Died:
                if finished(folder):
                    early += 1
                    assert [row for row in seen(folder) if row < "06"] == of_day, steps
                again = Batch(files_sink.sink_id(), "q", 1)
                tasks = staged(files_sink, again, times(*last), times("06T00:10", "06T10:00"))
                Commit(sink(folder, **options)).finish(again, tasks)
                assert finished(folder) == ["day=2024-03-05"], f"died at step {steps}"
                assert len(marks(files_sink)) == 1
                seal_folder(str(folder))
                assert seen(folder) == [*of_day, "06T00:10", "06T10:00"]
                steps += 1
                continue
            break
        assert early >= 2, "between the success file and the removal of its mark, and behind that"

    def test_a_batch_whose_publication_is_repeated_long_after_it_puts_nothing_early(self, tmp_path: Path) -> None:
        """As a power failure makes it: the mark of a batch that is published comes back."""
        write(sink(tmp_path), 0, times("05T10:00"))
        entry = sink(tmp_path).ledger().last("q")
        assert entry is not None
        Commit(sink(tmp_path))._publish(entry, Batch(sink(tmp_path).sink_id(), "q", 0))
        assert finished(tmp_path) == []
        assert len(marks(sink(tmp_path))) == 1


class TestTwoDrivers:
    @pytest.mark.parametrize("options", [{}, HIDDEN], ids=["onBatch", "policy"])
    def test_two_that_publish_a_batch_at_once_leave_one_success_file(self, tmp_path: Path, options: dict[str, str]) -> None:
        for turn in range(10):
            folder = tmp_path / str(turn)
            write(sink(folder, **options), 0, times("05T10:00"), times("05T11:00"))
            batch = Batch(sink(folder).sink_id(), "q", 1)
            tasks = (times("05T12:00"), times("06T00:10", "06T10:00"))
            attempts = [staged(sink(folder, **options), batch, *tasks) for _ in range(2)]
            start = threading.Barrier(2)

            def work(attempt: list[Committable], folder: Path = folder, batch: Batch = batch, start: Any = start) -> None:
                start.wait()
                Commit(sink(folder, **options)).finish(batch, attempt)

            with ThreadPoolExecutor(2) as threads:
                list(threads.map(work, attempts))
            assert finished(folder) == ["day=2024-03-05"]
            assert len(marks(sink(folder))) == 1
            seal_folder(str(folder))
            assert seen(folder) == ["05T10:00", "05T11:00", "05T12:00", "06T00:10", "06T10:00"]

    def test_a_driver_that_slept_behind_its_rows_sets_time_not_back_and_takes_no_mark_of_the_next(self, tmp_path: Path) -> None:
        write(sink(tmp_path), 0, times("05T10:00"))
        batch = Batch(sink(tmp_path).sink_id(), "q", 1)
        sleeper = Commit(sink(tmp_path))
        success_files = sleeper.committer.success_files  # type: ignore[union-attr]
        find = success_files.finished

        def late(*args: Any) -> set[str]:
            found = find(*args)
            Commit(sink(tmp_path)).finish(batch, rows)
            write(sink(tmp_path), 2, times("05T23:00", "06T00:40"))
            assert finished(tmp_path) == []
            return found  # type: ignore[no-any-return]

        success_files.finished = late
        rows = staged(sink(tmp_path), batch, times("06T00:10"))
        sleeper.finish(batch, rows)
        assert finished(tmp_path) == []
        write(sink(tmp_path), 3, times("06T01:00"))
        assert finished(tmp_path) == ["day=2024-03-05"]
        assert len(marks(sink(tmp_path))) == 1

    def test_a_folder_waits_for_a_batch_write_that_is_decided_and_not_yet_seen(self, tmp_path: Path) -> None:
        write(sink(tmp_path), 0, times("05T10:00"))
        batch = Batch(sink(tmp_path).sink_id(), app_query("nightly"), 1)
        rows = staged(sink(tmp_path), batch, times("05T11:00"))
        changes = 2  # the mark in the ledger, and the entry
        with pytest.raises(Died):
            Commit(dying(tmp_path, changes, after=False)).finish(batch, rows)
        assert [entry.query for entry in sink(tmp_path).ledger().unpublished()] == [batch.query]
        write_on = Batch(sink(tmp_path).sink_id(), "q", 1)
        commit = Commit(sink(tmp_path))
        commit.recover = lambda _: None  # type: ignore[method-assign]  # it has begun before the batch write
        commit.finish(write_on, staged(sink(tmp_path), write_on, times("06T10:00")))
        assert (seen(tmp_path), finished(tmp_path)) == (["05T10:00", "06T10:00"], [])
        Commit(sink(tmp_path)).recover(write_on)
        assert (seen(tmp_path), finished(tmp_path)) == (["05T10:00", "05T11:00", "06T10:00"], ["day=2024-03-05"])

    def test_a_folder_waits_for_a_batch_write_that_is_decided_while_its_parts_are_sealed(self, tmp_path: Path) -> None:
        write(sink(tmp_path, **HIDDEN), 0, times("05T10:00"))
        batch, nightly = (Batch(sink(tmp_path).sink_id(), query, 1) for query in ("q", app_query("nightly")))
        commit, beside = Commit(sink(tmp_path, **HIDDEN)), Commit(dying(tmp_path, 2, after=False, **HIDDEN))
        beside.recover = lambda _: None  # type: ignore[method-assign]  # it has begun before the query's batch
        seal = commit.committer.sealer.seal  # type: ignore[union-attr]

        def long(**options: Any) -> int:
            if options.get("finished"):
                with pytest.raises(Died):
                    beside.finish(nightly, staged(sink(tmp_path, **HIDDEN), nightly, times("05T11:00", "04T11:00")))
            return seal(**options)  # type: ignore[no-any-return]

        commit.committer.sealer.seal = long  # type: ignore[union-attr]
        commit.finish(batch, staged(sink(tmp_path, **HIDDEN), batch, times("06T10:00", "04T10:00")))
        assert (seen(tmp_path), finished(tmp_path)) == (["04T10:00", "05T10:00"], [])
        assert len(marks(sink(tmp_path))) == 3
        write(sink(tmp_path, **HIDDEN), 2, times("06T11:00"))
        assert seen(tmp_path) == ["04T10:00", "04T11:00", "05T10:00", "05T11:00"]
        assert finished(tmp_path) == ["day=2024-03-04", "day=2024-03-05"]
        assert len(marks(sink(tmp_path))) == 1


@pytest.mark.server
@pytest.mark.parametrize("context", [S3Context, HdfsContext])
@pytest.mark.parametrize("options", [{}, HIDDEN], ids=["onBatch", "policy"])
def test_object_stores_and_hdfs_have_success_files_too(
    context: type[SinkContext], options: dict[str, str], tmp_path: Path
) -> None:
    with open_context(context, tmp_path / "target") as target:
        files_sink: FilesSink = FilesSink.of({**target.options(), **DAY, **options})  # type: ignore[assignment]
        storage, folder = files_sink.folder().storage, "day=2024-03-05"
        write(files_sink, 0, times("05T10:00"))
        write(files_sink, 1, times("05T12:00", "06T00:10"))
        assert "_DONE" not in storage.names(folder)
        write(files_sink, 2, times("06T01:00"))
        write(files_sink, 3, times("05T13:00"))
        assert storage.read(f"{folder}/_DONE") == b""
        assert "_DONE" not in storage.names("day=2024-03-06")
        files = [name for name in storage.names(folder) if name != "_DONE"]
        read = [pq.ParquetFile(storage.open(f"{folder}/{name}")).read().column("id").to_pylist() for name in files]
        assert sorted(id_ for ids in read for id_ in ids) == ["05T10:00", "05T12:00", "05T13:00"]
        assert len(marks(files_sink)) == 1
