"""Runs notebooks for other notebooks that test them, and kills the drivers of notebooks and functions.

A test runs the pipeline itself, with scratch names as parameters, so it also tests the edits of its reader::

    run_notebook("orders", {"workdir": scratch, "incoming": f"{scratch}/incoming"})
    kill_notebook("orders", {…}, when=lambda: Path(scratch, "checkpoint/offsets/1").exists())
"""

from __future__ import annotations

import contextlib
import inspect
import io
import linecache
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ..ground.errors import Misconfigured, Problem
from ..workbench.bootstrap import code_cells
from ..workbench.settings import library, python_path
from ..workbench.shim import DbUtils, NotebookExit

_POLL_SECONDS: Final = 0.01
_LOG: Final = 3000


def run_notebook(name: str, parameters: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs the code cells of the notebook ``name`` in this process, with this Spark session, and returns its variables.

    ``name`` is a path from the working directory, with or without ``.ipynb``, or else the name of a template of this
    repository. ``parameters`` are those of ``dbutils.widgets``. Cells are plain Python, without magics. The notebook's output
    is dropped. Raises the error of a cell, and :class:`Misconfigured` if there is no such notebook.
    """
    path = _notebook_path(name)
    variables: dict[str, Any] = {
        "__name__": "__main__",  # Spark pickles classes and functions of this module by value
        "dbutils": DbUtils(parameters),
        "display": _drop,
    }
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(NotebookExit):
        for number, source in enumerate(code_cells(path), start=1):
            title = f"<{path.name}, cell {number}>"
            linecache.cache[title] = (len(source), None, source.splitlines(keepends=True), title)  # lines of tracebacks
            exec(compile(source, title, "exec"), variables)
    return variables


def kill_notebook(name: str, parameters: Mapping[str, str], when: Callable[[], bool]) -> None:
    """Runs a notebook in a process with its own Spark session, and kills both (``kill -9``) as soon as ``when()`` is true.

    Raises ``RuntimeError`` with the end of its output if the notebook ends before that.
    """
    program = f"from {__name__} import run_notebook; run_notebook({str(_notebook_path(name))!r}, {dict(parameters)!r})"
    _kill(name, program, when)


def kill_driver(function: Callable[..., Any], arguments: Mapping[str, Any], when: Callable[[], bool]) -> None:
    """Calls ``function(spark, **arguments)`` in a new driver, and kills it (``kill -9``) as soon as ``when()`` is true.

    The function must import its modules itself; the arguments are literals of Python. Raises ``RuntimeError`` with the end of
    its output if the driver ends before that.
    """
    imports = "from __future__ import annotations\nfrom connectors import workbench"
    source = textwrap.dedent(inspect.getsource(function))
    call = f"{function.__name__}(workbench.session(), **{dict(arguments)!r})"
    _kill(function.__name__, f"{imports}\n\n{source}\n\n{call}\n", when)


def _kill(name: str, program: str, when: Callable[[], bool]) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path()}
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as script:
        script.write(program.encode())  # the arguments may have secrets, and anybody can see a command line
        script.seek(0)
        command = [sys.executable, "-"]
        driver = subprocess.Popen(command, stdin=script, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            while not when():
                if driver.poll() is not None:
                    log.seek(0)
                    text = log.read().decode(errors="replace")[-_LOG:]
                    raise RuntimeError(f"{name} ended with {driver.returncode} before it was killed:\n{text}")
                time.sleep(_POLL_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def _notebook_path(name: str) -> Path:
    file = name if name.endswith(".ipynb") else f"{name}.ipynb"
    folders = (Path.cwd(), library().parent / "notebooks" / "templates")
    for folder in folders:
        if (folder / file).is_file():
            return (folder / file).absolute()
    text = f"there is no {file} in {' or '.join(map(str, folders))}; give the path of a notebook."
    raise Misconfigured("the proof", [Problem("pipeline", text)])


def _drop(content: Any, *_: Any, **__: Any) -> None:
    """``display`` that shows nothing, and closes a figure."""
    if "matplotlib.pyplot" in sys.modules and type(content).__name__ == "Figure":
        sys.modules["matplotlib.pyplot"].close(content)
