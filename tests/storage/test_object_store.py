"""Object stores: one creator wins, a file appears whole, and every failure has the name that the contract gives it.

The conditional create is proven by races of processes against Azurite and fake-gcs-server.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from connectors.ground.errors import ConnectorError, Fatal, Misconfigured, Transient
from connectors.storage import object_store
from connectors.storage.object_store import ObjectStore
from connectors.storage.service_errors import translated
from connectors.testing.servers import HOST, AzuriteServer, GcsServer
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Seen
from connectors.testing.servers.storages import ACCOUNT, KEY

from ..servers import optional

pytestmark = pytest.mark.server

CREATORS = 50
ROUNDS = 1


class Azure:
    """A container of its own, as a test reaches it."""

    package, server_type = "adlfs", AzuriteServer
    conditional = ("PUT", "if-none-match")

    def __init__(self, server: AzuriteServer, bucket: str) -> None:
        self.server, self.bucket, self.options = server, bucket, server.container(bucket)

    @property
    def url(self) -> str:
        return f"abfss://{self.bucket}@{ACCOUNT}.dfs.core.windows.net/folder"

    def behind(self, proxy: str) -> ObjectStore:
        return ObjectStore(self.url, self.server.options(f"{proxy}/{ACCOUNT}"))

    def by_signature(self, proxy: str) -> ObjectStore:
        """With a shared access signature instead of the key: requests are not signed, and a proxy may change them."""
        azure = importlib.import_module("azure.storage.blob")
        allowed = {"resource_types": "sco", "permission": "rwdlac", "expiry": datetime.now(timezone.utc) + timedelta(1)}
        signature = azure.generate_account_sas(ACCOUNT, KEY, **allowed)
        options = f"BlobEndpoint={proxy}/{ACCOUNT};SharedAccessSignature={signature}"
        return ObjectStore(self.url, {"connection_string": options})

    def elsewhere(self, bucket: str) -> ObjectStore:
        return ObjectStore(f"az://{bucket}/folder", self.options)


class Google:
    """A bucket of its own, as a test reaches it."""

    package, server_type = "gcsfs", GcsServer
    conditional = ("POST", "ifgenerationmatch=0")

    def __init__(self, server: GcsServer, bucket: str) -> None:
        self.server, self.bucket, self.options = server, bucket, server.bucket(bucket)

    @property
    def url(self) -> str:
        return f"gs://{self.bucket}/folder"

    def behind(self, proxy: str) -> ObjectStore:
        return ObjectStore(self.url, self.server.options(proxy))

    by_signature = behind

    def elsewhere(self, bucket: str) -> ObjectStore:
        return ObjectStore(f"gs://{bucket}/folder", self.options)


Service = Azure | Google


GOOGLE = pytest.param(Google, id="google", marks=pytest.mark.soak)
"""Its server is built from source, for minutes, where no other run has done it."""


@pytest.fixture(params=[pytest.param(Azure, id="azure"), GOOGLE])
def service(request: pytest.FixtureRequest) -> Service:
    pytest.importorskip(request.param.package)
    return request.param(optional(request.param.server_type), f"test-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def store(service: Service) -> ObjectStore:
    return ObjectStore(service.url, service.options)


@pytest.fixture
def proxy(service: Service) -> Iterator[FaultProxy]:
    with FaultProxy(service.server.url) as proxy:
        yield proxy


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    """The clients try again at once, as often as ever."""
    if isinstance(service, Azure):
        monkeypatch.setattr("azure.storage.blob.aio.ExponentialRetry.get_backoff_time", lambda *_: 0)
    else:
        monkeypatch.setattr("gcsfs.retry.random.random", lambda: 0)
        monkeypatch.setattr("gcsfs.retry.min", lambda *_: 0, raising=False)


def race(store: ObjectStore, attempt: Callable[[ObjectStore, int, int], bool]) -> list[list[bool]]:
    """What each creator got in each round; a barrier releases all of them at once. Each is a process of its own."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(CREATORS), context.Queue()

    def creator(number: int) -> None:
        store.size("connected")
        for turn in range(ROUNDS):
            barrier.wait(60)
            results.put((turn, number, attempt(store, turn, number)))

    processes = [context.Process(target=creator, args=(number,), daemon=True) for number in range(CREATORS)]
    for process in processes:
        process.start()
    won = [[False] * CREATORS for _ in range(ROUNDS)]
    for _ in range(ROUNDS * CREATORS):
        turn, number, answer = results.get(timeout=120)
        won[turn][number] = answer
    for process in processes:
        process.join(60)
    return won


