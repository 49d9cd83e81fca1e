"""Files that appear and grow while they are followed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Misconfigured, Poison
from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.systems.file_stream import FileStreamSource, tail

from ..reference_contexts import FileStreamContext
from .following import append


@pytest.mark.parametrize("pattern", ["app.log", "*.log", "[a]*.log"])
def test_a_file_may_appear_later(query: Any, tmp_path: Path, pattern: str) -> None:
    following = query(pattern)
    assert following.rest() == []
    append(tmp_path / "app.log", "a\n")
    assert following.rows() == [("app.log", 2, "a")]


@pytest.mark.parametrize("pattern", ["later/app.log", "later/*.log", "*/app.log"])
def test_a_folder_may_appear_later_and_go(query: Any, tmp_path: Path, pattern: str) -> None:
    following = query(pattern)
    assert following.rest() == []
    (tmp_path / "later").mkdir()
    append(tmp_path / "later" / "app.log", "a\n")
    assert following.rest() == ["a"]
    shutil.rmtree(tmp_path / "later")
    assert following.rest() == []


def test_it_goes_on_at_the_byte(query: Any, tmp_path: Path) -> None:
    following = query("app.log")
    append(tmp_path / "app.log", "one\r\n")
    assert following.rows() == [("app.log", 5, "one")]
    append(tmp_path / "app.log", "zwei\n")
    assert following.rows() == [("app.log", 10, "zwei")]


@pytest.mark.parametrize(("at", "lines"), [(0, ["one", "zwei", "drei"]), (4, ["zwei", "drei"])])
def test_a_file_without_a_mark_goes_on_where_it_was_moved_to(query: Any, tmp_path: Path, at: int, lines: list[str]) -> None:
    following = query("app.log")
    append(tmp_path / "app.log", "one\nzwei\n")
    following.rest()
    following.files()["1"] |= {"at": at, "mark": ""}
    append(tmp_path / "app.log", "drei\n")
    assert following.rest() == lines


def test_an_unfinished_line_waits_for_its_end(query: Any, tmp_path: Path) -> None:
    following = query("app.log")
    append(tmp_path / "app.log", "one\ntw")
    assert following.rest() == ["one"]
    append(tmp_path / "app.log", "o\r")
    assert following.rest() == []
    append(tmp_path / "app.log", "\nthree\r")
    assert following.rows() == [("app.log", 9, "two")]
    append(tmp_path / "app.log", "four\n")
    assert following.rows() == [("app.log", 15, "three"), ("app.log", 20, "four")]


def test_an_unfinished_line_waits_in_a_batch_too(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "one\ntwo")
    source = FileStreamSource.of({"path": str(tmp_path / "app.log")})
    parts = Planner(source).whole()
    batches = [batch for part in parts for batch in read_slice(source, part, FileStreamContext.schema)]
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == ["one"]


@pytest.mark.parametrize("content", ["", "no line end", "\r"])
def test_a_file_without_a_complete_line_gives_nothing(query: Any, tmp_path: Path, content: str) -> None:
    following = query()
    append(tmp_path / "app.log", content)
    assert following.rest() == []
    assert following.rest() == []


def test_folders_and_hidden_files_are_passed_over_by_a_glob(query: Any, tmp_path: Path) -> None:
    (tmp_path / "folder.log").mkdir()
    append(tmp_path / ".hidden.log", "no\n")
    append(tmp_path / "app.log", "yes\n")
    assert query("*").rest() == ["yes"]


def test_a_file_with_two_names_is_read_once(query: Any, tmp_path: Path) -> None:
    following = query()
    append(tmp_path / "app-1.log", "one\n")
    (tmp_path / "current.log").symlink_to("app-1.log")
    os.link(tmp_path / "app-1.log", tmp_path / "hard.log")
    assert following.rows() == [("app-1.log", 4, "one")]
    append(tmp_path / "app-2.log", "two\n")
    (tmp_path / "current.log").unlink()
    (tmp_path / "current.log").symlink_to("app-2.log")
    append(tmp_path / "app-1.log", "late\n")
    assert sorted(following.rest()) == ["late", "two"]


def test_invalid_utf8_is_a_bad_record_told_by_its_position(query: Any, tmp_path: Path) -> None:
    (tmp_path / "app.log").write_bytes(b"good\n\xff\xfe\nafter\0it\n")
    with pytest.raises(Poison, match=r'"position":8.*') as error:
        query().rest()
    assert "app.log" in str(error.value)
    assert query(errors="skip").rest() == ["good", "after\0it"]


def test_what_is_written_while_a_batch_is_read_belongs_to_the_next(query: Any, tmp_path: Path) -> None:
    following = query()
    append(tmp_path / "app.log", "one\n")
    reading = following.reading()
    end = reading.planner.latest(INITIAL)
    append(tmp_path / "app.log", "two\n")
    following.log.append(end)
    assert [row["value"] for row in reading.batch(following.log, 0)] == ["one"]
    assert following.rest() == ["two"]


def test_an_ending_query_reads_no_line_that_came_after_its_start(query: Any, tmp_path: Path) -> None:
    append(tmp_path / "app.log", "one\ntwo\n")
    following = query(maxBytesPerTrigger="4")
    reading = following.reading()
    reading.planner.freeze()
    first = [row["value"] for row in reading.next(following.log) or []]
    append(tmp_path / "app.log", "three\n")
    assert first + [row["value"] for row in reading.rest(following.log)] == ["one", "two"]
    assert following.rest() == ["three"]


def test_a_path_that_was_given_to_another_file_is_not_opened(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "one\n")
    state = tail.look(str(tmp_path / "app.log"))
    assert state is not None
    with tail.opened(tail.FollowedFile(state.path, state.node)) as file:  # type: ignore[union-attr]
        assert file.read() == b"one\n"
    assert tail.opened(tail.FollowedFile(state.path, "another inode")) is None


def test_a_path_elsewhere_is_refused() -> None:
    with pytest.raises(Misconfigured, match="local or mounted"):
        FileStreamSource.of({"path": "s3://bucket/app.log"})
