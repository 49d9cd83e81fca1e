"""The monitoring job: a run of its own, and metrics that another job has recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def run_job(workdir: Path, **parameters: str) -> tuple[int, str]:
    values = {"workdir": str(workdir), **parameters}
    arguments = [part for name, value in values.items() for part in ("--param", f"{name}={value}")]
    result = subprocess.run(
        [sys.executable, "-m", "connectors", "run", "monitoring", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "lib")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    return result.returncode, result.stdout


@pytest.mark.soak
def test_the_job_watches_a_run_and_plots_what_another_one_recorded(tmp_path: Path) -> None:
    code, output = run_job(tmp_path / "own")
    assert code == 0, output
    code, output = run_job(tmp_path / "other", recorded=str(tmp_path / "own" / "metrics"))
    assert code == 0, output
    for folder in ("own", "other"):
        assert (tmp_path / folder / "monitoring-plant.png").stat().st_size > 20_000
