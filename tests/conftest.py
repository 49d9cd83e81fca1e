"""What all tests share: one Spark session on this machine, made when the first test asks for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LIBRARY = Path(__file__).parents[1] / "lib"
for folder in (LIBRARY.parent, LIBRARY):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), str(LIBRARY.parent), os.environ.get("PYTHONPATH", "")])
os.environ["PYSPARK_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from connectors.testing.child import session
    from connectors.workbench.jars import delta_jars

    delta = {
        "spark.jars": ",".join(delta_jars({})),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    made = session("local[2,4]", delta)
    yield made
    made.stop()
