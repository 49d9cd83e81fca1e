"""Files in a folder: names, what is refused, and what a recovery does. No Spark; see test_native.py."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal, Misconfigured, Sink
from connectors.core.commit import Commit
from connectors.core.ledger import once_query
from connectors.core.writing import stage
from connectors.systems.buffered import BufferedSink
from connectors.systems.file_stream import FileStreamSink
from connectors.systems.files import FilesSink
from connectors.systems.files.folders import Folders
from connectors.systems.files.writer import FilesWriter

from ..batches import write
from .helpers import rows, visible

IDS = pa.record_batch({"id": pa.array([1, 2], pa.int64())})
LINES = pa.record_batch({"value": ["one", None, "drei"]})
FOLDERS = {"files": FilesSink, "buffered": BufferedSink, "file_stream": FileStreamSink}


def sink(folder: Path, **options: str) -> Sink:
    return FilesSink.of({"path": str(folder), **options})


class TestNames:
    def test_files_are_called_by_batch_and_number(self, tmp_path: Path) -> None:
        folder_sink = sink(tmp_path, onLostLedger="notWritten")
        batch = write(folder_sink, IDS, IDS, number=7)
        assert [file.name for file in visible(tmp_path)] == [f"part-{batch.file_id()}-{n}.parquet" for n in (0, 1)]
        assert batch.file_id().startswith("0000000007-")

    def test_a_prefix_of_ones_own(self, tmp_path: Path) -> None:
        write(sink(tmp_path, partPrefix="events"), IDS)
        assert visible(tmp_path)[0].name.startswith("events-")

    @pytest.mark.parametrize("prefix", [".part", "_part", "a/b", "", "x" * 101])
    def test_a_prefix_that_hides_or_moves_the_files_is_refused(self, tmp_path: Path, prefix: str) -> None:
        with pytest.raises(Misconfigured, match="partPrefix"):
            sink(tmp_path, partPrefix=prefix)

    def test_a_file_that_cannot_be_closed_leaves_no_stage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(self: FilesWriter, folder: str) -> None:
            self._open.pop(folder)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(FilesWriter, "_close", fail)
        with pytest.raises(OSError, match="No space left"):
            write(sink(tmp_path), IDS)
        assert not list(tmp_path.glob(".connectors/*/stage/*"))

    @pytest.mark.parametrize("kind", FOLDERS)
    def test_nothing_is_visible_before_the_commit_and_no_stage_is_left_after_it(self, tmp_path: Path, kind: str) -> None:
        folder_sink = FOLDERS[kind].of({"path": str(tmp_path)})
        batch = Batch(folder_sink.sink_id(), "q", 0)
        staged = stage(folder_sink, batch, LINES.schema.remove_metadata(), 0, iter([LINES]))
        assert visible(tmp_path) == []
        assert any(file.is_file() for file in tmp_path.rglob("*"))
        Commit(folder_sink).finish(batch, [staged])
        assert len(visible(tmp_path)) == 1
        assert list((tmp_path / ".connectors").glob("*/stage/*")) == []

    @pytest.mark.parametrize("kind", FOLDERS)
    def test_an_empty_batch_makes_no_file(self, tmp_path: Path, kind: str) -> None:
        folder_sink = FOLDERS[kind].of({"path": str(tmp_path)})
        write(folder_sink, LINES.slice(0, 0))
        write(folder_sink, number=1)
        assert visible(tmp_path) == []
        write(folder_sink, LINES, number=2)
        assert len(visible(tmp_path)) == 1

    @pytest.mark.parametrize("kind", FOLDERS)
    def test_a_path_that_is_an_url_of_a_file_is_that_folder(self, tmp_path: Path, kind: str) -> None:
        write(FOLDERS[kind].of({"path": f"file://{tmp_path}"}), LINES)
        assert len(visible(tmp_path)) == 1


class TestRefusals:
    @pytest.mark.parametrize("kind", FOLDERS)
    def test_overwrite_is_refused_by_name_and_changes_nothing(self, tmp_path: Path, kind: str) -> None:
        folder_sink = FOLDERS[kind].of({"path": str(tmp_path)})
        write(folder_sink, LINES)
        before = [file.read_bytes() for file in visible(tmp_path)]
        with pytest.raises(Misconfigured, match=f"connectors.{kind} cannot start(.|\n)*overwrite"):
            write(folder_sink, LINES, query=once_query(), replace=True)
        assert [file.read_bytes() for file in visible(tmp_path)] == before

    @pytest.mark.parametrize("kind", FOLDERS)
    def test_a_folder_that_cannot_be_written_is_one_clear_error(self, tmp_path: Path, kind: str) -> None:
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "folder"
        with pytest.raises(Misconfigured, match=f'1 problem(.|\n)*path .*"{path}" cannot be written: Not a directory'):
            write(FOLDERS[kind].of({"path": str(path)}), LINES)

    @pytest.mark.parametrize("kind", FOLDERS)
    def test_another_file_system_is_refused(self, kind: str) -> None:
        with pytest.raises(Misconfigured, match="local or mounted"):
            FOLDERS[kind].of({"path": "gopher://name/folder"})

    @pytest.mark.parametrize(
        ("options", "option"),
        [
            ({"bucket": "yyyy"}, "bucket.timeColumn"),
            ({"bucket": "orders/{region}"}, "bucket.timeColumn"),
            ({"bucket": "'orders/'{region}", "bucket.timeColumn": "t"}, "bucket.timeColumn"),
            ({"bucket": "{}"}, "bucket"),
            ({"bucket": "'year='yyyy/'month", "bucket.timeColumn": "t"}, "bucket"),
            ({"bucket": "yyyy", "bucket.timeColumn": "t", "partitionBy": "a"}, "bucket"),
            ({"bucket": "yyyy", "bucket.timeColumn": "t", "bucket.timeZone": "Mars/Olympus"}, "bucket.timeZone"),
            ({"bucket": "yyyy", "bucket.timeColumn": "t", "bucket.timeZone": "+25:00"}, "bucket.timeZone"),
        ],
        ids=[
            "no column", "text without quotes", "no time", "no name", "open quote",
            "with partitionBy", "no region", "no offset",
        ],
    )
    def test_a_bucket_that_cannot_be_is_told(self, tmp_path: Path, options: dict[str, str], option: str) -> None:
        with pytest.raises(Misconfigured) as error:
            sink(tmp_path, **options)
        assert [problem.option for problem in error.value.problems] == [option]

    def test_columns_belong_in_the_bucket_and_not_in_the_path(self, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured, match=r"path .*is the folder of all rows.*bucket=\{region}/\{day}"):
            sink(tmp_path / "{region}" / "{day}")

    @pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+05:30", "-08:00"])
    def test_regions_and_offsets_are_time_zones(self, tmp_path: Path, zone: str) -> None:
        sink(tmp_path, **{"bucket": "yyyy", "bucket.timeColumn": "t", "bucket.timeZone": zone})

    def test_staging_elsewhere_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured, match=r"stagingLocation .*below path"):
            sink(tmp_path, stagingLocation="/elsewhere")

    @pytest.mark.parametrize("columns", [{"other": ["a"]}, {"value": ["a"], "id": [1]}, {"value": [1]}], ids=str)
    def test_the_line_sink_takes_one_column_of_text(self, tmp_path: Path, columns: dict[str, Any]) -> None:
        with pytest.raises(Misconfigured, match=r"connectors\.file_stream cannot start(.|\n)*value .*strings"):
            write(FileStreamSink.of({"file": str(tmp_path)}), pa.record_batch(columns))


class TestRecovery:
    """A run that recorded a batch and died is finished by the next one, and nothing is done twice."""

    def decided(self, folder_sink: Sink, *tasks: pa.RecordBatch, number: int = 0) -> Batch:
        """A batch that is recorded and not published."""
        batch = Batch(folder_sink.sink_id(), "q", number)
        staged = [stage(folder_sink, batch, rows.schema, index, iter([rows])) for index, rows in enumerate(tasks)]
        commit = Commit(folder_sink)
        commit.committer.publish = lambda *_: (_ for _ in ()).throw(OSError("died"))  # type: ignore[union-attr,method-assign]
        with pytest.raises(OSError, match="died"):
            commit.finish(batch, staged)
        return batch

    @pytest.mark.parametrize("kind", FOLDERS)
    def test_what_was_decided_is_published_by_the_next_run(self, tmp_path: Path, kind: str) -> None:
        folder_sink = FOLDERS[kind].of({"path": str(tmp_path)})
        self.decided(folder_sink, LINES)
        assert visible(tmp_path) == []
        Commit(folder_sink).recover(Batch(folder_sink.sink_id(), "q", 1))
        assert len(visible(tmp_path)) == 1

    @pytest.mark.parametrize("kind", FOLDERS)
    @pytest.mark.parametrize("later", ["move", "delete"])
    def test_what_was_moved_or_deleted_is_not_brought_back(self, tmp_path: Path, kind: str, later: str) -> None:
        target = tmp_path / "target"
        folder_sink = FOLDERS[kind].of({"path": str(target)})
        batch = self.decided(folder_sink, LINES)
        commit = Commit(folder_sink)
        commit.ledger.mark_published = lambda *_: (_ for _ in ()).throw(OSError("died"))  # type: ignore[union-attr,method-assign]
        with pytest.raises(OSError, match="died"):
            commit.recover(batch)
        (file,) = visible(target)
        file.rename(tmp_path / "archived") if later == "move" else file.unlink()
        Commit(folder_sink).recover(batch)
        assert visible(target) == []
        assert folder_sink.ledger().unpublished() == []  # type: ignore[union-attr]

    def test_of_two_files_only_the_one_that_is_missing_is_published(self, tmp_path: Path) -> None:
        folder_sink = sink(tmp_path)
        batch = self.decided(folder_sink, IDS, IDS)
        (entry,) = folder_sink.ledger().unpublished()  # type: ignore[union-attr]
        first = entry.committables[0]["data"]["files"][0][0]
        folder_sink.folder().publish(first, f"part-{batch.file_id()}-0.parquet")  # type: ignore[attr-defined]
        visible(tmp_path)[0].unlink()
        Commit(folder_sink).recover(batch)
        assert [file.name[-9:] for file in visible(tmp_path)] == ["1.parquet"]

    @pytest.mark.parametrize("kind", FOLDERS)
    def test_a_strange_file_with_the_final_name_is_an_error_and_loses_nothing(self, tmp_path: Path, kind: str) -> None:
        folder_sink = FOLDERS[kind].of({"path": str(tmp_path)})
        batch = Batch(folder_sink.sink_id(), "q", 0)
        ending = {"files": "parquet", "buffered": "json", "file_stream": "txt"}[kind]
        strange = tmp_path / f"part-{batch.file_id()}-0.{ending}"
        strange.write_text("strange")
        for _ in range(2):
            with pytest.raises(Fatal, match=re.escape(strange.name)):
                write(folder_sink, LINES)
        assert strange.read_text() == "strange"
        strange.rename(tmp_path / "strange")
        Commit(folder_sink).recover(batch)
        assert len(visible(tmp_path)) == 2
        assert strange.read_bytes() != b"strange"

    @pytest.mark.parametrize("kind", FOLDERS)
    def test_old_orphans_are_swept_and_those_of_the_live_batch_are_not(self, tmp_path: Path, kind: str) -> None:
        folder_sink = FOLDERS[kind].of({"path": str(tmp_path), "stagingRetention": "1 hour"})
        live, dead = Batch(folder_sink.sink_id(), "q", 5), Batch(folder_sink.sink_id(), "q", 4)
        for batch in (live, dead, dead):
            stage(folder_sink, batch, LINES.schema, 0, iter([LINES]))
        stages = list((tmp_path / ".connectors").glob("*/stage/*"))
        *old, young = sorted(stages, key=lambda stage_folder: not stage_folder.name.startswith(live.prefix()))
        for folder in old:
            os.utime(folder, (time.time() - 7200,) * 2)
        folder_sink.ledger().record(_entry("q", 4))  # type: ignore[union-attr]
        Commit(folder_sink).recover(live)
        left = list((tmp_path / ".connectors").glob("*/stage/*"))
        assert {folder.name.split("-")[0] for folder in left} == {live.prefix(), dead.prefix()}
        assert young in left
        assert len(left) == 2

    @pytest.mark.parametrize("kind", FOLDERS)
    def test_two_sinks_with_ids_of_their_own_share_a_folder(self, tmp_path: Path, kind: str) -> None:
        for name in ("left", "right"):
            write(FOLDERS[kind].of({"path": str(tmp_path), "sinkId": name}), LINES, query=f"query of {name}")
        assert len(visible(tmp_path)) == 2
        assert {folder.name for folder in (tmp_path / ".connectors").iterdir()} == {"left", "right"}


def _entry(query: str, number: int) -> Any:
    from connectors.core.ledger import Entry

    return Entry(query, number)


def test_a_task_whose_files_hold_fewer_rows_than_it_has_had_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = Folders.split
    monkeypatch.setattr(Folders, "split", lambda self, rows: list(split(self, rows))[1:])
    with pytest.raises(Fatal, match=r"footers of the task's files tell of 2 rows, and the task has had 3"):
        write(sink(tmp_path, partitionBy="name"), rows(1, 2, 3))
    assert visible(tmp_path) == []
