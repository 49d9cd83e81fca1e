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
# What Java's second compiler costs never comes back in so short a life, and the tests' JVMs have two cores to share.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m")
QUICK_SESSION = {
    # Spark's default manager starts processes to set the permissions of each file of a checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
    # Compiling a plan takes longer than interpreting it for a few rows. Notebooks, jobs and killed drivers compile.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Of the sessions that tests share."""

pytest_plugins = ["connectors.testing.environments"]


def pytest_configure(config: pytest.Config) -> None:
    from connectors.testing import SinkSuite
    from connectors.testing.sink_cases import KillSuite

    KillSuite.seeds = 2  # ``make soak`` runs a hundred schedules of each sink
    SinkSuite.starts = 20


@pytest.fixture(scope="session")
def environment_conf() -> dict[str, str]:
    from tests.delta_log import settings

    return {**settings(), **QUICK_SESSION}


@pytest.fixture
def spark(environments: Any) -> Any:
    """The session on this machine, for tests that need only one."""
    return environments.use("local").spark
