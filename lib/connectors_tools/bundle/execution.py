"""Runs one notebook in this process: a fresh namespace, its own folder, its outputs written to a copy, within time limits.

A recorder takes what the notebook prints and shows into its cells' outputs. A time limit interrupts the running cell, also a
call into Spark that waits for an answer.
"""

from __future__ import annotations

import atexit
import copy
import io
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nbformat
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from nbformat import NotebookNode, v4
from traitlets import Type
from traitlets.config import Config

from connectors.workbench.shim import NotebookExit

from .notebooks import Notebook, with_headings

_AGAIN: Final = 5.0
"""Seconds after which the interruption is repeated, in case a bare ``except:`` of the notebook took it."""


@dataclass(frozen=True, eq=False)
class Limit:
    """A moment (of ``time.monotonic``) at which ``what`` must have ended; ``seconds`` is the limit as configured."""

    what: str
    seconds: float
    at: float

    @property
    def left(self) -> float:
        """Seconds that are left, never negative."""
        return max(0.0, self.at - time.monotonic())


class Expired(BaseException):
    """Raised in the main thread when ``limit`` has passed. No ``Exception``: a notebook must not swallow it."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(f"{limit.what} was stopped after {limit.seconds:g} s (timeout_seconds)")
        self.limit = limit


@dataclass(frozen=True)
class RunLimits:
    """The limits that hold at one place, of the job, a loop, an attempt; the earliest one counts."""

    all: tuple[Limit, ...] = ()

    def within(self, what: str, seconds: float) -> tuple[RunLimits, Limit | None]:
        """These limits and one more from now on; ``seconds`` of 0 adds none."""
        if seconds <= 0:
            return self, None
        limit = Limit(what, seconds, time.monotonic() + seconds)
        return RunLimits((*self.all, limit)), limit

    @property
    def first(self) -> Limit | None:
        """The limit that passes first."""
        return min(self.all, key=lambda limit: limit.at, default=None)

    def check(self) -> None:
        """Raises :class:`Expired` when a limit has passed."""
        if self.first is not None and self.first.left == 0:
            raise Expired(self.first)

    def sleep(self, seconds: float) -> None:
        """Waits, at most until the first limit; then raises :class:`Expired`."""
        limit = self.first
        time.sleep(max(0.0, seconds) if limit is None else min(max(0.0, seconds), limit.left))
        self.check()


def interruptible() -> None:
    """Lets Ctrl-C raise ``KeyboardInterrupt`` at once.

    Spark's own handler first asks the JVM to cancel its jobs, over the very connection on which the interrupted call
    is still waiting for its answer; the runner cancels them afterwards, over another one.
    """
    if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def enforced(limits: RunLimits) -> Iterator[None]:
    """Raises :class:`Expired` inside the block when a limit passes.

    This takes the process's alarm signal, so it works in the main thread; elsewhere limits are seen between cells only.
    """
    limits.check()
    limit = limits.first
    if limit is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(number: int, frame: Any) -> None:
        raise Expired(limit)

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, max(limit.left, 0.001), _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class OutputRecorder:
    """Collects outputs into the cell that is running; what comes late, from a thread, goes to the last one."""

    def __init__(self) -> None:
        self._outputs: list[NotebookNode] = []
        self._shown: dict[str, NotebookNode] = {}
        self._lock = threading.RLock()

    def into(self, cell: NotebookNode) -> None:
        """From now on outputs belong to ``cell``, whose old ones are dropped."""
        cell.outputs = self._outputs = []

    def stream(self, name: str, text: str) -> None:
        """Text that was printed to ``stdout`` or ``stderr``."""
        with self._lock:
            last = self._outputs[-1] if self._outputs else None
            if last is not None and last.output_type == "stream" and last.name == name:
                last.text += text
            else:
                self._outputs.append(v4.new_output("stream", name=name, text=text))

    def show(self, data: Mapping[str, Any], metadata: Mapping[str, Any], display_id: str | None, update: bool) -> None:
        """Something displayed; ``update`` replaces what was shown under ``display_id``."""
        with self._lock:
            if update and display_id in self._shown:
                self._shown[display_id].update(data=_plain(data), metadata=dict(metadata))
                return
            output = v4.new_output("display_data", data=_plain(data), metadata=dict(metadata))
            self._outputs.append(output)
            if display_id is not None:
                self._shown[display_id] = output

    def result(self, data: Mapping[str, Any], metadata: Mapping[str, Any], count: int) -> None:
        """The value of a cell's last expression."""
        output = v4.new_output("execute_result", data=_plain(data), metadata=dict(metadata), execution_count=count)
        with self._lock:
            self._outputs.append(output)

    def error(self, name: str, value: str, traceback: list[str]) -> None:
        """The error that ended a cell."""
        with self._lock:
            self._outputs.append(v4.new_output("error", ename=name, evalue=value, traceback=traceback))

    def clear(self) -> None:
        """Drops the outputs of the running cell."""
        with self._lock:
            self._outputs.clear()


