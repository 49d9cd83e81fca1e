"""A declarative pipeline of a bundle, run by Spark's own command and killed: its tables and sinks have each row once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import redis

from connectors.testing.servers import RedisServer
from connectors_tools.bundle.configuration import Findings
from connectors_tools.bundle.declarative import Pipeline, PipelineFailed, pipeline, pipeline_process, run_pipeline
from connectors_tools.bundle.execution import RunLimits
from tests.delta_log import delta
from tests.servers import required

ORDERS = Path(__file__).parents[3] / "notebooks" / "declarative" / "orders.py"
MORE = """
import json

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from connectors import pipelines

spark = SparkSession.active()
pipelines.register(spark)

@dp.table(table_properties={"pipelines.reset.allowed": "false"})
def events():
    options = {"url": spark.conf.get("events.url"), "stream": "events", "group": "pipeline", "minIdle": "3s"}
    return pipelines.read_stream("events", "redis", options, max_epoch_time="1s", max_rows_per_trigger=500)

pipelines.create_sink("database", "jdbc", json.loads(spark.conf.get("database.options")))

@dp.append_flow(target="database")
def to_database():
    return spark.readStream.table("orders").select("id", "cents")
"""
SECONDS = 300.0


class Case:
    """A pipeline with lines and messages to read, and what they have become."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CONNECTORS_VOLUMES", str(folder / "volumes"))
        with redis.from_url(required(RedisServer).url) as client:
            client.delete("events")
        self.folder, self.server, self.options = folder, required(RedisServer), dict[str, str]()
        self.ids: list[int] = []
        self.target = "delivery"
        self._runs = 0
        self.definitions = folder / "more.py"
        self.definitions.write_text(MORE)
        (folder / "arrivals").mkdir(parents=True)
        with sqlite3.connect(folder / "orders.db") as database:
            database.execute("CREATE TABLE orders (id INTEGER, cents INTEGER)")

    def feed(self, count: int) -> None:
        """``count`` lines, a hundredth of them damaged, and as many messages."""
        ids = range(len(self.ids), len(self.ids) + count)
        self.ids += ids
        lines = [json.dumps({"id": i, "city": "Bern", "cents": i}) for i in ids]
        with (self.folder / "arrivals" / "orders.jsonl").open("a") as file:
            file.writelines(f"{line[:9] if i % 100 == 50 else line}\n" for i, line in zip(ids, lines, strict=True))
        with redis.from_url(self.server.url) as client, client.pipeline() as messages:
            for i in ids:
                messages.xadd("events", {"id": i})
            messages.execute()

    @property
    def pipeline(self) -> Pipeline:
        jdbc = {"url": f"jdbc:sqlite:{self.folder / 'orders.db'}", "dbtable": "orders", **self.options}
        config = {
            "schema": "shop",
            "libraries": [{"file": {"path": str(ORDERS)}}, {"glob": {"include": str(self.definitions)}}],
            "configuration": {
                "connectors.state": str(self.folder / "state"),
                "orders.source": str(self.folder / "arrivals"),
                "orders.target": str(self.folder / self.target),
                "events.url": self.server.url,
                "database.options": json.dumps(jdbc),
            },
        }
        return pipeline("orders", config, Findings())

    def run(self, full_refresh: Sequence[str] = ()) -> None:
        self._runs += 1
        run_pipeline(
            self.pipeline, self.folder / f"run-{self._runs}", full_refresh, RunLimits(), lambda text: None
        )

    def die(self, moment: Callable[[], object]) -> None:
        """A run is killed as soon as ``moment`` is true, or in the pause after it."""
        self._runs += 1
        until = time.monotonic() + SECONDS
        with pipeline_process(self.pipeline, self.folder / f"run-{self._runs}") as process:
            reader = threading.Thread(target=lambda: list(process.stdout or ()), daemon=True)
            reader.start()
            while not moment() and process.poll() is None:
                assert time.monotonic() < until
                time.sleep(0.002)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join()

    def expect(self, target: str = "delivery", reads: int = 1) -> None:
        """Each line is a row of the table or, by each of ``reads``, a letter; each row was delivered twice, each message is an
        event: once."""
        good = [i for i in self.ids if i % 100 != 50]
        tables = self.folder / "volumes" / "Volumes" / "main" / "shop"
        assert sorted(delta(tables / "orders")["id"].to_pylist()) == good
        assert sorted(ds.dataset(str(self.folder / target)).to_table()["id"].to_pylist()) == good
        letters = ds.dataset(str(self.folder / "state" / "orders" / "letters")).to_table()
        assert len(letters) == reads * (len(self.ids) - len(good))
        fields = delta(tables / "events")["fields"].to_pylist()
        assert sorted(int(dict(field)["id"]) for field in fields) == self.ids
        with sqlite3.connect(self.folder / "orders.db") as database:
            assert [i for (i,) in database.execute("SELECT id FROM orders ORDER BY id")] == good


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return Case(tmp_path, monkeypatch)


@pytest.mark.soak
@pytest.mark.server
def test_a_pipeline_that_dies_between_stage_and_commit_goes_on(case: Case) -> None:
    case.feed(500)
    stages = case.folder / "delivery" / ".connectors" / "delivery" / "stage"
    case.die(lambda: any(stages.rglob("*.parquet")))
    assert not list((case.folder / "delivery").glob("*.parquet"))
    case.run()
    case.expect()


RUNNER = """
import sys
from pathlib import Path
from connectors_tools.bundle.declarative import Pipeline, pipeline_process
with pipeline_process(Pipeline("p", (), "main", "shop", {}), Path(sys.argv[1])) as process:
    print(process.pid, flush=True)
    process.wait()
"""


def test_a_runner_that_is_killed_leaves_no_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTORS_VOLUMES", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", RUNNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        pid = int(runner.stdout.readline())
        runner.kill()
    until = time.monotonic() + 1  # later it would end at its first event, which nobody reads
    while (state := process_state(pid)) not in ("", "Z"):
        assert time.monotonic() < until, state
        time.sleep(0.05)


def process_state(pid: int) -> str:
    """The letter of the state of a process, such as ``R``; empty if there is none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


@pytest.mark.server
@pytest.mark.soak
def test_a_pipeline_that_dies_again_and_again_goes_on(case: Case) -> None:
    chance = random.Random(7)
    state = case.folder / "state"
    for number in range(10):
        case.feed(500)
        epochs = len(list(state.glob("events/log/epochs/*/*.arrow")))
        pause = chance.uniform(0, 12)
        began: list[float] = []

        def moment(epochs: int = epochs, pause: float = pause, began: list[float] = began) -> bool:
            if not began and len(list(state.glob("events/log/epochs/*/*.arrow"))) > epochs:
                began.append(time.monotonic())
            return bool(began) and time.monotonic() - began[0] > pause

        case.die(moment)
        if number % 3 == 2:
            case.run()
            case.expect()
    case.run()
    case.expect()


@pytest.mark.server
@pytest.mark.soak
def test_a_full_refresh_asks_what_becomes_of_the_targets(case: Case) -> None:
    case.feed(300)
    case.run()
    case.expect()
    with pytest.raises(PipelineFailed, match="onNewQuery"):
        case.run(["*"])
    case.target, case.options = "second", {"onNewQuery": "replace"}
    case.feed(100)
    case.run()
    case.expect("second", reads=2)
