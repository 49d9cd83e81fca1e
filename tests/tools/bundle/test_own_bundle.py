"""The bundle of this repository, and what the Databricks CLI makes of it and of others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.workbench.settings import library
from connectors_tools.bundle import Bundle, load, validate
from connectors_tools.fake_workspace import USER, FakeWorkspace

from .conftest import Workbench, condition, outcome

ROOT = library().parent
TARGETS = ["dev", "prod"]
needs_cli = pytest.mark.skipif(shutil.which("databricks") is None, reason="the Databricks CLI is not on the PATH")


@pytest.mark.parametrize("target", TARGETS)
def test_our_own_validation_finds_nothing_wrong(target: str) -> None:
    findings = validate(load(ROOT, target))
    assert [f"{problem.option}: {problem.text}" for problem in (*findings.problems, *findings.notes)] == []


def test_the_root_file_only_points_to_the_others() -> None:
    lines = [line for line in (ROOT / "databricks.yml").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["include:", "  - bundles.yml", "  - jobs/*.yml"]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Calls ``databricks bundle …`` in a folder, against the stand-in workspace."""
    home = tmp_path_factory.mktemp("home")
    with FakeWorkspace() as workspace:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DATABRICKS_")}
        environment |= {**workspace.environment, "HOME": str(home)}

        def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
            command = ["databricks", "bundle", *arguments]
            return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=120)

        yield call


def copied(folder: Path) -> Path:
    """The repository's bundle in another folder: the CLI leaves its own files beside it."""
    for name in ("bundles.yml", "databricks.yml", "requirements-jobs.txt"):
        shutil.copy(ROOT / name, folder)
    for name in ("jobs", "notebooks"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "lib" / "connectors").mkdir(parents=True)
    (folder / "lib" / "connectors" / "__init__.py").touch()
    return folder


def same(bundle: Bundle, output: dict[str, Any]) -> None:
    """Our resolution equals the CLI's: variables, workspace, and of each job what the runner goes by."""
    assert _of(bundle.config["workspace"]) == _of(output["workspace"])
    variables = {name: variable["value"] for name, variable in bundle.config.get("variables", {}).items()}
    assert variables == {name: variable["value"] for name, variable in output.get("variables", {}).items()}
    for key, job in output["resources"]["jobs"].items():
        own_job = bundle.jobs[key]
        assert (own_job.name, own_job.max_concurrent_runs) == (job["name"], job["max_concurrent_runs"])
        assert own_job.parameters == {item["name"]: item["default"] for item in job.get("parameters", [])}
        files = output["workspace"]["file_path"]
        assert {task["task_key"]: _task(task, bundle.root) for task in own_job.config["tasks"]} == {
            task["task_key"]: _task(task, Path(files)) for task in job["tasks"]
        }


def _of(workspace: dict[str, Any]) -> dict[str, Any]:
    paths = {key: value for key, value in workspace.items() if key.endswith("_path")}
    return {**paths, **{key: workspace["current_user"][key] for key in ("userName", "short_name")}}


def _task(task: Any, base: Path) -> Any:
    """A task with paths relative to the bundle, texts for numbers, and without what the CLI adds."""
    if isinstance(task, dict):
        return {key: _task(value, base) for key, value in task.items() if key not in ("environment_key",)}
    if isinstance(task, list):
        return [_task(value, base) for value in task]
    if isinstance(task, bool):
        return str(task).lower()
    return str(task).replace(f"{base}/", "").removesuffix(".ipynb")


@needs_cli
@pytest.mark.databricks
@pytest.mark.parametrize("target", TARGETS)
def test_the_cli_accepts_the_bundle_without_a_warning(cli: Any, tmp_path: Path, target: str) -> None:
    result = cli(copied(tmp_path), "validate", "--strict", "-t", target)
    assert (result.returncode, [line for line in result.stderr.splitlines() if "hostmetadata" not in line]) == (0, [])


@needs_cli
@pytest.mark.databricks
@pytest.mark.parametrize("target", TARGETS)
def test_our_resolution_of_the_bundle_is_the_clis(cli: Any, tmp_path: Path, target: str) -> None:
    folder = copied(tmp_path)
    result = cli(folder, "validate", "-o", "json", "-t", target)
    same(load(folder, target, user=USER), json.loads(result.stdout))


@needs_cli
@pytest.mark.databricks
@pytest.mark.parametrize("target", [None, "prod"])
def test_our_resolution_of_a_difficult_bundle_is_the_clis(cli: Any, bench: Workbench, target: str | None) -> None:
    """Overrides, nested variables, complex ones, values that are no text, a file of overrides, a loop."""
    override = {"tasks": [{"task_key": "a", "timeout_seconds": 9}], "parameters": [{"name": "p", "default": "over"}],
                "max_concurrent_runs": 2}  # fmt: skip
    bench.write("databricks.yml", {
        "bundle": {"name": "hard-one"}, "include": ["jobs/*.yml"],
        "variables": {
            "a": {"default": "x-${var.b}-${bundle.name}"}, "b": {"default": "${bundle.target}.${var.c}"}, "c": {"default": 7},
            "flag": {"default": True}, "file": {"default": "default"}, "some": {"type": "complex", "default": {"n": 3}},
        },
        "targets": {
            "dev": {"default": True, "mode": "development", "variables": {"c": "eight"}},
            "prod": {"mode": "production", "resources": {"jobs": {"job": override}},
                     "workspace": {"root_path": "/Shared/${bundle.name}"}, "presets": {"name_prefix": "pre-"}},
        },
    })  # fmt: skip
    bench.write(f".databricks/bundle/{target or 'dev'}/variable-overrides.json", '{"file": "from file"}')
    inner = bench.task("inner", "1", base_parameters={"i": "{{input}}"})
    bench.job(
        "job",
        bench.task("a", "1", base_parameters={"n": 1000, "t": True, "v": "${var.a}", "c": "${var.c}", "f": "${var.flag}"}),
        condition("c", "EQUAL_TO", "${var.file}", "${var.some.n}", after="a"),
        bench.task("b", "1", after=[outcome("c", "true")], run_if="ALL_DONE"),
        {"task_key": "each", "for_each_task": {"inputs": "[1]", "task": inner}},
        parameters=[{"name": "p", "default": "${var.a}/${workspace.current_user.short_name}"}],
        name="job of ${bundle.target}",
    )  # fmt: skip
    arguments = [] if target is None else ["-t", target]
    result = cli(bench.root, "validate", "-o", "json", *arguments)
    same(bench.load(target, user=USER), json.loads(result.stdout))


def test_a_task_with_a_stream_is_tried_again_after_a_pause() -> None:
    jobs = [job for job in load(ROOT, "dev").jobs.values() if "continuous" not in job.config]  # the service starts that again
    tasks = [task for job in jobs for task in job.parts]
    notebooks = [task for task in tasks if task.notebook and task.notebook.parent.name != "stories"]  # those begin anew
    pipelines = [task for task in notebooks if not task.notebook.stem.endswith("_proof")]  # a proof has scratch names
    streams = [task for task in pipelines if "readStream" in task.notebook.read_text()]
    assert len(streams) > 10
    assert [task.key for task in streams if task.max_retries < 1 or task.min_retry_interval < 10] == []
