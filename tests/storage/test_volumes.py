"""A volume whose mount can create no file only where there is none: the workspace's Files API does it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core import Batch, Misconfigured, Transient
from connectors.core.commit import Commit
from connectors.core.ledger import Entry, Verdict
from connectors.storage import local, volumes
from connectors.storage.local import LocalStorage
from connectors.systems.files import FilesSink
from connectors_tools.fake_workspace import FakeWorkspace

from .test_local import Mount


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWorkspace]:
    monkeypatch.setattr(local, "disk", Mount(renames=False))
    volumes._client.cache_clear()
    with FakeWorkspace() as workspace:
        for name, value in {**workspace.environment, "DATABRICKS_RUNTIME_VERSION": "19.0"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(volumes, "VOLUMES", f"{workspace.volumes.folder}/Volumes/")
        yield workspace


@pytest.fixture
def folder(workspace: FakeWorkspace) -> Path:
    return workspace.volumes.make("main.sales.data")


def test_a_file_is_put_once_by_the_files_api(folder: Path) -> None:
    storage = LocalStorage(folder / "ä b")
    storage.check()
    assert storage.put_if_absent("a/b", b"first")
    assert not storage.put_if_absent("a/b", b"second")
    assert storage.read("a/b") == b"first"
    assert os.listdir(folder / "ä b/a") == ["b"]


def test_a_file_with_the_same_content_is_that_of_an_upload_whose_answer_was_lost(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"rows")
    for _ in range(2):
        volumes.upload_if_absent(tmp_path / "rows", folder / "a")
    assert os.listdir(folder) == ["a"]


def test_outside_a_workspace_the_path_is_no_volume(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION")
    with pytest.raises(Misconfigured, match="its file system has neither hard links nor a rename"):
        LocalStorage(folder).put_if_absent("a", b"")


def test_of_many_who_upload_at_once_one_does(folder: Path, tmp_path: Path) -> None:
    created: list[bool] = []
    start = threading.Barrier(4)

    def act(number: int) -> None:
        source = tmp_path / str(number)
        source.write_text(source.name)
        start.wait()
        try:
            volumes.upload_if_absent(source, folder / "a")
        except FileExistsError:
            created.append(False)
        else:
            created.append(True)

    threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(created) == [False, False, False, True]


def test_a_sink_has_its_ledger_there(folder: Path) -> None:
    sink = FilesSink.of({"path": str(folder)})
    assert Commit(sink).begin(Batch(sink.sink_id(), "q", 0)) is Verdict.WRITE
    assert sink.ledger().record(Entry("q", 0, rows=1))
    assert not sink.ledger().record(Entry("q", 0, rows=2))


def test_what_the_workspace_refuses_is_told(workspace: FakeWorkspace, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "VOLUMES", f"{workspace.volumes.folder}/")  # so that it is a volume that does not exist
    with pytest.raises(Transient, match="the Files API did not create"):
        LocalStorage(folder).put_if_absent("a", b"")
    monkeypatch.setenv("DATABRICKS_TOKEN", "of nobody")
    for kind in ("pat", "no kind of login"):
        monkeypatch.setenv("DATABRICKS_AUTH_TYPE", kind)
        volumes._client.cache_clear()
        with pytest.raises(Misconfigured, match=r"path .*cannot be created by the Files API"):
            LocalStorage(folder).put_if_absent("a", b"")
