"""What a notebook finds when it runs, and what is left of it afterwards."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, PropertyMock

import nbformat
import pytest

from connectors.ground.errors import Misconfigured
from connectors_tools.bundle.engine import NotebookEngine

from .conftest import Workbench


def test_a_notebook_finds_dbutils_and_display_before_its_first_cell(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "print(callable(display), callable(dbutils.widgets.get), callable(displayHTML))"))
    assert bench.run().printed("a-1") == "True True True\n"


def test_every_task_starts_with_a_fresh_namespace(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "left = 1"), bench.task("b", "print('left' in globals())", after="a"))
    assert bench.run().printed("b-1") == "False\n"


def test_what_a_notebook_has_made_is_let_go_when_it_ends(bench: Workbench) -> None:
    count = "import gc; gc.collect(); print(sum(type(item).__name__ == 'OnlyHere' for item in gc.get_objects()))"
    bench.job("job", bench.task("a", "class OnlyHere: pass\ninstance = OnlyHere()"), bench.task("b", count, after="a"))
    assert bench.run().printed("b-1") == "0\n"


def test_folder_path_environment_and_modules_are_put_back(bench: Workbench) -> None:
    main, folder, path = sys.modules["__main__"], os.getcwd(), list(sys.path)
    bench.job(
        "job", bench.task("a", "import os, sys; os.environ['LEFT'] = '1'; os.chdir('/'); sys.path.append('/left')")
    )
    bench.run()
    assert (sys.modules["__main__"], os.getcwd(), sys.path) == (main, folder, path)
    assert "LEFT" not in os.environ


def test_a_module_beside_a_notebook_is_that_of_no_other_notebook(bench: Workbench) -> None:
    for folder in ("x", "y"):
        bench.write(f"notebooks/{folder}/helper_module.py", f"WHO, CALLS = '{folder}', []")
        bench.write(f"notebooks/{folder}/helper_package/deep.py", f"WHO = '{folder}'")
    code = "import helper_module as own, helper_package.deep as deep\nown.CALLS.append(1)\nprint(own.WHO, deep.WHO, own.CALLS)"
    first, second = ({"task_key": key, "notebook_task": {"notebook_path": bench.notebook(f"{folder}/n", code)}}
                     for key, folder in (("a", "x"), ("b", "y")))  # fmt: skip
    bench.job("job", first, {**second, "depends_on": [{"task_key": "a"}]})
    result = bench.run()
    assert (result.printed("a-1"), result.printed("b-1")) == ("x x [1]\n", "y y [1]\n")


def test_a_session_is_tidied_as_far_as_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = MagicMock()
    type(spark.streams).active = PropertyMock(side_effect=RuntimeError("broken"))
    spark.catalog.currentCatalog.return_value = "spark_catalog"
    spark.catalog.currentDatabase.return_value = "default"
    spark.conf.getAll = {}
    monkeypatch.setattr("connectors.workbench.start.start", lambda log: spark)
    monkeypatch.setattr("connectors_tools.bundle.engine.query_log", MagicMock())
    monkeypatch.setattr(NotebookEngine, "session", spark)
    engine = NotebookEngine(tmp_path / "log")
    engine.start()
    spark.catalog.currentDatabase.return_value = "side"
    spark.catalog.listTables.return_value = [SimpleNamespace(name="view", isTemporary=True)]
    assert engine.tidy() == []
    spark.catalog.setCurrentDatabase.assert_called_once_with("default")
    spark.catalog.dropTempView.assert_called_once_with("view")


def test_the_working_folder_is_the_notebooks(bench: Workbench) -> None:
    bench.write("notebooks/beside.py", "found = True")
    bench.job("job", bench.task("a", "import os, beside; print(os.getcwd())"))
    assert bench.run().printed("a-1") == f"{bench.root}/notebooks\n"


def test_what_is_defined_in_a_notebook_belongs_to_main_as_in_jupyter(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "def f(): pass\nprint(f.__module__, __name__)"))
    assert bench.run().printed("a-1") == "__main__ __main__\n"


def test_sources_are_untouched_and_outputs_go_to_a_copy(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "print('one')", "40 + 2", "import sys; print('err', file=sys.stderr)"))
    source = bench.root / "notebooks" / "a.ipynb"
    before = source.read_bytes()
    cells = bench.run().executed("a-1").cells
    assert source.read_bytes() == before
    assert [cell.execution_count for cell in cells] == [1, 2, 3]
    assert cells[0].outputs == [{"output_type": "stream", "name": "stdout", "text": "one\n"}]
    assert cells[1].outputs[0].data["text/plain"] == "42"
    assert cells[2].outputs[0].name == "stderr"


def test_outputs_keep_their_order(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "print(1)\nprint(2)\ndisplay('shown')\nprint(3)"))
    kinds = [output.output_type for output in bench.run().executed("a-1").cells[0].outputs]
    assert kinds == ["stream", "display_data", "stream"]


def test_a_plot_is_kept_as_a_picture(bench: Workbench) -> None:
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    bench.job("job", bench.task("a", plot), bench.task("b", plot, "fig, ax = plt.subplots()\ndisplay(fig)"))
    result = bench.run()
    for name, cell in (("a-1", 0), ("b-1", 0), ("b-1", 1)):
        pictures = [out for out in result.executed(name).cells[cell].outputs if "image/png" in out.get("data", {})]
        assert len(pictures) == 1, (name, cell)


def test_a_pandas_frame_is_shown_as_a_table(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "import pandas as pd\ndisplay(pd.DataFrame({'n': range(300)}))"))
    html = bench.run().executed("a-1").cells[0].outputs[0].data["text/html"]
    assert "<td>99</td>" in html
    assert "<td>100</td>" not in html
    assert "the first 100 rows" in html


def test_a_failing_cell_is_told_with_its_message_place_and_source(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "x = 1", "# two\ny = 2\nraise ValueError('the reason')\nz = 3", "print('never')"))
    report = [line.strip() for line in bench.run().lines]
    start = next(n for n, line in enumerate(report) if line.startswith("a  FAILED"))
    folder = max((bench.root / "runs" / "job").iterdir())
    assert report[start + 1 : start + 9] == [
        "ValueError: the reason",
        "in notebooks/a.ipynb, cell 2:",
        "1 # two",
        "2 y = 2",
        ">   3 raise ValueError('the reason')",
        "4 z = 3",
        f"the executed notebook: {folder}/a-1.ipynb",
        f"the full traceback: {folder}/spark.log",
    ]
    assert "raise ValueError('the reason')" in (folder / "spark.log").read_text()


def test_the_traceback_is_in_the_executed_notebook(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1/0", "print('never')"))
    first, second = bench.run().executed("a-1").cells
    assert first.outputs[0].ename == "ZeroDivisionError"
    assert second.outputs == []


@pytest.mark.parametrize("cell", ["%no_such_magic", "raise SystemExit(1)", "exec('x = = 1')"])
@pytest.mark.filterwarnings("ignore:To exit")
def test_a_cell_that_cannot_run_fails_its_task(bench: Workbench, cell: str) -> None:
    bench.job("job", bench.task("a", cell))
    assert bench.run().states["a"] == "FAILED"


def test_a_line_of_a_function_in_the_cell_is_told_where_it_was_called(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "def f():\n    raise OSError('disk')\n\nf()"))
    assert ">   4 f()" in bench.run().text


def test_exit_ends_a_notebook_with_success(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "try:\n    dbutils.notebook.exit('done')\nexcept Exception:\n    pass", "1/0"))
    result = bench.run()
    assert result.states["a"] == "SUCCESS"
    assert result.printed("a-1") == "Notebook exited: done\n"


def test_what_a_notebook_exits_with_stands_in_the_line_of_its_task(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "dbutils.notebook.exit('nothing\\nnew')"), bench.task("b", "pass"))
    result = bench.run()
    assert [line.partition(" s")[2] for line in result.lines if line[:3] in ("a  ", "b  ")] == ["  nothing new", ""]


def test_output_from_a_thread_lands_in_the_notebook_and_not_on_the_terminal(
    bench: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    start = "import threading; t = threading.Thread(target=print, args=('from a thread',)); t.start(); t.join()"
    bench.job("job", bench.task("a", start))
    result = bench.run()
    assert "from a thread" in result.printed("a-1")
    assert "from a thread" not in result.text


def test_top_level_await_and_markdown_cells_are_fine(bench: Workbench) -> None:
    task = bench.task("a", "import asyncio\nprint(await asyncio.sleep(0, 'awaited'))")
    path = bench.root / "notebooks" / "a.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell("# title"))
    nbformat.write(notebook, path)
    bench.job("job", task)
    assert bench.run().printed("a-1") == "awaited\n"


def test_an_empty_notebook_succeeds(bench: Workbench) -> None:
    bench.job("job", bench.task("a"), bench.task("b", ""))
    assert bench.run().states == {"a": "SUCCESS", "b": "SUCCESS", "job": "SUCCESS"}


def test_a_runs_folder_that_cannot_be_written_is_told_with_the_way_out(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"))
    (bench.root / "runs").write_text("a file where the folder should be")
    with pytest.raises(Misconfigured, match=r"runs/job +cannot be written: .*Name another folder by --runs"):
        bench.run()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_runs_folder_is_told_with_the_way_out(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"))
    (bench.root / "runs").mkdir(mode=0o555)
    with pytest.raises(Misconfigured, match="Permission denied"):
        bench.run()


def test_executed_notebooks_may_go_elsewhere(bench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> None:
    bench.job("job", bench.task("a", "1"))
    elsewhere: Path = tmp_path_factory.mktemp("elsewhere")
    from connectors_tools.bundle import Reporter, run_job

    run_job(bench.load(), "job", reporter=Reporter(quiet=True), runs=elsewhere)
    assert [path.name for path in elsewhere.rglob("*.ipynb")] == ["a-1.ipynb"]
    assert not (bench.root / "runs").exists()


def test_two_runs_in_one_second_have_folders_of_their_own(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"))
    bench.run()
    bench.run()
    assert len([path for path in (bench.root / "runs" / "job").iterdir() if path.is_dir()]) == 2
