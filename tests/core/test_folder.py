"""Files become visible whole, once, and over nothing that is there; a store puts a file once."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Fatal
from connectors.core.folder import TargetFolder
from connectors.core.store import LocalStore


@pytest.fixture
def folder(tmp_path: Path) -> TargetFolder:
    return TargetFolder(str(tmp_path), "orders")


def staged(folder: TargetFolder, content: str = "rows") -> str:
    file = folder.stage("attempt") / "rows"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return folder.relative(file)


def test_a_staged_file_gets_its_final_name(folder: TargetFolder) -> None:
    name = staged(folder)
    folder.publish(name, "year=2024/part-0")
    assert (folder.root / "year=2024/part-0").read_text() == "rows"
    assert not (folder.root / name).exists()


def test_a_publication_that_is_called_again_does_nothing(folder: TargetFolder) -> None:
    name = staged(folder)
    for _ in range(2):
        folder.publish(name, "part-0")
    assert (folder.root / "part-0").read_text() == "rows"


def test_a_publication_is_one_step(folder: TargetFolder) -> None:
    name = staged(folder)
    node = (folder.root / name).stat().st_ino
    folder.publish(name, "part-0")
    assert (folder.root / "part-0").stat().st_ino == node, "renamed, not copied: there is no half of it"
    assert (folder.root / "part-0").stat().st_nlink == 1, "and not linked first: there is no second name of it"


def test_what_was_published_and_then_moved_or_deleted_is_not_published_again(folder: TargetFolder) -> None:
    name = staged(folder)
    folder.publish(name, "part-0")
    (folder.root / "part-0").unlink()
    folder.publish(name, "part-0")
    assert not (folder.root / "part-0").exists()


def test_nothing_is_ever_overwritten(folder: TargetFolder) -> None:
    name = staged(folder)
    (folder.root / "part-0").write_text("somebody's")
    with pytest.raises(Fatal, match="part-0 exists") as caught:
        folder.publish(name, "part-0")
    assert "nothing was overwritten" in caught.value.way_out
    assert (folder.root / "part-0").read_text() == "somebody's"
    (folder.root / "part-0").unlink()
    folder.publish(name, "part-0")
    assert (folder.root / "part-0").read_text() == "rows"


def test_staging_and_ledger_are_hidden_from_readers(folder: TargetFolder) -> None:
    staged(folder)
    folder.ledger().store.put_if_absent("q/1.json", b"{}")
    assert [entry.name[0] for entry in folder.root.iterdir()] == ["."]


@pytest.mark.parametrize("sink_id", ["..", "../../elsewhere", "a/b", ".", "a b", "/absolute"])
def test_a_sink_id_of_any_text_has_a_hidden_folder_of_its_own(tmp_path: Path, sink_id: str) -> None:
    target = tmp_path / "target"
    own = Path(os.path.normpath(TargetFolder(str(target), sink_id).own))
    assert own.parent == target / ".connectors"


def test_old_staging_is_swept_but_not_that_of_a_live_batch(folder: TargetFolder) -> None:
    for attempt in ("old-1", "live-1", "young-1"):
        folder.stage(attempt).mkdir(parents=True)
    for attempt in ("old-1", "live-1"):
        os.utime(folder.stage(attempt), (time.time() - 1000, time.time() - 1000))
    folder.sweep(500, frozenset({"live"}))
    assert sorted(entry.name for entry in (folder.own / "stage").iterdir()) == ["live-1", "young-1"]


def test_sweeping_and_removing_what_is_not_there_is_no_error(folder: TargetFolder) -> None:
    folder.sweep(0, frozenset())
    folder.remove("nothing")


def test_a_url_of_a_file_is_a_path(tmp_path: Path) -> None:
    assert TargetFolder(f"file://{tmp_path}", "x").root == tmp_path
    assert TargetFolder(f"file:{tmp_path}", "x").root == tmp_path


def test_a_file_is_put_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert store.put_if_absent("a/b", b"first")
    assert not store.put_if_absent("a/b", b"second")
    assert store.get("a/b") == b"first"
    assert os.listdir(tmp_path / "a") == ["b"]


def _put(root: Path, start: Any, number: int) -> bool:
    start.wait()
    return LocalStore(root).put_if_absent("a/b", str(number).encode() * 100_000)


def test_one_of_many_processes_puts_a_file_and_it_is_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager, context.Pool(6) as pool:
        start = manager.Barrier(6)
        won = pool.starmap(_put, [(tmp_path, start, number) for number in range(6)], chunksize=1)
    assert sum(won) == 1
    assert LocalStore(tmp_path).get("a/b") == str(won.index(True)).encode() * 100_000


def test_a_listing_has_neither_folders_nor_what_is_not_finished(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in ("x/1", "x/2", "y/1", "top"):
        store.put_if_absent(name, b"")
    (tmp_path / "x/.growing").touch()
    (tmp_path / ".hidden").mkdir()
    assert sorted(store.names("x")) == ["1", "2"]
    assert store.names() == ["top"]
    assert sorted(store.folders()) == ["x", "y"]


def test_what_is_not_there_is_empty_or_not_found(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "nowhere")
    assert store.names("x") == store.folders() == []
    store.delete("x/1")
    with pytest.raises(FileNotFoundError):
        store.get("x/1")
