"""Pipelines of a bundle of one's own, in a workspace: deployed with the wheel of the library, in a catalog and a schema."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from connectors.workbench.settings import library
from connectors_tools.pipelines import PIPELINES, write_pipeline
from connectors_tools.workspace import runs

from .conftest import Place


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the library."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "uv", "build", "--wheel", "--quiet", "--out-dir", str(folder)]
    subprocess.run(command, cwd=library().parent, check=True)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(params=["sdk", pytest.param("cli", marks=pytest.mark.databricks)])
def by(request: pytest.FixtureRequest) -> str:
    if request.param == "cli" and shutil.which("databricks") is None:
        pytest.skip("the Databricks CLI is not on the PATH")
    return str(request.param)


def bundle(place: Place, kind: str, wheel: Path) -> None:
    """Writes a bundle whose target ``prod`` has a catalog and a schema of its own."""
    place.root = place.root / "shop"
    write_pipeline(place.root, "visits", kind, is_foreign=True)
    file = place.root / "databricks.yml"
    config = yaml.safe_load(file.read_text())
    config["targets"]["prod"] = {"variables": {"catalog": "sales", "schema": "eu"}}
    file.write_text(yaml.safe_dump(config))
    (place.root / "dist").mkdir()
    (place.root / ".gitignore").write_text("dist/\n")
    subprocess.run(["git", "init", "--quiet"], cwd=place.root, check=True)
    shutil.copy(wheel, place.root / "dist")


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("kind", PIPELINES)
def test_a_deployed_pipeline_runs_in_its_catalog_and_schema(
    place: Place, kind: str, by: str, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_POLL", 0.2)
    place.workspace.catalog.make_volume("sales.eu.data")
    bundle(place, kind, wheel)
    deployed = place.call("deploy", "-t", "prod", "--by", by)
    assert deployed.exit_code == 0, deployed.output
    (job,) = place.workspace.jobs.settings.values()
    (line,) = job["environments"][0]["spec"]["dependencies"]
    content = place.workspace.tree.content(line)
    assert content == wheel.read_bytes()
    for _ in range(2):
        result = place.call("run", "visits", "--on", "workspace", "-t", "prod")
        assert result.exit_code == 0, result.output
    (run, _) = place.workspace.jobs.runs.values()
    assert {task.state for task in run.tasks.values()} == {"SUCCESS"}
    volumes = place.workspace.volumes.folder / "Volumes"
    written = {str(file.parent.relative_to(volumes)) for file in volumes.rglob("_delta_log")}
    if not {"cdc", "database"} & set(kind.split("_")):  # a merged table is its own record
        assert "sales/eu/data/pipelines/visits/counts" in written
    if kind.endswith("_to_delta"):
        assert ("sales/eu_visits/orders" if "_database_" in kind else "sales/eu/visits") in written


def test_a_wheel_that_is_not_built_is_missed_before_anything_is_deployed(place: Place, wheel: Path) -> None:
    bundle(place, "files_to_delta", wheel)
    (place.root / "dist" / wheel.name).unlink()
    result = place.call("deploy", "--by", "sdk")
    assert result.exit_code == 2
    assert f"dist/{wheel.name} is not there, or is not uploaded" in result.stderr
    assert place.jobs == {}
