"""A fake workspace for each test, and small bundles that are deployed to it by the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from connectors_tools.cli import main
from connectors_tools.fake_workspace import FakeWorkspace
from tests.tools.bundle.conftest import Workbench

ROOT = "/Workspace/Users/dev.user@example.com/.bundle/test/dev"


class Place(Workbench):
    """A bundle in a folder, and the command line in it. ``workspace`` is where it is deployed to."""

    def __init__(self, root: Path, workspace: FakeWorkspace) -> None:
        super().__init__(root)
        self.workspace = workspace

    def call(self, *arguments: str) -> Result:
        folder = Path.cwd()
        os.chdir(self.root)
        try:
            result = CliRunner().invoke(main, arguments)
        finally:
            os.chdir(folder)
        print(result.output)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def deploy(self, *more: str) -> list[str]:
        """Deploys, and returns what was said."""
        result = self.call("deploy", "--by", "sdk", *more)
        assert result.exit_code == 0, result.output
        return result.output.splitlines()

    @property
    def jobs(self) -> dict[str, dict[str, object]]:
        """The settings of the jobs in the workspace, by name without the user's mark."""
        settings = self.workspace.jobs.settings.values()
        return {str(job["name"]).removeprefix("[dev dev_user] "): job for job in settings}

    @property
    def pipelines(self) -> dict[str, dict[str, Any]]:
        """The specifications of the pipelines in the workspace, by name without the user's mark."""
        specs = [pipeline["spec"] for pipeline in self.workspace.pipelines.pipelines.values()]
        return {spec["name"].removeprefix("[dev dev_user] "): spec for spec in specs}

    def pipeline(self, key: str, **more: Any) -> None:
        """Writes a pipeline of one file, and a job ``run_KEY`` that runs it."""
        file = self.write(f"tables/{key}.py", "").name
        pipeline = {"libraries": [{"glob": {"include": f"../tables/{file}"}}], "catalog": "main", "schema": "sales", **more}
        task = {"task_key": "run", "pipeline_task": {"pipeline_id": f"${{resources.pipelines.{key}.id}}"}}
        resources = {"pipelines": {key: pipeline}, "jobs": {f"run_{key}": {"tasks": [task]}}}
        self.write(f"jobs/{key}.yml", {"resources": resources})


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeWorkspace]:
    for name in [name for name in os.environ if name.startswith("DATABRICKS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    with FakeWorkspace() as workspace:
        for name, value in workspace.environment.items():
            monkeypatch.setenv(name, value)
        yield workspace


@pytest.fixture
def place(tmp_path: Path, workspace: FakeWorkspace) -> Place:
    return Place(tmp_path, workspace)
