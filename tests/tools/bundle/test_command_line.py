"""``python -m connectors``: what it prints and the exit codes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from connectors_tools.cli import main

from .conftest import Workbench

SCHEDULE = {"quartz_cron_expression": "0 0 6 * * ?", "timezone_id": "UTC"}


def call(bench: Workbench, *arguments: str) -> Result:
    folder = Path.cwd()
    os.chdir(bench.root)
    try:
        return CliRunner().invoke(main, arguments)
    finally:
        os.chdir(folder)


def test_a_success_ends_with_0(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"))
    assert call(bench, "run", "job").exit_code == 0


def test_a_success_with_failures_ends_with_0(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1/0"), bench.task("b", "1", after="a", run_if="ALL_DONE"))
    result = call(bench, "run", "job")
    assert (result.exit_code, result.stdout.splitlines()[-1].split()[:2]) == (0, ["job", "SUCCESS_WITH_FAILURES"])


@pytest.mark.parametrize(("cell", "code"), [("1/0", 1), ("import time; time.sleep(60)", 1), ("raise KeyboardInterrupt", 130)])
def test_a_failure_and_a_timeout_end_with_1_and_an_interruption_as_a_shell_does(bench: Workbench, cell: str, code: int) -> None:
    bench.job("job", bench.task("a", cell, timeout_seconds=1))
    assert call(bench, "run", "job").exit_code == code


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "jobb"], 'did you mean "job"?'),
        (["run", "job", "--param", "x"], 'must be NAME=VALUE; got "x"'),
        (["run", "job", "--param", "dya=1"], 'did you mean "day"?'),
        (["run", "job", "-t", "prd"], 'did you mean "prod"?'),
        (["run", "job", "--var", "x=1"], "variable x: is not declared".replace(": ", "   ")),
        (["run", "job", "--only", "aa"], "--only aa"),
        (["run"], "give a JOB, or several by --together"),
        (["rnu", "job"], "No such command"),
        (["validate", "-t", "nope"], 'there is no target "nope"'),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_why(bench: Workbench, arguments: list[str], text: str) -> None:
    bench.job("job", bench.task("a", "1"), parameters=[{"name": "day", "default": "1"}])
    result = call(bench, *arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert "Traceback" not in result.output


def test_a_wrong_bundle_ends_with_2_and_lists_every_problem(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1", after="b"), {"task_key": "c", "sql_task": {}})
    result = call(bench, "run", "job")
    assert (result.exit_code, "2 problems" in result.stderr) == (2, True)


def test_a_folder_without_a_bundle_ends_with_2(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-m", "connectors", "jobs"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2
    assert "databricks.yml   is missing" in result.stderr


def test_parameters_reach_the_notebook_with_all_their_equals_signs(bench: Workbench) -> None:
    bench.job(
        "job", bench.task("a", 'assert dbutils.widgets.get("q") == "a=b=c"'), parameters=[{"name": "q", "default": ""}]
    )
    assert call(bench, "run", "job", "--param", "q=a=b=c").exit_code == 0


def test_quiet_prints_one_line_per_task_and_one_for_the_job(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"), bench.task("b", "1", after="a"), schedule=SCHEDULE)
    lines = call(bench, "run", "job", "--quiet").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["a", "SUCCESS"], ["b", "SUCCESS"], ["job", "SUCCESS"]]


def test_settings_that_only_the_service_acts_on_are_noted_where_that_is_asked_for(bench: Workbench) -> None:
    bench.job("job", {**bench.task("a", "1"), "libraries": []}, schedule=SCHEDULE, tags={"x": "y"})
    says = "note: job: without effect in a local run: schedule, tags, libraries"
    assert says in call(bench, "run", "job", "--verbose").stdout
    assert "note:" not in call(bench, "run", "job").stdout


def test_jobs_lists_tasks_parameters_and_schedule(bench: Workbench) -> None:
    tasks = [bench.task("b", "1", after="a"), bench.task("a", "1")]
    bench.job("job", *tasks, parameters=[{"name": "x", "default": "7"}], schedule=SCHEDULE)
    assert call(bench, "jobs").stdout.splitlines()[1:] == [
        "  tasks       a, b",
        "  parameters  x=7",
        "  schedule    0 0 6 * * ? UTC, paused in target dev",
    ]
    assert "paused" not in call(bench, "jobs", "-t", "prod").stdout


def test_validate_ends_with_0_when_nothing_is_wrong_and_2_otherwise(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"))
    assert call(bench, "validate").exit_code == 0
    bench.job("other", bench.task("b", "1", after="c"))
    result = call(bench, "validate")
    assert (result.exit_code, 'depends on "c"' in result.stderr) == (2, True)


def test_deploy_by_the_databricks_cli_says_how_to_install_it(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.job("job", bench.task("a", "1"))
    monkeypatch.setenv("PATH", "/nonexistent")
    result = call(bench, "deploy", "--by", "cli")
    assert (result.exit_code, "the Databricks CLI is not installed. Install it" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "called"),
    [
        (["deploy", "-t", "prod"], "bundle deploy -t prod"),
        (["destroy", "--var", "x=1", "--auto-approve"], "bundle destroy -t dev --var x=1 --auto-approve"),
        (["deploy", "--plan"], "bundle plan -t dev"),
        (["deploy", "--force-lock"], "bundle deploy -t dev --force-lock"),
    ],
)
def test_deploy_and_destroy_call_the_databricks_cli_and_keep_its_exit_code(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, arguments: list[str], called: str
) -> None:
    targets = {"dev": {"default": True}, "prod": {}}
    bench.write("databricks.yml", {"bundle": {"name": "t"}, "include": ["jobs/*.yml"], "targets": targets,
                                   "variables": {"x": {"default": "0"}}})  # fmt: skip
    bench.job("job", bench.task("a", "1"))
    program = bench.write("bin/databricks", '#!/bin/sh\necho "$@" > called\nexit 3\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert call(bench, *arguments).exit_code == 3
    assert (bench.root / "called").read_text().strip() == called


def test_options_of_a_run_here_are_refused_for_a_run_in_a_workspace(bench: Workbench) -> None:
    options = ["--open", "--runs", "x"]
    result = call(bench, "run", "job", "--on", "workspace", *options)
    text = "--runs x, --open is for a run on this machine"
    assert (result.exit_code, text in result.stderr) == (2, True)


@pytest.mark.parametrize("options", [("runs", "-t", "prod", "show", "1"), ("runs", "show", "1", "-t", "prod"),
                                     ("runs", "-t", "dev", "show", "1", "-t", "prod")])  # fmt: skip
def test_runs_show_takes_the_target_of_runs(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    targets: list[Any] = []
    monkeypatch.setattr("connectors_tools.workspace.open_target", lambda folder, name, variables, **more: targets.append(name))
    monkeypatch.setattr("connectors_tools.workspace.commands.show_run", lambda *arguments, **more: None)
    assert (call(bench, *options).exit_code, targets) == (0, ["prod"])


def test_a_bundle_with_problems_is_not_deployed(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1", after="nothing"))
    result = call(bench, "deploy")
    assert (result.exit_code, 'depends on "nothing"' in result.stderr) == (2, True)


def test_help_is_there_for_every_command() -> None:
    for name in main.commands:
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0