class Stream(io.TextIOBase):
    """``sys.stdout`` or ``sys.stderr`` of a running notebook."""

    def __init__(self, name: str, recorder: OutputRecorder) -> None:
        self.name = name
        self._recorder = recorder

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text:
            self._recorder.stream(self.name, str(text))
        return len(text)


class Publisher(DisplayPublisher):
    """IPython's way of showing things, into a recorder."""

    recorder: OutputRecorder

    def publish(self, data: Any, metadata: Any = None, source: Any = None, **more: Any) -> None:
        self.recorder.show(data, metadata or {}, (more.get("transient") or {}).get("display_id"), bool(more.get("update")))

    def clear_output(self, wait: bool = False) -> None:
        self.recorder.clear()


class ResultHook(DisplayHook):
    """IPython's way of showing a cell's result, into a recorder."""

    recorder: OutputRecorder

    def start_displayhook(self) -> None:
        """Nothing is written before a result."""

    def write_output_prompt(self) -> None:
        """A notebook shows its prompt by itself."""

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        self.recorder.result(format_dict, md_dict or {}, self.prompt_count)

    def finish_displayhook(self) -> None:
        """Nothing is written after a result."""


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """The form of outputs in a notebook file: images as text of base64."""
    import base64

    return {
        kind: base64.encodebytes(value).decode("ascii") if isinstance(value, bytes) else value
        for kind, value in data.items()
    }


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

    def take(self, recorder: OutputRecorder) -> None:
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
    limits: RunLimits,
    on_cell: Callable[[int, int, str], None],
) -> CellFailure | str:
    """Runs all code cells, with ``names`` defined before the first one, and writes the executed notebook to ``target``.

    Returns the failure, or what ``dbutils.notebook.exit`` was given, empty where it was not called.
    ``on_cell(number, total, heading)`` is called before each cell, with the heading above it. Raises :class:`Expired` when a
    limit passes; the outputs up to there are written all the same.
    """
    document = copy.deepcopy(notebook.content)
    recorder = OutputRecorder()
    try:
        with _own_environment(notebook.path), _printing_to(recorder), _shell(recorder, names) as shell, enforced(limits):
            return _run_cells(shell, recorder, document, on_cell, limits)
    finally:
        nbformat.write(document, target)


def _run_cells(
    shell: Any, recorder: OutputRecorder, document: Any, on_cell: Callable[[int, int, str], None], limits: RunLimits
) -> CellFailure | str:
    cells = [(cell, heading) for cell, heading in with_headings(document) if cell.cell_type == "code"]
    for cell, _ in cells:
        cell.outputs, cell.execution_count = [], None
    for number, (cell, heading) in enumerate(cells, start=1):
        if not cell.source.strip():
            continue
        on_cell(number, len(cells), heading)
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
    """The error that interrupted the cell; ``None`` if none did.

    Where it broke off a call into Spark, that call's own clean-up may have failed over it.
    """
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
def _shell(recorder: OutputRecorder, names: Mapping[str, Any]) -> Iterator[_Shell]:
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
def _printing_to(recorder: OutputRecorder) -> Iterator[None]:
    with redirect_stdout(Stream("stdout", recorder)), redirect_stderr(Stream("stderr", recorder)):
        yield


@contextmanager
def _own_environment(notebook: Path) -> Iterator[None]:
    """The folder, the search path, the modules and the environment of one notebook; the next one finds them as they were."""
    folder, path, environment, modules = os.getcwd(), list(sys.path), dict(os.environ), set(sys.modules)
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
        for name in _modules_of(notebook.parent, set(sys.modules) - modules):
            del sys.modules[name]


def _modules_of(folder: Path, names: set[str]) -> Iterator[str]:
    """Those of the modules that come from ``folder``: the next notebook may have others of the same names beside it."""
    beside = {path.stem for path in folder.glob("*")}
    for name in names:
        top = name.partition(".")[0]
        if top in beside:
            module = sys.modules[name]
            files = [file for file in (getattr(module, "__file__", None), *getattr(module, "__path__", ())) if file]
            if any(Path(file) == folder / f"{top}.py" or Path(file).is_relative_to(folder / top) for file in files):
                yield name


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
