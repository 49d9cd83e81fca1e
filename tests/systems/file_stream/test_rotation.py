"""Files that are renamed, and come anew, while they are followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.core import ReadLimit
from connectors.core.planning import INITIAL
from connectors.ground.state import dumps

from .following import append


@pytest.mark.parametrize("pattern", ["app.log", "*.log", "app.log*"])
def test_the_unread_rest_of_a_renamed_file_comes_first(query: Any, tmp_path: Path, pattern: str) -> None:
    following = query(pattern)
    append(tmp_path / "app.log", "one\n")
    assert following.rest() == ["one"]
    append(tmp_path / "app.log", "rest\n")
    (tmp_path / "app.log").rename(tmp_path / "app.log.1")
    append(tmp_path / "app.log", "new\n")
    assert following.rest() == ["rest", "new"]


@pytest.mark.parametrize("pattern", ["app.log", "app*"])
@pytest.mark.parametrize("name", ["app.log.{}", "app.log-2025010{}", "app.2025-01-0{}.log"])
def test_files_that_came_and_went_between_two_batches_are_read_in_order(
    query: Any, tmp_path: Path, pattern: str, name: str
) -> None:
    following = query(pattern)
    append(tmp_path / name.format(9), "older\n", changed=1e9)
    append(tmp_path / "app.log", "one\n", changed=1e9 + 1)
    first = following.rest()
    assert sorted(first) == (["older", "one"] if pattern == "app*" else ["one"])
    for number, text in enumerate(("two\n", "three\n", "four\n")):
        append(tmp_path / "app.log", f"rest {number}\n", changed=1e9 + 2 + number)
        (tmp_path / "app.log").rename(tmp_path / name.format(number + 1))
        append(tmp_path / "app.log", text, changed=1e9 + 2.5 + number)
    expected = ["rest 0", "two", "rest 1", "three", "rest 2", "four"]
    assert following.rest() == expected


@pytest.mark.parametrize("name", ["app.log.1", "app.log-20250101", "app-20250101.log", "app.log.old"])
def test_the_log_of_another_program_is_not_taken_for_a_rotated_file(query: Any, tmp_path: Path, name: str) -> None:
    following = query("app.log")
    append(tmp_path / "app-2.log", "other\n", changed=1e9)
    append(tmp_path / "app.log", "one\n", changed=1e9)
    assert following.rest() == ["one"]
    append(tmp_path / "app.log", "rest\n", changed=1e9 + 1)
    (tmp_path / "app.log").rename(tmp_path / name)
    append(tmp_path / "app.log", "two\n", changed=1e9 + 2)
    append(tmp_path / "app-2.log", "other\n", changed=1e9 + 2)
    assert following.rest() == ["rest", "two"]
    append(tmp_path / "app-2.log", "other\n", changed=1e9 + 3)
    assert following.rest() == []


def test_a_counter_may_get_more_digits_between_two_batches(query: Any, tmp_path: Path) -> None:
    following = query("app.log")
    append(tmp_path / "app.log", "8\n", changed=1e9 + 8)
    assert following.rest() == ["8"]
    for number in (9, 10, 11):
        (tmp_path / "app.log").rename(tmp_path / f"app-{number}.log")
        append(tmp_path / "app.log", f"{number}\n", changed=1e9 + number)
    assert following.rest() == ["9", "10", "11"]


def test_numbered_files_move_up_and_the_oldest_is_deleted(query: Any, tmp_path: Path) -> None:
    following = query("app.log")
    lines = []
    for number in range(6):
        append(tmp_path / "app.log", f"{number}\n", changed=1e9 + number)
        lines += following.rest()
        for old in (1, 0):
            if (now := tmp_path / ("app.log" + f".{old}" * (old > 0))).exists():
                now.rename(tmp_path / f"app.log.{old + 1}")
    assert lines == [str(number) for number in range(6)]


@pytest.mark.parametrize("limit", [None, ReadLimit(bytes=4)])
def test_a_new_file_waits_until_the_renamed_one_is_read(query: Any, tmp_path: Path, limit: Any) -> None:
    following = query("app.log")
    append(tmp_path / "app.log", "a\nb\nc\nd\ne\n", changed=1e9)
    assert following.rest() == ["a", "b", "c", "d", "e"]
    append(tmp_path / "app.log", "f\ng\nh\n", changed=1e9 + 1)
    (tmp_path / "app.log").rename(tmp_path / "app.log.1")
    append(tmp_path / "app.log", "i\n", changed=1e9 + 2)
    assert following.rest(limit) == ["f", "g", "h", "i"]


def test_rotations_while_an_ending_query_runs_do_not_confuse_it(query: Any, tmp_path: Path) -> None:
    append(tmp_path / "app.log", "a\nb\nc\n", changed=1e9)
    following = query("app.log", maxBytesPerTrigger="2")
    reading = following.reading()
    reading.planner.freeze()
    assert [row["value"] for row in reading.next(following.log) or []] == ["a"]
    (tmp_path / "app.log").rename(tmp_path / "app.log.1")
    append(tmp_path / "app.log", "x\nyyyyyyyyyyy\nz\n", changed=1e9 + 1)
    assert [row["value"] for row in reading.rest(following.log)] == ["b", "c"]
    assert following.rest() == ["x", "yyyyyyyyyyy", "z"]


def test_a_rotation_before_the_first_batch_of_an_ending_query(query: Any, tmp_path: Path) -> None:
    append(tmp_path / "app.log", "a\nb\n", changed=1e9)
    following = query("app.log")
    reading = following.reading()
    reading.planner.freeze()
    (tmp_path / "app.log").rename(tmp_path / "app.log.1")
    append(tmp_path / "app.log", "x\n", changed=1e9 + 1)
    assert [row["value"] for row in reading.rest(following.log)] == ["a", "b"]
    assert following.rest() == ["x"]


def test_a_file_renamed_after_planning_is_still_read(query: Any, tmp_path: Path) -> None:
    following = query("app.log")
    append(tmp_path / "app.log", "one\n")
    reading = following.reading()
    following.log.append(reading.planner.latest(INITIAL))
    (tmp_path / "app.log").rename(tmp_path / "app.log.1")
    append(tmp_path / "app.log", "two\n")
    rows = reading.batch(following.log, 0)
    assert [(Path(row["filename"]).name, row["value"]) for row in rows] == [("app.log", "one")]


def test_a_late_writer_of_a_renamed_file_is_heard(query: Any, tmp_path: Path) -> None:
    following = query("app.log")
    append(tmp_path / "app.log", "one\n")
    following.rest()
    (tmp_path / "app.log").rename(tmp_path / "app.log.1")
    append(tmp_path / "app.log", "two\n")
    assert following.rest() == ["two"]
    append(tmp_path / "app.log.1", "late\n")
    assert following.rest() == ["late"]


def test_a_file_moved_between_the_folders_of_a_glob_keeps_its_place(query: Any, tmp_path: Path) -> None:
    (tmp_path / "hot").mkdir()
    (tmp_path / "cold").mkdir()
    following = query("*/app.log")
    append(tmp_path / "hot" / "app.log", "one\n")
    following.rest()
    append(tmp_path / "hot" / "app.log", "two\n")
    (tmp_path / "hot" / "app.log").rename(tmp_path / "cold" / "app.log")
    assert following.rest() == ["two"]


def test_a_compressed_copy_is_not_taken_for_a_rotated_file(query: Any, tmp_path: Path) -> None:
    following = query("app.log")
    append(tmp_path / "app.log", "one\n", changed=1e9)
    following.rest()
    (tmp_path / "app.log").rename(tmp_path / "app.log.1")
    append(tmp_path / "app.log.2.gz", "\x1f\n", changed=2e9)
    append(tmp_path / "app.log.bak", "no\n", changed=2e9)
    append(tmp_path / "app.log", "two\n", changed=2e9)
    assert following.rest() == ["two"]


@pytest.mark.parametrize("tail", ["", "unfinished"])
def test_a_thousand_rotations_leave_a_small_offset(query: Any, tmp_path: Path, tail: str) -> None:
    following = query("app.log")
    lines = []
    for number in range(1000):
        append(tmp_path / "app.log", f"{number}\n{tail}", changed=1e9 + number)
        lines += following.rest()
        (tmp_path / "app.log").rename(tmp_path / f"app.log.{number}")
        if number >= 20:
            (tmp_path / f"app.log.{number - 20}").unlink()
        assert len(dumps(following.log[-1])) < 1000
    assert lines == [str(number) for number in range(1000)]
