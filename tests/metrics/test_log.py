"""The log of a session's queries: their runs, and the notes that ``connectors status`` reads in another process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors import workbench
from connectors.core import metrics
from connectors.metrics.log import query_log
from connectors.metrics.queries import queries_of_machine
from connectors.systems import ledgers_in

pytestmark = pytest.mark.spark


def started(spark: Any, folder: Path, sink: Any, *, endless: bool = False) -> Any:
    options = {"rowsPerSecond": 1000} if endless else {"end": 100}
    rows = spark.readStream.format("connectors.sequence").options(**options).load()
    writer = rows.writeStream.foreachBatch(sink).queryName(folder.name)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return (writer if endless else writer.trigger(availableNow=True)).start()


def status(name: str) -> list[str]:
    """What another process says of a query, with the lines of its sinks."""
    command = [sys.executable, "-m", "connectors", "status"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"{name}  "))
    return [lines[first], *(line for line in lines[first + 1 : first + 3] if line.startswith("    "))]


@pytest.mark.soak
def test_queries_that_run_end_and_fail_are_known_to_other_processes(spark: Any, tmp_path: Path) -> None:
    log = query_log(spark)
    assert query_log(spark) is log
    began = time.time()
    out = {"path": str(tmp_path / "out"), "fileFormat": "json"}

    def fail(*_: Any) -> None:
        raise ValueError("the batch is not wanted")

    running = started(spark, tmp_path / "endless", connectors.foreach_batch("files", out), endless=True)
    try:
        until = time.monotonic() + 120
        while not (queries := [run for run in log.running() if run.count]) and time.monotonic() < until:
            time.sleep(0.05)
        assert [run.name for run in queries] == ["endless"]
        assert queries[0].standing().rows > 0
        assert not queries[0].ends_by_itself
        first, *sinks = status("endless")
        assert first.startswith("endless  running")
        sink_id, target, _ = sinks[0].split(maxsplit=2)
        assert (sink_id.rpartition("-")[0], target) == ("files", str(tmp_path / "out"))
        [content] = ledgers_in(target, {})
        assert sink_id == content.sink_id
        ended = started(spark, tmp_path / "done", lambda rows, _: rows.count())
        workbench.wait(ended)
        with pytest.raises(Exception, match="not wanted"):
            started(spark, tmp_path / "broken", fail).awaitTermination()
    finally:
        running.stop()
    runs = {run.name: run for run in log.since(began)}
    assert {name: run.state for name, run in runs.items()} == {"endless": "ended", "done": "ended", "broken": "failed"}
    assert (runs["done"].ends_by_itself, runs["done"].standing().rows) == (True, 100)
    assert log.running() == []
    states = {query.name: query.state for query in queries_of_machine() if query.at >= began and query.name in runs}
    assert states == {"endless": "ended", "done": "ended", "broken": "failed"}
    assert status("broken")[1] == "    ValueError: the batch is not wanted"


def test_a_folder_that_cannot_be_written_does_not_disturb_the_log(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path / "file"))
    log, began = query_log(spark), time.time()
    started(spark, tmp_path / "quiet", lambda rows, _: rows.count()).awaitTermination()
    assert [(run.name, run.state, run.rows) for run in log.since(began)] == [("quiet", "ended", 100)]
