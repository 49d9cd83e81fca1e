"""Files that grow, appear, vanish, rotate, shrink and are replaced while they are followed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.core import DataLoss, Misconfigured, Poison, ReadLimit
from connectors.core.planning import INITIAL, Offset, Planner
from connectors.core.reading import read_slice
from connectors.core.state import dumps
from connectors.systems.file_stream import FileStreamSource, lines, source, tail
from connectors.testing.source_suite import Reading

from .reference_contexts import FileStreamContext
from .test_file_stream_lines import simple_lines


class Query:
    """A query that is started anew for each batch, unless ``keep`` is true."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.folder, self.options = folder, options
        self.log: list[Offset] = []

    def reading(self) -> Reading:
        return Reading(FileStreamContext(self.folder), **self.options)

    def rest(self, limit: ReadLimit | None = None) -> list[str]:
        """The new lines, batch by batch, in the order in which the batches had them."""
        del self.log[:-1]  # a query of a thousand batches needs only the last
        return [row["value"] for row in self.reading().rest(self.log, limit)]

    def rows(self) -> list[tuple[str, int, str]]:
        found = self.reading().rest(self.log)
        return [(Path(row["filename"]).name, row["position"], row["value"]) for row in found]

    def files(self) -> dict[str, Any]:
        found: dict[str, Any] = self.log[-1]["at"]["files"]
        return found


def append(file: Path, text: str, changed: float | None = None) -> None:
    """Adds to ``file``; ``changed`` sets its time (seconds), where the test's files follow each other too quickly."""
    with file.open("ab") as log:
        log.write(text.encode())
    if changed is not None:
        os.utime(file, (changed, changed))


@pytest.fixture
def query(tmp_path: Path) -> Callable[..., Query]:
    def make(pattern: str = "*.log", **options: str) -> Query:
        return Query(tmp_path, path=str(tmp_path / pattern), **options)

    return make


