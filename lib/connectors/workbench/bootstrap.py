"""The cell that every notebook starts with, and the functions that it calls."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connectors.ground.runtime import in_workspace
from connectors.spark.session import activate, pages_of

from .cell_errors import show_messages
from .settings import UI_VARIABLE
from .shim import DbUtils, NotebookExit, display
from .start import session
from .task_record import begin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOOTSTRAP: Final = """\
import sys
from pathlib import Path

folders = (folder / "lib" for folder in [Path.cwd(), *Path.cwd().parents])
lib = next((folder for folder in folders if (folder / "connectors").is_dir()), None)
if lib:
    sys.path.insert(0, str(lib))
from connectors import workbench  # not found? Open it in the repository, or install the library

spark, dbutils, display = workbench.notebook(globals())
"""
"""The bootstrap cell, exactly as in every notebook."""


def code_cells(notebook: Path) -> list[str]:
    """The sources of the code cells in a notebook's file."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def notebook(names: Mapping[str, Any]) -> tuple[SparkSession, Any, Any]:
    """``spark``, ``dbutils`` and ``display`` for a notebook whose ``globals()`` are ``names``.

    It uses those that a workspace or the job runner has put there; the others come from the workbench. It registers every
    ``connectors.*`` format with the session.
    """
    spark = session()
    if in_workspace():
        dbutils = _of_runtime("dbutils", names)
        _begin_record(dbutils)
        return names.get("spark", spark), dbutils, _of_runtime("display", names)
    _before_each_cell(_Activating(spark))
    if os.environ.get(UI_VARIABLE) == "1" and (pages := pages_of(spark)):
        print(f"Spark's pages: {pages}")
    if "dbutils" not in names:  # the job runner brings its own, and handles an exit itself
        _accept_exit()
    dbutils = names.get("dbutils", DbUtils())
    _begin_record(dbutils)
    return spark, dbutils, names.get("display", display)


def _begin_record(dbutils: Any) -> None:
    """Begins the record of the task. Until a notebook makes widgets, there are those of its job alone."""
    with suppress(Exception):  # no widgets in this kind of notebook, or an impossible workdir, which the notebook refuses
        begin(dbutils.widgets.getAll())


@dataclass(frozen=True)
class _Activating:
    """Repairs before each cell what a stopped cell has broken; see :func:`~connectors.spark.session.activate`."""

    spark: SparkSession

    def __call__(self, *_: Any) -> None:
        activate(self.spark)


def _before_each_cell(activating: _Activating) -> None:
    from IPython.core.getipython import get_ipython

    if (shell := get_ipython()) is None:
        return
    for other in shell.events.callbacks["pre_run_cell"].copy():
        if isinstance(other, _Activating):
            shell.events.unregister("pre_run_cell", other)
    shell.events.register("pre_run_cell", activating)


def _accept_exit() -> None:
    """Makes ``dbutils.notebook.exit`` end its cell with success in Jupyter, nbconvert and Papermill."""
    from IPython.core.getipython import get_ipython

    if (shell := get_ipython()) is not None:
        show_messages(NotebookExit)
        if _succeed_on_exit not in shell.events.callbacks["post_run_cell"]:
            shell.events.register("post_run_cell", _succeed_on_exit)


def _succeed_on_exit(result: Any) -> None:
    if isinstance(result.error_in_exec, NotebookExit):
        result.error_in_exec = None


def _of_runtime(name: str, names: Mapping[str, Any]) -> Any:
    """A name that the runtime gives to notebooks, from the places where known runtimes put it."""
    if name in names:
        return names[name]
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    return (shell.user_ns if shell else {}).get(name) or getattr(builtins, name)
