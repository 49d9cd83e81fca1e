"""HDFS: a rename whose answer is looked at, by Spark's client and by WebHDFS, which leave the same files behind."""

from __future__ import annotations

import contextlib
import io
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from connectors.core import Batch, Fatal, Misconfigured, Transient
from connectors.core.commit import Commit
from connectors.core.folder import SinkFolder
from connectors.core.writing import stage
from connectors.spark.session import hadoop_client
from connectors.storage import Storage
from connectors.storage.hdfs import Hadoop, HdfsStorage, WebHdfs
from connectors.systems.files import FilesSink, FilesSource
from connectors.testing.servers import HdfsServer

from ...servers import required
from .helpers import days_read_once, rows, swept

pytestmark = pytest.mark.server


class Target:
    """An empty folder in HDFS, and the sink's view of it."""

    def __init__(self, client_of: Callable[[str], Any] | None = None) -> None:
        self.server = required(HdfsServer)
        self.at = f"/{uuid.uuid4().hex}"
        self.path = self.server.url + self.at
        self.client_of = client_of
        self.web = WebHdfs(f"http://{self.server.web}", "test")

    def storage(self, folder: str = "") -> HdfsStorage:
        return HdfsStorage(f"{self.path}/{folder}", self.server.storage, self.client_of)

    def folder(self) -> SinkFolder:
        return SinkFolder(self.storage(), "orders")

    def hdfs(self) -> Hadoop:
        return self.storage().hdfs

    def store(self) -> Storage:
        return self.storage("x")

    def put(self, name: str, content: bytes) -> None:
        self.web.upload(io.BytesIO(content), f"{self.at}/{name}")

    def get(self, name: str) -> bytes:
        content = io.BytesIO()
        self.web.download(f"{self.at}/{name}", content)
        return content.getvalue()

    def all(self, folder: str = "") -> list[str]:
        children = self.web.children(f"{self.at}/{folder}")
        entries = [(f"{folder}/{entry.name}".lstrip("/"), entry.is_folder) for entry in children]
        return sorted(file for name, deeper in entries for file in (self.all(name) if deeper else [name]))

    def options(self, **more: Any) -> dict[str, Any]:
        return {"path": self.path, "storageOptions": self.server.storage, **more}


@pytest.fixture(params=["web", pytest.param("spark", marks=pytest.mark.spark)])
def target(request: pytest.FixtureRequest) -> Target:
    if request.param == "web":
        return Target()
    request.getfixturevalue("spark")
    return Target(hadoop_client)


class Died(BaseException):
    """The process is gone."""


