"""Change data capture of a hard workload: the Delta tables equal those of the database at every quiet point."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors.testing.servers import PostgresServer
from tests.servers import required
from tests.systems.cdc_rounds import Rounds
from tests.systems.cdc_switches import environment_switches
from tests.systems.cdc_workload import Workload

pytestmark = pytest.mark.server
SEED = int(os.environ.get("SEED", "1"))


@pytest.mark.soak
def test_the_delta_tables_equal_the_database_without_kills(tmp_path: Path) -> None:
    workload = Workload(required(PostgresServer), tmp_path, SEED, environment_switches())
    rounds = Rounds(workload, tmp_path, SEED)
    try:
        rounds.quiet_point()
        for number in range(int(os.environ.get("KILLS", "5"))):
            rounds.report.append(f"round {number}: {workload.work(300, number)}")
            rounds.quiet_point()
    finally:
        rounds.driver.close()
        workload.close()
