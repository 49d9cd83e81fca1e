"""Small Spark sessions on this machine, and the settings of their processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import connectors

from ..spark.session import log_fatal_only
from ..workbench.class_archive import java_options
from ..workbench.home import at_home


def session(master: str, conf: dict[str, str]) -> Any:
    """A small, quiet Spark session on this machine."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        **quick_conf(conf),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.daemon.module": "connectors.workbench.daemon",
        "spark.executorEnv.PYTHONPATH": python_path(),
        "spark.executor.extraJavaOptions": quick_java_options(),
        **conf,
    }
    builder = SparkSession.builder.master(master).appName("connectors-driver")
    for key, value in settings.items():
        builder = builder.config(key, value)
    with at_home():
        spark = builder.getOrCreate()
    log_fatal_only(spark)
    connectors.register(spark)
    return spark


def quick_conf(conf: dict[str, str]) -> dict[str, str]:
    """Settings of a driver that lives for seconds, whether a session or a server; those in ``conf`` win."""
    return {
        "spark.driver.extraJavaOptions": quick_java_options(),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "60s",
        **conf,
    }


def quick_java_options() -> str:
    """Options of a JVM that lives for seconds, for which a second compiler would not pay off."""
    return f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {java_options()}"


def python_path() -> str:
    """A ``PYTHONPATH`` with the library and everything that this process can import."""
    paths = [str(Path(connectors.__file__).parents[1]), *sys.path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(filter(None, paths)))
