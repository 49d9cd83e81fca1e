"""The library reaches every Python process of Spark by itself, and what carries it is what it says."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import connectors
from connectors.spark import arrival, library
from connectors.spark.formats import format_of
from connectors.systems import all_systems
from connectors.testing.environments import Environment

RECEIVER = """
import pickle, sys
from pyspark import cloudpickle
assert "connectors" not in sys.modules
objects = pickle.load(sys.stdin.buffer)
import connectors
assert connectors.__file__.startswith("<carried>"), connectors.__file__
from importlib.resources import files
assert b"class Steps" in files("connectors.connect.java").joinpath("Steps.java").read_bytes()
assert "Steps.java" in [file.name for file in files("connectors.connect.java").iterdir()]
sys.stdout.buffer.write(cloudpickle.dumps(objects))
"""


def through_a_bare_process(pickled: bytes) -> bytes:
    """Unpickles and pickles again where no library is on the path, as Spark's planning processes do."""
    site = next(path for path in sys.path if path.endswith("site-packages"))
    command = [sys.executable, "-S", "-c", RECEIVER]
    environment = {**os.environ, "PYTHONPATH": site}
    ran = subprocess.run(command, input=pickled, capture_output=True, env=environment, cwd="/", timeout=60)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def carried_things() -> list[Any]:
    kinds = all_systems()["sequence"]
    format_class = format_of("sequence", *kinds, before=(library._carrier(),))
    several = connectors.foreach_batch([("buffered", {"path": "/out"}), ("files", {"path": "/also"})])
    return [
        pytest.param(format_class, id="a format"),
        pytest.param(connectors.foreach_batch("buffered", {"path": "/out"}), id="one sink"),
        pytest.param(several, id="several sinks"),
    ]


@pytest.mark.parametrize("thing", carried_things())
def test_a_pickle_brings_the_library_along_and_passes_it_on(thing: Any) -> None:
    again = through_a_bare_process(through_a_bare_process(cloudpickle.dumps(thing)))
    assert type(pickle.loads(again)).__name__ == type(thing).__name__


def test_the_library_is_in_a_pickle_once() -> None:
    single = len(cloudpickle.dumps(connectors.foreach_batch("buffered", {"path": "/out"})))
    pair = len(cloudpickle.dumps(connectors.foreach_batch([("buffered", {"path": "/out"}), ("files", {"path": "/b"})])))
    assert pair < single * 1.2
    assert single < 720 << 10


def test_what_is_carried_is_the_library_and_nothing_else() -> None:
    names = list(arrival.CarriedLibrary(library.packed()).files)
    assert "connectors/__init__.py" in names
    assert all(name.startswith("connectors/") and not name.endswith(".pyc") for name in names)
    assert not [name for name in names if any(f"/testing/{own}" in name for own in ("demo", "scratch/", "servers/"))]


@pytest.mark.essential
@pytest.mark.environments("connect")
def test_a_server_without_the_library_is_one(environment: Environment) -> None:
    def has(rows: Any) -> Any:
        import importlib.util

        import pyarrow as pa

        list(rows)
        yield pa.RecordBatch.from_pydict({"has": [importlib.util.find_spec("connectors") is not None]})

    from pyspark.sql.connect.session import SparkSession

    assert environment.server is not None
    stranger = SparkSession.builder.remote(environment.server.url).create()
    has.__module__ = "__main__"  # pickled by value: the server has not got this test either
    assert [row.has for row in stranger.range(0, 1, 1, 1).mapInArrow(has, "has boolean").collect()] == [False]
    assert [row.has for row in environment.spark.range(0, 1, 1, 1).mapInArrow(has, "has boolean").collect()] == [True]
    stranger.stop()


@pytest.mark.soak
@pytest.mark.essential
@pytest.mark.environments("connect")
def test_a_quality_split_works_on_a_server_without_the_library(environment: Environment, tmp_path: Path) -> None:
    from connectors import quality

    rows = environment.spark.readStream.format("connectors.sequence").option("end", 10).load()
    good = connectors.foreach_batch("buffered", {"path": str(tmp_path / "good")})
    bad = connectors.foreach_batch("buffered", {"path": str(tmp_path / "bad")})
    split = quality.Checks([quality.between("value", 1, 7)]).foreach_batch(good=good, quarantined=bad)
    writer = rows.writeStream.foreachBatch(split).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    counts = [environment.spark.read.json(str(tmp_path / part)).count() for part in ("good", "bad")]
    assert counts == [7, 3]
