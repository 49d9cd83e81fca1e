"""Where a query stands: rows, rates, lag and the time that is left, from its progress and its files; no Spark."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.core import metrics
from connectors.core.metrics import Component, Meter, Place
from connectors.core.progress import PartitionProgress, packed
from connectors.ground.errors import Transient
from connectors.metrics.history import ENDED, FAILED, BatchRecord, QueryHistory
from connectors.metrics.log import note
from connectors.metrics.queries import DIED, UNKNOWN, ago, process_start, queries_of_machine

QUERY = "6f480a6e-7299-4058-b2e6-397699d87237"
NOBODY = 2**22 + 1
"""A process id that Linux gives to nobody."""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path / "metrics"))
    return tmp_path / "metrics"


def progress(
    number: int, rows: int, *, ago: float = 0.0, seconds: float = 2.0, lag: int | None = None, source: str = ""
) -> dict[str, Any]:
    """The progress of a batch that ended ``ago`` seconds ago, as Spark tells it."""
    end = datetime.datetime.fromtimestamp(time.time() - ago - seconds, datetime.timezone.utc)
    offset: dict[str, Any] = {"v": 1, "source": source or "sequence", "at": {}}
    if lag is not None:
        records = None if source else lag
        offset["progress"] = {"id": "x", **packed([PartitionProgress("0", 100, 100 + lag, records, 1.0)])}
    return {"id": QUERY, "runId": "run", "name": None, "batchId": number, "numInputRows": rows,
            "batchDuration": round(seconds * 1000), "timestamp": end.isoformat().replace("+00:00", "Z"),
            "sources": [{"endOffset": json.dumps(offset)}]}  # fmt: skip


def read(rows: int, batch: int = 0, **more: int) -> None:
    with Meter(Place(QUERY, Component("source", "sequence", "x"), batch)) as meter:
        meter.count("0", rows=rows, **more)


def test_rows_of_finished_tasks_count_before_their_batch_is_done() -> None:
    history = QueryHistory(QUERY)
    read(40, dead_letters=2)
    standing = history.standing()
    assert (standing.rows, standing.batches, standing.dead_letters) == (40, 0, 2)


@pytest.mark.parametrize("runs", [True, False])
def test_a_snapshot_is_told_while_it_runs(runs: bool) -> None:
    history, batch = QueryHistory(QUERY), progress(1, 50)
    facts = {"snapshot_rows": 50, "snapshot_total": 200, "snapshot_runs": runs}
    parts = {"id": "x", **packed([PartitionProgress("p", "here", facts=facts)])}
    batch["sources"] = [{"endOffset": json.dumps({"v": 1, "source": "connect", "at": {}, "progress": parts})}]
    history.add(batch)
    standing = history.standing()
    assert (standing.snapshot_rows, standing.snapshot_total) == ((50, 200) if runs else (None, None))
    history.end(ENDED)
    assert history.standing().snapshot_rows is None


def test_rows_of_earlier_runs_do_not_count() -> None:
    read(1000)
    history = QueryHistory(QUERY)
    read(30, batch=1)
    assert history.standing().rows == 30


def test_a_run_that_was_not_seen_from_its_start_counts_by_its_batches() -> None:
    read(1000)
    history = QueryHistory(QUERY, from_start=False)
    history.add(progress(1, 30))
    assert history.standing().rows == 30


def test_a_query_whose_sources_do_not_count_counts_by_its_batches() -> None:
    history = QueryHistory(QUERY)
    for number in range(3):
        history.add(progress(number, 50))
    assert (history.standing().rows, history.standing().batches) == (150, 3)


def test_idle_times_and_a_batch_that_is_told_twice_count_once() -> None:
    history = QueryHistory(QUERY)
    for report in (progress(0, 50), progress(0, 50), progress(1, 0), progress(1, 0), progress(1, 20)):
        history.add(report)
    assert (history.rows, history.count) == (70, 2)


def test_the_rate_is_that_of_the_last_minute_and_at_the_end_that_of_the_run() -> None:
    history = QueryHistory(QUERY)
    for number, (rows, ago_seconds) in enumerate([(10, 600.0), (100, 20.0), (300, 10.0)]):
        history.add(progress(number, rows, ago=ago_seconds, seconds=2.0))
    assert history.standing().rate == 100.0
    history.end(ENDED)
    assert history.standing().rate == pytest.approx(410 / 6)


def test_the_time_that_is_left_follows_from_how_fast_the_lag_shrinks() -> None:
    history = QueryHistory(QUERY, ends_by_itself=True)
    history.add(progress(0, 100, ago=12.0, lag=300))
    assert history.standing().left is None
    history.add(progress(1, 100, ago=2.0, lag=200))
    assert history.standing().left == pytest.approx(18.0, abs=0.5)
    history.add(progress(2, 200, ago=0.0, lag=0))
    assert history.standing().left is None


def test_a_query_without_an_end_has_no_time_left() -> None:
    history = QueryHistory(QUERY)
    history.add(progress(0, 100, ago=12.0, lag=300))
    history.add(progress(1, 100, ago=2.0, lag=200))
    assert history.standing().left is None


@pytest.mark.parametrize(("source", "unit"), [("", "records"), ("file_stream", "bytes"), ("jdbc", ""), ("of_somebody", "")])
def test_the_lag_has_the_unit_of_its_source(source: str, unit: str) -> None:
    history = QueryHistory(QUERY)
    history.add(progress(0, 100, lag=300, source=source))
    standing = history.standing()
    assert (standing.lag, standing.unit) == (300, unit)


def test_what_is_waited_for_is_told_while_it_lasts() -> None:
    history = QueryHistory(QUERY)
    meter = Meter(Place(QUERY, Component("sink", "kafka", "s"), 0, -1))
    meter.waits(Transient("the broker is down"), time.time() - 30, time.time() + 5)
    standing = history.standing()
    assert standing.waiting_for == "the broker is down"
    assert standing.waiting_seconds == pytest.approx(30, abs=2)
    meter.resumed()
    assert history.standing().waiting_for == ""


def started(state: str = "running", **more: Any) -> QueryHistory:
    history = QueryHistory(QUERY, "run", "orders")
    if state != "running":
        history.end(state, "it broke" if state == FAILED else "")
    metrics.write_note(QUERY, {**note(history), **more})
    return history


def test_status_knows_the_sinks_of_a_query_that_runs_and_how_far_behind_it_is() -> None:
    history = started()
    history.add(progress(4, 50, lag=70))
    metrics.write_note(QUERY, note(history))
    with Meter(Place(QUERY, Component("sink", "files", "s", {"target": "/data/out"}), 4, -1)) as meter:
        meter.count(rows=50)
        meter.now(last_commit=time.time() - 120, commit_ms=5)
    [query] = queries_of_machine()
    [sink] = query.sinks
    assert (query.name, query.state, query.lag, query.unit) == ("orders", "running", 70, "records")
    assert (sink.system, sink.sink_id, sink.target, sink.rows) == ("files", "s", "/data/out", 50)
    assert sink.last_commit is not None
    assert ago(sink.last_commit) == "2 minutes ago"


def test_a_query_whose_process_is_gone_has_died() -> None:
    started(process=NOBODY)
    assert queries_of_machine()[0].state == DIED


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this machine."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_query_whose_process_has_given_its_number_to_another_one_has_died(sleeper: subprocess.Popen[bytes]) -> None:
    started(process=sleeper.pid)
    assert queries_of_machine()[0].state == DIED


def test_the_number_of_a_thread_is_no_process() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        started(process=thread.native_id)
        assert queries_of_machine()[0].state == DIED
    finally:
        end.set()
        thread.join()


def test_a_system_without_proc_tells_the_start_of_a_process_too(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("ps") is None:
        pytest.skip("no ps")
    monkeypatch.setattr("sys.platform", "darwin")
    assert process_start(os.getpid()) == process_start(os.getpid())
    assert process_start(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(sleeper.pid) is None
    assert process_start(NOBODY) is None


def test_a_query_has_died_though_nobody_has_asked_for_the_end_of_its_process(sleeper: subprocess.Popen[bytes]) -> None:
    started(process=sleeper.pid, process_start=process_start(sleeper.pid))
    assert queries_of_machine()[0].state == "running"
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert queries_of_machine()[0].state == DIED


def test_a_process_of_another_machine_is_not_looked_for_here() -> None:
    started(process=NOBODY, machine="elsewhere")
    assert queries_of_machine()[0].state == "running"


def test_a_failed_query_keeps_its_error_and_one_without_a_note_is_listed_too() -> None:
    started(FAILED)
    with Meter(Place("other", Component("sink", "files", "s"), 0)) as meter:
        meter.count(rows=1)
    states = {query.name: (query.state, query.error) for query in queries_of_machine()}
    assert states == {"orders": (FAILED, "it broke"), "other": (UNKNOWN, "")}


def test_a_query_without_a_note_and_a_commit_is_as_old_as_its_newest_file() -> None:
    with Meter(Place("other.1", Component("source", "sequence", "s"), 0)) as meter:
        meter.count(rows=1)
    [query] = queries_of_machine()
    assert abs(query.at - time.time()) < 60


def test_queries_that_run_come_first_then_the_newest() -> None:
    for name, state, start in (("old", ENDED, 10.0), ("new", ENDED, 20.0), ("runs", "running", 5.0)):
        metrics.write_note(name, {**note(started(state)), "name": name, "started": start, "ended": start})
    names = [query.name for query in queries_of_machine() if query.query != QUERY]
    assert names == ["runs", "new", "old"]


@pytest.mark.parametrize(("seconds", "words"), [(0, "1 second ago"), (59, "59 seconds ago"), (60, "1 minute ago"),
                                               (7200, "2 hours ago"), (90000, "1 day ago")])  # fmt: skip
def test_how_long_ago(seconds: float, words: str) -> None:
    assert ago(1000.0, 1000.0 + seconds) == words


def test_a_batch_that_another_thread_adds_meanwhile_breaks_no_standing() -> None:
    history = QueryHistory(QUERY, "r", "orders")

    class Batch(BatchRecord):
        def __getattribute__(self, name: str) -> Any:
            if name == "at":
                history.batches.append(BatchRecord(2, 0.0, 1, 1.0))
            return super().__getattribute__(name)

    history.batches.extend([Batch(0, 0.0, 1, 1.0), Batch(1, 0.0, 1, 1.0)])
    assert history.standing().rate == 1.0
