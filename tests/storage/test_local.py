"""A local folder: what is put is put once, what is published is published once, and what is synced lasts."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Batch, Misconfigured
from connectors.core.commit import Commit
from connectors.core.ledger import Entry, FileLedger, Verdict
from connectors.storage import local, storage_of
from connectors.storage.local import LocalStorage
from connectors.systems.files import FilesSink
from tests.dying_disk import DyingDisk


def test_a_file_is_put_once(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    assert store.put_if_absent("a/b", b"first")
    assert not store.put_if_absent("a/b", b"second")
    assert store.read("a/b") == b"first"
    assert os.listdir(tmp_path / "a") == ["b"]


def _put(root: Path, start: Any, number: int) -> bool:
    start.wait()
    return LocalStorage(root).put_if_absent("a/b", str(number).encode() * 100_000)


def test_one_of_many_processes_puts_a_file_and_it_is_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager, context.Pool(6) as pool:
        start = manager.Barrier(6)
        won = pool.starmap(_put, [(tmp_path, start, number) for number in range(6)], chunksize=1)
    assert sum(won) == 1
    assert LocalStorage(tmp_path).read("a/b") == str(won.index(True)).encode() * 100_000


def test_a_listing_has_neither_folders_nor_what_is_not_finished(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    for name in ("x/1", "x/2", "y/1", "top"):
        store.put_if_absent(name, b"")
    (tmp_path / "x/.growing").touch()
    (tmp_path / ".hidden").mkdir()
    assert sorted(store.names("x")) == ["1", "2"]
    assert store.names() == ["top"]
    assert sorted(store.folders()) == ["x", "y"]


def test_what_is_not_there_is_empty_or_not_found(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path / "nowhere")
    assert store.names("x") == store.folders() == []
    store.delete("x/1")
    with pytest.raises(FileNotFoundError):
        store.read("x/1")


def test_a_url_of_a_file_is_a_path(tmp_path: Path) -> None:
    for location in (f"file://{tmp_path}", f"file:{tmp_path}", str(tmp_path)):
        assert storage_of(location).root == str(tmp_path)


class Mount(local.Disk):
    """A file system without hard links, and with ``renames`` false without a rename that leaves what exists."""

    def __init__(self, *, renames: bool) -> None:
        self.renames = renames

    def link(self, path: Path, to: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(to))

    def rename_if_absent(self, path: Path, to: Path) -> None:
        if not self.renames:
            raise OSError(errno.EINVAL, "Invalid argument", str(to))
        super().rename_if_absent(path, to)


def test_a_mount_without_hard_links_puts_by_a_rename_that_leaves_what_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "disk", Mount(renames=True))
    storage = LocalStorage(tmp_path)
    storage.check()
    assert storage.put_if_absent("a/b", b"first")
    monkeypatch.setattr(Path, "exists", lambda self: False)  # the other one came in this very moment
    assert not storage.put_if_absent("a/b", b"second")
    assert storage.read("a/b") == b"first"
    assert os.listdir(tmp_path / "a") == ["b"]


class LostAnswer(local.Disk):
    """A file server that is asked again, since its first answer was lost."""

    def link(self, path: Path, to: Path) -> None:
        super().link(path, to)
        super().link(path, to)


def test_a_file_whose_link_was_made_and_not_answered_is_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "disk", LostAnswer())
    storage = LocalStorage(tmp_path)
    assert storage.put_if_absent("a", b"first")
    assert not storage.put_if_absent("a", b"first")
    assert os.listdir(tmp_path) == ["a"]


def test_a_sink_says_at_its_start_that_a_mount_cannot_hold_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FilesSink.of({"path": str(tmp_path)})
    monkeypatch.setattr(local, "disk", Mount(renames=False))
    with pytest.raises(Misconfigured, match=f'"{tmp_path}" cannot create a file only where there is none'):
        Commit(sink).begin(Batch(sink.sink_id(), "q", 0))
    monkeypatch.setattr(local, "disk", Mount(renames=True))
    assert Commit(sink).begin(Batch(sink.sink_id(), "q", 0)) is Verdict.WRITE


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENOSYS])
def test_a_file_whose_time_cannot_be_set_is_published_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    class Timeless(local.Disk):
        def touch(self, path: Path) -> None:
            raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(local, "disk", Timeless())
    (tmp_path / "staged").write_bytes(b"rows")
    assert LocalStorage(tmp_path).publish("staged", "part-0", "journal")
    assert (tmp_path / "part-0").read_bytes() == b"rows"


def test_a_mount_with_neither_is_refused_by_name_and_still_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "disk", Mount(renames=False))
    storage = LocalStorage(tmp_path)
    with pytest.raises(Misconfigured, match=f'"{tmp_path}" cannot create a file only where there is none'):
        storage.check()
    assert os.listdir(tmp_path) == []
    storage.replace("staged", b"rows")
    assert storage.publish("staged", "part-0", "journal")
    assert storage.read("part-0") == b"rows"


class Watched(local.Disk):
    """Notes what is made durable."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync(self, path: Path) -> None:
        self.synced.append(str(path))
        super().sync(path)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    monkeypatch.setattr(local, "disk", watched)
    return watched