class Mortal:
    """An HDFS whose client dies at a step: the ``n``-th change, before it or ``after`` it."""

    def __init__(self, hdfs: Hadoop, left: int, *, after: bool) -> None:
        self.hdfs, self.left, self.after = hdfs, left, after

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.hdfs, name)
        if name not in ("make_folder", "rename", "delete", "upload"):
            return call

        def step(*arguments: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left < 0 and not self.after:
                raise Died
            result = call(*arguments, **more)
            if self.left < 0:
                raise Died
            return result

        return step


def each_death(of: Callable[[], HdfsStorage], act: Callable[[HdfsStorage], object]) -> Iterator[HdfsStorage]:
    """Folders in which ``act`` died, at each of its steps, before and after."""
    for after in (False, True):
        for number in range(20):
            folder = of()
            folder.hdfs = Mortal(folder.hdfs, number, after=after)
            try:
                act(folder)
            except Died:
                yield folder
            else:
                break


class TestStore:
    def test_a_file_is_put_once_and_whole(self, target: Target) -> None:
        store = target.store()
        assert store.put_if_absent("a/b", b"first")
        assert not store.put_if_absent("a/b", b"second")
        assert store.read("a/b") == b"first"
        assert target.all() == ["x/a/b"], "no temporary file is left"

    def test_of_many_who_put_at_once_one_does(self) -> None:
        at, put = Target(), []
        threads = [threading.Thread(target=lambda: put.append(at.store().put_if_absent("a/b", b"mine"))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(put) == [False, False, False, True]

    def test_an_upload_never_overwrites(self, target: Target) -> None:
        target.hdfs().upload(io.BytesIO(b"first"), f"{target.at}/a")
        with pytest.raises(FileExistsError):
            target.hdfs().upload(io.BytesIO(b"second"), f"{target.at}/a")
        assert target.get("a") == b"first"

    def test_a_listing_has_folders_and_files_apart_and_no_hidden_ones(self, target: Target) -> None:
        store = target.store()
        store.put_if_absent("a/1", b"")
        store.put_if_absent("a/ü b", b"")
        target.put("x/a/.temporary", b"half")
        assert (sorted(store.names("a")), store.folders(), store.names("nothing")) == (["1", "ü b"], ["a"], [])

    def test_the_folder_goes_with_its_last_file(self, target: Target) -> None:
        store = target.store()
        for name in ("1", "2"):
            store.put_if_absent(f"a/{name}", b"")
        for name, left in (("1", ["a"]), ("2", []), ("2", [])):
            store.delete(f"a/{name}")
            store.prune("a", "")
            assert store.folders() == left

    def test_what_is_not_there_is_not_found(self, target: Target) -> None:
        with pytest.raises(FileNotFoundError):
            target.store().read("nothing")


class TestPublication:
    def test_one_that_breaks_off_at_any_step_is_finished_by_the_next(self) -> None:
        deaths = 0
        targets: list[Target] = []

        def fresh() -> HdfsStorage:
            targets.append(Target())
            targets[-1].put("staged", b"rows")
            return targets[-1].storage()

        for _ in each_death(fresh, lambda storage: storage.publish("staged", "day=1/part-0", "journal")):
            at = targets[-1]
            assert at.all() in (["staged"], ["day=1/part-0"])
            at.folder().publish("staged", "day=1/part-0")
            assert at.all() == ["day=1/part-0"]
            assert at.get("day=1/part-0") == b"rows"
            deaths += 1
        assert deaths == 4, "make the folder, rename: before and after"

    def test_the_time_of_a_file_is_that_of_its_publication(self, target: Target) -> None:
        target.put("staged", b"rows")
        target.web._request("PUT", f"{target.at}/staged", "SETTIMES", modificationtime=1, accesstime=-1)
        target.folder().publish("staged", "part-0")
        status = target.web.status(f"{target.at}/part-0")
        assert status is not None
        assert abs(status.changed / 1e9 - time.time()) < 600

    def test_a_file_that_another_driver_publishes_at_that_moment_has_no_time_to_be_set(self, target: Target) -> None:
        target.put("staged", b"rows")
        storage = target.storage()
        touch = storage.hdfs.touch

        def touch_late(path: str) -> None:
            assert target.folder().publish("staged", "part-0")
            touch(path)

        storage.hdfs.touch = touch_late  # type: ignore[method-assign]
        SinkFolder(storage, "orders").publish("staged", "part-0")
        assert target.get("part-0") == b"rows"

    def test_what_was_published_and_taken_away_is_not_brought_back(self, target: Target) -> None:
        target.put("staged", b"rows")
        target.folder().publish("staged", "part-0")
        target.web.delete(f"{target.at}/part-0")
        target.folder().publish("staged", "part-0")
        assert target.all() == []

    @pytest.mark.parametrize("path", ["part-0", "part-0/is-a-folder"])
    def test_nothing_is_overwritten_and_nothing_moved_into_a_folder(self, target: Target, path: str) -> None:
        target.put("staged", b"rows")
        target.put(path, b"somebody's")
        with pytest.raises(Fatal, match="part-0 exists"):
            target.folder().publish("staged", "part-0")
        assert (target.all(), target.get(path)) == (sorted(["staged", path]), b"somebody's")

    def test_a_rename_that_is_refused_without_a_reason_is_an_outage(self, target: Target) -> None:
        target.put("staged", b"rows")
        storage = target.storage()
        storage.hdfs.rename = lambda *_: False  # type: ignore[method-assign]
        with pytest.raises(Transient, match="does not rename"):
            storage.publish("staged", "part-0", "journal")
        with pytest.raises(Transient, match="does not rename"):
            storage.put_if_absent("a", b"")
        assert target.all() == ["staged"]

    @pytest.mark.parametrize("step", ["status", "rename"])
    def test_of_two_who_publish_the_same_file_both_find_it_published(self, step: str) -> None:
        at = Target()
        at.put("staged", b"rows")
        storage, other = at.storage(), at.folder()
        call = getattr(storage.hdfs, step)

        def meanwhile(*arguments: str) -> Any:
            before = call(*arguments) if step == "status" else None
            other.publish("staged", "part-0")
            return before if step == "status" and arguments[0].endswith("staged") else call(*arguments)

        setattr(storage.hdfs, step, meanwhile)
        storage.publish("staged", "part-0", "journal")
        assert at.all() == ["part-0"]

    def test_old_staging_is_swept_but_not_that_of_a_live_batch(self, target: Target) -> None:
        swept(target.folder(), target.put, target.all)

    def test_files_are_listed_without_hidden_ones_at_any_depth(self, target: Target) -> None:
        for name in ("a/1", "a/day=2/2", "a/_SUCCESS", "a/.x/3", "b"):
            target.put(name, b"12")
        assert sorted(target.folder().files("a")) == [("a/1", 2), ("a/day=2/2", 2)]
        assert (target.folder().size("a/1"), target.folder().size("a/9")) == (2, None)

    def test_what_is_written_is_there_when_it_is_closed_and_read_back(self, target: Target) -> None:
        content = bytes(range(256)) * 40_000
        with contextlib.suppress(OSError), target.folder().create("broken") as file:
            file.write(b"half")
            raise OSError
        with target.folder().create("deep/er/file") as file:
            file.write(content)
            assert target.all() == []
        with target.folder().open("deep/er/file") as file:
            assert file.read() == content
        assert target.all() == ["deep/er/file"]


class TestErrors:
    def test_storage_options_that_webhdfs_cannot_use_are_told_at_once(self) -> None:
        storage = {"kerberos": True, "token": "HUSH", "user": "me"}
        with pytest.raises(Misconfigured) as wrong:
            FilesSink.of({"path": "hdfs://name/x", "storageOptions": storage})
        assert "has kerberos" in str(wrong.value)
        assert "leave user out" in str(wrong.value)
        assert "HUSH" not in str(wrong.value)

    def test_a_token_goes_over_an_open_line_only_if_the_user_says_so(self) -> None:
        for use_https in (True, False):
            storage = {"token": "HUSH", "use_https": use_https}
            assert FilesSink.of({"path": "hdfs://name/x", "storageOptions": storage})
        with pytest.raises(Misconfigured, match=r"has a token, which WebHDFS sends in each URL\. Give use_https") as wrong:
            FilesSink.of({"path": "hdfs://name/x", "storageOptions": {"token": "HUSH"}})
        assert "HUSH" not in str(wrong.value)

    def test_a_path_without_a_host_needs_one_without_a_jvm(self) -> None:
        with pytest.raises(Misconfigured, match="has no host"):
            FilesSink.of({"path": "hdfs:///x"}).folder()  # type: ignore[attr-defined]

    def test_a_folder_below_a_file_is_one_clear_error(self, target: Target) -> None:
        target.put("file", b"")
        sink = FilesSink.of(target.options(path=f"{target.path}/file/folder"))
        sink.use_hadoop(target.client_of or (lambda _: None))  # type: ignore[attr-defined]
        batch = Batch(sink.sink_id(), "q", 0)
        with pytest.raises(Misconfigured, match=r"path .*cannot be written: not a directory"):
            Commit(sink).finish(batch, [stage(sink, batch, rows(1).schema, 0, iter([rows(1)]))])

    def test_a_server_that_is_away_is_an_outage_that_names_the_address(self) -> None:
        storage = HdfsStorage("hdfs://127.0.0.1/x", {"port": 9})
        with pytest.raises(Transient, match=r"WebHDFS at http://127.0.0.1:9 cannot be reached(.|\n)*storageOptions"):
            storage.size("x")

    def test_an_answer_that_breaks_off_is_an_outage_and_no_content(self, monkeypatch: pytest.MonkeyPatch) -> None:
        at = Target()
        at.put("file", b"12345")
        whole = WebHdfs.read
        monkeypatch.setattr(WebHdfs, "read", lambda self, path, offset, length: whole(self, path, offset, length)[:-1])
        listing = FilesSource.of(at.options(fileFormat="text")).listing()  # type: ignore[attr-defined]
        with pytest.raises(Transient, match="came incompletely"):
            listing.open("file").read()


class TestSource:
    @pytest.mark.parametrize("kind", ["parquet", "json", "avro", "orc"])
    def test_files_in_folders_of_hdfs_are_read_once(self, kind: str) -> None:
        at = Target()
        source = days_read_once(at.path, at.options(fileFormat=kind))
        if kind != "json":
            assert source.schema == "`id` bigint, `name` string, `day` string"


@pytest.mark.soak
def test_a_commit_that_meets_a_restart_of_hdfs_is_finished_once() -> None:
    with HdfsServer() as server:
        patient = {"retry.maxRetries": "300", "retry.initialBackoff": "100ms", "retry.maxBackoff": "1s"}
        sink = FilesSink.of({"path": f"{server.url}/out", "storageOptions": server.storage, **patient})
        web = WebHdfs(f"http://{server.web}", "test")
        for number in range(3):
            batch, commit = Batch(sink.sink_id(), "q", number), Commit(sink)
            commit.begin(batch)
            staged = stage(sink, batch, rows(number).schema, 0, iter([rows(number)]))
            server.kill()
            failed: list[BaseException] = []
            finishing = threading.Thread(target=_caught, args=(lambda c=commit, b=batch, s=staged: c.finish(b, [s]), failed))
            finishing.start()
            server.relaunch()
            finishing.join(120)
            assert (failed, finishing.is_alive()) == ([], False)
            visible = [child.name for child in web.children("/out") if not child.name.startswith(".")]
            assert len(visible) == number + 1


def _caught(run: Callable[[], object], failed: list[BaseException]) -> None:
    try:
        run()
    except BaseException as error:
        failed.append(error)
