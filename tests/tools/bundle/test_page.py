"""The page that a run leaves: each attempt with its notebook, error, verdicts of quality, queries and dead letters."""

from __future__ import annotations

import io
import os
import re
import time
from pathlib import Path
from typing import Any

import click
import nbformat
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from connectors.core.letter_files import LetterFile
from connectors_tools.bundle import Reporter, State, run_job
from connectors_tools.bundle.record import dead_letters
from connectors_tools.cli import main

from .conftest import Workbench, condition, outcome

JUDGE = """
from connectors.quality.report import CheckOutcome, Report, announce
announce(Report("{name}", [CheckOutcome("not_null(id)", "id is not null", "expectation", {ok}, 1, 9, [{{"id": None}}])]))
"""


def page_of(bench: Workbench, *tasks: Any, **more: Any) -> tuple[State, str]:
    pages: list[Path] = []
    bench.job("job", *tasks, **more)
    out = io.StringIO()
    state = run_job(bench.load(), "job", reporter=Reporter(out), on_page=pages.append)
    [page] = pages
    assert page.name == "index.html"
    return state, page.read_text()


def section(page: str, name: str) -> str:
    match = re.search(rf'<section id="{name}">(.*?)</section>', page, re.DOTALL)
    return match[1] if match else ""


def states(page: str) -> dict[str, str]:
    """The state of each task in the list of tasks."""
    return dict(re.findall(r'<span class="key">([^<]+)</span><span class="pill \w+">([^<]+)</span>', section(page, "tasks")))


SECRETS = {
    "url": ("redis://default:hunter2@host:6379", "redis://***@host:6379"),
    "connection_string": ("Endpoint=sb://x/;SharedAccessKey=hunter2", "***"),
    "endpoint": ("Endpoint=sb://x/;SharedAccessKeyName=root;SharedAccessKey=hunter2", "Endpoint=sb://x/;SharedAccessKeyName=root;"),
    "api_key": ("hunter2", "***"),
    "pipelines": ('[{"notebook": "jdbc_to_delta", "options": {"password": "hunter2"}}]', "***"),
    "db_password": ("hunter2", "***"),
}


def test_the_parameters_on_a_page_have_their_secrets_hidden(bench: Workbench) -> None:
    parameters = [{"name": name, "default": value} for name, (value, _) in SECRETS.items()]
    _, page = page_of(bench, bench.task("a", "1"), parameters=parameters)
    assert "hunter2" not in page
    assert all(shown in page for _, shown in SECRETS.values())


def test_a_page_has_each_task_with_its_state_error_and_words(bench: Workbench) -> None:
    tasks = (
        bench.task("a", 'dbutils.notebook.exit("3 rows")'), bench.task("b", "1/0", after="a"), bench.task("c", "1", after="b"),
    )  # fmt: skip
    state, page = page_of(bench, *tasks, description="What it is for")
    assert state is State.FAILED
    assert states(page) == {"a": "Success", "b": "Failed", "c": "Upstream failed"}
    assert "3 rows" in section(page, "tasks")
    assert "ZeroDivisionError: division by zero" in section(page, "tasks")
    assert "What it is for" in page
    assert section(page, "notebooks").count("<details") == 2


def test_a_page_shows_each_attempt_and_each_iteration(bench: Workbench) -> None:
    fails_once = 'import pathlib\nfile = pathlib.Path("tried")\nif not file.exists():\n    file.touch()\n    1/0'
    loop = {"task_key": "loop", "for_each_task": {"inputs": "[1, 2]", "task": bench.task("each", "print('in the loop')")}}
    _, page = page_of(bench, bench.task("a", fails_once, max_retries=1), loop)
    assert states(page) == {"a": "Success", "loop": "Success"}
    assert "a, attempt 1: Failed" in section(page, "tasks")
    labels = re.findall(r'<summary><span class="key">([^<]+)', section(page, "notebooks"))
    assert sorted(labels) == ["a", "a", "loop-1", "loop-2"]
    assert section(page, "notebooks").count("in the loop") >= 2


def test_conditions_show_what_they_came_to_and_what_they_left_out(bench: Workbench) -> None:
    tasks = (condition("if", "EQUAL_TO", "1", "1"), bench.task("yes", "1", after=[outcome("if", "true")]),
             bench.task("no", "1", after=[outcome("if", "false")]))  # fmt: skip
    _, page = page_of(bench, *tasks)
    assert states(page) == {"if": "Success", "yes": "Success", "no": "Excluded"}
    assert "The condition is true." in page


def test_quality_is_shown_once_with_the_task_that_judged(bench: Workbench) -> None:
    inner = bench.task("each", JUDGE.format(name="in_a_loop", ok=True))
    loop = {"task_key": "loop", "for_each_task": {"inputs": "[1]", "task": inner}}
    _, page = page_of(bench, bench.task("gate", JUDGE.format(name="orders", ok=False)), loop)
    shown = section(page, "quality")
    assert [shown.count(f"<h3>{name} ") for name in ("orders", "in_a_loop")] == [1, 1]
    assert "id is not null" in shown
    assert "1 of 2" in page


