"""The templates as they are used: copied to another folder under another name, pointed at other data, run again and again."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from connectors.testing.servers import DocumentService, QueueService
from connectors.workbench.settings import library
from connectors_tools.bundle import Reporter, load, run_job
from tests.delta_log import delta
from tests.servers import required

from .quickstart import run

TEMPLATES = library().parent / "notebooks" / "templates"
NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
pytestmark = pytest.mark.spark


class Copy:
    """A template in a bundle of its own, under another name. ``name`` is also that of the pipeline."""

    def __init__(self, template: str, folder: Path, name: str = "") -> None:
        self.name, self.folder = name or f"my_{template}", folder
        self.data = folder / "data"
        self.notebook = folder / "pipelines" / f"{self.name}.ipynb"
        self.notebook.parent.mkdir(exist_ok=True)
        self.notebook.write_text((TEMPLATES / f"{template}.ipynb").read_text())
        (folder / "jobs").mkdir(exist_ok=True)
        task = {"task_key": self.name, "notebook_task": {"notebook_path": f"../pipelines/{self.name}.ipynb"}}
        self._write(f"jobs/{self.name}.yml", {"resources": {"jobs": {self.name: {"tasks": [task]}}}})
        bundle = {"bundle": {"name": "copies"}, "include": ["jobs/*.yml"], "targets": {"dev": {"default": True}}}
        self._write("databricks.yml", bundle)

    def run(self, **parameters: str) -> str:
        """Runs it as a job and returns what the runner has printed; the last line has the result."""
        output = io.StringIO()
        arguments = {"workdir": str(self.data), "name": self.name, **parameters}
        run_job(load(self.folder), self.name, arguments, Reporter(output))
        return output.getvalue()

    def edit(self, text: str, other: str) -> None:
        """Changes the text of a cell."""
        content = nbformat.read(self.notebook, as_version=4)
        cells = [cell for cell in content.cells if text in cell.source]
        assert len(cells) == 1
        cells[0].source = cells[0].source.replace(text, other)
        nbformat.write(content, self.notebook)

    def _write(self, path: str, content: Any) -> None:
        (self.folder / path).write_text(yaml.safe_dump(content))


def succeeded(output: str) -> bool:
    return output.splitlines()[-1].split()[1] == "SUCCESS"


def write_json(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_name(f".{file.name}").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file.with_name(f".{file.name}").rename(file)


def change_database(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        for statement in statements:
            database.execute(statement)


@pytest.mark.soak
def test_a_source_and_a_sink_to_be_written_run_again_and_go_on(spark: Any, tmp_path: Path) -> None:
    source, sink = Copy("source", tmp_path, "queue_to_files"), Copy("sink", tmp_path, "files_to_store")
    queue, store, incoming = tmp_path / "queue.db", tmp_path / "store.db", tmp_path / "in"
    change_database(queue, "CREATE TABLE messages (number INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT, body TEXT)")
    for number in range(2):
        change_database(queue, *["INSERT INTO messages (topic, body) VALUES ('bills', 'bill')"] * 5)
        write_json(incoming / f"{number}.json", [{"id": n, "name": f"bill {n}"} for n in range(5 * number, 5 * number + 5)])
        outputs = [source.run(path=str(queue), topic="bills"), sink.run(path=str(store), incoming=str(incoming))]
        assert all(succeeded(output) for output in outputs), "\n".join(outputs)
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("SELECT id FROM items ORDER BY id").fetchall() == [(n,) for n in range(10)]
    assert spark.read.parquet(str(source.data / source.name / "files")).count() == 10


@pytest.mark.soak
def test_a_queue_and_a_store_to_be_replaced_run_again_and_go_on(spark: Any, tmp_path: Path) -> None:
    queue, store = required(QueueService), required(DocumentService)
    source, sink, incoming = Copy("queue", tmp_path, "bills_in"), Copy("storage", tmp_path, "bills_out"), tmp_path / "in"
    name = f"bills-{tmp_path.name}"
    for first in (0, 5):
        queue.publish(name, [json.dumps({"order": n, "cents": n}) for n in range(first, first + 5)])
        write_json(incoming / f"{first}.json", [{"id": n, "name": f"bill {n}"} for n in range(first, first + 5)])
        outputs = [
            source.run(url=f"{queue.url}/queues/{name}", lease="3s"),
            sink.run(url=store.url, collection=name, incoming=str(incoming)),
        ]
        assert all(succeeded(output) for output in outputs), "\n".join(outputs)
    assert sorted(row["order"] for row in delta(source.data / source.name / "table").to_pylist()) == list(range(10))
    assert sorted(row["id"] for row in store.documents(name)) == list(range(10))


@pytest.mark.soak
def test_the_gate_of_a_queue_sees_messages_that_are_lost(spark: Any, tmp_path: Path) -> None:
    pipeline = Copy("queue", tmp_path, "bills_in")
    pipeline.edit('.select("id", "body.*")', '.select("id", "body.*").where("order % 10 <> 0")')
    output = pipeline.run()
    assert "messages that are not in the table" in output, output
    assert not succeeded(output)


@pytest.mark.soak
@pytest.mark.parametrize("kills", ["1", "0"])
def test_all_templates_and_their_proofs_run_again_on_their_samples(tmp_path_factory: Any, kills: str) -> None:
    workdir = tmp_path_factory.getbasetemp() / "templates"  # the second run finds what the first one has left
    code, output = run("templates", {"workdir": str(workdir), "kills": kills})
    assert code == 0, output
