"""The same by the Databricks CLI, where it is installed: deploy, run, results, and each refuses what the other has deployed."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from connectors_tools.fake_workspace import FakeWorkspace

from .conftest import ROOT, Place

pytestmark = [
    pytest.mark.databricks,
    pytest.mark.skipif(shutil.which("databricks") is None, reason="the Databricks CLI is not on the PATH"),
]


@pytest.fixture
def place(place: Place) -> Place:
    place.job("job", place.task("a", 'dbutils.notebook.exit("it ran")'))
    return place


def cli(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["databricks", "bundle", *arguments]
    return subprocess.run(command, cwd=place.root, capture_output=True, text=True, timeout=120)


def test_what_the_cli_deploys_runs_and_is_destroyed(place: Place) -> None:
    deployed = place.call("deploy")
    assert (deployed.exit_code, list(place.jobs)) == (0, ["job"]), deployed.output
    result = place.call("run", "job", "--on", "workspace")
    assert (result.exit_code, "it ran" in result.stdout) == (0, True)
    assert place.call("destroy", "--auto-approve").exit_code == 0
    assert place.jobs == {}


def test_the_sdk_refuses_what_the_cli_has_deployed(place: Place) -> None:
    assert cli(place, "deploy").returncode == 0
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, "was deployed by the Databricks CLI" in result.stderr) == (2, True)


@pytest.mark.parametrize("command", [["deploy"], ["destroy", "--auto-approve"]])
def test_the_cli_refuses_what_the_sdk_has_deployed(place: Place, command: list[str]) -> None:
    place.deploy()
    result = cli(place, *command)
    assert (result.returncode != 0, "python -m connectors" in result.stderr) == (True, True), result.stderr
    assert list(place.jobs) == ["job"]


def test_both_deploy_the_same_settings(place: Place, workspace: FakeWorkspace) -> None:
    place.deploy()
    by_sdk: Any = place.jobs["job"]
    place.call("destroy", "--by", "sdk", "--auto-approve")
    assert cli(place, "deploy").returncode == 0
    by_cli: Any = place.jobs["job"]
    for settings in (by_sdk, by_cli):
        settings.pop("deployment")
        settings["tags"].pop("deployment_id", None)
    assert by_sdk == by_cli
    assert f"{ROOT}/files/notebooks/a" in workspace.tree.paths()
