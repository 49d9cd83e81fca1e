"""A seal is carried through from wherever it broke off: no row lost, none twice, nothing brought back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Batch, Misconfigured
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.files import rolling as rolling_module
from connectors.systems.files.rolling import HiddenPart, Sealer, seal_folder

from .helpers import TimedSink, read, rolling, rows, visible, write


class Died(BaseException):
    """The process is gone: nothing may catch this and tidy up."""


class Breaking:
    """A folder that lets so many changes happen and then dies, before the next one or after it."""

    def __init__(self, folder: Any, allowed: int, *, after: bool) -> None:
        self._folder = folder
        self._left = allowed
        self._after = after

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._folder, name)
        return self.counted(attribute) if name in ("create", "delete", "remove") else attribute

    def publish_all(self, files: Any) -> None:
        for file in files:
            self.counted(self._folder.publish)(*file)

    def ledger(self, name: str) -> Any:
        book = self._folder.ledger(name)
        for method in ("record", "mark_published"):
            setattr(book, method, self.counted(getattr(book, method)))
        return book

    def counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
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


def broken(sink: TimedSink, allowed: int, *, after: bool) -> Sealer:
    whole = sink.sealer()
    return Sealer(Breaking(whole.folder, allowed, after=after), whole.policy, whole.clock)  # type: ignore[arg-type]


def seal(sink: TimedSink) -> int:
    return sink.sealer().seal(ending=True)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_seal_that_breaks_off_at_any_step_is_finished_by_the_next(tmp_path: Path, after: bool) -> None:
    steps = 0
    while True:
        folder = tmp_path / str(steps)
        sink = rolling(folder)
        write(sink, 0, rows(1), rows(2))
        write(sink, 1, rows(3))
        try:
            broken(sink, steps, after=after).seal(ending=True)
        except Died:
            assert read(folder) in ([], [1, 2, 3])
            write(sink, 2, rows(4))
            Commit(sink).recover(Batch(sink.sink_id(), "q", 3))
            seal(sink)
            assert read(folder) == [1, 2, 3, 4], f"died at step {steps}"
            assert [file for file in (folder / sink.folder().hidden("parts")).rglob("*") if file.is_file()] == []
            steps += 1
            continue
        break
    assert steps == 6, "join, record, publish, the parts, the stage, the mark"


def test_a_merge_that_breaks_off_at_any_step_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling_module, "MERGED_PARTS", 2)
    for after in (False, True):
        steps = 0
        while True:
            folder = tmp_path / f"{steps} {after}"
            sink = rolling(folder)
            batch = Batch(sink.sink_id(), "q", 0)
            staged = [stage(sink, batch, rows(n).schema, n, iter([rows(n)])) for n in range(5)]
            commit = Commit(sink)
            commit.committer.sealer = broken(sink, steps, after=after)  # type: ignore[union-attr]
            try:
                commit.finish(batch, staged)
            except Died:
                Commit(sink).recover(batch)
                assert read(folder) == []
                seal(sink)
                assert read(folder) == list(range(5)), f"died at step {steps}"
                steps += 1
                continue
            break
        assert steps >= 6


def test_a_seal_that_was_decided_longer_ago_than_staging_is_kept_is_finished(tmp_path: Path) -> None:
    sink = rolling(tmp_path)
    for number in range(2):
        write(sink, number, rows(number))
    with pytest.raises(Died):
        broken(sink, 2, after=False).seal(ending=True)  # before it publishes
    for attempt in (tmp_path / sink.folder().hidden("stage")).iterdir():
        os.utime(attempt, (0, 0))
    Commit(sink).recover(Batch(sink.sink_id(), "q", 2))
    seal(sink)
    assert read(tmp_path) == [0, 1]


def test_what_was_published_and_taken_away_is_not_brought_back_wherever_the_seal_broke_off(tmp_path: Path) -> None:
    steps = 0
    while True:
        folder = tmp_path / str(steps)
        sink = rolling(folder)
        write(sink, 0, rows(1), rows(2))
        try:
            broken(sink, steps, after=True).seal(ending=True)
        except Died:
            taken = read(folder)
            for file in visible(folder):
                file.unlink()
            seal(sink)
            assert sorted(taken + read(folder)) == [1, 2]
            steps += 1
            continue
        break
    assert steps >= 5


def test_a_batch_whose_files_were_partly_taken_over_is_taken_over_whole(tmp_path: Path) -> None:
    sink = rolling(tmp_path)
    commit = Commit(sink)
    commit.committer.folder = Breaking(sink.folder(), 0, after=True)  # type: ignore[union-attr,assignment]
    batch = Batch(sink.sink_id(), "q", 0)
    staged = [stage(sink, batch, rows(n).schema, n, iter([rows(n)])) for n in (1, 2)]
    with pytest.raises(Died):
        commit.finish(batch, staged)
    seal(sink)
    assert read(tmp_path) == [1]
    Commit(sink).recover(batch)
    seal(sink)
    assert read(tmp_path) == [1, 2]


def test_two_that_seal_at_the_same_time_publish_each_part_once(tmp_path: Path) -> None:
    for turn in range(20):
        folder = tmp_path / str(turn)
        sink = rolling(folder)
        for number in range(3):
            write(sink, number, rows(3 * number), rows(3 * number + 1), rows(3 * number + 2))
        start = threading.Barrier(4)
        problems: list[BaseException] = []

        def work(sink: TimedSink = sink, start: threading.Barrier = start, problems: list[Any] = problems) -> None:
            start.wait()
            try:
                seal(sink)
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert read(folder) == list(range(9))


def test_a_seal_by_a_process_that_slept_is_void(tmp_path: Path) -> None:
    """Its number was free again, since only the newest seals are kept; its parts went into another file long ago."""
    sink = rolling(tmp_path)
    write(sink, 0, rows(1), rows(2))
    sleeper = sink.sealer()
    record, stale = sleeper.log.record, sink.sealer()

    def late(entry: Any) -> bool:
        stale.seal(ending=True)
        for number in range(1, 103):
            write(sink, number, rows(100 + number))
            stale.seal(ending=True)
        return record(entry)

    sleeper.log.record = late  # type: ignore[method-assign]
    sleeper.seal(ending=True)
    assert read(tmp_path) == [1, 2, *range(101, 203)]
    assert sink.sealer().log.unpublished() == []


def test_a_look_at_the_policy_costs_the_same_after_many_seals(tmp_path: Path) -> None:
    sink = rolling(tmp_path)
    sealer = sink.sealer()
    for number in range(110):
        file = tmp_path / sink.folder().hidden("parts", HiddenPart.name(0, 1, f"part-{number}.json"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        sealer.seal(ending=True)
    assert len(list((tmp_path / sink.folder().hidden("seals")).rglob("*.json"))) == 100
    assert len(visible(tmp_path)) == 110


def test_by_hand_options_are_checked_and_a_secret_may_be_a_reference() -> None:
    with pytest.raises(Misconfigured, match=r"storageOptions .*anonymous"):
        seal_folder("s3://bucket/folder", {"anonymous": True})
    with pytest.raises(Misconfigured, match=r"storageOptions .*\$SECRET_KV_NOTHING"):
        seal_folder("s3://bucket/folder", {"key": "me", "secret": "{{secrets/kv/nothing}}"})