class TestGrowth:
    @pytest.mark.parametrize("pattern", ["app.log", "*.log", "[a]*.log"])
    def test_a_file_may_appear_later(self, query: Any, tmp_path: Path, pattern: str) -> None:
        following = query(pattern)
        assert following.rest() == []
        append(tmp_path / "app.log", "a\n")
        assert following.rows() == [("app.log", 2, "a")]

    @pytest.mark.parametrize("pattern", ["later/app.log", "later/*.log", "*/app.log"])
    def test_a_folder_may_appear_later_and_go(self, query: Any, tmp_path: Path, pattern: str) -> None:
        following = query(pattern)
        assert following.rest() == []
        (tmp_path / "later").mkdir()
        append(tmp_path / "later" / "app.log", "a\n")
        assert following.rest() == ["a"]
        shutil.rmtree(tmp_path / "later")
        assert following.rest() == []

    def test_it_goes_on_at_the_byte(self, query: Any, tmp_path: Path) -> None:
        following = query("app.log")
        append(tmp_path / "app.log", "one\r\n")
        assert following.rows() == [("app.log", 5, "one")]
        append(tmp_path / "app.log", "zwei\n")
        assert following.rows() == [("app.log", 10, "zwei")]

    def test_an_unfinished_line_waits_for_its_end(self, query: Any, tmp_path: Path) -> None:
        following = query("app.log")
        append(tmp_path / "app.log", "one\ntw")
        assert following.rest() == ["one"]
        append(tmp_path / "app.log", "o\r")
        assert following.rest() == []
        append(tmp_path / "app.log", "\nthree\r")
        assert following.rows() == [("app.log", 9, "two")]
        append(tmp_path / "app.log", "four\n")
        assert following.rows() == [("app.log", 15, "three"), ("app.log", 20, "four")]

    def test_an_unfinished_line_waits_in_a_batch_too(self, tmp_path: Path) -> None:
        append(tmp_path / "app.log", "one\ntwo")
        made = FileStreamSource.of({"path": str(tmp_path / "app.log")})
        parts = Planner(made).whole()
        batches = [batch for part in parts for batch in read_slice(made, part, FileStreamContext.schema)]
        assert [value for batch in batches for value in batch.column("value").to_pylist()] == ["one"]

    @pytest.mark.parametrize("content", ["", "no line end", "\r"])
    def test_a_file_without_a_complete_line_gives_nothing(self, query: Any, tmp_path: Path, content: str) -> None:
        following = query()
        append(tmp_path / "app.log", content)
        assert following.rest() == []
        assert following.rest() == []

    def test_folders_and_hidden_files_are_passed_over_by_a_glob(self, query: Any, tmp_path: Path) -> None:
        (tmp_path / "folder.log").mkdir()
        append(tmp_path / ".hidden.log", "no\n")
        append(tmp_path / "app.log", "yes\n")
        assert query("*").rest() == ["yes"]

    def test_a_file_with_two_names_is_read_once(self, query: Any, tmp_path: Path) -> None:
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

    def test_invalid_utf8_is_a_bad_record_told_by_its_position(self, query: Any, tmp_path: Path) -> None:
        (tmp_path / "app.log").write_bytes(b"good\n\xff\xfe\nafter\0it\n")
        with pytest.raises(Poison, match=r'"position":8.*') as error:
            query().rest()
        assert "app.log" in str(error.value)
        assert query(errors="skip").rest() == ["good", "after\0it"]

    def test_what_is_written_while_a_batch_is_read_belongs_to_the_next(self, query: Any, tmp_path: Path) -> None:
        following = query()
        append(tmp_path / "app.log", "one\n")
        reading = following.reading()
        end = reading.planner.latest(INITIAL)
        append(tmp_path / "app.log", "two\n")
        following.log.append(end)
        assert [row["value"] for row in reading.batch(following.log, 0)] == ["one"]
        assert following.rest() == ["two"]

    def test_an_ending_query_reads_no_line_that_came_after_its_start(self, query: Any, tmp_path: Path) -> None:
        append(tmp_path / "app.log", "one\ntwo\n")
        following = query(maxBytesPerTrigger="4")
        reading = following.reading()
        reading.planner.freeze()
        first = [row["value"] for row in reading.next(following.log) or []]
        append(tmp_path / "app.log", "three\n")
        assert first + [row["value"] for row in reading.rest(following.log)] == ["one", "two"]
        assert following.rest() == ["three"]

    def test_a_path_that_was_given_to_another_file_is_not_opened(self, tmp_path: Path) -> None:
        append(tmp_path / "app.log", "one\n")
        seen = tail.look(str(tmp_path / "app.log"))
        assert seen is not None
        with tail.opened(tail.Followed(seen.path, seen.node)) as file:  # type: ignore[union-attr]
            assert file.read() == b"one\n"
        assert tail.opened(tail.Followed(seen.path, "another inode")) is None

    def test_a_path_elsewhere_is_refused(self) -> None:
        with pytest.raises(Misconfigured, match="local or mounted"):
            FileStreamSource.of({"path": "s3://bucket/app.log"})


