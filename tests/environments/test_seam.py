"""Whatever needs the JVM is behind one seam, since Spark Connect has none on this side."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import connectors

ROOT = Path(connectors.__file__).parent
SEAM = {ROOT / "spark" / "session.py", ROOT / "spark" / "execution.py"}
JVM = {
    "SparkContext", "sparkContext", "_active_spark_context", "_gateway", "_jdf", "_jo", "_jsc", "_jsparkSession", "_jvm", "_sc",
    "_ssql_ctx", "py4j", "rdd", "sc",
}  # fmt: skip


def reaches_for_jvm(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update([(node.module or "").partition(".")[0], *(alias.name for alias in node.names)])
        elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            names.add(str(node.args[1].value))  # getattr(spark, "_jvm")
    return names & JVM


OTHER_JVM = ROOT / "connect" / "java"
"""Java connectors run in a JVM of their own, which is not Spark's."""
FILES = sorted(file for file in ROOT.rglob("*.py") if OTHER_JVM not in file.parents)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_the_seam_reaches_for_the_jvm(file: Path) -> None:
    assert file in SEAM or reaches_for_jvm(file.read_text()) == set()


@pytest.mark.parametrize(
    "source",
    [
        "spark.sparkContext.addFile('x')",
        "frame._jdf",
        "from pyspark import SparkContext",
        "import py4j.java_gateway",
        "getattr(spark, '_jvm').org",
        "frame.rdd.map(len)",
    ],
)
def test_each_way_to_the_jvm_is_seen(source: str) -> None:
    assert reaches_for_jvm(source)


@pytest.mark.parametrize("file", sorted(SEAM), ids=lambda file: file.name)
def test_the_seam_is_needed_and_asks_for_connect(file: Path) -> None:
    assert reaches_for_jvm(file.read_text())
    assert "is_connect(" in file.read_text()
