"""Runs one notebook in this process: a fresh namespace, its own folder, its outputs written to a copy."""

from __future__ import annotations

import atexit
import copy
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets import Type
from traitlets.config import Config

from connectors.workbench.shim import NotebookExit

from .capture import Publisher, Recorder, ResultHook, Stream
from .limits import Expired, Limits, enforced, interruptible
from .notebooks import Notebook

_INLINE = "module://matplotlib_inline.backend_inline"


@dataclass(frozen=True)
class CellFailure:
    """A cell that ended with an error; ``number`` counts code cells from 1, as ``In [1]`` does."""

    number: int
    source: str
    line: int | None
    error: BaseException


class _Shell(InteractiveShell):
    """IPython without a terminal: what it shows goes to a recorder."""

    display_pub_class = Type(Publisher)
    displayhook_class = Type(ResultHook)

    def take(self, recorder: Recorder) -> None:
        self.recorder = recorder
        parts: list[Any] = [self.display_pub, self.displayhook]
        for part in parts:
            part.recorder = recorder

    def enable_gui(self, gui: Any = None) -> None:
        """There is no window to serve."""

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        if not isinstance(evalue, NotebookExit):
            lines = stb if isinstance(stb, list) else [str(stb)]
            self.recorder.error(getattr(etype, "__name__", str(etype)), str(evalue), lines)


def execute(
    notebook: Notebook,
    names: Mapping[str, Any],
    target: Path,
    limits: Limits,
    on_cell: Callable[[int, int, str], None],
) -> CellFailure | str:
    """Runs all code cells, with ``names`` defined before the first one, and writes the executed notebook to ``target``.

    Returns the failure, or what ``dbutils.notebook.exit`` was given, empty where it was not called.
    ``on_cell(number, total, source)`` is called before each cell. Raises :class:`Expired` when a limit passes; the outputs
    up to there are written all the same.
    """
    document = copy.deepcopy(notebook.content)
    recorder = Recorder()
    try:
        with _own_world(notebook.path), _printing_to(recorder), _shell(recorder, names) as shell, enforced(limits):
            return _run_cells(shell, recorder, document, on_cell, limits)
    finally:
        nbformat.write(document, target)


def _run_cells(
    shell: Any, recorder: Recorder, document: Any, on_cell: Callable[[int, int, str], None], limits: Limits
) -> CellFailure | str:
    cells = [cell for cell in document.cells if cell.cell_type == "code"]
    for cell in cells:
        cell.outputs, cell.execution_count = [], None
    for number, cell in enumerate(cells, start=1):
        if not cell.source.strip():
            continue
        on_cell(number, len(cells), cell.source)
        recorder.into(cell)
        limits.check()
        interruptible()
        shell.execution_count = cell.execution_count = number  # In [n] is the n-th cell, also after an empty one
        error = _error(shell.run_cell(cell.source, store_history=True))
        if isinstance(error, NotebookExit):
            recorder.stream("stdout", f"Notebook exited: {error.value}\n")
            return error.value
        if interruption := _interruption(error):
            raise interruption
        if error is not None:
            return CellFailure(number, cell.source, _line(error, shell), error)
    return ""


def _error(result: ExecutionResult) -> BaseException | None:
    return result.error_before_exec or result.error_in_exec


def _interruption(error: BaseException | None) -> BaseException | None:
    """What interrupted the cell. Where it broke off a call into Spark, that call's own clean-up may have failed over it."""
    while error is not None and not isinstance(error, (Expired, KeyboardInterrupt)):
        error = error.__context__
    return error


def _line(error: BaseException, shell: _Shell) -> int | None:
    """The line of the cell that was running: the innermost frame of the notebook itself."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals is shell.user_ns and trace.tb_frame.f_code.co_name == "<module>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


@contextmanager
def _shell(recorder: Recorder, names: Mapping[str, Any]) -> Iterator[_Shell]:
    """A shell of its own; the modules and hooks that IPython replaces are put back afterwards."""
    main, hooks = sys.modules.get("__main__"), (sys.displayhook, sys.excepthook)
    with tempfile.TemporaryDirectory(prefix="connectors-ipython-") as folder:
        settings = Config()
        settings.HistoryManager.enabled = False
        settings.HistoryAccessor.enabled = False
        settings.InteractiveShell.ipython_dir = folder
        _Shell.clear_instance()
        shell: Any = _Shell.instance(config=settings)
        try:
            shell.take(recorder)
            shell.push(dict(names))
            _plot_inline(shell)
            yield shell
        finally:
            _close_figures()
            atexit.unregister(shell.atexit_operations)  # it keeps all that the notebook has made until the process ends
            _Shell.clear_instance()
            sys.displayhook, sys.excepthook = hooks
            if main is not None:
                sys.modules["__main__"] = main


@contextmanager
def _printing_to(recorder: Recorder) -> Iterator[None]:
    with redirect_stdout(Stream("stdout", recorder)), redirect_stderr(Stream("stderr", recorder)):
        yield


@contextmanager
def _own_world(notebook: Path) -> Iterator[None]:
    """The folder, the search path and the environment of one notebook; the next one finds them as they were."""
    folder, path, environment = os.getcwd(), list(sys.path), dict(os.environ)
    os.chdir(notebook.parent)
    sys.path.insert(0, str(notebook.parent))
    os.environ["MPLBACKEND"] = _INLINE
    try:
        yield
    finally:
        os.chdir(folder)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)


def _plot_inline(shell: Any) -> None:
    """Figures of this shell become pictures, where an earlier notebook has loaded matplotlib already."""
    if "matplotlib.pyplot" in sys.modules:
        from matplotlib_inline import backend_inline

        support: Any = backend_inline.configure_inline_support
        support.current_backend = "unset"  # else it takes the work for done, for the earlier shell
        shell.enable_matplotlib("inline")


def _close_figures() -> None:
    if "matplotlib.pyplot" in sys.modules:
        with suppress(Exception):
            sys.modules["matplotlib.pyplot"].close("all")