def entry(turn: int, number: int) -> bytes:
    return f"round {turn}, creator {number}; ".encode() * 2_000


def put(store: ObjectStore, turn: int, number: int) -> bool:
    return store.put_if_absent(f"ledger/{turn}", entry(turn, number))


def publish(store: ObjectStore, turn: int, number: int) -> bool:
    store.replace(f".stage/{turn}-{number}", entry(turn, number))
    try:
        return store.publish(f".stage/{turn}-{number}", f"parts/{turn}", "journal")
    except Fatal:
        return False


@pytest.mark.soak
def test_of_fifty_creators_one_wins_and_the_content_is_its_own(store: ObjectStore) -> None:
    for turn, won in enumerate(race(store, put)):
        assert won.count(True) == 1
        assert store.read(f"ledger/{turn}") == entry(turn, won.index(True))


def test_of_fifty_publishers_one_wins_and_the_content_is_its_own(store: ObjectStore) -> None:
    for turn, won in enumerate(race(store, publish)):
        assert won.count(True) == 1
        assert store.read(f"parts/{turn}") == entry(turn, won.index(True))
        assert len([name for name in store.names(".stage") if name.startswith(f"{turn}-")]) == CREATORS - 1


@pytest.mark.parametrize("large", [False, True], ids=["bytes", "file"])
def test_a_file_that_exists_stays_as_it_is(store: ObjectStore, large: bool) -> None:
    def content(text: bytes) -> Any:
        return io.BytesIO(text) if large else text

    assert store.put_if_absent("entry", content(b"first"))
    assert not store.put_if_absent("entry", content(b"second"))
    assert store.read("entry") == b"first"


def test_a_file_beyond_the_size_of_one_request_is_created_whole_and_once(store: ObjectStore) -> None:
    size = 65 << 20
    assert store.put_if_absent("large", io.BytesIO(b"1" * size))
    assert not store.put_if_absent("large", io.BytesIO(b"2" * size))
    with store.open("large") as file:
        assert file.seek(-1, os.SEEK_END) == size - 1
        assert file.read() == b"1"
    assert store.publish("large", "final", "journal")
    assert store.size("final") == size


@pytest.mark.usefixtures("without_pauses")
def test_a_win_whose_answer_is_lost_stays_a_win(service: Service, store: ObjectStore, proxy: FaultProxy) -> None:
    lost: list[Seen] = []
    method, condition = service.conditional

    def lose_first(call: Seen, pass_on: Callable[..., Reply]) -> Reply | None:
        reply = pass_on()
        request = f"{call.path} {' '.join(call.headers)}".lower()
        if call.method == method and condition in request and not lost:
            lost.append(call)
            return None
        return reply

    proxy.rule = lose_first
    assert service.behind(proxy.url).put_if_absent("entry", b"mine")
    assert lost
    assert store.read("entry") == b"mine"
    store.replace("staged", b"rows")
    lost.clear()
    assert service.behind(proxy.url).publish("staged", "final", "journal")
    assert lost
    assert store.read("final") == b"rows"


def test_a_publication_gives_the_final_name_and_takes_the_other(store: ObjectStore) -> None:
    store.replace(".stage/part", b"rows")
    assert store.publish(".stage/part", "year=2024/part", "journal")
    assert store.read("year=2024/part") == b"rows"
    assert store.size(".stage/part") is None
    assert not store.publish(".stage/part", "year=2024/part", "journal")


def test_a_publication_after_a_crash_between_its_steps_is_carried_through(store: ObjectStore) -> None:
    store.replace("staged", b"rows")
    store.replace("final", b"rows")
    assert store.publish("staged", "final", "journal")
    assert store.items() == [store.items()[0]._replace(name="final")]


def test_a_signature_is_enough_for_a_publication(service: Service, store: ObjectStore) -> None:
    store.replace("staged", b"rows")
    assert service.by_signature(service.server.url.removesuffix(f"/{ACCOUNT}")).publish("staged", "final", "journal")
    assert store.read("final") == b"rows"


def test_a_publication_over_another_file_is_refused_and_changes_nothing(store: ObjectStore) -> None:
    store.replace("staged", b"rows")
    store.replace("final", b"different rows")
    with pytest.raises(Fatal, match=f"final exists in {store.root}") as taken:
        store.publish("staged", "final", "journal")
    assert "move that file away" in taken.value.way_out
    assert (store.read("staged"), store.read("final")) == (b"rows", b"different rows")


