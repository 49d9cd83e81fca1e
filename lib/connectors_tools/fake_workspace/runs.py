"""Runs of the fake workspace: each one runs what is deployed, by the local runner, and has the states of the Jobs service."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from connectors.workbench.settings import VOLUMES_VARIABLE, library

from ..bundle.resources import library_paths

_OF_THIS_MACHINE: Final = ("the executed notebook: ", "the full traceback: ", "all that Spark said: ")
_SKIPPED: Final = frozenset({"MAXIMUM_CONCURRENT_RUNS_REACHED"})
_FAILURE: Final = "Workload failed, see run output for details"
"""The message of the service on a task that failed; the error itself is in the run's output."""


@dataclass
class TaskRun:
    """One task of a run: its own ``run_id``, and how far it is; times in milliseconds since 1970."""

    run_id: int
    key: str
    settings: Mapping[str, Any]
    state: str = "PENDING"
    started: int = 0
    ended: int = 0
    report: str = ""
    said: str = ""

    def document(self, url: str) -> dict[str, Any]:
        """The task as ``runs/get`` shows it."""
        shown = {name: value for name, value in self.settings.items() if name not in ("task_key", "disabled")}
        pages = {"run_page_url": f"{url}/run/{self.run_id}", "attempt_number": 0}
        message = _FAILURE if self.state == "FAILED" else ""
        return {
            **shown, **pages, "run_id": self.run_id, "task_key": self.key, "start_time": self.started, "end_time": self.ended,
            "execution_duration": max(0, self.ended - self.started), **_states(self.state, message),
        }  # fmt: skip


@dataclass
class JobRun:
    """One run of a job, or of tasks that were submitted by themselves (``job_id`` 0)."""

    run_id: int
    job_id: int
    name: str
    tasks: dict[str, TaskRun]
    parameters: list[dict[str, str]]
    user: str
    only: Sequence[str] = ()
    state: str = "PENDING"
    message: str = ""
    started: int = field(default_factory=lambda: int(time.time() * 1000))
    ended: int = 0
    folder: Path = Path()
    process: subprocess.Popen[str] | None = None
    is_canceled: bool = False

    @property
    def is_active(self) -> bool:
        return self.ended == 0

    def document(self, url: str, *, with_tasks: bool) -> dict[str, Any]:
        """The run as ``runs/get`` shows it."""
        tasks = {"tasks": [task.document(self.page(url)) for task in self.tasks.values()]} if with_tasks else {}
        kind = "JOB_RUN" if self.job_id else "SUBMIT_RUN"
        return {
            "run_id": self.run_id, "job_id": self.job_id, "run_name": self.name, "run_type": kind, "trigger": "ONE_TIME",
            "creator_user_name": self.user, "run_page_url": self.page(url), "start_time": self.started, "end_time": self.ended,
            "run_duration": max(0, self.ended - self.started), "job_parameters": self.parameters, "format": "MULTI_TASK",
            **_states(self.state, self.message, of_job=True), **tasks,
        }  # fmt: skip

    def page(self, url: str) -> str:
        return f"{url}/jobs/{self.job_id}/runs/{self.run_id}"


def _states(state: str, message: str, *, of_job: bool = False) -> dict[str, Any]:
    """The state in the old form of the API and in the new one."""
    if state in ("PENDING", "RUNNING", "TERMINATING"):
        return {"state": {"life_cycle_state": state, "state_message": ""}, "status": {"state": state}}
    broken = of_job and state == "FAILED"
    cycle = "SKIPPED" if state in _SKIPPED else "INTERNAL_ERROR" if broken else "TERMINATED"
    is_good = state in ("SUCCESS", "SUCCESS_WITH_FAILURES", "EXCLUDED")
    details = {"code": "SUCCESS" if is_good else "RUN_EXECUTION_ERROR", "message": message}
    details["type"] = "SUCCESS" if is_good else "CLIENT_ERROR"
    return {
        "state": {"life_cycle_state": cycle, "result_state": state, "state_message": message},
        "status": {"state": "TERMINATED", "termination_details": details},
    }