def test_a_job_that_runs_a_job_links_to_its_page(bench: Workbench) -> None:
    bench.job("child", bench.task("inner", "1"))
    _, page = page_of(bench, {"task_key": "outer", "run_job_task": {"job_id": "${resources.jobs.child.id}"}})
    [link] = re.findall(r'href="(outer-1/index.html)"', page)
    [folder] = [path for path in (bench.root / "runs" / "job").iterdir() if path.is_dir()]
    assert "inner" in states((folder / link).read_text())


def test_secrets_among_the_parameters_are_hidden(bench: Workbench) -> None:
    parameters = [{"name": name, "default": default} for name, default in (("day", "monday"), ("password", "hunter2"))]
    _, page = page_of(bench, bench.task("a", "1"), parameters=parameters)
    assert "monday" in section(page, "settings")
    assert "hunter2" not in page


def test_a_run_that_is_interrupted_leaves_its_page(bench: Workbench) -> None:
    state, page = page_of(bench, bench.task("a", "raise KeyboardInterrupt"), bench.task("b", "1", after="a"))
    assert state is State.CANCELED
    assert states(page) == {"a": "Canceled", "b": "Canceled"}


def test_a_page_that_cannot_be_written_is_a_note_and_no_failure(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors_tools.report.page.html_of", lambda *_: 1 / 0)
    bench.job("job", bench.task("a", "1"))
    out = io.StringIO()
    assert run_job(bench.load(), "job", reporter=Reporter(out), on_page=print) is State.SUCCESS
    assert "note: the page of the run cannot be written: ZeroDivisionError: division by zero" in out.getvalue()


@pytest.mark.parametrize(("options", "opened"), [([], 0), (["--open"], 1)])
def test_a_run_opens_its_page_where_that_is_asked_for(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, options: list[str], opened: int
) -> None:
    urls: list[str] = []
    monkeypatch.setattr(click, "launch", lambda url: urls.append(url) or 0)
    monkeypatch.chdir(bench.root)
    bench.job("job", bench.task("a", "1"))
    assert CliRunner().invoke(main, ["run", "job", *options]).exit_code == 0
    [page] = (bench.root / "runs" / "job").glob("*/index.html")
    assert urls == [page.as_uri()] * opened


def letters(folder: Path, name: str, *errors: str, age: float = 0.0) -> None:
    file = LetterFile()
    for number, error in enumerate(errors):
        file.add({"source": "s", "position": str(number), "error_class": "Poison", "error": error, "record": b"\xffrecord"})
    table = pq.read_table(file.content())
    pq.write_table(table, folder / name)
    os.utime(folder / name, (time.time() - age, time.time() - age))


def test_dead_letters_of_a_run_are_counted_and_some_are_shown(tmp_path: Path) -> None:
    since = time.time() - 1
    letters(tmp_path, "new.parquet", *(f"error {number}" for number in range(8)))
    letters(tmp_path, "old.parquet", "old", age=3600)
    summary = dead_letters(str(tmp_path), since)
    assert (summary.count, len(summary.samples)) == (8, 5)
    assert (summary.samples[0].error, summary.samples[0].record) == ("error 0", "\ufffdrecord")
    assert dead_letters(str(tmp_path), time.time() + 60).count == 0


STREAM = """
import connectors
from connectors import workbench
lines = (spark.readStream.format("connectors.file_stream").option("path", "{folder}/*.jsonl").option("value.format", "json")
    .option("schema", "n long").option("errors", "deadLetter").option("deadLetterPath", "{folder}/letters")
    .option("maxBytesPerTrigger", "200").load().selectExpr("value.n"))
sink = connectors.foreach_batch("files", path="{folder}/out")
query = (lines.writeStream.foreachBatch(sink).option("checkpointLocation", "{folder}/checkpoint").queryName("numbers")
    .trigger(availableNow=True).start())
workbench.wait(query)
"""


@pytest.mark.spark
def test_a_query_is_on_the_page_with_its_batches_and_dead_letters_and_its_cell_ends_with_a_summary(bench: Workbench) -> None:
    lines = "".join(f'{{"n": {number}}}\n' if number % 20 else "###\n" for number in range(100))
    (bench.root / "in.jsonl").write_text(lines)
    _, page = page_of(bench, bench.task("ingest", STREAM.format(folder=bench.root)), bench.task("b", "1", after="ingest"))
    queries = section(page, "queries")
    assert "<h3>numbers <small>in ingest</small></h3>" in " ".join(queries.split()).replace("numbers  ", "numbers ")
    assert "95 rows in" in queries
    assert "nothing left to read" in queries
    assert queries.count("<svg class=\"plot") == 3
    assert str(bench.root / "out") in queries
    assert "5 dead letters" in section(page, "letters")
    assert "###" in section(page, "letters")
    [executed] = (bench.root / "runs" / "job").glob("*/ingest-1.ipynb")
    [cell] = [cell for cell in nbformat.read(executed, as_version=4).cells if cell.cell_type == "code"]
    assert [output.output_type for output in cell.outputs] == ["display_data", "execute_result"], cell.outputs
    table, result = cell.outputs
    assert re.search(r"<td>numbers</td><td>ended</td><td>95</td>", table.data["text/html"])
    assert "rows, last commit" in table.data["text/html"]
    assert re.fullmatch(r"numbers: 95 rows in \d+ micro-batches, [\d.]+ s, 5 dead letters", result.data["text/plain"])