def test_what_is_put_is_durable_with_its_name_and_its_folders(disk: Watched, tmp_path: Path) -> None:
    LocalStorage(tmp_path).put_if_absent("a/b/c", b"content")
    assert [os.path.relpath(path, tmp_path) for path in disk.synced if "/." not in path] == ["..", ".", "a", "a/b"]
    assert sum("/." in path for path in disk.synced) == 1, "the file, before it had its name"


def test_what_a_dead_process_has_made_and_not_synced_becomes_durable(disk: Watched, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").touch()
    storage = LocalStorage(tmp_path)
    assert not storage.put_if_absent("a/b/c", b"content")
    assert disk.synced == [str(tmp_path / "a/b")], "the name of the file"
    storage.make_folder("a/b")
    assert [os.path.relpath(path, tmp_path) for path in disk.synced[1:]] == ["..", ".", "a"], "the names of the folders"
    storage.make_folder("a/b")
    assert len(disk.synced) == 4, "once in a process"


def test_an_entry_that_a_dead_process_has_recorded_is_durable_before_it_is_published(disk: Watched, tmp_path: Path) -> None:
    entry = Entry("q", 0)
    FileLedger(LocalStorage(tmp_path)).record(entry)
    disk.synced.clear()  # as if it had died before
    (unpublished,) = FileLedger(LocalStorage(tmp_path)).unpublished()
    assert unpublished.batch == 0
    assert disk.synced == [str(tmp_path / "q")]


def test_files_and_folders_are_synced_when_it_is_said_so(disk: Watched, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for number in range(20):
        storage.replace(str(number), b"")
    assert disk.synced == [str(tmp_path.parent)], "the name of the folder"
    disk.synced.clear()
    storage.sync(map(str, range(20)), [""])
    assert sorted(disk.synced) == sorted([*(str(tmp_path / str(number)) for number in range(20)), str(tmp_path)])


def test_a_mount_that_replaces_what_exists_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(Mount):
        def rename_if_absent(self, path: Path, to: Path) -> None:
            path.rename(to)

    monkeypatch.setattr(local, "disk", Careless(renames=True))
    with pytest.raises(Misconfigured, match=f'"{tmp_path}" cannot create .* its file system replaces a file'):
        LocalStorage(tmp_path).check()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("root", ["root", "a/b/root"])
@pytest.mark.parametrize("seed", range(4))
def test_a_folder_whose_maker_died_is_durable_before_something_is_put_into_it(tmp_path: Path, root: str, seed: int) -> None:
    disk = DyingDisk(tmp_path / "above", tmp_path / "journal")
    disk.folder.mkdir()
    disk.start()

    def work() -> None:
        storage = LocalStorage(disk.folder / root)
        disk.dies_before = root.partition("/")[0]
        with pytest.raises(KeyboardInterrupt):
            storage.put_if_absent("first", b"")
        local.durable_folders().clear()  # another process
        assert storage.put_if_absent("second", b"2")

    disk.run(work)
    disk.fail(random.Random(seed))
    assert (disk.folder / root / "second").read_bytes() == b"2"


@pytest.mark.parametrize("root", ["root", "a/root"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL, errno.ENOTSUP])
def test_the_folder_above_may_be_one_that_this_process_cannot_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, root: str
) -> None:
    sync = local.Disk.sync

    def refuse(disk: local.Disk, path: Path) -> None:
        if path == tmp_path:
            raise OSError(number, os.strerror(number), str(path))
        sync(disk, path)

    monkeypatch.setattr(local.Disk, "sync", refuse)
    assert LocalStorage(tmp_path / root).put_if_absent("file", b"")


def test_the_folder_above_that_fails_to_be_synced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = local.Disk.sync

    def fail(disk: local.Disk, path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        sync(disk, path)

    monkeypatch.setattr(local.Disk, "sync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        LocalStorage(tmp_path / "root").put_if_absent("file", b"")
