"""Spark Connect: the server inside PySpark, as a process of its own; what serverless compute offers."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from .base import HOST, Server, Unavailable, free_ports


class ConnectServer(Server):
    """A Spark Connect server with ``local[2,4]``. ``url`` goes to ``SparkSession.builder.remote``; ``conf`` is Spark's.

    Its Python workers find this library, and what else is on ``PYTHONPATH``.
    """

    def __init__(self, conf: Mapping[str, str] | None = None) -> None:
        super().__init__()
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise Unavailable("install pyspark[connect]")
        self.home = Path(spec.origin).parent
        (self.port,) = free_ports(1)
        self.url = f"sc://{HOST}:{self.port}"
        self.conf = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.bindAddress": HOST,
            "spark.driver.host": HOST,
            "spark.ui.enabled": "false",
            **(conf or {}),
        }

    def launch(self) -> None:
        settings = [part for key, value in self.conf.items() for part in ("--conf", f"{key}={value}")]
        submit = [str(self.home / "bin" / "spark-submit"), "--master", "local[2,4]", *settings]
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        library = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
        env = {"SPARK_HOME": str(self.home), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": library}
        self.spawn([*submit, *server], env)

    def ready(self) -> bool:
        with socket.create_connection((HOST, self.port), 1):
            return True
