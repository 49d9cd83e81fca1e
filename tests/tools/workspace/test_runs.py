"""Deploy, run, results: the deployed notebooks run where they were deployed to, and are watched through the real SDK."""

from __future__ import annotations

import io
import json
import re
import signal
import threading
import time
from typing import Any

import pytest

from connectors_tools.bundle import Reporter, State
from connectors_tools.bundle.live import RepeatedLine
from connectors_tools.fake_workspace import FakeWorkspace
from connectors_tools.workspace import open_target, runs
from connectors_tools.workspace.page import record_of
from connectors_tools.workspace.task_records import TaskRecords

from .conftest import Place

RUN_NOW = "POST /api/2.2/jobs/run-now"
WRITE = """
import os, pathlib
folder = pathlib.Path(os.environ["CONNECTORS_VOLUMES"], "Volumes", "main", "default", "data")
(folder / dbutils.widgets.get("name")).write_text("written by the run")
dbutils.notebook.exit("a file is written")
"""


@pytest.fixture
def place(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(runs, "_POLL", 0.05)
    place.workspace.catalog.make_volume("main.default.data")
    return place


STREAM = """
from pathlib import Path
from connectors import workbench

spark, dbutils, display = workbench.notebook(globals())
folder = Path(workbench.workdir(dbutils.widgets.get("workdir")))
(folder / "in").mkdir(parents=True)
(folder / "in" / "a.json").write_text('{"id": 1}\\nno JSON\\n{"id": 2}\\n')
options = {"path": str(folder / "in" / "*.json"), "value.format": "json", "schema": "id long"}
letters = {"errors": "deadLetter", "deadLetterPath": str(folder / "letters")}
rows = spark.readStream.format("connectors.file_stream").options(**options, **letters).load()
stream = rows.select("value.id").writeStream.format("parquet").option("path", str(folder / "out")).queryName("numbers")
workbench.wait(stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start())
"""
GATE = """
from connectors import quality, workbench

spark, dbutils, display = workbench.notebook(globals())
folder = workbench.workdir(dbutils.widgets.get("workdir"))
checks = quality.Checks([quality.unique("id"), quality.expression("id < 2")])
checks.validate(spark.read.parquet(folder + "/out"), name="the numbers").enforce()
"""
RUNNING_QUERY = """
import time
from connectors.core.progress import PartitionProgress, packed
from connectors.metrics.history import QueryHistory
from connectors.workbench import task_record

task_record.begin(dbutils.widgets.getAll())
history = QueryHistory("q", "r", "numbers")
offset = {"source": "x", "progress": {"id": "x", **packed([PartitionProgress("0", 1000, 6000, 5000, 1.0)])}}
times = {"timestamp": "2026-01-01T00:00:00.000Z", "batchDuration": 500, "durationMs": {"triggerExecution": 500}}
sources = [{"description": "connectors.x", "endOffset": offset}]
history.add({"id": "q", "runId": "r", "batchId": 0, "numInputRows": 1000, "sources": sources, **times})
task_record.record_query(history)
time.sleep(2)
"""


def run(place: Place, *more: str) -> Any:
    return place.call("run", "job", "--on", "workspace", *more)


def test_a_deployed_job_runs_in_the_workspace_and_its_results_are_there(place: Place) -> None:
    place.job(
        "job", place.task("a", WRITE), place.task("b", "1", after="a"), parameters=[{"name": "name", "default": "x"}]
    )
    place.deploy()
    result = run(place, "--param", "name=y")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert re.fullmatch(r"job  run \d+  http://127\.0\.0\.1:\d+/jobs/\d+/runs/\d+", lines[0])
    ended = [line.split()[0] for line in lines if "  SUCCESS  " in line]
    assert ended == ["a", "b", "job"]
    assert any(re.match(r"a  SUCCESS  [\d.]+ s  a file is written$", line) for line in lines)
    from databricks.sdk import WorkspaceClient

    file = WorkspaceClient().files.download("/Volumes/main/default/data/y").contents
    assert file is not None
    assert file.read() == b"written by the run"


def test_a_failure_is_told_with_its_error_and_the_line_of_its_cell(place: Place) -> None:
    place.job("job", place.task("a", "n = 0", "text = 'before'\n1 / n"), place.task("b", "1", after="a"))
    place.deploy()
    result = run(place)
    assert result.exit_code == 1
    text = result.stdout
    assert "a  FAILED" in text
    assert "    ZeroDivisionError: division by zero" in text
    assert "cell 2:" in text
    assert ">   2 1 / n" in text
    assert "b  UPSTREAM_FAILED" in text
    assert re.match(r"job  FAILED", text.splitlines()[-2])


def test_the_parameters_of_a_run_have_their_secrets_hidden(place: Place) -> None:
    place.job("job", place.task("a", "1"), parameters=[{"name": "db_password", "default": ""}, {"name": "url", "default": ""}])
    place.deploy()
    run(place, "--param", "db_password=hunter2", "--param", "url=redis://default:hunter2@host")
    [number] = place.workspace.jobs.runs
    lines = place.call("runs", "show", str(number)).output
    assert ("hunter2" in lines, "db_password=***" in lines, "url=redis://***@host" in lines) == (False, True, True)
    place.call("runs", "show", str(number), "--html")
    [page] = place.root.rglob("index.html")
    assert "hunter2" not in page.read_text()


def test_a_run_is_started_once_though_its_answer_is_lost(place: Place) -> None:
    place.job("job", place.task("a", "1"))
    place.deploy()
    place.workspace.faults.lose_answer(RUN_NOW)
    assert run(place).exit_code == 0
    assert (place.workspace.faults.count(RUN_NOW), len(place.workspace.jobs.runs)) == (2, 1)


def test_a_workspace_that_is_away_for_a_while_is_waited_for_while_a_run_is_watched(place: Place) -> None:
    place.job("job", place.task("a", "1"))
    place.deploy()
    place.workspace.faults.refuse("GET .*/runs/get", 503, times=2, after=2, retry_after=0)
    assert run(place).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--param", "dya=1"], 'did you mean "day"?'),
        (["--only", "nothing"], "--only nothing"),
    ],
)
def test_a_wrong_command_line_starts_nothing(place: Place, arguments: list[str], text: str) -> None:
    place.job("job", place.task("a", "1"), parameters=[{"name": "day", "default": "1"}])
    place.deploy()
    result = run(place, *arguments)
    assert (result.exit_code, text in result.stderr, place.workspace.jobs.runs) == (2, True, {})


