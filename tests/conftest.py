"""What all tests share: the Spark sessions, each made when the first test asks for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

LIBRARY = Path(__file__).parents[1] / "lib"
for folder in (LIBRARY.parent, LIBRARY):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), str(LIBRARY.parent), os.environ.get("PYTHONPATH", "")])
os.environ["PYSPARK_PYTHON"] = sys.executable


pytest_plugins = ["connectors.testing.environments"]


@pytest.fixture(scope="session")
def environment_conf() -> dict[str, str]:
    from connectors.workbench.jars import delta_jars

    return {
        "spark.jars": ",".join(delta_jars({})),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }


@pytest.fixture
def spark(environments: Any) -> Any:
    """The session on this machine, for tests that need only one."""
    return environments.use("local").spark