class TestRotation:
    @pytest.mark.parametrize("pattern", ["app.log", "*.log", "app.log*"])
    def test_the_unread_rest_of_a_renamed_file_comes_first(self, query: Any, tmp_path: Path, pattern: str) -> None:
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
        self, query: Any, tmp_path: Path, pattern: str, name: str
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

    def test_numbered_files_move_up_and_the_oldest_is_deleted(self, query: Any, tmp_path: Path) -> None:
        following = query("app.log")
        found = []
        for number in range(6):
            append(tmp_path / "app.log", f"{number}\n", changed=1e9 + number)
            found += following.rest()
            for old in (1, 0):
                if (now := tmp_path / ("app.log" + f".{old}" * (old > 0))).exists():
                    now.rename(tmp_path / f"app.log.{old + 1}")
        assert found == [str(number) for number in range(6)]

    @pytest.mark.parametrize("limit", [None, ReadLimit(bytes=4)])
    def test_a_new_file_waits_until_the_renamed_one_is_read(self, query: Any, tmp_path: Path, limit: Any) -> None:
        following = query("app.log")
        append(tmp_path / "app.log", "a\nb\nc\nd\ne\n", changed=1e9)
        assert following.rest() == ["a", "b", "c", "d", "e"]
        append(tmp_path / "app.log", "f\ng\nh\n", changed=1e9 + 1)
        (tmp_path / "app.log").rename(tmp_path / "app.log.1")
        append(tmp_path / "app.log", "i\n", changed=1e9 + 2)
        assert following.rest(limit) == ["f", "g", "h", "i"]

    def test_rotations_while_an_ending_query_runs_do_not_confuse_it(self, query: Any, tmp_path: Path) -> None:
        append(tmp_path / "app.log", "a\nb\nc\n", changed=1e9)
        following = query("app.log", maxBytesPerTrigger="2")
        reading = following.reading()
        reading.planner.freeze()
        assert [row["value"] for row in reading.next(following.log) or []] == ["a"]
        (tmp_path / "app.log").rename(tmp_path / "app.log.1")
        append(tmp_path / "app.log", "x\nyyyyyyyyyyy\nz\n", changed=1e9 + 1)
        assert [row["value"] for row in reading.rest(following.log)] == ["b", "c"]
        assert following.rest() == ["x", "yyyyyyyyyyy", "z"]

    def test_a_rotation_before_the_first_batch_of_an_ending_query(self, query: Any, tmp_path: Path) -> None:
        append(tmp_path / "app.log", "a\nb\n", changed=1e9)
        following = query("app.log")
        reading = following.reading()
        reading.planner.freeze()
        (tmp_path / "app.log").rename(tmp_path / "app.log.1")
        append(tmp_path / "app.log", "x\n", changed=1e9 + 1)
        assert [row["value"] for row in reading.rest(following.log)] == ["a", "b"]
        assert following.rest() == ["x"]

    def test_a_file_renamed_after_planning_is_still_read(self, query: Any, tmp_path: Path) -> None:
        following = query("app.log")
        append(tmp_path / "app.log", "one\n")
        reading = following.reading()
        following.log.append(reading.planner.latest(INITIAL))
        (tmp_path / "app.log").rename(tmp_path / "app.log.1")
        append(tmp_path / "app.log", "two\n")
        rows = reading.batch(following.log, 0)
        assert [(Path(row["filename"]).name, row["value"]) for row in rows] == [("app.log", "one")]

    def test_a_late_writer_of_a_renamed_file_is_heard(self, query: Any, tmp_path: Path) -> None:
        following = query("app.log")
        append(tmp_path / "app.log", "one\n")
        following.rest()
        (tmp_path / "app.log").rename(tmp_path / "app.log.1")
        append(tmp_path / "app.log", "two\n")
        assert following.rest() == ["two"]
        append(tmp_path / "app.log.1", "late\n")
        assert following.rest() == ["late"]

    def test_a_file_moved_between_the_folders_of_a_glob_keeps_its_place(self, query: Any, tmp_path: Path) -> None:
        (tmp_path / "hot").mkdir()
        (tmp_path / "cold").mkdir()
        following = query("*/app.log")
        append(tmp_path / "hot" / "app.log", "one\n")
        following.rest()
        append(tmp_path / "hot" / "app.log", "two\n")
        (tmp_path / "hot" / "app.log").rename(tmp_path / "cold" / "app.log")
        assert following.rest() == ["two"]

    def test_a_compressed_copy_is_not_taken_for_a_rotated_file(self, query: Any, tmp_path: Path) -> None:
        following = query("app.log")
        append(tmp_path / "app.log", "one\n", changed=1e9)
        following.rest()
        (tmp_path / "app.log").rename(tmp_path / "app.log.1")
        append(tmp_path / "app.log.2.gz", "\x1f\n", changed=2e9)
        append(tmp_path / "app.log.bak", "no\n", changed=2e9)
        append(tmp_path / "app.log", "two\n", changed=2e9)
        assert following.rest() == ["two"]

    @pytest.mark.parametrize("tail", ["", "unfinished"])
    def test_a_thousand_rotations_leave_a_small_offset(self, query: Any, tmp_path: Path, tail: str) -> None:
        following = query("app.log")
        found = []
        for number in range(1000):
            append(tmp_path / "app.log", f"{number}\n{tail}", changed=1e9 + number)
            found += following.rest()
            (tmp_path / "app.log").rename(tmp_path / f"app.log.{number}")
            if number >= 20:
                (tmp_path / f"app.log.{number - 20}").unlink()
            assert len(dumps(following.log[-1])) < 1000
        assert found == [str(number) for number in range(1000)]


