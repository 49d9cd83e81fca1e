"""What is told when a Java is there but does not start Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.workbench.settings import library
from tests.jvm.test_java import home


@pytest.mark.spark
def test_a_java_that_does_not_start_is_told_in_one_error(tmp_path: Path) -> None:
    fake = home(tmp_path / "jdk", "21")
    environment = {**os.environ, "PYTHONPATH": str(library()), "JAVA_HOME": str(fake)}
    script = "from connectors import workbench; workbench.session()"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=240)
    assert ran.stderr.splitlines()[-1].strip().startswith(f"JAVA_HOME   {fake} did not start Spark.")
