"""Lineage: what a collector of OpenLineage hears of a session's queries, and that it never disturbs them."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openlineage.client import OpenLineageClient

import connectors
from connectors import metrics
from connectors.core import Misconfigured


class Collector(ThreadingHTTPServer):
    """Keeps what it gets, with the path; while ``pause`` is not set it answers nobody."""

    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        self.pause = threading.Event()
        self.pause.set()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.bodies]

    def states(self) -> list[str]:
        return [event["eventType"] for event in self.events]


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.pause.wait()
        self.server.bodies.append((self.path, gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body))
        self.send_response(201)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@contextlib.contextmanager
def served() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.pause.set()
        server.shutdown()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with served() as collector:
        yield collector


def client(url: str) -> OpenLineageClient:
    return OpenLineageClient(config={"transport": {"type": "http", "url": url}})


def copy(spark: Any, folder: Path, end: int = 10, name: str = "numbers") -> Any:
    """A query that copies numbers into files, at its end."""
    rows = spark.readStream.format("connectors.sequence").option("end", end).option("maxRowsPerTrigger", 5).load()
    sink = connectors.foreach_batch("files", path=str(folder / "out"))
    writer = rows.writeStream.foreachBatch(sink).queryName(name).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@pytest.mark.spark
class TestOnSpark:
    """Events of real queries, by the official client over HTTP."""

    def test_a_run_is_told_from_its_start_to_its_end(self, spark: Any, tmp_path: Path, collector: Collector) -> None:
        with metrics.lineage(spark, namespace="shop", every=0, client=client(collector.url)):
            query = copy(spark, tmp_path)
        assert collector.states() == ["START", "RUNNING", "RUNNING", "COMPLETE"]
        assert {event["run"]["runId"] for event in collector.events} == {str(query.runId)}
        assert {(event["job"]["namespace"], event["job"]["name"]) for event in collector.events} == {("shop", "numbers")}
        (output,) = collector.events[-1]["outputs"]
        assert (output["namespace"], output["name"]) == ("file", str(tmp_path / "out"))

    def test_a_source_with_data_of_its_own_is_an_input(self, spark: Any, tmp_path: Path, collector: Collector) -> None:
        (tmp_path / "a.log").write_text("1\n2\n")
        with metrics.lineage(spark, client=client(collector.url)):
            rows = spark.readStream.format("connectors.file_stream").load(str(tmp_path / "*.log"))
            writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start().awaitTermination()
        (source,) = collector.events[-1]["inputs"]
        assert (source["namespace"], source["name"]) == ("file", str(tmp_path / "*.log"))
        assert collector.states() == ["START", "COMPLETE"]  # every minute is not before the end

    def test_a_run_that_dies_tells_its_error(self, spark: Any, tmp_path: Path, collector: Collector) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / ".connectors").write_text("no folder")
        with (
            metrics.lineage(spark, client=client(collector.url)),
            pytest.raises(Exception, match=r"\.connectors"),
        ):
            copy(spark, tmp_path)
        assert collector.states() == ["START", "FAIL"]
        assert ".connectors" in collector.events[-1]["run"]["facets"]["errorMessage"]["message"]

    @pytest.mark.soak
    def test_a_collector_that_hangs_slows_no_batch(self, spark: Any, tmp_path: Path, collector: Collector) -> None:
        copy(spark, tmp_path / "warm")
        collector.pause.clear()
        lineage = metrics.lineage(spark, every=0, client=client(collector.url))
        began = time.monotonic()
        copy(spark, tmp_path / "hanging", end=50)
        assert time.monotonic() - began < 60  # each of twelve events would wait five seconds for its answer
        assert collector.events == []
        collector.pause.set()
        lineage.stop()
        assert collector.states()[-1] == "COMPLETE"

    @pytest.mark.soak
    def test_a_collector_that_is_away_is_a_warning(
        self, spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        nobody = client("http://127.0.0.1:9")
        with caplog.at_level(logging.WARNING, "connectors.metrics"), metrics.lineage(spark, client=nobody):
            copy(spark, tmp_path)
        texts = [record.getMessage() for record in caplog.records if record.name == "connectors.metrics"]
        assert [text.split(" of query numbers")[0] for text in texts] == [
            "OpenLineage has not got START", "OpenLineage has not got COMPLETE"
        ]  # fmt: skip

    def test_an_impossible_interval_is_refused(self, spark: Any) -> None:
        with pytest.raises(Misconfigured, match=r'every +must be .*; got "often"'):
            metrics.lineage(spark, every="often")


def test_a_collector_that_never_answers_in_time_does_not_let_events_pile_up() -> None:
    release = threading.Event()
    client = SimpleNamespace(emit=lambda _: release.wait(0.05))
    session: Any = SimpleNamespace(
        streams=SimpleNamespace(addListener=lambda _: None, removeListener=lambda _: None, active=[])
    )
    listener = metrics.lineage(session, client=client, every="1ms")
    for number in range(2000):
        progress = {"id": f"q{number % 3}", "runId": str(uuid.UUID(int=number % 3)), "batchId": number}
        listener.take("progress", SimpleNamespace(progress=progress))
    latest = time.monotonic() + 20
    while listener._events.qsize() > 200 and time.monotonic() < latest:
        time.sleep(0.01)
    behind = listener._events.qsize()
    release.set()
    listener.stop()
    assert behind <= 200
