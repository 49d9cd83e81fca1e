"""The pipelines as jobs of a workspace: deployed with the bundle, run there, into tables of their catalog and schema."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pyarrow.dataset as ds
import pytest

from connectors.ground.cache_folder import cache
from connectors.workbench.settings import library
from connectors_tools.fake_workspace import FakeWorkspace
from connectors_tools.pipelines import PIPELINES
from tests.tools.workspace.conftest import Place

ROOT = library().parent
BUNDLE = ("databricks.yml", "bundles.yml", "jobs", "lib/connectors", "notebooks", "requirements-jobs.txt")
SCHEMA = "dev_user_connectors"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A workspace to which the bundle of this repository is deployed."""
    root = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch, FakeWorkspace() as workspace:
        for name in [name for name in os.environ if name.startswith("DATABRICKS_")]:
            patch.delenv(name)
        environment = {"HOME": str(root), "CONNECTORS_CACHE": str(cache(".")), **workspace.environment}
        for name, value in environment.items():
            patch.setenv(name, value)
        place = Place(root, workspace)
        for name in BUNDLE:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / name, root / name)
        workspace.catalog.make_volume(f"main.{SCHEMA}.data")
        place.deploy()
        yield place


@pytest.mark.soak
@pytest.mark.server
@pytest.mark.spark
@pytest.mark.parametrize("name", PIPELINES)
def test_a_deployed_pipeline_writes_to_the_catalog_and_schema_of_its_target(place: Place, name: str) -> None:
    result = place.call("run", name, "--on", "workspace")
    assert result.exit_code == 0, result.output
    if name.endswith("_to_delta"):
        table = f"main/{SCHEMA}_{name}/orders" if "_database_" in name else f"main/{SCHEMA}/{name}"
        [log] = place.workspace.volumes.folder.rglob(f"{table}/_delta_log")  # a table on this machine is a folder
        assert ds.dataset(log.parent, format="parquet").count_rows() > 200
