"""Several pipelines on one driver: each as if it ran alone, also beside one that fails, and each judged by its own gate."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

from connectors.ground.errors import ConnectorError, Misconfigured
from connectors.spark.session import session_thread
from connectors.workbench.settings import library
from connectors.workbench.together import PipelineRun, PipelineRuns, together
from connectors_tools.bundle import Reporter, load, run_job
from connectors_tools.bundle.loading import pipelines_of
from connectors_tools.cli import main
from tests.delta_log import delta

from .quickstart import run

ROOT = library().parent
FOLDER = ROOT / "notebooks" / "pipelines"


class Shop:
    """Two pipelines of files that grow, each with a name, a state and a table of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def parameters(self, *others: dict[str, str]) -> dict[str, str]:
        kind = {"notebook": "lines_to_delta"}
        entries = [
            {**kind, "name": name, "source": f"{self.folder}/{name}.jsonl", "target": str(self.table(name))}
            for name in ("north", "south")
        ]
        return {"workdir": str(self.folder / "state"), "pipelines": json.dumps([*entries, *others])}

    def table(self, name: str) -> Path:
        return self.folder / "tables" / name

    def sell(self, orders: int) -> None:
        for name in ("north", "south"):
            with (self.folder / f"{name}.jsonl").open("a") as file:
                for n in range(self.count, self.count + orders):
                    print(json.dumps({"id": n, "city": name, "cents": n, "at": "2026-03-01T00:00:00Z"}), file=file)
        self.count += orders

    def check(self) -> None:
        for name in ("north", "south"):
            rows = delta(self.table(name)).select(["id", "city", "cents"]).sort_by("id").to_pylist()
            assert rows == [{"id": n, "city": name, "cents": n} for n in range(self.count)]

    def run(self, *others: dict[str, str], only: Collection[str] = ()) -> tuple[str, str]:
        """Runs the job; the state of the run, and what was printed."""
        output = io.StringIO()
        state = run_job(load(ROOT), "together", self.parameters(*others), Reporter(output), self.folder / "runs", only)
        return str(state), output.getvalue()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    shop.sell(50)
    return shop


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.spark
def test_one_that_fails_stops_no_other_and_the_gates_name_the_table_with_harm(spark: Any, shop: Shop) -> None:
    state, output = shop.run({"notebook": "lines_to_delta", "name": "east", "options": "{", "target": str(shop.table("east"))})
    assert state == "FAILED"
    assert "1 of 3 failed" in output
    assert "east: Misconfigured" in output
    shop.check()
    shop.sell(30)
    state, output = shop.run()
    assert state == "SUCCESS", output
    shop.check()
    spark.sql(f"DELETE FROM delta.`{shop.table('south')}` WHERE id = 7")
    state, output = shop.run()
    assert state == "FAILED"
    assert "1 of 2 failed" in output
    assert "south: " in output.partition("1 of 2 failed")[2]


