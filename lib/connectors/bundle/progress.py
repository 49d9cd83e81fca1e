"""What a person sees while a job runs: one plain line per ended task, and on a terminal what is running now."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from .states import State

_LONGEST_WORDS = 120


class Reporter:
    """Plain lines to ``out``; ``quiet`` leaves out notes and the live line of a terminal.

    ``indent`` is the depth of what runs inside a task: iterations of a loop, the tasks of a job run by a task.
    """

    def __init__(self, out: TextIO | None = None, quiet: bool = False, indent: int = 0) -> None:
        self._out = out or sys.stdout
        self._quiet = quiet
        self._margin = "  " * indent
        self._indent = indent
        self._live: _LiveLine | None = None

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

    def ended(self, key: str, state: State, seconds: float, report: str = "", said: str = "") -> None:
        """The one line of a task or job that has ended, with what its notebook ``said``; below it the report of its failure."""
        words = " ".join(said.split())
        end = f"{key}  {state}  {seconds:.1f} s" + (f"  {words[:_LONGEST_WORDS]}" if words else "")
        self.line("\n".join([end, *(f"    {line}" for line in report.splitlines())]))

    def doing(self, what: str) -> None:
        """Says on a terminal what is going on right now."""
        if self._live is not None:
            self._live.show(what)

    def inside(self) -> Reporter:
        """A reporter one step deeper, with the same live line."""
        inner = Reporter(self._out, self._quiet, self._indent + 1)
        inner._live = self._live
        return inner

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Shows ``what`` as running, with the time since its start, when this is a terminal."""
        if self._quiet or self._live is not None or not self._out.isatty():
            yield
            return
        with _LiveLine(self._out, what) as self._live:
            try:
                yield
            finally:
                self._live = None


class _LiveLine:
    """The last line of a terminal: a spinner, what is running, and for how long."""

    def __init__(self, out: TextIO, what: str) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        # Only our own lines go through rich: a notebook's output is taken elsewhere and must stay untouched.
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=out),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._row = self._progress.add_task(what)

    def show(self, what: str) -> None:
        self._progress.update(self._row, description=what)

    def above(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> _LiveLine:
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start
