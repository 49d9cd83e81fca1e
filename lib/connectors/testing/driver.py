"""A streaming query of the suites on Spark: described as data, so that another process can run the same one."""

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
from ..spark.session import driver_process, log_fatal_only
from ..workbench.home import at_home
from ..workbench.java import java_options
from .faults import FailureInjector, Point, faulty_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery



@dataclass
class SparkQuery:
    """``source`` is a format's short name; ``sink`` is ``"module:Class"``; ``faults`` the folder of a failure injector."""

    name: str
    source: str
    source_options: dict[str, str]
    sink: str
    sink_options: dict[str, str]
    carrier: str
    checkpoint: str
    faults: str
    select: Sequence[str] = ("*",)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Starts the query; it ends when everything available is written."""
        self._forget_half_an_offset()
        injector = FailureInjector(self.faults)
        kind = faulty_sink(load(self.sink), injector)
        rows = spark.readStream.format(f"connectors.{self.source}").options(**self.source_options).load()
        writer = rows.selectExpr(*self.select).writeStream.queryName(self.name).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", self.checkpoint)
        if self.carrier == "format":
            connectors.register(spark, kind)
            return writer.format(f"connectors.{kind.name}").options(**self.sink_options).start()
        return writer.foreachBatch(_Watched(kind.of(self.sink_options), injector)).start()

    def run(self, spark: SparkSession) -> None:
        """Runs the query to its end; raises what ended it before."""
        self.start(spark).awaitTermination()

    def forget_commit(self) -> None:
        """As if the driver had died after the sink's commit and before Spark's own."""
        commits = [file for file in (Path(self.checkpoint) / "commits").iterdir() if file.name.isdigit()]
        newest = max(commits, key=lambda file: int(file.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)

    def _forget_half_an_offset(self) -> None:
        """Lets a query begin whose driver was killed while it wrote its very first offset.

        Spark (4.1 and later) takes what is left of that file for the state of another query, and refuses to start until
        somebody has removed it.
        """
        offsets = Path(self.checkpoint) / "offsets"
        left = list(offsets.iterdir()) if offsets.exists() else []
        if all(file.name.startswith(".") for file in left):
            for file in left:
                file.unlink()


class _Watched(Carried):
    """A ``foreachBatch`` function that passes the last point of a batch."""

    def __init__(self, sink: Sink, injector: FailureInjector) -> None:
        self.inner = ForeachBatch(sink)
        self.injector = injector

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.inner(frame, number)
        self.injector.reach(Point.BATCH_DONE)


def load(path: str) -> Any:
    """The object that ``"module:name"`` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


# MERGED A driver to be killed: ``python -m connectors.testing.driver SPEC.json`` runs the queries of a file in a
# session of its own.
#
# The file holds ``{"master": …, "conf": {…}, "queries": [SparkQuery …], "ready": path}``. When all queries run,
# ``ready`` is
# made. A kill that one of them reaches ends Python and the JVM; Spark's Python workers live on for a moment, as
# zombies.

def session(master: str, conf: dict[str, str]) -> Any:
    """A small, quiet session on this machine."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.python.daemon.module": "connectors.workbench.daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executorEnv.PYTHONPATH": python_path(),
        "spark.driver.extraJavaOptions": quick_java_options(),
        "spark.executor.extraJavaOptions": quick_java_options(),
        **conf,
    }
    builder = SparkSession.builder.master(master).appName("connectors-child")
    for key, value in settings.items():
        builder = builder.config(key, value)
    with at_home():
        spark = builder.getOrCreate()
    log_fatal_only(spark)
    connectors.register(spark)
    return spark


def quick_java_options() -> str:
    """Options of a JVM for sessions of seconds: what the second compiler costs never comes back."""
    return f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {java_options()}"


def python_path() -> str:
    """A ``PYTHONPATH`` with the library and everything that this process can import."""
    paths = [str(Path(connectors.__file__).parents[1]), *sys.path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(filter(None, paths)))


def main(spec: str) -> None:
    """Runs the queries of ``spec`` to their ends."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    plan = json.loads(Path(spec).read_text())
    spark = session(plan["master"], plan["conf"])
    queries = [SparkQuery(**query) for query in plan["queries"]]
    for query in queries:
        FailureInjector(query.faults).spare_nobody(os.getpid(), driver_process(spark))
    running = [_started(query, spark) for query in queries]
    Path(plan["ready"]).touch()
    for started in running:
        started.awaitTermination()
    spark.stop()


def _started(query: SparkQuery, spark: Any) -> Any:
    """Starts one query after another: Spark gives a Python worker ten seconds to come up, however busy the machine is."""
    running = query.start(spark)
    while running.isActive and running.status["message"].startswith("Initializing"):
        time.sleep(0.05)
    return running


def start_driver(folder: Path, master: str, queries: list[SparkQuery], **conf: str) -> subprocess.Popen[bytes]:
    """Starts a child that runs ``queries``, leading a process group of its own; its output goes to ``folder/log``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ready").unlink(missing_ok=True)
    plan = {"master": master, "conf": conf, "queries": [asdict(query) for query in queries], "ready": str(folder / "ready")}
    (folder / "spec.json").write_text(json.dumps(plan))
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "connectors.testing.driver", str(folder / "spec.json")],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": python_path()},
            start_new_session=True,
        )


if __name__ == "__main__":
    main(sys.argv[1])
