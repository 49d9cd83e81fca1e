"""Python processes of Spark: what they have loaded is no garbage to look for after each task, and NumPy has one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.workbench.settings import library

LOADED = 50_000
"""Fewer objects than the libraries of a worker have."""

PLANNER = """
import gc, sys, types
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name=sys.argv[1])
import connectors.spark.formats
print(gc.get_freeze_count())
"""


@pytest.mark.spark
def test_a_collection_of_a_worker_leaves_out_what_the_daemon_has_loaded(spark: Any) -> None:
    def objects_and_threads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        list(batches)
        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()], "threads": [os.environ["OPENBLAS_NUM_THREADS"]]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(objects_and_threads, "frozen long, threads string").collect()
    assert row.frozen > LOADED
    assert row.threads == "1"


@pytest.mark.parametrize(("program", "is_frozen"), [("pyspark.daemon", True), ("ipykernel_launcher", False)])
def test_a_process_that_plans_leaves_out_what_it_has_loaded_and_a_driver_does_not(program: str, is_frozen: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": str(library())}
    command = [sys.executable, "-c", PLANNER, program]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert (int(ran.stdout) > LOADED) is is_frozen