def test_a_blob_that_azure_would_copy_after_its_answer_is_read_and_put(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adlfs")
    azure = Azure(optional(AzuriteServer), f"test-{uuid.uuid4().hex[:12]}")
    monkeypatch.setattr("connectors.storage.object_store.SYNCHRONOUS", 3)
    with FaultProxy(azure.server.url) as proxy:
        store = azure.behind(proxy.url)
        store.replace("staged", b"rows")
        assert store.publish("staged", "final", "journal")
        assert store.read("final") == b"rows"
        assert not [request for request in proxy.seen if "x-ms-copy-source" in map(str.lower, request.headers)]
        store.replace("staged", b"other rows")
        with pytest.raises(Fatal):
            store.publish("staged", "final", "journal")


def test_a_file_that_appears_while_a_long_publication_uploads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adlfs")
    azure = Azure(optional(AzuriteServer), f"test-{uuid.uuid4().hex[:12]}")
    monkeypatch.setattr("connectors.storage.object_store.SYNCHRONOUS", 3)
    store = ObjectStore(azure.url, azure.options)
    store.replace("staged", b"rows")

    def appear_first(request: Seen, pass_on: Callable[..., Reply]) -> Reply | None:
        if request.method == "PUT":
            store.replace("final", b"other rows")
        return pass_on()

    with FaultProxy(azure.server.url) as proxy:
        proxy.rule = appear_first
        with pytest.raises(Fatal):
            azure.behind(proxy.url).publish("staged", "final", "journal")
    assert store.read("final") == b"other rows"


def test_a_listing_has_hidden_names_folders_and_nothing_of_deeper_or_similar_names(store: ObjectStore) -> None:
    before = time.time() - 5
    for name in ("a/one", "a/.hidden", "a/deep/er/two", "ab/three", "a.csv"):
        store.replace(name, b"rows")
    items = {item.name: item for item in store.items("a")}
    assert {name: (item.is_folder, item.size) for name, item in items.items()} == {
        "one": (False, 4),
        ".hidden": (False, 4),
        "deep": (True, 0),
    }
    assert before < items["one"].changed / 1e9 < time.time() + 5
    assert sorted(item.name for item in store.items()) == ["a", "a.csv", "ab"]
    assert sorted(store.files("")) == [("a.csv", 4), ("a/deep/er/two", 4), ("a/one", 4), ("ab/three", 4)]
    assert store.items("none") == store.items("a/one") == []


def test_a_listing_of_several_pages_is_complete(service: Service, proxy: FaultProxy, store: ObjectStore) -> None:
    def short_pages(request: Seen, pass_on: Callable[..., Reply]) -> Reply | None:
        if request.method == "GET":
            request.path = request.path.replace("comp=list", "comp=list&maxresults=2").replace("/o?", "/o?maxResults=2&")
        return pass_on()

    for number in range(5):
        store.replace(f"pages/{number}", b"")
    proxy.rule = short_pages
    assert service.by_signature(proxy.url).names("pages") == ["0", "1", "2", "3", "4"]
    assert len([request for request in proxy.seen if "maxresults=2" in request.path.lower()]) >= 3


def test_a_folder_is_as_new_as_the_newest_file_in_it(store: ObjectStore) -> None:
    store.replace("stage/old/a", b"")
    store.replace("stage/old/b", b"")
    store.replace("stage/file", b"")
    times = {item.name: item.changed / 1e9 for item in store.items("stage/old")}
    assert store.touched("stage")["old"] == max(times.values()) > time.time() - 60
    assert set(store.touched("stage")) == {"old", "file"}
    assert store.touched("none") == {}


def test_a_file_appears_when_it_is_closed_and_not_after_an_error(store: ObjectStore) -> None:
    with store.create("part") as file:
        file.write(b"rows")
        assert store.size("part") is None
    assert store.read("part") == b"rows"
    with contextlib.suppress(InterruptedError), store.create("broken") as file:
        file.write(b"rows")
        raise InterruptedError
    assert store.size("broken") is None


def test_deletions_take_what_they_name_and_nothing_else(store: ObjectStore) -> None:
    for name in ("a/one", "a/deep/two", "ab/three"):
        store.replace(name, b"")
    store.delete("none")
    store.delete_folder("none")
    store.delete_folder("a")
    assert [item.name for item in store.items()] == ["ab"]
    store.delete("ab/three")
    assert store.items() == []


def test_a_listing_shows_what_another_process_has_written(service: Service, store: ObjectStore) -> None:
    other = ObjectStore(service.url, {**service.options, "default_cache_type": "none"})
    store.replace("a", b"1")
    assert store.names() == ["a"]
    other.replace("b", b"1")
    other.delete("a")
    assert store.names() == ["b"]
    assert store.size("a") is None


def test_a_file_that_does_not_exist_is_not_found(store: ObjectStore) -> None:
    store.replace("folder/file", b"")
    for read in (store.read, store.open):
        for name in ("none", "folder"):
            with pytest.raises(FileNotFoundError):
                read(name)
    assert store.size("none") is store.size("folder") is None


def test_a_bucket_that_does_not_exist_is_named(service: Service) -> None:
    for call in (
        lambda store: store.items(),
        lambda store: store.read("x"),
        lambda store: store.put_if_absent("x", b""),
        lambda store: store.publish("x", "y", "journal"),
    ):
        with pytest.raises(Misconfigured, match=r"(?s)path .*://absent/folder does not exist"):
            call(service.elsewhere("absent"))


def test_an_empty_bucket_is_an_empty_listing(store: ObjectStore) -> None:
    assert store.items() == []


@pytest.mark.usefixtures("without_pauses")
def test_a_server_that_is_stopped_is_an_outage_and_then_serves_again(service: Service) -> None:
    pytest.importorskip(service.package)
    with type(service.server)() as server:
        service = type(service)(server, "outages")  # type: ignore[arg-type]
        store = ObjectStore(service.url, service.options)
        store.replace("part", b"rows")
        reader = store.open("part")
        server.kill()
        for call in (
            lambda: store.read("part"),
            lambda: store.items(),
            lambda: store.size("part"),
            lambda: store.put_if_absent("entry", b"1"),
            lambda: store.publish("part", "final", "journal"),
            lambda: store.delete("part"),
            lambda: reader.read(),
        ):
            with pytest.raises(Transient):
                call()
        server.relaunch()
        assert store.read("part") == b"rows"


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, Transient), (500, Transient), (502, Transient), (503, Transient), (0, Transient), (403, PermissionError)],
)
def test_an_answer_of_the_service_becomes_an_error_of_the_contract(
    service: Service, proxy: FaultProxy, status: int, kind: type[Exception]
) -> None:
    proxy.rule = lambda *_: Reply(status, b"no") if status else None
    for call in (lambda store: store.read("x"), lambda store: store.put_if_absent("x", b"")):
        with pytest.raises(kind):
            call(service.behind(proxy.url))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("azure.core.exceptions.ServiceRequestError", Transient),
        ("azure.core.exceptions.ServiceResponseError", Transient),
        ("azure.core.exceptions.ClientAuthenticationError", Misconfigured),
        ("aiohttp.client_exceptions.ServerDisconnectedError", Transient),
        ("fsspec.exceptions.FSTimeoutError", Transient),
        ("google.auth.exceptions.DefaultCredentialsError", Misconfigured),
        ("google.auth.exceptions.TransportError", Transient),
        ("requests.exceptions.ReadTimeout", Transient),
        ("builtins.RuntimeError", OSError),
    ],
)
def test_an_error_of_a_client_becomes_an_error_of_the_contract(name: str, kind: type[Exception]) -> None:
    module, _, error = name.rpartition(".")
    client = pytest.importorskip(module)
    assert type(translated(getattr(client, error)("no"), "gs://box", {})) is kind


