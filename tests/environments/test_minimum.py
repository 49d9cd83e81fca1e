"""On an older Spark: one clear sentence instead of a traceback from the inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

import connectors
from connectors.workbench.settings import cache, library

SENTENCE = "connectors needs PySpark 4.2 or later"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import pyspark
assert pyspark.__version__.startswith(sys.argv[2]), pyspark.__version__
import connectors
from connectors import workbench

messages = []
for attempt in (
    lambda: connectors.register(object()),
    lambda: connectors.foreach_batch("files", {"path": "out"}),
    lambda: workbench.session({"spark.ui.enabled": False}, master="local[1]"),
):
    try:
        attempt()
    except ImportError as error:
        messages.append(str(error))
print("MESSAGES", len(messages), len(set(messages)), messages[0])
print("JVM", pyspark.SparkContext._active_spark_context is not None)
"""


@pytest.mark.parametrize("version", ["4.0.1", "4.1.0", "3.5.6", "4.1.0.dev1"])
def test_an_older_pyspark_is_told_by_everything_that_needs_a_newer(monkeypatch: Any, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    for attempt in (
        lambda: connectors.register(object()),  # type: ignore[arg-type]
        lambda: connectors.foreach_batch("files", {"path": "out"}),
    ):
        with pytest.raises(ImportError, match=SENTENCE) as error:
            attempt()
        assert version in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("version", ["4.2.0", "4.10.1", "5.0.0", "4.2.0.dev3"])
def test_a_newer_pyspark_is_taken(monkeypatch: Any, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    connectors.foreach_batch("files", {"path": "out"})


def test_an_older_server_is_told_too() -> None:
    class Session(SimpleNamespace):
        """A client of today, connected to a server of yesterday."""

    Session.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(ImportError, match=r"connectors needs a server with Spark 4\.2 or later.*4\.0\.1"):
        connectors.register(Session(version="4.0.1"))  # type: ignore[arg-type]


@pytest.mark.soak
@pytest.mark.parametrize("version", ["4.0", "4.1"])
def test_a_real_older_pyspark_is_told_in_one_sentence(version: str, tmp_path: Path) -> None:
    python = older(version)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_HOME")}
    environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    ran = subprocess.run(
        [str(python), "-c", PROGRAM, str(library()), version],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert f"MESSAGES 3 1 {SENTENCE}" in ran.stdout, ran.stdout + ran.stderr[-3000:]
    assert "JVM False" in ran.stdout


def older(version: str) -> Path:
    """A Python with an older PySpark and nothing else, made once."""
    folder = cache("pyspark") / version
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        if uv is None:
            pytest.skip("uv is not installed")
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
        packages = [f"pyspark=={version}.*", "pyarrow", "pandas<3", "tenacity"]
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), *packages], check=True)
        (folder / "ready").touch()
    return python
