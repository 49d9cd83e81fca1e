"""The operators where a test process cannot be itself: Spark Connect, and real executors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.spark
@pytest.mark.parametrize(("environment", "frame"), [("connect", "pyspark.sql.connect"), ("local-cluster", "classic")])
def test_the_operators_work_there_too(environment, frame, tmp_path):
    program = Path(__file__).with_name("elsewhere.py")
    result = subprocess.run(
        [sys.executable, str(program), environment],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        check=False,
    )
    assert "all as it should be" in result.stdout, result.stderr[-4000:]
    assert frame in result.stdout