def test_a_job_that_is_not_deployed_is_told_how_to_deploy(place: Place) -> None:
    place.job("job", place.task("a", "1"))
    result = run(place)
    assert (result.exit_code, "python -m connectors deploy -t dev" in result.stderr) == (2, True)


def test_a_job_that_the_cli_has_deployed_is_found_by_its_name(place: Place) -> None:
    place.job("job", place.task("a", "1"))
    place.deploy()
    place.workspace.tree.remove("/Workspace/Users/dev.user@example.com/.bundle/test/dev/state/connectors.json")
    assert run(place).exit_code == 0


def test_runs_lists_shows_and_cancels(place: Place) -> None:
    place.job("job", place.task("a", "import time; time.sleep(600)"), parameters=[{"name": "day", "default": "1"}])
    place.job("other", place.task("b", "1 / 0"))
    place.deploy()
    place.call("run", "other", "--on", "workspace")
    target = open_target(place.root, None, {})
    number = runs.start(target, "job", {}, (), print)
    while not any(task.state == "RUNNING" for task in place.workspace.jobs.runs[number].tasks.values()):
        time.sleep(0.05)
    listed = place.call("runs").stdout.splitlines()
    assert listed[0].split()[0] == str(number)
    assert [line.split()[-1] for line in listed] == ["RUNNING", "FAILED"]
    assert [run["state"] for run in json.loads(place.call("runs", "--json").stdout)] == ["RUNNING", "FAILED"]
    assert [task["key"] for task in json.loads(place.call("runs", "show", str(number), "--json").stdout)["tasks"]] == ["a"]
    shown = place.call("runs", "show", str(number)).stdout
    assert "  day=1" in shown
    assert "  a  RUNNING" in shown
    assert (
        "ZeroDivisionError: division by zero" in place.call("runs", "show", str(min(place.workspace.jobs.runs))).stdout
    )
    assert place.call("cancel", str(number)).exit_code == 0
    out = io.StringIO()
    assert runs.watch(target.client, number, "job", Reporter(out)) is State.CANCELED
    assert "a  CANCELED" in out.getvalue()


def test_an_interruption_without_a_terminal_leaves_the_run_going_on(place: Place) -> None:
    place.job("job", place.task("a", "import time; time.sleep(600)"))
    place.deploy()

    over = threading.Event()

    def interrupt() -> None:
        while not place.workspace.faults.count("GET .*/runs/get"):
            time.sleep(0.05)
        signal.raise_signal(signal.SIGINT)
        while not over.wait(5):  # the first one is lost where Python ignores errors, as in a callback of its collector
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    threading.Thread(target=interrupt).start()
    try:
        result = run(place)
    finally:
        over.set()
        signal.signal(signal.SIGINT, before)
    ((number, left),) = place.workspace.jobs.runs.items()
    assert (result.exit_code, left.is_active) == (130, True)
    again = f"python -m connectors runs show {number} -t dev"
    assert result.stdout.splitlines()[-1] == f"job  run {number} goes on in the workspace; {again}"


