"""Rounds of a workload, a query that follows it, and a comparison of every row."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.connect.java_sources import DEBEZIUM
from tests.delta_log import settings
from tests.systems.cdc_compare import Difference, differences, report
from tests.systems.cdc_driver import Driver
from tests.systems.cdc_workload import Workload

QUICK = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
}
"""Settings of Spark that make a small batch quick."""


class Rounds:
    """A workload, and the query that copies its tables into Delta tables beside each other in ``folder``."""

    def __init__(self, workload: Workload, folder: Path, seed: int) -> None:
        self.workload, self.folder, self.seed = workload, folder, seed
        self.driver = Driver(folder / "driver", "local[2,4]", {**settings(), **QUICK})
        self.report: list[str] = []

    def quiet_point(self, seconds: float = 600.0) -> None:
        """Lets the query run to its end, and compares. Raises ``AssertionError`` with all differences."""
        self.driver.wait_until_ready()
        copies = self.workload.quiet()
        self.driver.start(self.query(random.Random(f"quiet {self.seed}"), availableNow=True))
        error = self.driver.wait(seconds)
        assert error == "", f"{self.driver.tail()}\n\nseed {self.seed}: the query fails or does not end: {error}"
        found: list[Difference] = []
        for copy in copies:
            found += differences(copy, self.folder / copy.name)
        assert not found, "\n".join([f"seed {self.seed}: {report(found)}", *self.report])

    def query(self, chance: random.Random, **trigger: Any) -> dict[str, Any]:
        """A query with small epochs, as ``chance`` says, for the driver."""
        source = {
            "config": json.dumps(self.workload.config(chance)),
            "pluginPackages": DEBEZIUM,
            "stateLocation": str(self.folder / "state"),
            "drainTimeout": "4s",
            "pollInterval": "1s",
            "maxRowsPerTrigger": str(chance.choice((100, 200, 500))),
        }
        return {
            "name": "cdc",
            "source": source,
            "sinks": self.workload.sinks(self.folder),
            "checkpoint": str(self.folder / "checkpoint"),
            "faults": str(self.folder / "faults"),
            "trigger": trigger,
            "records": str(self.folder / "records"),
        }