class TestLoss:
    def test_a_truncated_file_is_an_error_that_names_it_and_the_way_out(self, query: Any, tmp_path: Path) -> None:
        following = query("app.log")
        append(tmp_path / "app.log", "one\ntwo\n")
        following.rest()
        os.truncate(tmp_path / "app.log", 0)
        append(tmp_path / "app.log", "new\n")
        with pytest.raises(DataLoss, match=r"app\.log was truncated.* 8 .* 4 bytes(.|\n)*failOnDataLoss"):
            following.rest()
        following.options["failOnDataLoss"] = "false"
        assert following.rows() == [("app.log", 4, "new")]

    def test_copytruncate_is_seen_though_the_file_has_grown_past_its_place(self, query: Any, tmp_path: Path) -> None:
        following = query("app.log")
        header = "h" * 300 + "\n"
        append(tmp_path / "app.log", header + "old\n")
        following.rest()
        os.truncate(tmp_path / "app.log", 0)
        append(tmp_path / "app.log", header + "new, and longer than before\n")
        with pytest.raises(DataLoss, match="truncated or rewritten"):
            following.rest()

    def test_another_file_with_the_same_path_is_an_error(self, query: Any, tmp_path: Path) -> None:
        following = query("app.log")
        append(tmp_path / "app.log", "one\n")
        following.rest()
        append(tmp_path / "other", "another and longer\n")
        (tmp_path / "other").rename(tmp_path / "app.log")
        with pytest.raises(DataLoss, match=r"app\.log was replaced(.|\n)*failOnDataLoss"):
            following.rest()
        following.options["failOnDataLoss"] = "false"
        assert following.rest() == ["another and longer"]

    def test_a_copy_put_in_its_place_is_the_same_file(self, query: Any, tmp_path: Path) -> None:
        following = query("app.log")
        append(tmp_path / "app.log", "one\n")
        following.rest()
        shutil.copy(tmp_path / "app.log", tmp_path / "copy")
        append(tmp_path / "copy", "two\n")
        (tmp_path / "copy").rename(tmp_path / "app.log")
        assert following.rest() == ["two"]

    def test_an_inode_that_is_used_again_is_not_taken_for_the_old_file(self, query: Any, tmp_path: Path) -> None:
        following = query()
        append(tmp_path / "a.log", "one\n")
        following.rest()
        following.log[-1] = _with(following.log[-1], mark="another file's mark")  # as if the inode were that of b.log now
        (tmp_path / "a.log").rename(tmp_path / "b.log")
        assert following.rows() == [("b.log", 4, "one")]

    def test_a_file_that_was_read_may_be_deleted(self, query: Any, tmp_path: Path) -> None:
        following = query()
        append(tmp_path / "a.log", "one\n")
        append(tmp_path / "b.log", "two\n")
        following.rest()
        (tmp_path / "a.log").unlink()
        append(tmp_path / "b.log", "three\n")
        assert following.rest() == ["three"]
        assert len(following.files()) == 1

    def test_a_file_that_goes_while_lines_of_it_wait_is_an_error(self, query: Any, tmp_path: Path) -> None:
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
        self, query: Any, tmp_path: Path, change: str
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

    def test_a_file_rewritten_while_it_is_read_fails_the_task(self, query: Any, tmp_path: Path, monkeypatch: Any) -> None:
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


