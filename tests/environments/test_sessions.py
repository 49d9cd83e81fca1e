"""The life of a session: ended and begun again in one process, two at a time, and workers that outlive their driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors.testing import Action, FailureInjector, Point, same_records
from connectors.testing.driver import start_driver
from connectors.testing.environments import Environment
from connectors.testing.session import python_path
from connectors.testing.spark_suites import spark_query
from tests.systems.reference_contexts import BufferedContext

TWO_LIVES = """
import sys
import connectors
from connectors import workbench
from connectors.core import Source

folder = sys.argv[1]

def life(end):
    spark = workbench.session({"spark.ui.enabled": False}, master="local[2,4]")
    rows = spark.readStream.format("connectors.sequence").option("end", end).load()
    sink = connectors.foreach_batch("buffered", {"path": folder + "/out"})
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", folder + "/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    return spark

first = life(10)
first.stop()
second = life(20)
assert first.sparkContext is not second.sparkContext
third = second.newSession()
connectors.register(third)
assert third.read.format("connectors.sequence").option("end", 3).load().count() == 3
written = sorted(row.value for row in third.read.json(folder + "/out").collect())
assert written == list(range(1, 21)), written
print("two lives")
"""


@pytest.mark.soak
@pytest.mark.spark
def test_a_notebook_can_stop_its_session_and_begin_another(tmp_path: Path) -> None:
    """In a process of its own: the sessions of all other tests live in this one."""
    ran = subprocess.run(
        [sys.executable, "-c", TWO_LIVES, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path()},
        timeout=300,
    )
    assert "two lives" in ran.stdout, ran.stderr[-4000:]


def test_a_batch_names_the_run_of_its_query_also_when_a_function_is_used_again(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    function = connectors.foreach_batch("buffered", {"path": str(tmp_path / "out")})
    monkeypatch.setattr(type(function), "write", lambda _, frame, batch: runs.append(batch.run))

    def under_a_name(frame: Any, number: int) -> None:
        frame.sparkSession.sparkContext.setJobGroup("orders", "the user's own name of its jobs")
        function(frame, number)

    for end in (1, 2):
        rows = spark.readStream.format("connectors.sequence").option("end", end).load()
        writer = rows.writeStream.foreachBatch(under_a_name).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert runs.pop() == query.runId


@pytest.mark.essential
@pytest.mark.environments("connect")
def test_sessions_with_one_server_do_not_depend_on_each_other(environment: Environment) -> None:
    from pyspark.sql.connect.session import SparkSession

    assert environment.server is not None
    other: Any = SparkSession.builder.remote(environment.server.url).create()
    connectors.register(other)
    assert other.read.format("connectors.sequence").option("end", 3).load().count() == 3
    other.stop()
    assert environment.spark.read.format("connectors.sequence").option("end", 4).load().count() == 4


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("carrier", ["foreach_batch", "format"])
def test_a_worker_that_outlives_its_driver_writes_nothing_that_counts(tmp_path: Path, carrier: str) -> None:
    target = BufferedContext(tmp_path / "target")
    target.folder.mkdir()
    query = spark_query(target, tmp_path, carrier)
    injector = FailureInjector(query.faults)
    injector.arm(Point.TASK_ROW, Action.OUTLIVE, row=1)

    driver = start_driver(tmp_path / "first", "local[2,4]", [query])
    _wait_until(injector.held, driver)
    (zombie,) = injector.held()
    for pid in (*injector.victims(), driver.pid):
        os.kill(pid, signal.SIGKILL)
    driver.wait()
    second = start_driver(tmp_path / "second", "local[2,4]", [query])
    assert second.wait(240) == 0, (tmp_path / "second" / "log").read_text()[-4000:]
    assert _alive(zombie), "the worker ended with its driver: nothing was tested"
    expected = [target.row(number) for number in range(1, 31)]
    same_records(expected, target.rows())

    injector.release()
    until = time.monotonic() + 60
    while _alive(zombie) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _alive(zombie)
    same_records(expected, target.rows())


def _wait_until(what: Any, driver: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 180
    while not what():
        assert driver.poll() is None, "the driver has ended"
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