def test_an_interruption_on_a_terminal_asks_whether_to_cancel(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.job("job", place.task("a", "import time; time.sleep(600)"))
    place.deploy()
    monkeypatch.setattr(runs, "is_terminal", lambda: True)
    questions: list[str] = []
    monkeypatch.setattr("click.confirm", lambda text: questions.append(text) or True)
    original, sleeps = time.sleep, iter(range(1000))

    def interrupted(seconds: float) -> None:
        if threading.current_thread() is threading.main_thread() and next(sleeps) == 0:
            raise KeyboardInterrupt
        original(seconds)

    monkeypatch.setattr(time, "sleep", interrupted)
    result = run(place)
    ((number, _),) = place.workspace.jobs.runs.items()
    assert questions == [f"\nCancel run {number} in the workspace?"]
    assert (result.exit_code, result.stdout.splitlines()[-1].split()[:2]) == (130, ["job", "CANCELED"])


def test_secrets_of_the_workspace_reach_its_runs(place: Place, workspace: FakeWorkspace) -> None:
    workspace.secrets.scopes["kv"] = {"db-password": "hush"}
    place.job("job", place.task("a", 'assert dbutils.secrets.get("kv", "db-password") == "hush"'))
    place.deploy()
    assert run(place).exit_code == 0


def test_the_page_of_a_run_has_its_graph_its_errors_and_the_exported_notebooks(place: Place) -> None:
    tasks = [place.task("a", "print('seen in the page')"), place.task("b", "1 / 0", after="a"), place.task("c", "1", after="b")]
    place.job("job", *tasks, description="Divides by zero.")
    place.deploy()
    run(place)
    (number,) = place.workspace.jobs.runs
    result = place.call("runs", "show", str(number), "--html")
    page = place.root / "runs" / "job" / f"workspace-{number}" / "index.html"
    assert (result.exit_code, result.stdout.strip()) == (0, f"the page of the run: {page}")
    html = page.read_text()
    shown = ("ZeroDivisionError: division by zero", "Upstream failed", 'href="a.html"', place.workspace.url)
    for text in (*shown, "Divides by zero.", "No record of queries, checks and dead letters was found:"):
        assert text in html
    assert "seen in the page" in (page.parent / "a.html").read_text()


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.spark
def test_the_page_of_a_run_has_its_queries_checks_dead_letters_and_versions(place: Place) -> None:
    folder = {"name": "workdir", "default": "/Volumes/main/default/data/numbers"}
    place.job("job", place.task("stream", STREAM), place.task("gate", GATE, after="stream"), parameters=[folder])
    place.deploy()
    result = run(place)
    (number,) = place.workspace.jobs.runs
    page = place.root / "runs" / "job" / f"workspace-{number}" / "index.html"
    assert result.stdout.splitlines()[-1] == f"{page.relative_to(place.root)}: 2 exported notebooks"
    target = open_target(place.root, None, {})
    record = record_of(target, runs.status(target.client, number), page.parent)
    stream, gate = (task.attempts[0] for task in record.tasks)
    (query,) = stream.queries
    assert (query.standing.name, query.standing.rows, query.standing.state) == ("numbers", 2, "ended")
    assert [batch.rows for batch in query.batches] == [2]
    (letters,) = stream.letters
    assert (letters.count, letters.samples[0].record) == (1, "no JSON")
    assert letters.place.endswith("/numbers/letters")
    (report,) = gate.quality
    (failed,) = [check for check in report.outcomes if not check.ok]
    assert (report.name, failed.failing, failed.rows, failed.sample) == ("the numbers", 1, 2, [{"id": 2}])
    assert "pyspark" in record.versions
    assert not record.note
    assert [*stream.quality, *gate.queries, *gate.letters] == []
    html = page.read_text()
    for text in ("numbers", "2 rows in 1 batch", "no JSON", "id=2", "pyspark"):
        assert text in html


def test_a_run_shows_its_queries_while_it_runs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RepeatedLine, "seconds", 0.05)
    folder = {"name": "workdir", "default": "/Volumes/main/default/data/numbers"}
    place.job("job", place.task("stream", RUNNING_QUERY), parameters=[folder])
    place.deploy()
    lines = run(place).stdout.splitlines()
    assert any(re.match(r"job  stream  1,000 rows · .*lag 5,000 ", line) for line in lines), lines


def test_records_of_earlier_runs_and_broken_ones_are_left_out(place: Place) -> None:
    target = open_target(place.root, None, {})
    parameters = {"workdir": "/Volumes/main/default/data", "name": "orders"}
    content = {"v": 1, "started": 0.0, "versions": {"python": "3"}, "queries": [], "reports": []}
    for start, text in ((1099, content), (2000, content), (3000, {"v": 1})):
        name = f"/Volumes/main/default/data/orders/record/{start * 1000}.x.json"
        target.client.files.upload(name, io.BytesIO(json.dumps({**text, "started": float(start)}).encode()))
    assert [record.started for record in TaskRecords(target.client, parameters, 1200.0).all()] == [2000.0]
    assert [record.started for record in TaskRecords(target.client, parameters, 1110.0).all()] == [1099.0, 2000.0]
    assert TaskRecords(target.client, {"workdir": "/elsewhere"}, 0.0).all() == []
    assert TaskRecords(target.client, {"workdir": "/Volumes/main/default/data/none"}, 0.0).all() == []
