"""The pipelines: written by one skeleton, run again and again on data of one's own, and judged by a gate that sees harm."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import nbformat
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from connectors.ground.errors import Misconfigured
from connectors.testing.servers import KafkaServer
from connectors.workbench.settings import library
from connectors_tools.bundle import Reporter, load, run_job
from connectors_tools.pipelines import PIPELINES, files_of, gate, write_pipeline
from tests.delta_log import delta
from tests.servers import required

from .quickstart import run

ROOT = library().parent
NAMES = list(PIPELINES)


def cells(text: str) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in nbformat.reads(text, as_version=4).cells]


def orders(numbers: Collection[int]) -> list[str]:
    """Orders as JSON; every tenth is cut off, and every eleventh of the others has a price below zero."""
    texts = {n: json.dumps({"id": n, "city": "Zürich", "cents": price(n), "at": "2026-03-01T00:00:00Z"}) for n in numbers}
    return [text[:12] if n % 10 == 0 else text for n, text in texts.items()]


def price(number: int) -> int:
    return -1 if number % 11 == 0 else 100 * number


class Job:
    """A pipeline of the repository whose state and table are in ``folder``."""

    def __init__(self, name: str, folder: Path, **parameters: str) -> None:
        self.name, self.folder, self.target = name, folder, folder / "table"
        self.parameters = {"workdir": str(folder / "state"), "target": str(self.target), **parameters}

    def run(self, *only: str) -> tuple[bool, str]:
        """Runs its tasks, or some of them; returns whether they succeeded, and what was printed."""
        output = io.StringIO()
        run_job(load(ROOT), self.name, self.parameters, Reporter(output), self.folder / "runs", only)
        return output.getvalue().splitlines()[-1].split()[1] == "SUCCESS", output.getvalue()

    def check(self, numbers: Collection[int]) -> None:
        """Compares every row of the table and of the quarantine, and every dead letter, with the :func:`orders`."""
        state = self.folder / "state" / self.name
        at, whole = datetime.datetime(2026, 3, 1), [n for n in numbers if n % 10]
        for table, is_good in ((self.target, True), (state / "quarantine", False)):
            rows = delta(table).select(["id", "city", "cents", "at"]).sort_by("id").to_pylist()
            expected = [n for n in whole if (price(n) > 0) is is_good]
            assert rows == [{"id": n, "city": "Zürich", "cents": price(n), "at": at} for n in expected]
        files = (state / "letters").glob("*.parquet")
        letters = [record for file in files for record in pq.read_table(file)["record"].to_pylist()]
        assert sorted(letters) == sorted(order.encode() for order in orders(numbers) if len(order) == 12)


@pytest.mark.parametrize("name", NAMES)
def test_a_pipeline_is_what_the_skeleton_makes_of_its_row_in_the_table(name: str) -> None:
    for path, text in files_of(name, name).items():
        stored = (ROOT / path).read_text()
        assert (cells(stored) == cells(text)) if path.endswith(".ipynb") else (stored == text), path
    assert cells((ROOT / "notebooks" / "pipelines" / "quality.ipynb").read_text()) == cells(gate())


@pytest.mark.parametrize("name", NAMES)
def test_a_pipeline_is_short_enough_to_be_read_at_once(name: str) -> None:
    code = [source for kind, source in cells(files_of(name, name)[f"notebooks/pipelines/{name}.ipynb"]) if kind == "code"]
    lines = [line for source in code[1:] for line in source.splitlines()]
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
    (query,) = [source for source in code if "readStream" in source]
    assert len(query.splitlines()) <= 15


def test_a_new_pipeline_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "notebooks" / "pipelines" / "rules").mkdir(parents=True)
    with pytest.raises(Misconfigured, match=r"must be the root of this repository"):
        write_pipeline(tmp_path / "jobs", "visits", "kafka_to_delta")
    (tmp_path / "notebooks" / "pipelines" / "quality.ipynb").write_text(gate())
    files = write_pipeline(tmp_path, "visits", "kafka-to-delta")
    assert [str(file.relative_to(tmp_path)) for file in files] == [
        "notebooks/pipelines/visits.ipynb", "notebooks/pipelines/rules/visits.json", "jobs/visits.yml",
    ]  # fmt: skip
    assert "rules/visits.json" in files[2].read_text()
    with pytest.raises(Misconfigured, match=r"visits is taken"):
        write_pipeline(tmp_path, "visits", "lines_to_delta")
    with pytest.raises(Misconfigured, match=r'--pipeline +must be kafka_to_delta or .*; got "kafka"'):
        write_pipeline(tmp_path, "clicks", "kafka")
    for name in ("My Visits", "on"):
        with pytest.raises(Misconfigured, match=r'must be a name such as "orders"'):
            write_pipeline(tmp_path, name, "kafka_to_delta")


@pytest.mark.spark
def test_lines_of_ones_own_are_in_the_table_once_and_the_gate_sees_harm(spark: Any, tmp_path: Path) -> None:
    log = tmp_path / "in.jsonl"
    job = Job("lines_to_delta", tmp_path, source=f"{log}*")
    for first in (100, 200):
        if log.exists():
            log.rename(f"{log}.1")  # the next file has its name, and lines at the same positions
        log.write_text("".join(f"{order}\n" for order in orders(range(first, first + 100))))
        succeeded, output = job.run()
        assert succeeded, output
    job.check(range(100, 300))
    table = f"delta.`{job.target}`"
    version = spark.sql(f"DESCRIBE HISTORY {table}").agg({"version": "max"}).first()[0]
    harm = {
        "read = delivered + dead_letters + quarantined": f"DELETE FROM {table} WHERE id = 103",
        "unique(id)": f"INSERT INTO {table} SELECT * FROM {table} WHERE id = 104",
        "between(cents, 0, 1000000)": f"UPDATE {table} SET cents = -5 WHERE id = 105",
    }
    for check, statement in harm.items():
        spark.sql(statement)
        succeeded, output = job.run("quality")
        assert not succeeded
        assert check in output
        spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {version}")
    succeeded, output = job.run("quality")
    assert succeeded, output


@pytest.mark.server
@pytest.mark.spark
def test_records_of_a_topic_of_ones_own_are_in_the_table_once(spark: Any, tmp_path: Path) -> None:
    server = required(KafkaServer)
    topic, producer = server.create_topic("orders-of-ones-own", 2), Producer({"bootstrap.servers": server.bootstrap})
    address = {"kafka_bootstrap_servers": server.bootstrap, "source": topic}
    job = Job("kafka_to_delta", tmp_path, **address, options='{"minPartitions": "3"}')
    for first in (0, 100):
        for order in orders(range(first, first + 100)):
            producer.produce(topic, order)
        producer.flush()
        succeeded, output = job.run()
        assert succeeded, output
    job.check(range(200))


@pytest.mark.soak
def test_a_pipeline_that_is_killed_goes_on_and_its_gate_finds_every_record(tmp_path: Path) -> None:
    log = tmp_path / "in.jsonl"
    log.write_text("".join(f"{order}\n" for order in orders(range(400))))
    job = Job("lines_to_delta", tmp_path, source=str(log), options='{"maxBytesPerTrigger": "4kB"}')
    for commits in (1, 3):
        code, output = run(job.name, job.parameters, lambda: commits < len(list(job.target.glob("_delta_log/*.json"))))  # noqa: B023
        assert code, output
    code, output = run(job.name, job.parameters)
    assert code == 0, output
    job.check(range(400))
