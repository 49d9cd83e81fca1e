"""Files that are truncated, rewritten or replaced: an error, or told and passed over."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from connectors.core import DataLoss
from connectors.core.planning import INITIAL, Offset
from connectors.core.reading import read_slice
from connectors.systems.file_stream import lines

from ..reference_contexts import FileStreamContext
from .following import append


def test_a_truncated_file_is_an_error_that_names_it_and_the_way_out(query: Any, tmp_path: Path) -> None:
    following = query("app.log")
    append(tmp_path / "app.log", "one\ntwo\n")
    following.rest()
    os.truncate(tmp_path / "app.log", 0)
    append(tmp_path / "app.log", "new\n")
    with pytest.raises(DataLoss, match=r"app\.log was truncated.* 8 .* 4 bytes(.|\n)*failOnDataLoss"):
        following.rest()
    following.options["failOnDataLoss"] = "false"
    assert following.rows() == [("app.log", 4, "new")]


def test_copytruncate_is_seen_though_the_file_has_grown_past_its_place(query: Any, tmp_path: Path) -> None:
    following = query("app.log")
    header = "h" * 300 + "\n"
    append(tmp_path / "app.log", header + "old\n")
    following.rest()
    os.truncate(tmp_path / "app.log", 0)
    append(tmp_path / "app.log", header + "new, and longer than before\n")
    with pytest.raises(DataLoss, match="truncated or rewritten"):
        following.rest()


def test_another_file_with_the_same_path_is_an_error(query: Any, tmp_path: Path) -> None:
    following = query("app.log")
    append(tmp_path / "app.log", "one\n")
    following.rest()
    append(tmp_path / "other", "another and longer\n")
    (tmp_path / "other").rename(tmp_path / "app.log")
    with pytest.raises(DataLoss, match=r"app\.log was replaced(.|\n)*failOnDataLoss"):
        following.rest()
    following.options["failOnDataLoss"] = "false"
    assert following.rest() == ["another and longer"]


def test_a_copy_put_in_its_place_is_the_same_file(query: Any, tmp_path: Path) -> None:
    following = query("app.log")
    append(tmp_path / "app.log", "one\n")
    following.rest()
    shutil.copy(tmp_path / "app.log", tmp_path / "copy")
    append(tmp_path / "copy", "two\n")
    (tmp_path / "copy").rename(tmp_path / "app.log")
    assert following.rest() == ["two"]


def test_an_inode_that_is_used_again_is_not_taken_for_the_old_file(query: Any, tmp_path: Path) -> None:
    following = query()
    append(tmp_path / "a.log", "one\n")
    following.rest()
    following.log[-1] = _with(following.log[-1], mark="another file's mark")  # as if the inode were that of b.log now
    (tmp_path / "a.log").rename(tmp_path / "b.log")
    assert following.rows() == [("b.log", 4, "one")]


def test_a_file_that_was_read_may_be_deleted(query: Any, tmp_path: Path) -> None:
    following = query()
    append(tmp_path / "a.log", "one\n")
    append(tmp_path / "b.log", "two\n")
    following.rest()
    (tmp_path / "a.log").unlink()
    append(tmp_path / "b.log", "three\n")
    assert following.rest() == ["three"]
    assert len(following.files()) == 1


def test_a_file_that_goes_while_lines_of_it_wait_is_an_error(query: Any, tmp_path: Path) -> None:
    following = query(maxBytesPerTrigger="4")
    append(tmp_path / "a.log", "one\ntwo\n")
    following.reading().next(following.log)
    (tmp_path / "a.log").unlink()
    with pytest.raises(DataLoss, match=r"a\.log is gone(.|\n)*failOnDataLoss"):
        following.rest()
    following.options["failOnDataLoss"] = "false"
    assert following.rest() == []


@pytest.mark.parametrize("change", ["delete", "truncate", "replace", "rewrite"])
def test_a_file_changed_between_planning_and_reading_is_never_read_as_the_old_one(
    query: Any, tmp_path: Path, change: str
) -> None:
    following = query("a.log")
    append(tmp_path / "a.log", "one\ntwo\n")
    following.log.append(following.reading().planner.latest(INITIAL))
    _change(tmp_path / "a.log", change)
    with pytest.raises(DataLoss, match=r"a\.log was truncated, replaced or deleted(.|\n)*failOnDataLoss"):
        following.reading().batch(following.log, 0)
    following.options["failOnDataLoss"] = "false"
    assert following.reading().batch(following.log, 0) == []
    assert following.rest() == ([] if change in ("delete", "truncate") else ["new1", "new2"])


def test_a_file_rewritten_while_it_is_read_fails_the_task(query: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(lines, "_BLOCK", 8)
    following = query("a.log", numPartitions="1")
    append(tmp_path / "a.log", "one\n" * 8)
    reading = following.reading()
    end = reading.planner.latest(INITIAL)
    (part,) = reading.planner.slices(INITIAL, end)
    batches = read_slice(reading.source, part, FileStreamContext.schema)
    next(batches)
    (tmp_path / "a.log").write_text("two\n" * 8)
    with pytest.raises(DataLoss):
        list(batches)


def _with(offset: Offset, **change: str) -> Offset:
    files = {key: {**state, **change} for key, state in offset["at"]["files"].items()}
    return {**offset, "at": {**offset["at"], "files": files}}


def _change(file: Path, how: str) -> None:
    if how == "delete":
        file.unlink()
    elif how == "truncate":
        os.truncate(file, 3)
    elif how == "rewrite":
        file.write_text("new1\nnew2\n")
    else:
        other = file.with_name("other")
        other.write_text("new1\nnew2\n")
        other.rename(file)