@pytest.mark.spark
def test_queries_of_a_thread_are_in_its_pool(spark: Any) -> None:
    pools: list[str | None] = []

    def look() -> None:
        rows = spark.readStream.format("rate").load().writeStream
        context = spark.sparkContext
        query = rows.foreachBatch(lambda *_: pools.append(context.getLocalProperty("spark.scheduler.pool")))
        query.trigger(once=True).start().awaitTermination()

    threads = [session_thread(spark, look, name) for name in ("north", "south")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    look()
    assert (sorted(map(str, pools[:2])), pools[2:]) == (["north", "south"], [None])


@pytest.mark.soak
@pytest.mark.long
def test_a_driver_that_is_killed_while_several_run_leaves_each_as_if_it_had_run_alone(shop: Shop) -> None:
    counts = [shop.folder / "state" / name / "counts" / "_delta_log" for name in ("north", "south")]
    code, output = run("together", shop.parameters(), lambda: any(log.exists() for log in counts))
    assert code, output
    shop.sell(20)
    code, output = run("together", shop.parameters())
    assert code == 0, output
    shop.check()


def test_the_cost_of_a_trigger_is_told_by_the_batches() -> None:
    batches = [{"durationMs": {"triggerExecution": ms}, "numInputRows": 10} for ms in (9000, 500, 700)]
    runs = PipelineRuns([PipelineRun("a", {"name": "orders"}, None, batches), PipelineRun("b", {}, ValueError("no"))])
    assert runs.table().iloc[0].tolist() == ["orders", "SUCCESS", 3, 30, 0.7, "7%", "1%", "0%"]
    assert runs.table().iloc[1, :4].tolist() == ["b", "FAILED", 0, 0]
    assert runs.parameters() == [{"notebook": "a", "name": "orders"}, {"notebook": "b", "failure": "ValueError: no"}]


@pytest.mark.parametrize(
    ("pipelines", "message"),
    [
        ("[", "must be JSON"),
        ("[]", "must be a list such as"),
        ('{"notebook": "kafka_to_delta"}', "must be a list such as"),
        ('["kafka_to_delta"]', 'has an entry without a "notebook": "kafka_to_delta"'),
        ('[{"name": "a"}]', 'has an entry without a "notebook"'),
        ('[{"notebook": "lines_to_delta"}, {"notebook": "enrich", "name": "lines_to_delta"}]', '"lines_to_delta" twice'),
        ('[{"notebook": "kafka_to_dleta"}]', 'the notebook "kafka_to_dleta", which is not in .*There are: cassandra_to_delta'),
        ('[{"notebook": "../stories/cdc"}]', "which is not in"),
        ('[{"notebook": "kafka_to_delta", "trigger": "10 seconds"}]', 'gives kafka_to_delta the trigger "10 seconds"'),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(pipelines: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        together(pipelines, folder=FOLDER)


def test_a_gate_whose_thread_cannot_begin_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed() -> None:
        """The JVM takes no more threads."""

    monkeypatch.setitem(together.__globals__, "session", lambda: None)
    monkeypatch.setitem(together.__globals__, "session_thread", lambda *_: Thread(target=failed))
    runs = together([{"notebook": "lines_to_delta"}], gates=True, folder=FOLDER)
    with pytest.raises(ConnectorError, match="lines_to_delta: ConnectorError: its thread has ended before its last cell"):
        runs.enforce()


def test_a_gate_that_passes_makes_no_success_of_a_pipeline_that_has_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It judges what an earlier run has written. The state of a job is that of its last tasks."""
    notebook = {"cells": [{"cell_type": "code", "source": ["print(1)"]}]}
    (tmp_path / "quality.ipynb").write_text(json.dumps(notebook))
    monkeypatch.setitem(together.__globals__, "session", lambda: None)
    monkeypatch.setitem(together.__globals__, "session_thread", lambda _, work, name: Thread(target=work, name=name))
    failed = PipelineRuns([PipelineRun("a", {"name": "north"}, ValueError("no")), PipelineRun("a", {"name": "south"})])
    gates = together(failed.parameters(), gates=True, folder=tmp_path)
    with pytest.raises(ConnectorError, match=r"1 of 2 failed:\nnorth: .*the pipeline has failed: ValueError: no"):
        gates.enforce()


class TestCommand:
    def test_the_pipelines_of_jobs_have_the_parameters_of_these(self) -> None:
        entries = json.loads(pipelines_of(load(ROOT), ["lines_to_delta", "kafka_to_delta"]))
        assert [(entry["notebook"], entry["name"]) for entry in entries] == [
            ("lines_to_delta", "lines_to_delta"), ("kafka_to_delta", "kafka_to_delta"),
        ]  # fmt: skip
        assert all("${" not in value for entry in entries for value in entry.values())

    def test_a_parameter_of_the_command_wins_in_each_job_that_has_it(self) -> None:
        names, own = ["lines_to_delta", "http_to_delta"], {"workdir": "/tmp/mine", "retry": "1"}
        entries = json.loads(pipelines_of(load(ROOT), names, own))
        assert [(entry["workdir"], "retry" in entry) for entry in entries] == [("/tmp/mine", False)] * 2

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "give a JOB, or several by --together"),
            (["--together", " , "], "give a JOB, or several by --together"),
            (["quickstart", "--together", "lines_to_delta"], "give a JOB, or several by --together"),
            (["--together", "quickstart"], 'names the job "quickstart", whose first notebook is no pipeline'),
            (["--together", "lines_to_dleta"], "is no job of this bundle; did you mean \"lines_to_delta\"?"),
        ],
    )
    def test_other_jobs_are_refused(self, arguments: Sequence[str], message: str) -> None:
        result = CliRunner().invoke(main, ["run", *arguments])
        assert result.exit_code == 2
        assert message in result.output
