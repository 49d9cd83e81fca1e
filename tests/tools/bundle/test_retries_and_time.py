"""Retries, time limits, and runs at the same time."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from connectors_tools.bundle import State

from .conftest import Workbench

COUNT = {"base_parameters": {"n": "{{task.execution_count}}"}}


def fails_until(attempt: int) -> str:
    return f'assert int(dbutils.widgets.get("n")) >= {attempt}, "too early"'


def test_a_failed_task_is_tried_again_until_it_succeeds(bench: Workbench) -> None:
    bench.job("job", bench.task("a", fails_until(3), max_retries=5, **COUNT))
    result = bench.run()
    assert result.states == {"a": "SUCCESS", "job": "SUCCESS"}
    assert sorted(path.name for path in result.folder.glob("*.ipynb")) == ["a-1.ipynb", "a-2.ipynb", "a-3.ipynb"]
    assert "a  attempt 1 FAILED, trying again" in result.text


def test_max_retries_counts_the_tries_after_the_first(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1/0", max_retries=2))
    result = bench.run()
    assert result.states["a"] == "FAILED"
    assert len(list(result.folder.glob("*.ipynb"))) == 3


ERRORS = "from connectors.ground.errors import *"


@pytest.mark.parametrize(
    ("raised", "attempts"),
    [
        ("Misconfigured('connectors.x', [Problem('url', 'must be one')])", 1),
        ("MissingFeature('Spark is too old')", 1),
        ("DataLoss('rows are gone')", 1),
        ("RuntimeError('… connectors.ground.errors.CommitRefused: batch 3 was written already')", 1),
        ("Fatal('the server has lost the rows that were staged: start the query again')", 2),
        ("Transient('the system is away')", 2),
        ("RuntimeError('… connectors.ground.errors.Transient: the system is away')", 2),
        ("RuntimeError('Misconfigured: the words of somebody else')", 2),
    ],
)
def test_what_a_person_must_mend_is_not_tried_again(bench: Workbench, raised: str, attempts: int) -> None:
    bench.job("job", bench.task("a", ERRORS, f"raise {raised}", max_retries=1))
    result = bench.run()
    assert result.states == {"a": "FAILED", "job": "FAILED"}
    assert len(list(result.folder.glob("*.ipynb"))) == attempts
    assert ("a is not tried again" in result.text, "trying again" in result.text) == (attempts == 1, attempts == 2)
    assert any(line.strip().startswith(">   1 raise ") for line in result.lines)


@pytest.mark.parametrize(("second", "attempts"), [("DataLoss", 1), ("Transient", 2)])
def test_what_runs_others_is_tried_again_if_that_can_mend_one_of_them(bench: Workbench, second: str, attempts: int) -> None:
    each = bench.task("each", ERRORS, "raise eval(dbutils.widgets.get('kind'))('x')", base_parameters={"kind": "{{input}}"})
    inputs = json.dumps(["StateError", second])
    loop = {"task_key": "loop", "max_retries": 1, "for_each_task": {"inputs": inputs, "task": each}}
    child = {"task_key": "child", "max_retries": 1, "run_job_task": {"job_id": "${resources.jobs.inner.id}"}}
    bench.job("inner", bench.task("a", ERRORS, f"raise {second}('x')"), bench.task("b", "1", after="a"))
    bench.job("job", loop, child)
    result = bench.run()
    assert len(list(result.folder.glob("loop-*.ipynb"))) == 2 * attempts
    assert len([path for path in result.folder.glob("child-*") if path.is_dir()]) == attempts


def test_a_spark_that_cannot_start_is_not_tried_again(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "spark.range(1).collect()", max_retries=3))
    environment = {**os.environ, "JAVA_HOME": str(bench.root)}
    command = [sys.executable, "-m", "connectors", "run", "job"]
    ran = subprocess.run(command, cwd=bench.root, env=environment, capture_output=True, text=True, timeout=120)
    assert "note: a is not tried again" in ran.stdout
    assert "trying again" not in ran.stdout
    assert f'JAVA_HOME   "{bench.root}" holds no bin/java' in ran.stdout


def test_the_line_that_failed_is_told_at_each_try(bench: Workbench) -> None:
    cell = "1\n2\n3\n4\nint(dbutils.widgets.get('days'))"
    bench.job("job", bench.task("a", cell, max_retries=1, base_parameters={"days": "x"}))
    result = bench.run()
    assert result.text.count(">   5 int(dbutils.widgets.get('days'))") == 2


def test_a_task_is_not_tried_again_by_default(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1/0"))
    assert len(list(bench.run().folder.glob("*.ipynb"))) == 1


def test_minus_one_retries_for_ever(bench: Workbench) -> None:
    bench.job("job", bench.task("a", fails_until(8), max_retries=-1, **COUNT))
    assert bench.run().states["a"] == "SUCCESS"


def test_values_of_a_failed_attempt_are_forgotten(bench: Workbench) -> None:
    cell = 'dbutils.jobs.taskValues.set("of" + dbutils.widgets.get("n"), 1)'
    bench.job(
        "job",
        bench.task("a", cell, fails_until(2), max_retries=1, **COUNT),
        bench.task("b", 'print(dbutils.jobs.taskValues.get("a", "of1", "none"), end="")', after="a"),
    )
    assert bench.run().printed("b-1") == "none"


def test_the_interval_counts_from_the_start_of_the_failed_attempt(bench: Workbench) -> None:
    stamp = "import time; print(time.time())"
    bench.job(
        "job", bench.task("a", stamp, "time.sleep(0.3)", fails_until(2), max_retries=1,
                          min_retry_interval_millis=600, **COUNT)
    )  # fmt: skip
    result = bench.run()
    first, second = (float(result.printed(f"a-{n}").splitlines()[0]) for n in (1, 2))
    assert 0.55 <= second - first < 1.5, "the attempt takes 0.3 s itself, and more on a busy machine"


def test_a_timeout_interrupts_a_running_cell(bench: Workbench) -> None:
    bench.job(
        "job", bench.task("a", "print('begun')", "import time; time.sleep(60)", "print('never')", timeout_seconds=1)
    )
    start = time.monotonic()
    result = bench.run()
    assert time.monotonic() - start < 10
    assert result.states == {"a": "TIMEDOUT", "job": "FAILED"}
    assert 'task "a" was stopped after 1 s (timeout_seconds)' in result.text
    assert result.printed("a-1") == "begun\n", "what was done until then is in the executed notebook"


@pytest.mark.parametrize("cell", ["while True:\n    pass", "try:\n    time.sleep(60)\nexcept Exception:\n    pass"])
def test_a_timeout_interrupts_python_that_never_waits_or_that_catches_exceptions(bench: Workbench, cell: str) -> None:
    bench.job("job", bench.task("a", "import time", cell, "time.sleep(60)", timeout_seconds=1))
    assert bench.run().states["a"] == "TIMEDOUT"


def test_a_timeout_is_not_tried_again_unless_asked_for(bench: Workbench) -> None:
    cell = 'import time\nif dbutils.widgets.get("n") == "1": time.sleep(60)'
    bench.job(
        "job",
        bench.task("a", cell, timeout_seconds=1, max_retries=1, **COUNT),
        bench.task("b", cell, timeout_seconds=1, max_retries=1, retry_on_timeout=True, **COUNT),
    )
    assert bench.run().states == {"a": "TIMEDOUT", "b": "SUCCESS", "job": "FAILED"}


def test_each_attempt_has_the_whole_time(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "import time; time.sleep(1.2)", fails_until(3), timeout_seconds=3, max_retries=2,
                                **COUNT))  # fmt: skip
    assert bench.run().states["a"] == "SUCCESS"


def test_the_jobs_timeout_bounds_the_whole_run(bench: Workbench) -> None:
    sleep = "import time; time.sleep({})"
    bench.job(
        "job",
        bench.task("a", sleep.format(0.1)),
        bench.task("b", sleep.format(60), after="a", timeout_seconds=30),
        bench.task("c", "1", after="b", run_if="ALL_DONE"),
        timeout_seconds=1,
    )
    result = bench.run()
    assert result.state is State.TIMEDOUT
    assert result.states == {"a": "SUCCESS", "b": "TIMEDOUT", "c": "CANCELED", "job": "TIMEDOUT"}


def test_the_jobs_timeout_ends_a_wait_for_the_next_attempt(bench: Workbench) -> None:
    task = bench.task("a", "1/0", max_retries=-1, min_retry_interval_millis=60_000)
    bench.job("job", task, timeout_seconds=1)
    start = time.monotonic()
    assert bench.run().state is State.TIMEDOUT
    assert time.monotonic() - start < 10


def test_the_time_of_a_loop_bounds_all_its_iterations(bench: Workbench) -> None:
    inner = bench.task("inner", "import time; time.sleep(0.4)")
    bench.job(
        "job", {"task_key": "each", "timeout_seconds": 1, "for_each_task": {"inputs": "[1,2,3,4,5]", "task": inner}}
    )
    result = bench.run()
    assert result.states["each"] == "TIMEDOUT"
    assert "each-5" not in result.states


def test_an_inner_jobs_timeout_fails_the_task_that_runs_it_and_nothing_else(bench: Workbench) -> None:
    bench.job(
        "job",
        {"task_key": "child", "run_job_task": {"job_id": "${resources.jobs.inner.id}"}},
        bench.task("next", "1", after="child", run_if="ALL_DONE"),
    )
    bench.job("inner", bench.task("a", "import time; time.sleep(60)"), timeout_seconds=1)
    result = bench.run()
    assert result.states == {"a": "TIMEDOUT", "inner": "TIMEDOUT", "child": "FAILED", "next": "SUCCESS",
                             "job": "SUCCESS_WITH_FAILURES"}  # fmt: skip


def test_an_interrupted_run_says_what_was_canceled(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "raise KeyboardInterrupt"), bench.task("b", "1", after="a"))
    result = bench.run()
    assert result.states == {"a": "CANCELED", "b": "CANCELED", "job": "CANCELED"}


def test_an_interruption_of_an_inner_job_ends_the_outer_one_too(bench: Workbench) -> None:
    runs = {"task_key": "child", "run_job_task": {"job_id": "${resources.jobs.inner.id}"}}
    bench.job("job", runs, bench.task("next", "1", after="child", run_if="ALL_DONE"))
    bench.job("inner", bench.task("a", "raise KeyboardInterrupt"))
    assert bench.run().states == {"a": "CANCELED", "inner": "CANCELED", "child": "CANCELED", "next": "CANCELED",
                                  "job": "CANCELED"}  # fmt: skip


def test_a_run_above_max_concurrent_runs_does_not_start(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"), max_concurrent_runs=1, queue={"enabled": False})
    bench.run()
    with (bench.root / "runs" / "job" / ".running-0").open("w") as other_run:
        fcntl.flock(other_run, fcntl.LOCK_EX)
        result = bench.run()
    assert result.state is State.MAXIMUM_CONCURRENT_RUNS_REACHED
    assert bench.run().state is State.SUCCESS


def test_a_queued_run_waits_for_the_other_one_to_end(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"), max_concurrent_runs=1)
    bench.run()
    other_run = (bench.root / "runs" / "job" / ".running-0").open("w")
    fcntl.flock(other_run, fcntl.LOCK_EX)
    threading.Timer(0.5, other_run.close).start()
    result = bench.run()
    assert result.state is State.SUCCESS
    assert "waiting for another run of it to end (max_concurrent_runs: 1)" in result.text
