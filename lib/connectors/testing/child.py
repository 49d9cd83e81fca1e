"""A driver to be killed: ``python -m connectors.testing.child SPEC.json`` runs the queries of a file in a session of its own.

The file holds ``{"master": …, "conf": {…}, "queries": [SparkQuery …], "ready": path}``. When all queries run, ``ready`` is
made. A kill that one of them reaches ends Python and the JVM; Spark's Python workers live on for a moment, as zombies.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import connectors

from ..spark.session import driver_process, log_fatal_only
from ..workbench.class_archive import java_options
from ..workbench.home import at_home
from .faults import FailureInjector
from .spark_query import SparkQuery


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
        "spark.executorEnv.PYTHONPATH": library_first(),
        "spark.driver.extraJavaOptions": quick_java(),
        "spark.executor.extraJavaOptions": quick_java(),
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


def quick_java() -> str:
    """Options of a JVM for sessions of seconds: what the second compiler costs never comes back."""
    return f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {java_options()}"


def library_first() -> str:
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


def start_child(folder: Path, master: str, queries: list[SparkQuery], **conf: str) -> subprocess.Popen[bytes]:
    """Starts a child that runs ``queries``, leading a process group of its own; its output goes to ``folder/log``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ready").unlink(missing_ok=True)
    plan = {"master": master, "conf": conf, "queries": [asdict(query) for query in queries], "ready": str(folder / "ready")}
    (folder / "spec.json").write_text(json.dumps(plan))
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "connectors.testing.child", str(folder / "spec.json")],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": library_first()},
            start_new_session=True,
        )


if __name__ == "__main__":
    main(sys.argv[1])
