"""Where the lives of connectors end on Spark: ``stop`` is called when the workers of a session end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import connectors
from connectors.connect import SinkConnector, SinkRecord, SinkTask
from tests.connect.java_sources import probe, probe_lines, probe_properties

STRING = "org.apache.kafka.connect.storage.StringConverter"
PROGRAM = """
import json, sys
import connectors
from connectors.workbench import session
from tests.systems.connect.test_life import NotingConnector

spark = session()
connectors.register(spark, NotingConnector)
frame = spark.createDataFrame([("t", "a"), ("t", "b")], "topic string, value string")
for options in json.loads(sys.argv[1]):
    frame.write.format("connectors.connect").mode("append").options(**options).save()
spark.stop()
"""


class NotingConnector(SinkConnector):
    """Writes into the file ``log`` when it is started and stopped."""

    def start(self, props: Mapping[str, str]) -> None:
        self.props = dict(props)
        self._note("started")

    def task_class(self) -> type[SinkTask]:
        return NotingTask

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [self.props]

    def stop(self) -> None:
        self._note("stopped")

    def _note(self, event: str) -> None:
        with Path(self.props["log"]).open("a") as file:
            file.write(f"{event} in {os.getpid()}\n")


class NotingTask(SinkTask):
    """Takes what comes."""

    def start(self, props: Mapping[str, str]) -> None:
        """There is nothing to open."""

    def put(self, records: Sequence[SinkRecord]) -> None:
        """There is nothing to do."""

    def stop(self) -> None:
        """There is nothing to free."""


@pytest.mark.soak
@pytest.mark.spark
def test_each_sink_connector_that_was_started_is_stopped_when_the_session_ends(tmp_path: Path) -> None:
    python = {"name": "notes", "connector.class": "NotingConnector", "topics": "t", "log": str(tmp_path / "notes")}
    options = [
        {"config": json.dumps({**python, "value.converter": STRING})},
        {"config": json.dumps(probe_properties(tmp_path)), "pluginPath": str(probe(tmp_path))},
    ]
    folders = os.pathsep.join([str(Path(connectors.__file__).parents[1]), str(Path(__file__).parents[3])])
    environment = {**os.environ, "PYTHONPATH": folders}
    subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(options)], env=environment, check=True, timeout=300)

    def unstopped() -> list[int]:
        notes, lines = (tmp_path / "notes").read_text().splitlines(), probe_lines(tmp_path)
        counts = [[sum(event in line for line in log) for event in ("started", "stopped")] for log in (notes, lines)]
        assert all(started for started, _ in counts)
        return [started - stopped for started, stopped in counts]

    until = time.monotonic() + 30
    while any(unstopped()):
        assert time.monotonic() < until, unstopped()
        time.sleep(0.2)
