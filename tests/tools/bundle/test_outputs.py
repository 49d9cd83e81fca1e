"""What a job's notebooks have shown is stored in them, with a hash of the code that made it."""

from __future__ import annotations

import base64
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import nbformat

from connectors_tools.bundle.outputs import first_picture, outdated_cells, picture_file, store_outputs

from .conftest import Workbench

PICTURE = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")
DRAW = f"from IPython.display import Image, display as show\nshow(Image({PICTURE!r}))"


def stored(bench: Workbench, name: str) -> Path:
    return bench.root / "notebooks" / f"{name}.ipynb"


def texts(notebook: Path) -> list[Any]:
    cells = nbformat.read(notebook, as_version=4).cells
    return [output.text for cell in cells for output in cell.outputs if output.output_type == "stream"]


def test_outputs_are_stored_with_the_code_that_made_them(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "print(6 * 7)"))
    assert store_outputs(bench.load(), ["job"]) == [stored(bench, "a")]
    assert texts(stored(bench, "a")) == ["42\n"]
    assert outdated_cells(stored(bench, "a")) == []


def test_a_cell_that_was_changed_since_is_outdated(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "print(1)", "print(2)"))
    store_outputs(bench.load(), ["job"])
    notebook = nbformat.read(stored(bench, "a"), as_version=4)
    notebook.cells[1].source = "print(3)"
    nbformat.write(notebook, stored(bench, "a"))
    assert outdated_cells(stored(bench, "a")) == [2]


def test_a_job_that_fails_stores_nothing(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "print(1)"), bench.task("b", "1 / 0", after="a"))
    assert store_outputs(bench.load(), ["job"]) == []
    assert texts(stored(bench, "a")) == []


def test_no_path_of_this_machine_is_stored(bench: Workbench) -> None:
    code = f"import tempfile\nprint({str(bench.root)!r}, {str(bench.root)!r} + '/x', tempfile.gettempdir() + '/y')"
    bench.job("job", bench.task("a", code))
    store_outputs(bench.load(), ["job"])
    (text,) = texts(stored(bench, "a"))
    assert str(bench.root) not in text
    assert tempfile.gettempdir() not in text
    assert text == "… …/x …/y\n"


def test_a_task_whose_key_begins_with_that_of_another_keeps_its_outputs(bench: Workbench) -> None:
    bench.job("job", bench.task("load", "print('of load')"), bench.task("load-more", "print('of load-more')", after="load"))
    store_outputs(bench.load(), ["job"])
    assert [texts(stored(bench, name)) for name in ("load", "load-more")] == [["of load\n"], ["of load-more\n"]]


def test_a_volume_is_stored_without_the_folder_that_stands_for_it(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "from connectors import workbench\nprint(workbench.workdir('/Volumes/main/data'))"))
    store_outputs(bench.load(), ["job"])
    assert texts(stored(bench, "a")) == ["…/Volumes/main/data\n"]


def test_the_first_picture_is_stored_beside_the_notebook(bench: Workbench) -> None:
    bench.job("job", bench.task("a", DRAW), bench.task("b", "print(1)"))
    store_outputs(bench.load(), ["job"])
    assert picture_file(stored(bench, "a")).read_bytes() == first_picture(stored(bench, "a")) == PICTURE
    assert not picture_file(stored(bench, "b")).exists()


def test_notebooks_begin_without_data_of_earlier_runs(bench: Workbench) -> None:
    code = """
        import pathlib
        from connectors import workbench
        mark = pathlib.Path(workbench.workdir("/Volumes/main/connectors/data/test_outputs")) / "mark"
        print(mark.exists())
        mark.touch()
    """
    bench.job("job", bench.task("a", textwrap.dedent(code)))
    for _ in range(2):
        store_outputs(bench.load(), ["job"])
        assert texts(stored(bench, "a")) == ["False\n"]
