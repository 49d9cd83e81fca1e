"""A standalone Spark cluster whose two workers are different hosts, as far as Spark can tell."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from importlib.util import find_spec
from typing import Final

from ...workbench.home import spark_home
from ..child import quick_java
from .base import HOST, Server, Unavailable, free_ports

_HOSTS: Final = (HOST, "127.0.0.2")
"""Both are this machine's loopback. Spark runs a speculative attempt only on another host than the first."""


class SparkCluster(Server):
    """A master and two workers with one core each. ``url`` is for ``SparkSession.builder.master``."""

    start_timeout = 120.0

    def __init__(self) -> None:
        super().__init__()
        if find_spec("pyspark") is None or sys.platform != "linux":
            raise Unavailable("needs pyspark, and Linux, where all of 127.0.0.0/8 is this machine")
        self.home = spark_home()
        self.port, self.web, *self.others = free_ports(4)
        self.url = f"spark://{HOST}:{self.port}"

    def launch(self) -> None:
        master = ["--host", HOST, "--port", str(self.port), "--webui-port", str(self.web)]
        self._spawn(HOST, "org.apache.spark.deploy.master.Master", master)
        for host, web in zip(_HOSTS, self.others, strict=True):
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / host), "--webui-port", str(web)]
            self._spawn(host, "org.apache.spark.deploy.worker.Worker", ["--host", host, *size, self.url])

    def ready(self) -> bool:
        with urllib.request.urlopen(f"http://{HOST}:{self.web}/json/", timeout=2) as answer:
            return int(json.load(answer)["aliveworkers"]) == len(_HOSTS)

    def _spawn(self, host: str, kind: str, arguments: list[str]) -> None:
        env = {
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": host,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            # The pages of master and worker are told where to listen by this alone.
            "SPARK_DAEMON_JAVA_OPTS": quick_java(),
            "PATH": os.environ.get("PATH", ""),
        }
        self.spawn([str(self.home / "bin" / "spark-class"), kind, *arguments], env)
