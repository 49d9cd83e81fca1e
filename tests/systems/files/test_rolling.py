"""``rolling=policy``: when hidden parts become a file that readers see."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from connectors.core import Batch, Misconfigured
from connectors.core.commit import Commit
from connectors.core.ledger import once_query
from connectors.systems.files import FilesSink
from connectors.systems.files.rolling import (
    MERGED_PARTS,
    HiddenPart,
    RollingPolicy,
    crowded,
    due,
    pause,
    seal_folder,
    watch,
)
from connectors_tools.cli import main
from tests.dying_disk import DyingDisk

from .helpers import read, rolling, rows, visible, write

MINUTE = 60.0


def parts(*sizes: int, bucket: str = "", apart: float = 1.0) -> list[HiddenPart]:
    return [HiddenPart(n * apart, f"{bucket}part-{n}.parquet", f"hidden/{bucket}{n}", size) for n, size in enumerate(sizes)]


class TestPolicy:
    policy = RollingPolicy(rollover=15 * MINUTE, inactivity=5 * MINUTE, max_part_size=100)

    def groups(self, hidden_parts: list[HiddenPart], now: float, *, ending: bool = False) -> list[list[int]]:
        return [[part.size for part in group] for group in due(hidden_parts, now, self.policy, ending=ending)]

    def test_a_dot_in_the_prefix_is_no_part_of_the_ending(self) -> None:
        finals = [f"orders.v1-{number:010d}-{'a' * 12}-0.snappy.parquet" for number in range(3)]
        hidden_parts = [HiddenPart.of(f"x/{HiddenPart.name(0, 1, final)}", "x") for final in finals]
        assert self.groups(hidden_parts, 15 * MINUTE) == [[1, 1, 1]]

    def test_small_young_parts_wait(self) -> None:
        assert self.groups(parts(1, 2, 3), 10) == []

    def test_a_bucket_is_sealed_when_its_last_part_is_old(self) -> None:
        assert self.groups(parts(1, 2, 3), 2 + 5 * MINUTE - 0.1) == []
        assert self.groups(parts(1, 2, 3), 2 + 5 * MINUTE) == [[1, 2, 3]]

    def test_a_bucket_is_sealed_when_its_first_part_is_older_still(self) -> None:
        busy = parts(*[1] * 5, apart=4 * MINUTE)
        assert self.groups(busy, 15 * MINUTE - 0.1) == []
        assert self.groups(busy, 16 * MINUTE) == [[1] * 5]

    def test_a_part_of_a_machine_whose_clock_is_ahead_by_hours_does_not_wait_for_hours(self) -> None:
        assert self.groups(parts(1, 2), -4 * MINUTE) == []
        assert self.groups(parts(1, 2), -300 * MINUTE) == [[1, 2]]

    def test_parts_that_are_large_enough_are_sealed_and_the_rest_waits(self) -> None:
        assert self.groups(parts(60, 30, 20, 5), 10) == [[60, 30]]
        assert self.groups(parts(60, 40, 5), 10) == [[60, 40]]

    def test_a_part_that_is_too_large_by_itself_is_a_file(self) -> None:
        assert self.groups(parts(1, 500, 1), 10) == [[1], [500]]

    def test_an_end_seals_everything(self) -> None:
        assert self.groups(parts(60, 60, 5), 10, ending=True) == [[60], [60, 5]]

    def test_buckets_and_extensions_are_not_mixed(self) -> None:
        mixed = [*parts(1, 2), *parts(3, bucket="day=1/"), HiddenPart(9, "part-9.json", "hidden/9", 4)]
        assert sorted(self.groups(mixed, 10, ending=True)) == [[1, 2], [3], [4]]

    def test_many_parts_are_merged_level_by_level_but_never_the_newest(self) -> None:
        assert crowded(parts(*[1] * MERGED_PARTS)) == []
        (group,) = crowded(parts(*[1] * (MERGED_PARTS + 1)))
        assert [part.at for part in group] == list(range(MERGED_PARTS))
        merged = [part._replace(level=1) for part in parts(*[1] * (MERGED_PARTS - 1))]
        assert crowded([*merged, HiddenPart(99, "part-99.parquet", "hidden/99", 1)]) == []

    def test_a_part_is_told_by_its_name_alone_and_is_never_younger_than_it_is(self) -> None:
        name = HiddenPart.name(1234.5678, 99, "a-b-0.snappy.parquet")
        assert HiddenPart.of(f"hidden/day=1/{name}", "hidden") == HiddenPart(
            1234.567, "day=1/a-b-0.snappy.parquet", f"hidden/day=1/{name}", 99
        )


class TestSink:
    def test_nothing_is_seen_before_it_is_due_and_then_one_file(self, tmp_path: Path) -> None:
        sink = rolling(tmp_path)
        for number in range(5):
            write(sink, number, rows(2 * number), rows(2 * number + 1))
        assert visible(tmp_path) == []
        type(sink).clock.now += 5 * MINUTE
        assert Commit(sink).committer.sealer.seal() == 1  # type: ignore[union-attr]
        assert len(visible(tmp_path)) == 1
        assert read(tmp_path) == list(range(10))

    def test_what_is_due_is_looked_at_with_each_commit(self, tmp_path: Path) -> None:
        sink = rolling(tmp_path)
        for number in range(31):
            write(sink, number, rows(number))
            type(sink).clock.now += MINUTE
        assert read(tmp_path) == list(range(30)), "twice 15 minutes after the first part"
        assert len(visible(tmp_path)) == 2

    def test_parts_of_an_earlier_run_are_looked_at_by_the_next_start(self, tmp_path: Path) -> None:
        sink = rolling(tmp_path)
        batch = write(sink, 0, rows(1))
        type(sink).clock.now += 15 * MINUTE
        Commit(sink).recover(batch)
        assert read(tmp_path) == [1]

    def test_a_policy_may_be_switched_off_and_on_between_two_starts(self, tmp_path: Path) -> None:
        write(rolling(tmp_path), 0, rows(1), rows(2))
        assert visible(tmp_path) == []
        write(FilesSink.of({"path": str(tmp_path)}), 1, rows(3))  # type: ignore[arg-type]
        assert len(visible(tmp_path)) == 2
        write(rolling(tmp_path), 2, rows(4))
        assert read(tmp_path) == [1, 2, 3]
        seal_folder(str(tmp_path))
        assert read(tmp_path) == [1, 2, 3, 4]

    def test_a_function_that_is_made_seals_what_is_due_even_if_no_batch_comes(self, tmp_path: Path) -> None:
        sink = rolling(tmp_path)
        write(sink, 0, rows(1))
        sink.watch(None)
        assert read(tmp_path) == []
        type(sink).clock.now += 5 * MINUTE
        sink.watch(None)
        assert read(tmp_path) == [1]

    def test_a_batch_write_is_seen_at_once(self, tmp_path: Path) -> None:
        write(rolling(tmp_path), 0, rows(1), query=once_query())
        assert read(tmp_path) == [1]

    def test_large_parts_are_seen_with_their_commit(self, tmp_path: Path) -> None:
        sink = rolling(tmp_path, **{"rolling.maxPartSize": "1"})
        write(sink, 0, rows(1), rows(2))
        assert len(visible(tmp_path)) == 2

    def test_no_folder_of_a_sealed_bucket_is_left(self, tmp_path: Path) -> None:
        sink = rolling(tmp_path)
        write(sink, 0, rows(1))
        hidden = tmp_path / sink.folder().hidden("parts")
        day = hidden / "day=1"
        day.mkdir()
        next(file for file in hidden.iterdir() if file.is_file()).rename(day / HiddenPart.name(0, 1, "part-x.parquet"))
        Commit(sink).committer.sealer.seal(ending=True)  # type: ignore[union-attr]
        assert [file.parent.name for file in visible(tmp_path)] == ["day=1"]
        assert not day.exists()

    def test_a_change_of_columns_begins_a_new_file(self, tmp_path: Path) -> None:
        sink = rolling(tmp_path)
        write(sink, 0, rows(1))
        write(sink, 1, rows(2).append_column("more", pa.array([1])))
        write(sink, 2, rows(3).append_column("more", pa.array([1])))
        Commit(sink).committer.sealer.seal(ending=True)  # type: ignore[union-attr]
        assert len(visible(tmp_path)) == 2
        assert read(tmp_path) == [1, 2, 3]

    def test_orc_cannot_be_joined_without_being_decoded(self, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured, match=r"rolling .*orc"):
            rolling(tmp_path, fileFormat="orc")

    def test_a_sealed_file_that_was_moved_is_not_brought_back(self, tmp_path: Path) -> None:
        sink = rolling(tmp_path)
        batch = write(sink, 0, rows(1), rows(2))
        Commit(sink).committer.sealer.seal(ending=True)  # type: ignore[union-attr]
        visible(tmp_path)[0].unlink()
        Commit(sink).recover(Batch(batch.sink_id, "q", 1))
        Commit(sink).committer.sealer.seal(ending=True)  # type: ignore[union-attr]
        assert visible(tmp_path) == []

    @pytest.mark.parametrize("seed", range(4))
    def test_a_part_that_a_dead_driver_left_and_another_sealed_does_not_come_again_behind_a_power_failure(
        self, tmp_path: Path, seed: int
    ) -> None:
        folder = tmp_path / "table"
        folder.mkdir()
        disk, sink = DyingDisk(folder, tmp_path / "journal"), rolling(folder)

        def work() -> None:
            disk.dies_before = "*part-0000000000*"
            with pytest.raises(KeyboardInterrupt):
                write(sink, 0, rows(1))
            assert seal_folder(str(folder)) == 1

        disk.start()
        disk.run(work)
        disk.fail(random.Random(seed))
        write(sink, 0, rows(1))
        write(sink, 1, rows(2))
        seal_folder(str(folder))
        assert read(folder) == [1, 2]

    def test_however_many_batches_wait_few_parts_do(self, tmp_path: Path) -> None:
        sink = rolling(tmp_path)
        commit = Commit(sink)
        for number in range(2 * MERGED_PARTS + 5):
            write(sink, number, rows(number))
        assert visible(tmp_path) == []
        assert len(commit.committer.sealer.parts()) == 7  # type: ignore[union-attr]
        type(sink).clock.now += 5 * MINUTE
        assert commit.committer.sealer.seal() == 1  # type: ignore[union-attr]
        assert read(tmp_path) == list(range(2 * MERGED_PARTS + 5))


class Query:
    """A run of a query that ends when a test says so."""

    def __init__(self, *, ends_by_itself: bool, state: str = "ended") -> None:
        self.id = f"run {id(self)}"
        self.ends_by_itself = ends_by_itself
        self.state = state
        self.over = threading.Event()

    def wait(self, seconds: float) -> str:
        return self.state if self.over.wait(seconds) else "running"


class TestEnd:
    @pytest.mark.parametrize(
        ("by_itself", "seal_at_end", "state", "sealed"),
        [
            (True, None, "ended", True),
            (False, None, "ended", False),
            (False, True, "ended", True),
            (True, False, "ended", False),
            (True, None, "failed", False),
        ],
    )
    def test_the_end_of_a_query_seals_everything_under_available_now(
        self, tmp_path: Path, by_itself: bool, seal_at_end: bool | None, state: str, sealed: bool
    ) -> None:
        sink = rolling(tmp_path)
        write(sink, 0, rows(1))
        run = Query(ends_by_itself=by_itself, state=state)
        watch(sink.sealer(), run, seal_at_end)
        assert read(tmp_path) == []
        run.over.set()
        _join()
        assert read(tmp_path) == ([1] if sealed else [])

    def test_an_idle_query_seals_what_is_due(self, tmp_path: Path) -> None:
        sink = rolling(tmp_path, **{"rolling.inactivityInterval": "400ms"})
        write(sink, 0, rows(1))
        run = Query(ends_by_itself=False)
        watch(sink.sealer(), run, None)
        type(sink).clock.now += 1
        while not visible(tmp_path):
            threading.Event().wait(0.01)
        run.over.set()
        _join()
        assert read(tmp_path) == [1]

    def test_the_policy_is_looked_at_often_enough(self) -> None:
        assert pause(RollingPolicy()) == 30.0
        assert pause(RollingPolicy(inactivity=20.0)) == 5.0


def _join() -> None:
    for thread in threading.enumerate():
        if thread.name == "connectors.files":
            thread.join(10)
            assert not thread.is_alive()


class TestByHand:
    def seal(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["files", "seal", *arguments])

    def test_a_command_seals_everything_and_says_how_much(self, tmp_path: Path) -> None:
        write(rolling(tmp_path), 0, rows(1), rows(2))
        write(rolling(tmp_path, sinkId="another"), 0, rows(3))
        result = self.seal(str(tmp_path))
        assert (result.exit_code, result.output) == (0, f"2 files sealed in {tmp_path}\n")
        assert read(tmp_path) == [1, 2, 3]
        assert self.seal(str(tmp_path)).output.startswith("0 files sealed")

    def test_a_folder_that_no_sink_knows_is_told(self, tmp_path: Path) -> None:
        result = self.seal(str(tmp_path / "nowhere"))
        assert result.exit_code == 2
        assert "no sink has written" in result.output

    def test_a_size_that_is_none_is_told(self, tmp_path: Path) -> None:
        assert "256MB" in self.seal(str(tmp_path), "--max-part-size", "big").output

    def test_files_are_no_larger_than_asked(self, tmp_path: Path) -> None:
        write(rolling(tmp_path), 0, rows(1), rows(2))
        self.seal(str(tmp_path), "--max-part-size", "1")
        assert len(visible(tmp_path)) == 2