class Runner:
    """Starts runs, each in a process: the deployed library runs the deployed notebooks.

    ``export_to`` writes the files of the workspace below a folder; ``suffix`` tells that of a notebook. ``volumes`` is the
    folder that holds the volumes, ``secrets`` gives the environment variables that stand for secret scopes. ``pipelines`` are
    those of the workspace by id.
    """

    def __init__(
        self,
        folder: Path,
        volumes: Path,
        export_to: Callable[[Path], None],
        suffix: Callable[[str], str],
        secrets: Callable[[], Mapping[str, str]],
        pipelines: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._folder, self._volumes, self._pipelines = folder, volumes, pipelines
        self._export_to, self._suffix, self._secrets = export_to, suffix, secrets
        self._threads: list[threading.Thread] = []
        self.runs: dict[int, JobRun] = {}

    def start(self, run: JobRun, jobs: Mapping[int, Mapping[str, Any]], values: Mapping[str, str]) -> None:
        """Starts ``run``; ``jobs`` are the settings of all jobs by id, ``values`` the parameters of this run."""
        self.runs[run.run_id] = run
        run.folder = self._folder / f"run-{run.run_id}"
        thread = threading.Thread(target=self._run, args=(run, dict(jobs), dict(values)), daemon=True)
        self._threads.append(thread)
        thread.start()

    def cancel(self, run: JobRun) -> None:
        """Asks the process of the run to end; its tasks become CANCELED."""
        run.is_canceled = True
        if run.process is not None:
            run.process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Ends all runs."""
        for run in self.runs.values():
            if run.process is not None and run.process.poll() is None:
                os.killpg(run.process.pid, signal.SIGKILL)
        for thread in self._threads:
            thread.join(timeout=10)

    def executed(self, task: TaskRun, run: JobRun) -> Path | None:
        """The executed notebook of the last attempt of a task."""
        return max(run.folder.glob(f"runs/*/*/{task.key}-*.ipynb"), key=lambda file: file.stat().st_mtime, default=None)

    def _run(self, run: JobRun, jobs: dict[int, Mapping[str, Any]], values: dict[str, str]) -> None:
        try:
            run.state = self._outcome(run, jobs, values)
        except Exception as error:
            run.state, run.message = "FAILED", f"{type(error).__name__}: {error}"
        for task in run.tasks.values():
            if task.ended == 0:
                task.state, task.ended = "CANCELED" if run.is_canceled else "FAILED", _now()
                task.report = task.report or run.message
        failed = next((task for task in run.tasks.values() if task.state == "FAILED"), None)
        if failed is not None and run.state == "FAILED" and not run.message:
            run.message = f"Task {failed.key} failed with message: {_FAILURE}."
        run.ended = _now()

    def _outcome(self, run: JobRun, jobs: dict[int, Mapping[str, Any]], values: dict[str, str]) -> str:
        root = run.folder / "files"
        root.mkdir(parents=True)
        self._export_to(root)
        key = f"job_{run.job_id}"
        (root / "databricks.yml").write_text(json.dumps(self._bundle(root, jobs)))
        arguments = [str(root), key, str(run.folder / "runs"), json.dumps(values), json.dumps(list(run.only))]
        command = [sys.executable, "-m", f"{__package__}.driver", *arguments]
        log = (run.folder / "log").open("w")
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith(("DATABRICKS_", "BUNDLE_VAR_"))
        }
        path = os.pathsep.join([*_deployed_libraries(root), str(library())])  # the runner is the one of this machine
        environment |= {VOLUMES_VARIABLE: str(self._volumes), "PYTHONPATH": path, **self._secrets()}
        run.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True, cwd=root
        )
        if run.is_canceled:
            run.process.send_signal(signal.SIGINT)
        run.state, ended = "RUNNING", ""
        assert run.process.stdout is not None
        for line in run.process.stdout:
            step = _step(line)
            ended = step.get("job", ended)
            if step.get("task") in run.tasks:
                _advance(run.tasks[step["task"]], step)
        run.process.wait()
        log.close()
        shutil.rmtree(root, ignore_errors=True)
        if run.is_canceled:
            return "CANCELED"
        if not ended:
            lines = [line for line in (run.folder / "log").read_text().splitlines() if line.strip()]
            run.message = "\n".join(lines[-1:]) or "The run has ended without a word."
        return ended or "FAILED"

    def _bundle(self, root: Path, jobs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """The jobs and pipelines as a bundle of files: what the local runner reads."""
        by_id: dict[Any, str] = {number: f"job_{number}" for number in jobs}
        resources = {"jobs": {by_id[number]: self._job(root, settings, by_id) for number, settings in jobs.items()}}
        specs = {number: copy.deepcopy(entry["spec"]) for number, entry in list(self._pipelines.items())}
        for spec in specs.values():
            for entry, name in library_paths(spec):
                entry[name] = str(root / entry[name].lstrip("/"))
        resources["pipelines"] = {f"p{number}": spec for number, spec in specs.items()}
        return {"bundle": {"name": "workspace"}, "resources": resources, "targets": {"workspace": {}}}

    def _job(self, root: Path, settings: Mapping[str, Any], by_id: Mapping[Any, str]) -> dict[str, Any]:
        def translated(value: Any, name: str = "") -> Any:
            if isinstance(value, dict):
                return {key: translated(item, key) for key, item in value.items()}
            if isinstance(value, list):
                return [translated(item) for item in value]
            if name == "notebook_path":
                return str(root / value.lstrip("/")) + self._found_suffix(value)
            if name == "pipeline_id":
                return f"${{resources.pipelines.p{value}.id}}"
            return f"${{resources.jobs.{by_id[value]}.id}}" if name == "job_id" and value in by_id else value

        own = {key: value for key, value in settings.items() if key not in ("format", "edit_mode", "deployment")}
        result: dict[str, Any] = translated(own)
        return result

    def _found_suffix(self, path: str) -> str:
        try:
            return self._suffix(path)
        except Exception:  # another job's notebook, or one that was deleted: the runner says so when it is run
            return ".ipynb"


def _deployed_libraries(root: Path) -> list[str]:
    """The ``lib`` folders that were deployed with a whole library."""
    return [str(folder.parents[1]) for folder in sorted(root.glob("**/files/lib/connectors/__init__.py"))[:1]]


def _step(line: str) -> dict[str, Any]:
    try:
        step = json.loads(line)
    except ValueError:
        return {}
    return step if isinstance(step, dict) else {}


def _report(text: str) -> str:
    """The report of a failure without the files of this machine, which a workspace does not name."""
    return "\n".join(line for line in text.splitlines() if not line.startswith(_OF_THIS_MACHINE))


def _advance(task: TaskRun, step: Mapping[str, Any]) -> None:
    task.state = step["state"]
    task.started = task.started or _now()
    if task.state != "RUNNING":
        task.ended, task.report, task.said = _now(), _report(step["report"]), step["said"]


def error_of(report: str) -> str:
    """The error of a failed task: the report up to the place of the failure."""
    return re.split(r"\nin [^\n]+, cell \d+:\n", report, maxsplit=1)[0]


def _now() -> int:
    return int(time.time() * 1000)
