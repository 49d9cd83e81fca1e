"""Runs one job of a folder by the local runner, in a process of its own, and tells each step as a line of JSON.

``driver.py FOLDER JOB RUNS PARAMETERS ONLY``. The folder holds a bundle; the lines are
``{"task": …, "state": "RUNNING"}``, ``{"task": …, "state": "FAILED", "seconds": …, "report": …, "said": …}`` and, last, the
job's own ``{"job": "SUCCESS"}``.
"""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from connectors_tools.bundle import Reporter, State, load, run_job


class _Steps(Reporter):
    """Tells the states of a job's tasks; what happens inside a task is left out."""

    def __init__(self, out: TextIO, job: str) -> None:
        super().__init__(io.StringIO(), quiet=True)
        self._steps = out
        self._job = job

    def ended(self, key: str, state: State, seconds: float, report: str = "", said: str = "") -> None:
        if key != self._job:
            self._tell(task=key, state=str(state), seconds=seconds, report=report, said=said)

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        self._tell(task=what, state="RUNNING")
        yield

    def inside(self) -> Reporter:
        return Reporter(io.StringIO(), quiet=True)

    def _tell(self, **step: Any) -> None:
        print(json.dumps(step), file=self._steps, flush=True)


def main(folder: str, job: str, runs: str, parameters: str, only: str) -> None:
    """Runs the job; an interruption cancels it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = sys.stdout
    state = run_job(load(Path(folder)), job, json.loads(parameters), _Steps(out, job), Path(runs), json.loads(only))
    print(json.dumps({"job": str(state)}), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
