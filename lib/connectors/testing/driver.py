"""A Spark driver in its own process, which runs streaming queries and can be killed.

A :class:`SparkQuery` is a query as data, so that this process and another can run the same query. :func:`start_driver`
starts ``python -m connectors.testing.driver SPEC.json``. The file holds
``{"master": …, "conf": {…}, "queries": [SparkQuery …], "ready": path}``; the driver creates ``ready`` when all queries run.
``master`` is a Spark master, or the name of an environment of :mod:`connectors.testing.environments`.
A kill at a point of a query ends Python and the JVM (that of the Connect server, if there is one). Spark's Python
workers live on for a moment as zombies.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import connectors

from ..core.sink import Sink
from ..spark.foreach_batch import ForeachBatch
from ..spark.library import Carried
from ..spark.session import driver_process
from .environments import ENVIRONMENTS, Environment
from .faults import FailureInjector, Point, faulty_sink, faulty_source, forget_commit
from .session import python_path, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass
class SparkQuery:
    """A streaming query from a source into a sink, with a failure injector in it.

    ``source`` is a format's short name, ``sink`` is ``"module:Class"``, ``faults`` the folder of the failure injector.
    """

    name: str
    source: str
    source_options: dict[str, str]
    sink: str
    sink_options: dict[str, str]
    carrier: str
    checkpoint: str
    faults: str
    select: Sequence[str] = ("*",)
    source_class: str = ""
    """``"module:Class"`` of a source that passes the injector's points, or that is no system of the library."""
    classes: Sequence[str] = ()
    """``"module:Class"`` of classes that the options name and a Connect server cannot import."""

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Starts the query; it ends when everything available is written."""
        self._remove_half_an_offset()
        for name in self.classes:
            connectors.register(spark, _imported(name))
        injector = FailureInjector(self.faults)
        kind = faulty_sink(_imported(self.sink), injector)
        if self.source_class:
            connectors.register(spark, faulty_source(_imported(self.source_class), injector))
        rows = spark.readStream.format(f"connectors.{self.source}").options(**self.source_options).load()
        writer = rows.selectExpr(*self.select).writeStream.queryName(self.name).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", self.checkpoint)
        if self.carrier == "format":
            connectors.register(spark, kind)
            return writer.format(f"connectors.{kind.name}").options(**self.sink_options).start()
        sink = kind.of({**self.sink_options, "queryName": self.name})
        return writer.foreachBatch(_FaultyForeachBatch(sink, injector)).start()

    def run(self, spark: SparkSession) -> None:
        """Runs the query to its end; raises the error of a query that fails."""
        self.start(spark).awaitTermination()

    def forget_commit(self) -> None:
        """Acts as if the driver had died after the sink's commit and before Spark's own."""
        forget_commit(self.checkpoint)

    def _remove_half_an_offset(self) -> None:
        """Repairs the checkpoint of a query whose driver was killed while it wrote its very first offset.

        Spark (4.1 and later) takes the partial file for the state of another query, and refuses to start until somebody
        removes it.
        """
        offsets = Path(self.checkpoint) / "offsets"
        files = list(offsets.iterdir()) if offsets.exists() else []
        if all(file.name.startswith(".") for file in files):
            for file in files:
                file.unlink()


def _imported(name: str) -> Any:
    """The class that ``"module:Class"`` names."""
    module, _, kind = name.partition(":")
    return getattr(importlib.import_module(module), kind)


class _FaultyForeachBatch(Carried):
    """A ``foreachBatch`` function that passes the last point of a batch."""

    def __init__(self, sink: Sink, injector: FailureInjector) -> None:
        self.inner = ForeachBatch(sink)
        self.injector = injector

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.inner(frame, number)
        self.injector.reach(Point.BATCH_DONE)


def start_driver(folder: Path, master: str, queries: list[SparkQuery], **conf: str) -> subprocess.Popen[bytes]:
    """Starts a driver that runs ``queries`` in its own process group; its output goes to ``folder/log``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ready").unlink(missing_ok=True)
    spec = {"master": master, "conf": conf, "queries": [asdict(query) for query in queries], "ready": str(folder / "ready")}
    (folder / "spec.json").write_text(json.dumps(spec))
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "connectors.testing.driver", str(folder / "spec.json")],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": python_path()},
            start_new_session=True,
        )


def main(file: str) -> None:
    """Runs the queries of a specification to their end."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    spec = json.loads(Path(file).read_text())
    spark, jvm = _session_and_jvm(spec["master"], spec["conf"])
    queries = [SparkQuery(**query) for query in spec["queries"]]
    for query in queries:
        FailureInjector(query.faults).set_victims(os.getpid(), jvm)
    running = [_start_and_wait(query, spark) for query in queries]
    Path(spec["ready"]).touch()
    for query in running:
        query.awaitTermination()
    spark.stop()


def _session_and_jvm(master: str, conf: dict[str, str]) -> tuple[Any, int]:
    """A session, and the id of the process that is its driver's JVM."""
    if master not in ENVIRONMENTS:
        spark = session(master, conf)
        return spark, driver_process(spark)
    environment = Environment(master, conf)
    environment.start()
    return environment.spark, environment.jvm()


def _start_and_wait(query: SparkQuery, spark: Any) -> Any:
    """Starts ``query`` and waits until it runs: Spark gives a Python worker only ten seconds to start, on any machine."""
    running = query.start(spark)
    while running.isActive and running.status["message"].startswith("Initializing"):
        time.sleep(0.05)
    return running


if __name__ == "__main__":
    main(sys.argv[1])
