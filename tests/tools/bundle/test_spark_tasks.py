"""Tasks that use Spark: one session for the whole job, tidied between tasks, interrupted when the time is over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from connectors.workbench import BOOTSTRAP
from connectors.workbench.settings import library

from .conftest import Result, State, Workbench

pytestmark = pytest.mark.spark

FIRST = [
    "assert 'spark' in globals()",
    BOOTSTRAP,
    "dbutils.jobs.taskValues.set('app', spark.sparkContext.applicationId)",
    "spark.conf.set('spark.sql.shuffle.partitions', '7')",
    "spark.range(3).createOrReplaceTempView('left')",
    "spark.sql('CREATE DATABASE side')\nspark.catalog.setCurrentDatabase('side')",
    "spark.readStream.format('rate').load().writeStream.format('noop').queryName('forgotten').start();",
    "spark.range(2).show()",
    "display(spark.range(3))",
]
SECOND = [
    "import json",
    "same = spark.sparkContext.applicationId == dbutils.jobs.taskValues.get('first', 'app')",
    "partitions = spark.conf.get('spark.sql.shuffle.partitions')",
    "views = [table.name for table in spark.catalog.listTables()]",
    "spark.range(5).write.format('delta').mode('overwrite').save(dbutils.widgets.get('path'))",
    "rows = spark.read.format('delta').load(dbutils.widgets.get('path')).count()",
    "from pyspark.sql.functions import udf\n"
    "def library(n):\n    import connectors\n    return connectors.__file__\n"
    "worker = spark.range(1).select(udf(library)('id')).first()[0]",
    "database = spark.catalog.currentDatabase()",
    "print(json.dumps([same, partitions, views, len(spark.streams.active), database, rows, worker]))",
]
BLOCKED = [
    "import time\nfrom pyspark.sql.functions import udf",
    "@udf('long')\ndef slow(n):\n    time.sleep(300)\n    return n",
    "spark.range(2).select(slow('id')).collect()",
]
AFTER = [
    "import json, time",
    "tracker, until = spark.sparkContext.statusTracker(), time.time() + 20",
    "while tracker.getActiveStageIds() and time.time() < until: time.sleep(0.1)",
    "print(json.dumps([len(tracker.getActiveStageIds()), spark.range(11).count(), spark.range(3).first()[0]]))",
]
FAILING = [
    "from pyspark.sql.functions import udf",
    "@udf('long')\ndef wrong(n):\n    raise ValueError('the reason, from a worker')",
    "spark.range(2).select(wrong('id')).collect()",
]
MISSPELT = [
    "import connectors\nconnectors.register(spark)",
    "spark.readStream.format('connectors.sequence').option('ende', 3).load()",
]
WAITING = [
    "query = spark.readStream.format('rate').load().writeStream.format('noop').start()",
    "query.awaitTermination()",
]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One run for all tests of this module: starting Spark is what takes the time."""
    bench = Workbench(tmp_path_factory.mktemp("spark"))
    (bench.root / "lib").symlink_to(library())
    condition = {"run_if": "ALL_DONE"}
    bench.job(
        "job",
        bench.task("first", *FIRST),
        bench.task("second", *SECOND, after="first", base_parameters={"path": str(bench.root / "delta")}),
        bench.task("blocked", *BLOCKED, after="second", timeout_seconds=6),
        bench.task("after", *AFTER, after="blocked", **condition),
        bench.task("failing", *FAILING, after="after", **condition),
        bench.task("misspelt", *MISSPELT, after="failing", max_retries=3, **condition),
        bench.task("waiting", *WAITING, after="misspelt", timeout_seconds=4, **condition),
        bench.task("last", *AFTER, after="waiting", **condition),
    )
    command = [sys.executable, "-m", "connectors", "run", "job"]
    ran = subprocess.run(command, cwd=bench.root, capture_output=True, text=True, timeout=240)
    print(ran.stdout, ran.stderr)
    folder = next(path for path in (bench.root / "runs" / "job").iterdir() if path.is_dir())
    outcome = Result(State.FAILED, ran.stdout, folder, ran.stderr)
    return outcome


def printed(result: Result, name: str) -> list[Any]:
    values: list[Any] = json.loads(result.printed(name))
    return values


def test_each_task_ends_as_it_should(result: Result) -> None:
    assert result.states == {
        "first": "SUCCESS", "second": "SUCCESS", "blocked": "TIMEDOUT", "after": "SUCCESS", "failing": "FAILED",
        "misspelt": "FAILED", "waiting": "TIMEDOUT", "last": "SUCCESS", "job": "SUCCESS_WITH_FAILURES",
    }  # fmt: skip


def test_what_spark_prints_and_shows_is_in_the_executed_notebook(result: Result) -> None:
    cells = result.executed("first-1").cells
    assert "|  1|" in cells[-2].outputs[0].text
    assert "<td>2</td>" in cells[-1].outputs[0].data["text/html"]


def test_all_tasks_share_one_session(result: Result) -> None:
    assert printed(result, "second-1")[0] is True


def test_settings_views_database_and_streams_of_a_task_end_with_it(result: Result) -> None:
    _, partitions, views, streams, database, *_ = printed(result, "second-1")
    assert (partitions, views, streams, database) == ("4", [], 0, "default")
    assert 'note: stream "forgotten" was still active at the end of first and was stopped' in result.text


def test_delta_is_there_and_workers_import_the_library(result: Result) -> None:
    rows, worker = printed(result, "second-1")[-2:]
    assert rows == 5
    assert Path(worker).is_relative_to(library())


def test_a_timeout_interrupts_a_waiting_spark_call_and_cancels_its_jobs(result: Result) -> None:
    active, count, first = printed(result, "after-1")
    assert active == 0
    assert (count, first) == (11, 0), "answers after the interruption belong to their questions"


def test_a_timeout_interrupts_a_wait_for_a_stream(result: Result) -> None:
    assert 'task "waiting" was stopped after 4 s' in result.text
    assert printed(result, "last-1") == [0, 11, 0]


def test_an_error_of_a_worker_is_told_by_its_own_message(result: Result) -> None:
    lines = [line.strip() for line in result.lines]
    report = lines[next(n for n, line in enumerate(lines) if line.startswith("failing  FAILED")) + 1 :][:9]
    assert report[0] == "ValueError: the reason, from a worker"
    assert report[1] == "in notebooks/failing.ipynb, cell 3:"
    assert not any(line.startswith(("at org.", "Traceback")) for line in report)


def test_an_option_that_spark_tells_to_be_wrong_is_not_tried_again(result: Result) -> None:
    report = result.text.partition("misspelt  FAILED")[2]
    assert "note: misspelt is not tried again" in result.text
    assert 'did you mean "end"?' in report
    assert "    >   1 spark.readStream.format('connectors.sequence').option('ende', 3).load()" in report.splitlines()
    assert [path.name for path in result.folder.glob("misspelt-*")] == ["misspelt-1.ipynb"]


def test_nothing_but_results_is_printed(result: Result) -> None:
    allowed = ("incubator", "JDK_JAVA_OPTIONS")
    noise = [line for line in result.errors.splitlines() if not any(text in line for text in allowed)]
    assert noise == [], result.errors


def test_the_log_of_spark_is_in_the_folder_of_the_run(result: Result) -> None:
    assert (result.folder / "spark.log").exists()
