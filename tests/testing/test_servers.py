"""A server of tests: its folder, from start to stop."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from connectors import workbench
from connectors.testing import demos
from connectors.testing.demo import Lines
from connectors.testing.servers import KinesisServer, KinesisStreams, MariaDbServer, shared_server
from connectors.testing.servers.base import Server
from tests.servers import optional, required


class Sleep(Server):
    def launch(self) -> None:
        self.spawn(["sleep", "60"])

    def ready(self) -> bool:
        return True


def test_a_server_has_a_temporary_folder_each_time_that_it_starts() -> None:
    server = Sleep()
    for _ in range(2):
        with server:
            folder = server.folder
            assert folder.is_dir()
        assert not folder.exists()


def test_the_folder_of_ones_own_stays(tmp_path: Path) -> None:
    server = Sleep()
    server.folder = tmp_path
    for _ in range(2):
        with server:
            assert server.folder == tmp_path
    assert [file.name for file in tmp_path.iterdir()] == ["server.log"]


def test_threads_that_want_one_server_or_demonstration_at_once_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Lines):
        def __init__(self, folder: Path) -> None:
            time.sleep(0.1)
            super().__init__(folder)

    monkeypatch.setitem(demos._DEMOS, "lines", Slow)
    with ThreadPoolExecutor() as threads:
        servers = list(threads.map(shared_server, [Sleep] * 3))
        lines = list(threads.map(lambda _: demos.demo("lines", str(tmp_path)), range(3)))
    assert [len(set(map(id, found))) for found in (servers, lines)] == [1, 1]
    servers[0].stop()


@pytest.mark.server
def test_streams_are_reached_by_the_options_of_the_connector() -> None:
    server = required(KinesisServer)
    streams = KinesisStreams({**workbench.kinesis(), "endpoint": server.url})
    streams.create("by-options", 1)
    streams.put("by-options", [("key", b"data")])
    streams.split("by-options", *streams.open_shards("by-options"))
    assert [record["Data"] for record in server.records("by-options")] == [b"data"]
    assert len(server.open_shards("by-options")) == 2
    streams.client.delete_stream(StreamName="by-options")


@pytest.mark.server
def test_a_server_that_would_give_up_root_ends_with_a_test_run_that_is_killed() -> None:
    optional(MariaDbServer)
    start = "server = MariaDbServer().start(); print(server.children[0].pid); time.sleep(600)"
    run = [sys.executable, "-c", f"import time; from {MariaDbServer.__module__} import MariaDbServer; {start}"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        server = Path("/proc") / process.stdout.readline().strip()
        assert server.exists()
        process.kill()
    end = time.monotonic() + 30
    while server.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not server.exists()
