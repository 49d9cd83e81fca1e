"""On another Spark: what works there works, and what an older one cannot is a sentence that names the Spark that it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.sql.types import StructType

import connectors
from connectors import pipelines, workbench
from connectors.ground import runtime
from connectors.ground.errors import MissingFeature
from connectors.ground.runtime import (
    DECLARATIVE,
    ENVIRONMENTS,
    LIBRARY,
    PLACED_ROWS,
    RUNTIMES,
    STREAM_SINK,
    STREAM_SOURCE,
    Feature,
    compute_for,
)
from connectors.spark.formats import format_of
from connectors.systems import all_systems
from connectors.testing.servers import Unavailable
from connectors.workbench.settings import library
from tests.pythons import python_with

PROGRAM = Path(__file__).with_name("other_spark.py")
SLOTS = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "transactionalIdPrefix": "p", "slots": "2"}
FEATURES = [value for value in vars(runtime).values() if isinstance(value, Feature)]


def read_stream() -> Any:
    return format_of("sequence", *all_systems()["sequence"])({"end": "9"}).streamReader(StructType()).initialOffset()


def write_stream() -> Any:
    return format_of("files", *all_systems()["files"])({"path": "out"}).streamWriter(StructType(), False)


USES: dict[Feature, list[Callable[[], Any]]] = {
    LIBRARY: [
        lambda: connectors.register(object()),  # type: ignore[arg-type]
        lambda: connectors.foreach_batch("files", {"path": "out"}),
        workbench.session,
    ],
    STREAM_SINK: [write_stream],
    PLACED_ROWS: [lambda: connectors.foreach_batch("kafka", SLOTS)],
    STREAM_SOURCE: [read_stream],
    DECLARATIVE: [lambda: pipelines.register(object())],  # type: ignore[arg-type]
}


LACKING = [
    ("3.5.6", LIBRARY),
    ("4.0.1", STREAM_SINK),
    ("4.0.1", PLACED_ROWS),
    ("4.0.1", STREAM_SOURCE),
    ("4.1.0.dev1", STREAM_SOURCE),
    ("4.0.1", DECLARATIVE),
]


@pytest.mark.parametrize(("version", "feature"), LACKING, ids=lambda part: getattr(part, "name", part))
def test_a_feature_that_spark_lacks_is_one_sentence_with_the_way_out(monkeypatch: Any, version: str, feature: Feature) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    spark = ".".join(map(str, feature.spark))
    for use in USES[feature]:
        with pytest.raises(MissingFeature) as error:
            use()
        sentence = f"{feature.name} needs Spark {spark} ({feature.need}), and this is Spark {version}: "
        assert str(error.value).endswith(f"{sentence}pip install pyspark=={spark}.0")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("version", ["4.2.0", "4.10.1", "5.0.0", "4.2.0.dev3"])
def test_a_newer_pyspark_is_taken(monkeypatch: Any, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    connectors.foreach_batch("kafka", SLOTS)
    assert read_stream()
    write_stream()


def test_a_workspace_is_told_the_environment_and_the_runtime(monkeypatch: Any) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.0")
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "client.5.2")
    with pytest.raises(MissingFeature) as error:
        read_stream()
    assert "and this is Spark 4.1.0: take serverless environment 6 or Databricks Runtime 19" in str(error.value)
    assert "pip" not in str(error.value)


def test_an_older_server_is_told_too() -> None:
    class Session(SimpleNamespace):
        """A client of today, connected to a server of yesterday."""

    Session.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(MissingFeature, match=r"needs Spark 4\.0 .*, and the server has Spark 3\.5\.6: connect to a server"):
        connectors.register(Session(version="3.5.6"))  # type: ignore[arg-type]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_every_feature_is_to_be_had_in_a_workspace(feature: Feature) -> None:
    assert max(ENVIRONMENTS.values()) >= feature.spark <= max(RUNTIMES.values())


def test_the_page_of_workspaces_says_what_each_feature_needs() -> None:
    table = (library() / "docs" / "workspace.md").read_text().partition("| feature | Spark |")[2].partition("\n\n")[0]
    rows = {tuple(cell.strip() for cell in line.split("|")[2:5]) for line in table.splitlines()[2:]}
    compute = {feature.spark: re.findall(r"\d+", compute_for(feature)) for feature in FEATURES}
    assert rows == {(".".join(map(str, spark)), *numbers) for spark, numbers in compute.items()}


KINDS = [
    pytest.param(("4.0", "classic"), id="4.0", marks=pytest.mark.soak),
    pytest.param(("4.1", "classic"), id="4.1", marks=pytest.mark.soak),
    pytest.param(("4.0", "connect"), id="4.0 connect", marks=pytest.mark.soak),
    pytest.param(("4.1", "connect"), id="4.1 connect", marks=pytest.mark.soak),
    pytest.param(("4.3", "classic"), id="4.3", marks=pytest.mark.soak),
    pytest.param(("4.3", "connect"), id="4.3 connect", marks=pytest.mark.soak),
]


@pytest.fixture(scope="module", params=KINDS)
def other(request: Any, tmp_path_factory: Any) -> dict[str, Any]:
    """What came of each trial on a real Spark of that version."""
    version, kind = request.param
    python, folder = other_python(version), tmp_path_factory.mktemp("other")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_HOME")}
    # SPARK_TESTING lets PySpark's local Connect server take any free port.
    environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    environment |= {"SPARK_TESTING": "1", "PYTHONPATH": str(library())} if kind == "connect" else {}
    command = [str(python), str(PROGRAM), str(library()), str(folder / "data"), *([kind] if kind == "connect" else [])]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-3000:]
    outcomes: dict[str, Any] = json.loads(ran.stdout.partition("OUTCOMES")[2].splitlines()[0])
    assert outcomes.pop("session").startswith(version)
    return outcomes | {"version": version}


def other_python(version: str) -> Path:
    """A Python with another PySpark, and what the library needs beside it."""
    packages = [f"pyspark[connect]=={version}.*", "pandas<3", "sqlalchemy<3", "great-expectations<2"]
    try:
        return python_with(f"spark-{version}", *packages, "tenacity", "cachetools", "aiolimiter", "ipython")
    except Unavailable as missing:
        pytest.skip(str(missing))


def test_foreach_batch_is_exactly_once_on_another_spark(other: dict[str, Any]) -> None:
    every_row_once = [200, 200, sum(range(200))]
    assert other["foreach_batch_to_files"] == every_row_once
    assert other["foreach_batch_in_no_clone"] == every_row_once
    assert other["foreach_batch_to_a_database"] == every_row_once


def test_batches_are_written_and_read_on_another_spark(other: dict[str, Any]) -> None:
    assert other["df_write"] == [200, 200, sum(range(200))]
    assert other["batch_read_of_files"] == other["batch_read_of_a_database"] == [100, 100, sum(range(100))]


def test_async_calls_quality_and_metrics_work_on_another_spark(other: dict[str, Any]) -> None:
    assert other["async_call"] is True
    assert other["quality_split_and_metrics"] == [190, 10, 10, 190]  # the files, then the table of the query


def test_streaming_sources_need_spark_4_2(other: dict[str, Any]) -> None:
    if other["version"] > "4.2":
        assert other["stream_source"] == [10, 10, 55]
    else:
        assert "connectors.sequence: a source by readStream.format needs Spark 4.2 (" in other["stream_source"]
        assert ": pip install pyspark==4.2.0\n" in other["stream_source"]


def test_stream_sinks_and_placed_rows_need_spark_4_1(other: dict[str, Any]) -> None:
    if other["version"] == "4.0":
        assert "connectors.files: a sink by writeStream.format needs Spark 4.1 (" in other["stream_sink"]
        assert "connectors.kafka: a sink that places rows (slots above 1) needs Spark 4.1 (" in other["placed_rows"]
    else:
        assert other["stream_sink"] == [200, 200, sum(range(200))]
        assert other["placed_rows"] == "ForeachBatch"
