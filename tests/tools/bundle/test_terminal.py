"""What a person sees of a run: in a terminal, in a pipe, and when it ends."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from connectors.metrics.history import Standing
from connectors_tools.bundle import Reporter, run_job
from connectors_tools.bundle.live import Activity, RepeatedLine

from .conftest import Workbench
from .test_outputs import DRAW

WAIT = """
import pathlib, time
until = time.monotonic() + 60
while not pathlib.Path("../seen").exists():
    assert time.monotonic() < until
    time.sleep(0.02)
"""
RUN = [sys.executable, "-m", "connectors", "run", "job"]


def with_headings(bench: Workbench, name: str, *texts: str) -> None:
    """Puts cells of text above the code of a notebook."""
    file = bench.root / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(file, as_version=4)
    notebook.cells = [*(nbformat.v4.new_markdown_cell(text) for text in texts), *notebook.cells]
    nbformat.write(notebook, file)


class SeenWhen(io.StringIO):
    """A pipe whose reader makes a file when a text comes."""

    def __init__(self, text: str, file: Path) -> None:
        super().__init__()
        self.text, self.file = text, file

    def write(self, text: str) -> int:
        if self.text in text:
            self.file.touch()
        return super().write(text)


def test_a_pipe_gets_a_line_now_and_then_with_the_heading_of_the_cell(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RepeatedLine, "seconds", 0.05)
    bench.job("job", bench.task("a", WAIT))
    with_headings(bench, "a", "# The title", "## What `came` out\n\nSome text.", "No heading.")
    out = SeenWhen("What came out", bench.root / "seen")
    run_job(bench.load(), "job", reporter=Reporter(out))
    lines = out.getvalue().splitlines()
    assert "a  cell 1/1  What came out  0 s" in lines
    assert "pathlib" not in out.getvalue()


ORDERS = Standing("q", "orders", rows=1200, rate=400.0, batches=3, lag=70, dead_letters=2, seconds=5.0)


def test_a_line_of_a_pipe_tells_where_the_query_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RepeatedLine, "seconds", 0.02)
    shown = threading.Event()

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            if "cell 2/3" in text:
                shown.set()
            return super().write(text)

    reporter = Reporter(out := Out())
    reporter.watch(lambda: [ORDERS])
    with reporter.running("a"):
        reporter.doing("a", "cell 2/3  The query")
        assert shown.wait(30)
    assert "a  cell 2/3  The query  1,200 rows · 400 rows/s · 3 batches · lag 70 · 2 dead letters  0 s" in out.getvalue()


def test_quiet_shows_nothing_of_queries() -> None:
    reporter = Reporter(out := io.StringIO(), quiet=True)
    reporter.watch(lambda: [ORDERS])
    with reporter.running("a"):
        reporter.doing("a", "cell 2/3")
    assert out.getvalue() == ""


def test_several_queries_of_a_task_have_a_line_each() -> None:
    activity = Activity("a", lambda: [ORDERS, replace(ORDERS, name="returns", rows=7)])
    assert [line.split()[:2] for line in activity.lines()] == [["a", "0"], ["orders", "1,200"], ["returns", "7"]]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_a_line_of_a_terminal_is_as_wide_as_it_and_ends_with_the_time(width: int) -> None:
    activity = Activity("ingest", lambda: [ORDERS])
    activity.detail = "cell 5/10  A long heading of a cell that explains what happens in it"
    [line] = activity.lines(width)
    assert len(line) <= width
    assert line.startswith("ingest  ")
    assert line.endswith("  0 s")
    assert "1,200" in line


def test_queries_that_cannot_be_read_leave_the_line_as_it_is() -> None:
    activity = Activity("a", lambda: [ORDERS][1:] or 1 / 0)  # type: ignore[arg-type, return-value]
    activity.detail = "cell 1/1"
    assert activity.lines() == ["a  cell 1/1  0 s"]


def test_a_pipe_gets_such_a_line_every_ten_seconds(bench: Workbench) -> None:
    assert RepeatedLine.seconds == 10
    bench.job("job", bench.task("a", "print(1)"))
    assert [line.split()[0] for line in bench.run().lines if " SUCCESS " in line] == ["a", "job"]


def test_a_terminal_shows_the_heading_of_the_cell_that_runs(bench: Workbench) -> None:
    bench.job("job", bench.task("a", WAIT))
    with_headings(bench, "a", "# What came out")
    reader, terminal = os.openpty()
    with subprocess.Popen(RUN, cwd=bench.root, stdout=terminal, stderr=terminal, env={**os.environ, "COLUMNS": "100"}) as run:
        os.close(terminal)
        shown, until = b"", time.monotonic() + 60
        while b"What came out" not in shown:
            shown += os.read(reader, 4096)
            assert time.monotonic() < until
        (bench.root / "seen").touch()
        while run.poll() is None or b"job  SUCCESS" not in shown:
            try:
                shown += os.read(reader, 4096)
            except OSError:  # the end of the terminal
                break
    os.close(reader)
    assert run.returncode == 0
    assert b"job  SUCCESS" in shown
    assert b"pathlib" not in shown


def test_a_success_ends_with_where_the_notebooks_and_their_pictures_are(bench: Workbench) -> None:
    bench.job("job", bench.task("a", DRAW, "print(1)", DRAW), bench.task("b", "1", after="a"))
    result = bench.run()
    folder = max((bench.root / "runs" / "job").iterdir())
    assert result.lines[-2] == f"{folder}: 2 executed notebooks, 2 pictures"
    assert [(folder / name).stat().st_size > 0 for name in ("a-1-1.png", "a-1-2.png")] == [True, True]
    assert result.lines[-1].startswith("job  SUCCESS")


NOISE = """
import sys, connectors
from pyspark.sql.functions import udf

@udf("long")
def loud(n):
    print("a worker's output")
    print("a worker's error", file=sys.stderr, flush=True)
    return n

spark.range(10).select(loud("id")).collect()
java = spark._jvm.java.lang.System
java.err.println("Java's error")
rows = spark.readStream.format("connectors.sequence").option("end", 5).load()
"""
FAILS = """
write = connectors.foreach_batch("kafka", {"kafka.bootstrap.servers": "127.0.0.1:9"})
rows.selectExpr("CAST(value AS STRING) AS value").writeStream.foreachBatch(write).start().awaitTermination()
"""


@pytest.mark.soak
@pytest.mark.spark
def test_a_run_shows_nothing_of_spark_and_java_and_an_error_is_ours_first(bench: Workbench) -> None:
    bench.job("job", bench.task("a", NOISE, FAILS))
    result = subprocess.run(RUN, cwd=bench.root, capture_output=True, text=True, timeout=200)
    lines = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (1, "")
    at = next(number for number, line in enumerate(lines) if line.startswith("a  FAILED"))
    assert [line.strip() for line in lines[at + 1 : at + 3]] == [
        "Misconfigured: connectors.kafka cannot start; 1 problem:",
        'topic   missing; give it in the options of foreach_batch: {"topic": …}; '
        "or make a column topic that names the topic of each row.",
    ]
    assert not [word for word in ("Traceback", "py4j", "incubator", "java.", "a worker's", "Java's") if word in result.stdout]
    [log] = [line.split(": ")[1] for line in lines if "the full traceback" in line]
    written = (bench.root / log).read_text()
    for text in ("a worker's output", "a worker's error", "Java's error", "StreamingQueryException", "py4j"):
        assert text in written