@pytest.mark.parametrize("service", [Azure], indirect=True)
@pytest.mark.usefixtures("without_pauses")
def test_an_outage_says_how_long_the_service_asks_to_wait(service: Service, proxy: FaultProxy) -> None:
    proxy.rule = lambda *_: Reply(503, b"busy", {"Retry-After": "7"})
    with pytest.raises(Transient) as failure:
        service.behind(proxy.url).read("x")
    assert failure.value.retry_after == 7


def test_a_wrong_key_is_a_wrong_option() -> None:
    pytest.importorskip("adlfs")
    server = optional(AzuriteServer)
    store = ObjectStore("az://box/folder", server.options(key="d3JvbmcgYnV0IGxvbmc="))
    with pytest.raises(Misconfigured, match="refuses these credentials") as failure:
        store.put_if_absent("x", b"")
    assert "d3JvbmcgYnV0IGxvbmc" not in str(failure.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("az://box/folder", {"connection_string": "AccountName=box;AccountKey=S3cr3t/S3cr3t;BlobEndpoint=nonsense"}),
        ("az://box/folder", {"account_name": "box", "account_key": "S3cr3t/S3cr3t!"}),
        ("gs://box/folder", {"token": "/S3cr3t/S3cr3t", "endpoint_url": f"http://{HOST}:1"}),
        ("gs://box/folder", {"token": {"type": "service_account", "private_key": "S3cr3t/S3cr3t"}}),
    ],
)
def test_no_message_holds_a_secret(url: str, options: dict[str, Any]) -> None:
    pytest.importorskip("adlfs" if url.startswith("az") else "gcsfs")
    with pytest.raises(ConnectorError) as failure:
        ObjectStore(url, options).read("x")
    assert "S3cr3t" not in str(failure.value) + repr(failure.value)
    assert failure.value.__suppress_context__


