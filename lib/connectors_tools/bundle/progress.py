"""The messages of a run to a person: its folder, a line for each task that ended, the task that runs now, and errors.

An error is its own message first, then the place of the failure, then nothing more.
"""

from __future__ import annotations

import fcntl
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, TextIO

from connectors.ground.errors import Misconfigured, Problem
from connectors.ground.messages import own_message, without_stacks, worker_message

from .execution import CellFailure
from .live import Activity, LiveLine, RepeatedLine, Standings
from .model import State

_LINES: Final = 12
_WIDTH: Final = 400
_AROUND: Final = 2


def message(error: BaseException) -> str:
    """The error's message without stack traces; of an error inside a Spark worker, that error's own message."""
    full = own_message(error) or _foreign_message(error)
    lines = [line[:_WIDTH] for line in full.splitlines()]
    more = [f"… {len(lines) - _LINES} more lines in the executed notebook"] if len(lines) > _LINES else []
    return "\n".join([*lines[:_LINES], *more])


def _foreign_message(error: BaseException) -> str:
    text = str(error).strip()
    inner = worker_message(text)
    text = inner or without_stacks(text)
    name = type(error).__name__
    return text if inner or text.startswith(name) else f"{name}: {text}" if text else name


def excerpt(failure: CellFailure) -> str:
    """The lines of the cell around the one that failed, which is marked."""
    lines = failure.source.splitlines()
    at = min(failure.line or 1, len(lines))
    first = max(1, at - _AROUND)
    shown = enumerate(lines[first - 1 : at + _AROUND], start=first)
    return "\n".join(f"{'>' if number == at and failure.line else ' '} {number:3} {line}" for number, line in shown)


def cell_report(failure: CellFailure, notebook: str, executed: str, log: str) -> str:
    """The whole report of a failing cell; the ``log`` has what Python and Spark say of it."""
    where = f"in {notebook}, cell {failure.number}:\n{excerpt(failure)}"
    return f"{message(failure.error)}\n{where}\nthe executed notebook: {executed}\nthe full traceback: {log}"


def in_brief(report: str) -> list[str]:
    """The first lines of a report, and the line of the cell that failed."""
    first, rest = report.splitlines()[:2], report.splitlines()[2:]
    return [*first, *(line for line in rest if line.startswith(">"))]


def log_traceback(error: BaseException, log: Path) -> None:
    """Appends the full traceback of ``error`` to the log of a run."""
    with log.open("a", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)


_POLL: Final = 0.5


def run_folder(job: Path) -> Path:
    """A new folder for a run, named by its time (UTC). Raises :class:`Misconfigured` when it cannot be made."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    for name in (stamp, *(f"{stamp}-{n}" for n in range(2, 1000))):
        try:
            (job / name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as refused:
            raise _cannot_write(job, refused) from refused
        return job / name
    raise _cannot_write(job, OSError("a thousand runs in one second"))


@contextmanager
def reserved_run(places: int, job: Path, queued: bool, reporter: Reporter) -> Iterator[bool]:
    """Holds one of ``places`` of a job while it runs; False when none is free and the job is not ``queued``."""
    try:
        job.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise _cannot_write(job, refused) from refused
    with ExitStack() as stack:
        is_noted = False
        while not (free := _take(max(1, places), job, stack)) and queued:
            if not is_noted:
                reporter.note(f"{job.name}: waiting for another run of it to end (max_concurrent_runs: {places})")
            is_noted = True
            time.sleep(_POLL)
        yield free


def _take(places: int, job: Path, stack: ExitStack) -> bool:
    for place in range(places):
        try:
            file = (job / f".running-{place}").open("w")
        except OSError as refused:
            raise _cannot_write(job, refused) from refused
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            stack.enter_context(file)
            return True
    return False


def _cannot_write(folder: Path, refused: OSError) -> Misconfigured:
    text = f"cannot be written: {refused.strerror or refused}. Name another folder by --runs."
    return Misconfigured("the run", [Problem(str(folder), text)])


_LONGEST_WORDS = 120


class Reporter:
    """Plain lines to ``out``; ``quiet`` leaves out notes and the live line of a terminal, ``verbose`` adds remarks.

    Where ``out`` is no terminal, a line every ten seconds takes the place of the live line. ``indent`` is the depth of what
    runs inside a task: iterations of a loop, the tasks of a job run by a task.
    """

    def __init__(self, out: TextIO | None = None, quiet: bool = False, indent: int = 0, verbose: bool = False) -> None:
        self._out = out or sys.stdout
        self._quiet = quiet
        self._verbose = verbose
        self._margin = "  " * indent
        self._indent = indent
        self._live: LiveLine | RepeatedLine | None = None
        self._standings: Standings = tuple

    def line(self, text: str) -> None:
        """A line, or several, at this depth."""
        shown = "\n".join(self._margin + line for line in text.splitlines())
        if self._live is not None:
            self._live.above(shown)
        else:
            print(shown, file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Something worth knowing that is no failure."""
        if not self._quiet:
            self.line(f"note: {text}")

    def remark(self, text: str) -> None:
        """Something that is so in each run of the job; ``validate`` says it too."""
        if self._verbose:
            self.note(text)

    def ended(self, key: str, state: State, seconds: float, report: str = "", said: str = "") -> None:
        """The one line of a task or job that has ended, with what its notebook ``said``; below it the report of its failure."""
        words = " ".join(said.split())
        end = f"{key}  {state}  {seconds:.1f} s" + (f"  {words[:_LONGEST_WORDS]}" if words else "")
        self.line("\n".join([end, *(f"    {line}" for line in report.splitlines())]))

    def files(self, place: str, counts: Mapping[str, int]) -> None:
        """Says how many files of each kind a run has left in ``place``, its page or its folder."""
        kinds = [f"{count} {kind}" + ("" if count == 1 else "s") for kind, count in counts.items() if count]
        if kinds and not self._quiet:
            self.line(f"{place}: {', '.join(kinds)}")

    def doing(self, label: str, detail: str = "") -> None:
        """Shows what the task ``label`` does right now."""
        if self._live is not None:
            self._live.activity.label, self._live.activity.detail = label, detail

    def watch(self, standings: Standings) -> None:
        """From now on shows where queries stand while a task runs."""
        self._standings = standings

    def inside(self) -> Reporter:
        """A reporter one step deeper, with the same live line."""
        inner = Reporter(self._out, self._quiet, self._indent + 1, self._verbose)
        inner._live, inner._standings = self._live, self._standings
        return inner

    @contextmanager
    def running(self, label: str) -> Iterator[None]:
        """Shows the task ``label`` as running, with the time since its start and its queries."""
        if self._quiet or self._live is not None:
            yield
            return
        activity = Activity(label, self._standings)
        with (LiveLine if self._out.isatty() else RepeatedLine)(self._out, activity) as self._live:
            try:
                yield
            finally:
                self._live = None
