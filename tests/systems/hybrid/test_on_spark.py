"""A hybrid source on Spark, also when its drivers are killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors.testing.spark_suites import SparkSourceSuite

from ..pipelines import CopyContext, Pipeline, killed
from .contexts import HybridContext


class TestHybrid(SparkSourceSuite):
    context = HybridContext
    everywhere = True


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("SEED", "1")), int(os.environ.get("SEED", "1")) + 10))
def test_a_driver_that_is_killed_in_any_part_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    queries = {f"copy {number}": Pipeline(CopyContext, "foreach_batch", HybridContext) for number in range(3)}
    with killed(queries, tmp_path, seed) as kills:
        kills.run(2)
