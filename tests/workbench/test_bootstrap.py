"""The bootstrap cell: the same in every notebook, and right wherever it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from connectors.workbench import BOOTSTRAP, DbUtils, display, notebook
from connectors.workbench.settings import library

NOTEBOOKS = sorted(
    path for path in (library().parent / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts
)


_CELL = """
from connectors.workbench import bootstrap

bootstrap.session, bootstrap.activate = lambda: None, lambda spark: None
spark, dbutils, display = bootstrap.notebook(globals())
"""
"""The bootstrap cell without Spark."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_has_the_bootstrap_cell_word_for_word_before_its_other_code(path: Path) -> None:
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert cells[0].strip() == BOOTSTRAP.strip()


def test_without_the_library_the_line_that_fails_says_what_to_do(tmp_path: Path) -> None:
    cell = tmp_path / "cell.py"
    cell.write_text(BOOTSTRAP)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-S", str(cell)]  # without installed packages, the library's own among them
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert result.returncode == 1
    assert "not found? Open it in the repository, or install the library" in result.stderr


@pytest.mark.parametrize("last", ["exit", "error"])
def test_a_notebook_that_exits_ends_with_success_in_jupyter_from_any_folder(tmp_path: Path, last: str) -> None:
    end = 'dbutils.notebook.exit("all is well")' if last == "exit" else '1 / 0'
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (_CELL, end)])
    client = NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, timeout=120)
    if last == "error":
        with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
            client.execute()
        return
    client.execute()
    outputs = notebook.cells[-1].outputs
    assert [(output.output_type, output.text) for output in outputs] == [("stream", "Notebook exited: all is well\n")]


@pytest.mark.spark
def test_locally_what_is_missing_comes_from_the_workbench(spark: Any) -> None:
    got, dbutils, show = notebook({})
    assert got.sparkContext is spark.sparkContext
    assert isinstance(dbutils, DbUtils)
    assert show is display


@pytest.mark.spark
def test_what_the_runner_has_put_there_is_kept(spark: Any) -> None:
    utilities = DbUtils({"x": "1"})
    _, dbutils, show = notebook({"dbutils": utilities, "display": print})
    assert (dbutils, show) == (utilities, print)


@pytest.mark.spark
def test_in_a_workspace_all_three_are_the_runtimes(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.1")
    namespace = {"spark": spark, "dbutils": object(), "display": object()}
    assert notebook(namespace) == (spark, namespace["dbutils"], namespace["display"])