def test_a_forked_process_connects_anew(store: ObjectStore) -> None:
    store.replace("part", b"rows")
    child = os.fork()
    if not child:
        try:
            os._exit(0 if store.read("part") == b"rows" and store.put_if_absent("entry", b"child") else 1)
        finally:
            os._exit(2)
    assert exit_code(child) == 0
    assert store.read("entry") == b"child"


def test_a_forked_process_ends_although_its_parent_is_connected(service: Service) -> None:
    code = (
        "import os, sys\n"
        "from connectors.storage.object_store import ObjectStore\n"
        f"store = ObjectStore({service.url!r}, {service.options!r})\n"
        "store.items()\n"
        "child = os.fork()\n"
        "if child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    run_python(code)


def exit_code(child: int) -> int:
    """The exit code of a child process, which is killed after a minute."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child process hangs")


def test_another_protocol_can_be_read() -> None:
    import fsspec

    folder = uuid.uuid4().hex
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"/{folder}/a/b", b"rows")
    store = ObjectStore(f"memory://{folder}")
    assert [(item.name, item.is_folder) for item in store.items()] == [("a", True)]
    assert [item.name for item in store.items("a")] == ["b"]
    assert store.read("a/b") == b"rows"
    assert store.size("a/b") == 4
    with store.open("a/b") as file:
        assert file.read(3) == b"row"
    with pytest.raises(FileNotFoundError):
        store.read("a/c")


@pytest.mark.parametrize("protocol", ["memory", "github", "http", "https", "ftp"])
def test_another_protocol_refuses_what_is_not_proven(protocol: str) -> None:
    store = ObjectStore(f"{protocol}://host/folder")
    for call in (lambda: store.put_if_absent("x", b""), lambda: store.publish("x", "y", "journal")):
        with pytest.raises(Misconfigured, match=f"not proven for {protocol}://.* s3://, hdfs://, abfs://.* gs://"):
            call()


def test_a_protocol_that_nobody_knows_is_a_wrong_option() -> None:
    with pytest.raises(Misconfigured, match="nonsense"):
        ObjectStore("nonsense://box/folder").read("x")


@pytest.mark.parametrize(("url", "package"), [("abfss://box/folder", "adlfs"), ("gs://box/folder", "gcsfs")])
def test_a_package_that_is_missing_is_named(url: str, package: str) -> None:
    code = (
        "import sys; from connectors.storage.object_store import ObjectStore\n"
        f"sys.modules[{package!r}] = None\n"
        f"try: ObjectStore({url!r}).read('x')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    printed = run_python(code)
    assert printed.startswith("Misconfigured")
    assert f"pip install {object_store.PACKAGES[package]}" in printed


def test_the_root_holds_no_password() -> None:
    assert ObjectStore("ftp://user:S3cr3t@host/folder").root == "ftp://user:***@host/folder"


def test_the_package_is_imported_without_fsspec_and_without_clients() -> None:
    loaded = run_python("import sys, connectors.storage, connectors.storage.object_store; print(*sys.modules)").split()
    assert "connectors.storage.object_store" in loaded
    assert not {"fsspec", "adlfs", "gcsfs", "azure", "google.auth", "aiohttp", "pyspark"} & set(loaded)


def run_python(code: str) -> str:
    """What a new interpreter prints. Raises ``CalledProcessError`` when it fails, and after a minute."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
