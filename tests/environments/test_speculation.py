"""A straggler and the attempt that Spark starts beside it, on a cluster of two hosts: local-cluster has only one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing import Action, FailureInjector, Point, same_records
from connectors.testing.driver import start_driver
from connectors.testing.servers.spark_servers import SparkCluster
from connectors.testing.spark_suites import ROWS, spark_query
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
