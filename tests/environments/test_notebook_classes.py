"""Connectors that a notebook defines: the classes of the templates, in the module where notebooks have them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import connectors
from connectors.testing import same_records
from connectors.testing.environments import Environment

TEMPLATES = Path(__file__).parents[2] / "notebooks" / "templates"
RUNS = ("spark", "dbutils", "workbench")


def cells(name: str) -> list[str]:
    """The cells before the connector is registered that only define something, as a user runs them."""
    cells = json.loads((TEMPLATES / f"{name}.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    before = takewhile(lambda cell: "connectors.register(" not in cell, code)
    return [cell for cell in before if not any(word in cell for word in RUNS)]


@pytest.fixture
def notebook() -> Iterator[SimpleNamespace]:
    """What the two templates define, in ``__main__``, as in a notebook; taken out of it again."""
    names = vars(sys.modules["__main__"])
    before = dict(names)
    for cell in [*cells("source"), *cells("sink")]:
        exec(compile(cell, "<cell>", "exec"), names)
    yield SimpleNamespace(**{name: value for name, value in names.items() if name not in before})
    for name in [name for name in names if name not in before]:
        del names[name]


@pytest.mark.essential
def test_a_source_and_a_sink_of_a_notebook_work(environment: Environment, notebook: Any, tmp_path: Path) -> None:
    spark = environment.spark
    connectors.register(spark, notebook.JournalSource, notebook.ArchiveSink)
    queue = str(tmp_path / "queue")
    notebook.send(queue, "orders", [f"row {number}" for number in range(1, 21)])
    rows = spark.readStream.format(f"connectors.{notebook.JournalSource.name}").options(path=queue, topic="orders").load()
    rows = rows.selectExpr("number AS id", "body AS name")

    for carrier in ("foreach_batch", "format"):
        store = str(tmp_path / carrier)
        writer = rows.writeStream.option("checkpointLocation", store + "-checkpoint").trigger(availableNow=True)
        if carrier == "format":
            writer = writer.format(f"connectors.{notebook.ArchiveSink.name}").option("path", store)
        else:
            writer = writer.foreachBatch(connectors.foreach_batch(notebook.ArchiveSink, {"path": store}))
        writer.start().awaitTermination()
        with notebook.closing(notebook.store(store)) as client:
            written = client.execute("SELECT id, name FROM items").fetchall()
        same_records([{"id": n, "name": f"row {n}"} for n in range(1, 21)], [{"id": i, "name": t} for i, t in written])


def test_the_templates_define_what_is_tested(notebook: Any) -> None:
    assert notebook.JournalSource.__module__ == notebook.ArchiveSink.__module__ == "__main__"