class TestLimits:
    def test_the_limit_is_shared_fairly(self, query: Any, tmp_path: Path) -> None:
        for name in "abc":
            append(tmp_path / f"{name}.log", "12345678\n" * 100)
        append(tmp_path / "small.log", "1\n")
        reading = query(maxBytesPerTrigger="272").reading()
        rows = reading.next([]) or []
        count = {name: sum(Path(row["filename"]).name == f"{name}.log" for row in rows) for name in ("a", "b", "c", "small")}
        assert count == {"a": 10, "b": 10, "c": 10, "small": 1}

    def test_a_line_larger_than_the_limit_moves_on(self, query: Any, tmp_path: Path) -> None:
        append(tmp_path / "a.log", "x" * 100 + "\nshort\n")
        following = query(maxBytesPerTrigger="10")
        assert [len(row["value"]) for row in following.reading().next(following.log) or []] == [100]
        assert following.rest() == ["short"]

    def test_a_limit_below_the_number_of_files_moves_on(self, query: Any, tmp_path: Path) -> None:
        for number in range(10):
            append(tmp_path / f"{number}.log", "line\n")
        following = query(maxBytesPerTrigger="3")
        assert len(following.reading().next(following.log) or []) == 3
        assert len(following.rest()) == 7

    def test_the_offset_of_a_hundred_files_stays_small(self, query: Any, tmp_path: Path) -> None:
        for number in range(100):
            append(tmp_path / f"{number}.log", "line\n" * 1000)
        following = query()
        assert len(following.rest()) == 100_000
        longest = len(str(tmp_path / "99.log"))
        assert len(dumps(following.log[-1])) < 100 * (longest + 120)

    def test_tasks_get_even_shares(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(source, "_SMALLEST_SPLIT", 64)
        for number, count in enumerate((1000, 100, 333)):
            append(tmp_path / f"{number}.log", "line\n" * count)
        reading = Query(tmp_path, path=str(tmp_path / "*.log"), numPartitions="4").reading()
        end = reading.planner.latest(INITIAL)
        counts = [len(reading.rows(part)) for part in reading.planner.slices(INITIAL, end)]
        assert sum(counts) == 1433
        assert max(counts) < 2 * min(counts)


_TEXT = st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r", b"\r\n", b"\0", b"\xff"]), max_size=8).map(b"".join)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), _TEXT),
        st.tuples(st.just("batch"), st.sampled_from([None, 1, 2, 5, 9]), st.integers(1, 4)),
        st.tuples(st.just("rotate"), st.integers(0, 2), st.none()),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=150)
@given(steps=_STEPS)
def test_any_appends_rotations_and_limits_give_the_lines_of_a_simple_reading(steps: list[Any]) -> None:
    """Each file that ever was is read as if it had been read once, at the end, by the simplest program."""
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        for name, size in {"_BLOCK": 3, "_TAIL": 2}.items():
            patch.setattr(lines, name, size)
        patch.setattr(source, "_SMALLEST_SPLIT", 3)
        _follow(Path(made), steps)


def _follow(folder: Path, steps: list[Any]) -> None:
    log: list[Offset] = []
    written = {(number, 0): b"" for number in range(3)}
    turn = [0, 0, 0]
    found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(3)}
    clock = 1e9

    def read(limit: int | None, parallelism: int) -> bool:
        reading = Reading(_Bytes(folder), path=str(folder / "*.log"), numPartitions=str(parallelism))
        rows = reading.next(log, ReadLimit(bytes=limit))
        for row in sorted(rows or [], key=lambda one: (one["filename"], one["position"])):
            found[int(Path(row["filename"]).name[0])].append((row["position"], row["value"]))
        return rows is not None

    for kind, one, two in steps:
        clock += 1
        if kind == "append":
            file = folder / f"{one}.log"
            written[one, turn[one]] += two
            with file.open("ab") as log_file:
                log_file.write(two)
            os.utime(file, (clock, clock))
        elif kind == "batch":
            read(one, two)
        elif (folder / f"{one}.log").exists() and simple_lines(written[one, turn[one]]) and log:
            read(None, 1)  # files are known before they rotate; those between two batches have tests of their own
            (folder / f"{one}.log").rename(folder / f"{one}.log.{turn[one]}")
            turn[one] += 1
            written[one, turn[one]] = b""
    while read(None, 2):
        pass
    for number in range(3):
        files = [simple_lines(content) for (name, _), content in sorted(written.items()) if name == number]
        assert sorted(found[number]) == sorted(line for lines_of_file in files for line in lines_of_file)


class _Bytes(FileStreamContext):
    """Values as bytes, so that any bytes may be in them."""

    schema = FileStreamContext.schema.set(2, FileStreamContext.schema.field(2).with_type(pa.binary()))

    def options(self) -> dict[str, str]:
        return {"value.format": "bytes"}
