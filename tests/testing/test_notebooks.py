"""Notebooks that others run: their parameters and variables, and a driver that is killed at an event."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

import nbformat
import pytest

from connectors.core import Misconfigured
from connectors.testing import forget_commit, kill_driver, kill_notebook, run_notebook


def write_notebook(path: Path, *cells: str) -> str:
    content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(content, path)
    return str(path)


def test_a_notebook_gets_its_parameters_and_gives_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    widget = 'dbutils.widgets.text("rows", "1")\nrows = int(dbutils.widgets.get("rows"))'
    write_notebook(tmp_path / "double.ipynb", widget, "print(rows)\ndisplay(rows, rows=5)\ntwice = rows * 2")
    monkeypatch.chdir(tmp_path)
    assert [run_notebook("double", rows)["twice"] for rows in ({}, {"rows": "21"})] == [2, 42]
    assert capsys.readouterr().out == ""


def test_an_exit_ends_the_notebook_and_not_the_one_that_runs_it(tmp_path: Path) -> None:
    name = write_notebook(tmp_path / "short.ipynb", "rows = 1\ndbutils.notebook.exit('done')", "rows = 2")
    assert run_notebook(name)["rows"] == 1


def test_an_error_shows_the_line_of_the_cell(tmp_path: Path) -> None:
    name = write_notebook(tmp_path / "broken.ipynb", "rows = 0", "share = 1\nshare = 1 / rows  # of all")
    with pytest.raises(ZeroDivisionError) as error:
        run_notebook(name)
    assert '"<broken.ipynb, cell 2>", line 2' in "".join(traceback.format_exception(error.value))
    assert "share = 1 / rows  # of all" in "".join(traceback.format_exception(error.value))


def test_a_notebook_that_does_not_exist_is_an_error_that_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misconfigured, match=rf"pipeline +there is no orders.ipynb in {tmp_path} or .*templates; give"):
        run_notebook("orders")


def test_a_driver_is_killed_at_an_event(tmp_path: Path) -> None:
    wait = "import time\nwhile True:\n    time.sleep(0.01)"
    cells = (f"from pathlib import Path\nimport os\nPath({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))", wait)
    pid = tmp_path / "pid"
    kill_notebook(write_notebook(tmp_path / "endless.ipynb", *cells), {}, when=lambda: pid.exists() and pid.read_text() != "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_parameters_of_a_driver_are_not_in_the_list_of_processes(tmp_path: Path) -> None:
    cells = (f"import sys\nfrom pathlib import Path\nPath({str(tmp_path / 'line')!r}).write_text(str(sys.orig_argv))\nend",)
    with pytest.raises(RuntimeError, match="NameError"):
        kill_notebook(write_notebook(tmp_path / "n.ipynb", *cells), {"password": "hunter2"}, when=lambda: False)
    assert "hunter2" not in (tmp_path / "line").read_text()


def count_up(spark: Any, folder: str, limit: int) -> None:
    import time
    from pathlib import Path

    for number in range(spark.range(limit).count()):
        Path(folder, str(number)).touch()
        time.sleep(0.05)


@pytest.mark.soak
@pytest.mark.spark
def test_a_function_is_killed_in_a_driver_of_its_own(tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path), "limit": 1000}
    kill_driver(count_up, arguments, when=lambda: (tmp_path / "3").exists())
    assert 4 <= len(list(tmp_path.iterdir())) < 1000
    with pytest.raises(RuntimeError, match=r"count_up ended with 0 before it was killed"):
        kill_driver(count_up, {**arguments, "limit": 2}, when=lambda: False)


def test_a_driver_that_ends_before_it_is_killed_is_an_error_with_its_output(tmp_path: Path) -> None:
    name = write_notebook(tmp_path / "short.ipynb", "raise ValueError(dbutils.widgets.get('rows') + ' rows')")
    with pytest.raises(RuntimeError, match=r"(?s)short.ipynb ended with 1 before it was killed:.*ValueError: 7 rows"):
        kill_notebook(name, {"rows": "7"}, when=lambda: False)


def test_the_newest_commit_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    for name in ("9", ".9.crc", "10", ".10.crc"):
        (tmp_path / "commits" / name).touch()
    forget_commit(tmp_path)
    assert sorted(file.name for file in (tmp_path / "commits").iterdir()) == [".9.crc", "9"]
