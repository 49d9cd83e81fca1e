"""Notebooks are stored with their outputs, each from the code that stands there; `make notebooks` makes them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from connectors.workbench.settings import library
from connectors_tools.bundle.outputs import first_picture, outdated_cells, picture_file

ROOT = library().parent
NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
REMAKE = "run its job by `python -m connectors outputs JOB`"


def outputs(notebook: Path) -> list[nbformat.NotebookNode]:
    cells = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_output_comes_from_the_code_that_stands_there(notebook: Path) -> None:
    assert outdated_cells(notebook) == [], REMAKE
    assert outputs(notebook), REMAKE


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_an_error_or_a_warning(notebook: Path) -> None:
    shown = outputs(notebook)
    assert not [output.ename for output in shown if output.output_type == "error"]
    assert not [output.text for output in shown if output.get("name") == "stderr"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_picture_beside_a_notebook_is_its_own(notebook: Path) -> None:
    file = picture_file(notebook)
    assert (file.read_bytes() if file.exists() else None) == first_picture(notebook), REMAKE
