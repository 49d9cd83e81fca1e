"""A straggler and the attempt that Spark starts beside it, on a cluster of two hosts: local-cluster has only one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from connectors.testing import Action, FailureInjector, Point, same_records
from connectors.testing.driver import start_driver
from connectors.testing.servers.base import HOST, Server, Unavailable, free_ports, request_json
from connectors.testing.session import quick_java_options
from connectors.testing.spark_suites import ROWS, spark_query
from connectors.workbench.home import spark_home
from tests.systems.reference_contexts import BufferedContext

pytestmark = pytest.mark.soak
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.speculation.efficiency.enabled": "false",
    "spark.executor.memory": "1g",
}


_HOSTS: Final = (HOST, "127.0.0.2")
"""Both are this machine's loopback. Spark runs a speculative attempt only on another host than the first."""


class SparkCluster(Server):
    """A master and two workers with one core each, which Spark takes for different hosts.

    ``url`` goes to ``SparkSession.builder.master``.
    """

    start_timeout = 120.0

    def __init__(self) -> None:
        super().__init__()
        if find_spec("pyspark") is None or sys.platform != "linux":
            raise Unavailable("needs pyspark, and Linux, where all of 127.0.0.0/8 is this machine")
        self.home = spark_home()
        self.web, *self.others = free_ports(3)
        self.url = f"spark://{HOST}:{self.port}"

    def launch(self) -> None:
        master = ["--host", HOST, "--port", str(self.port), "--webui-port", str(self.web)]
        self._spawn(HOST, "org.apache.spark.deploy.master.Master", master)
        for host, web in zip(_HOSTS, self.others, strict=True):
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / host), "--webui-port", str(web)]
            self._spawn(host, "org.apache.spark.deploy.worker.Worker", ["--host", host, *size, self.url])

    def ready(self) -> bool:
        return int(request_json(f"http://{HOST}:{self.web}/json/")["aliveworkers"]) == len(_HOSTS)

    def _spawn(self, host: str, kind: str, arguments: list[str]) -> None:
        env = {
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": host,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": quick_java_options(),
            "PATH": os.environ.get("PATH", ""),
        }
        self.spawn([str(self.home / "bin" / "spark-class"), kind, *arguments], env)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster() as started:
        yield started


@pytest.mark.parametrize("carrier", ["foreach_batch", "format"])
def test_of_a_straggler_and_its_speculative_attempt_one_counts(
    cluster: SparkCluster, tmp_path: Path, carrier: str
) -> None:
    target = BufferedContext(tmp_path / "target")
    target.folder.mkdir()
    query = spark_query(target, tmp_path, carrier)
    injector = FailureInjector(query.faults)
    injector.arm(Point.TASK_ROW, Action.OUTLIVE, row=1)
    driver = start_driver(tmp_path / "driver", cluster.url, [query], **SPECULATION)
    try:
        code = driver.wait(240)
    finally:
        driver.kill()
        injector.release()
    assert code == 0, (tmp_path / "driver" / "log").read_text()[-4000:]
    (straggler,) = injector.held()
    expected = [target.row(number) for number in range(1, ROWS + 1)]
    until = time.monotonic() + 60
    while Path(f"/proc/{straggler}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    same_records(expected, target.rows())
