"""The templates as they are used: copied to another folder under another name, pointed at other data, run again and again."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import nbformat
import pyarrow.parquet as pq
import pytest
import yaml
from confluent_kafka import Producer

from connectors.testing.servers import DocumentService, KafkaServer, QueueService
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


def readings(numbers: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"id": n, "at": f"2026-03-{n % 20 + 1:02d}T00:00:00Z", "station": "ZRH", "degrees": 70 if n % 10 == 0 else 7.5}
        for n in numbers
    ]


def ids(folder: Path) -> list[int]:
    files = [file for file in folder.rglob("*.parquet") if ".connectors" not in file.parts]
    return sorted(value for file in files for value in pq.ParquetFile(file).read(["id"])["id"].to_pylist())


@pytest.mark.soak
def test_files_that_were_read_may_go_and_new_ones_are_delivered_once(spark: Any, tmp_path: Path) -> None:
    incoming, outgoing = tmp_path / "in", tmp_path / "out"
    pipeline = Copy("files", tmp_path, "weather")
    for number in range(2):
        write_json(incoming / f"{number}.json", readings(range(20 * number, 20 * number + 20)))
        output = pipeline.run(incoming=str(incoming), outgoing=str(outgoing))
        assert succeeded(output), output
        (incoming / f"{number}.json").unlink()
    assert ids(outgoing) == [n for n in range(40) if n % 10]
    assert ids(tmp_path / "out_quarantine") == [0, 10, 20, 30]


def test_the_gate_of_files_sees_rows_that_are_lost(spark: Any, tmp_path: Path) -> None:
    write_json(tmp_path / "in" / "0.json", readings(range(20)))
    pipeline = Copy("files", tmp_path)
    pipeline.edit('"files", {"path": outgoing', '"files", {"path": outgoing + "_elsewhere"')
    (tmp_path / "out").mkdir()
    output = pipeline.run(incoming=str(tmp_path / "in"), outgoing=str(tmp_path / "out"))
    assert "neither delivered nor set aside" in output, output
    assert not succeeded(output)


def change_database(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        for statement in statements:
            database.execute(statement)


@pytest.mark.soak
def test_a_copied_database_may_lose_change_and_get_rows_between_the_runs(spark: Any, tmp_path: Path) -> None:
    file, copies = bank(tmp_path), tmp_path / "copies"
    pipeline, parameters = Copy("jdbc_source", tmp_path), {"url": f"jdbc:sqlite:{file}", "tables": "clients, bills"}
    output = pipeline.run(**parameters, copies=str(copies))
    assert succeeded(output), output
    change_database(
        file,
        "DELETE FROM bills WHERE id IN (1, 9)",
        f"UPDATE bills SET cents = 100, updated_at = {NOW} WHERE id = 2",
        f"INSERT INTO bills (updated_at, cents) VALUES ({NOW}, 10)",
    )
    output = pipeline.run(**parameters, copies=str(copies))
    assert succeeded(output), output
    rows = sorted((row["id"], row["cents"]) for row in delta(copies / "bills").to_pylist())
    assert rows == [(1, 1), (2, 100), *((n, n) for n in range(3, 11))]


@pytest.mark.soak
def test_the_gate_of_a_copied_database_sees_rows_that_are_lost(spark: Any, tmp_path: Path) -> None:
    pipeline, copies = Copy("jdbc_source", tmp_path), tmp_path / "copies"
    parameters = {"url": f"jdbc:sqlite:{bank(tmp_path)}", "tables": "clients,bills", "copies": str(copies)}
    assert succeeded(pipeline.run(**parameters))
    spark.sql(f"DELETE FROM delta.`{copies}/bills` WHERE id = 5")
    output = pipeline.run(**parameters)
    assert "rows of bills that are not in the copy" in output, output
    assert not succeeded(output)


def bank(folder: Path) -> Path:
    """A database with the tables clients and bills, of nine rows each."""
    columns = "id INTEGER PRIMARY KEY AUTOINCREMENT, updated_at DATETIME NOT NULL, cents INTEGER"
    for table in ("clients", "bills"):
        rows = f"INSERT INTO {table} (updated_at, cents) SELECT {NOW}, value FROM json_each('[1,2,3,4,5,6,7,8,9]')"
        change_database(folder / "bank.db", f"CREATE TABLE {table} ({columns})", rows)
    return folder / "bank.db"


@pytest.mark.soak
def test_a_table_has_the_newest_row_of_each_key_after_each_run(spark: Any, tmp_path: Path) -> None:
    incoming, database = tmp_path / "in", tmp_path / "bank.db"
    pipeline = Copy("jdbc_sink", tmp_path)
    for version in (1, 2):
        keys = range(10) if version == 1 else range(5, 15)
        orders = [{"id": n, "version": version, "customer": "Ada", "cents": n * version} for n in keys]
        write_json(incoming / f"{version}.json", orders)
        output = pipeline.run(incoming=str(incoming), url=f"jdbc:sqlite:{database}", table="bills")
        assert succeeded(output), output
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT id, version, cents FROM bills ORDER BY id").fetchall()
    assert rows == [(n, 1, n) for n in range(5)] + [(n, 2, 2 * n) for n in range(5, 15)]

    change_database(database, "DELETE FROM bills WHERE id = 7")
    output = pipeline.run(incoming=str(incoming), url=f"jdbc:sqlite:{database}", table="bills")
    assert "keys without a row" in output
    assert not succeeded(output)


@pytest.mark.soak
def test_a_topic_gets_what_is_new_in_another_one(spark: Any, tmp_path: Path) -> None:
    server = required(KafkaServer)
    source, target = f"bills-{tmp_path.name}", f"high-bills-{tmp_path.name}"
    for topic in (source, target):
        server.create_topic(topic)
    pipeline = Copy("kafka", tmp_path, f"bills-{tmp_path.name}")
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for first in (0, 10):
        for number in range(first, first + 10):
            producer.produce(source, "no JSON" if number % 10 == 3 else json.dumps({"id": number, "cents": 1000 * number}))
        producer.flush()
        output = pipeline.run(bootstrap_servers=server.bootstrap, source_topic=source, target_topic=target)
        assert succeeded(output), output
    options = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": target}
    values = {"value.format": "json", "schema": "id long, euro double"}
    rows = spark.read.format("connectors.kafka").options(**options, **values).load().selectExpr("value.*").collect()
    assert sorted((row.id, row.euro) for row in rows) == [(n, 10.0 * n) for n in range(5, 20) if n != 13]


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
def test_a_proof_runs_the_copy_that_it_is_pointed_at(spark: Any, tmp_path: Path) -> None:
    Copy("files", tmp_path, "weather").edit('quality.between("degrees", -90, 60)', 'quality.between("degrees", -90, 50)')
    proof = Copy("files_proof", tmp_path, "weather_proof")
    output = proof.run(pipeline="weather", kills="0")
    assert succeeded(output), output


@pytest.mark.soak
def test_a_proof_fails_for_a_pipeline_that_doubles_rows(spark: Any, tmp_path: Path) -> None:
    days = "frame.selectExpr('*', 'CAST(at AS DATE) AS day').write.mode('append').partitionBy('day')"
    weaker = f"def good(frame, batch):\n    {days}.parquet(outgoing)\n"
    pipeline = Copy("files", tmp_path, "weather")
    pipeline.edit('good = connectors.foreach_batch("files", {"path": outgoing, "rolling": "policy", **layout})', weaker)
    pipeline.edit("quality.unique(key), ", "")
    output = Copy("files_proof", tmp_path, "weather_proof").run(pipeline="weather", kills="0")
    assert "each row once" in output, output
    assert not succeeded(output)


@pytest.mark.soak
@pytest.mark.parametrize("kills", ["1", "0"])
def test_all_templates_and_their_proofs_run_again_on_their_samples(tmp_path_factory: Any, kills: str) -> None:
    workdir = tmp_path_factory.getbasetemp() / "templates"  # the second run finds what the first one has left
    code, output = run("templates", {"workdir": str(workdir), "kills": kills})
    assert code == 0, output
