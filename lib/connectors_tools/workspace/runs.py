"""Runs of jobs in a workspace: started, watched to their end, listed, canceled."""

from __future__ import annotations

import re
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Final

from databricks.sdk import WorkspaceClient

from connectors.ground.options import masked

from ..bundle import Reporter, State, check_job, check_only
from ..bundle.live import in_time
from ..bundle.model import GOOD, KINDS, Job
from .client import WorkspaceError, refusals
from .target import Target
from .task_records import TaskRecords

_POLL = 1.0
_SLOW_POLL: Final = 5.0
_SLOW_AFTER: Final = 60.0
_ENDED: Final = frozenset({"TERMINATED", "SKIPPED", "INTERNAL_ERROR"})
_ACTIVE: Final = frozenset({"PENDING", "RUNNING", "QUEUED", "BLOCKED", "TERMINATING", "WAITING_FOR_RETRY"})
GOOD_STATES: Final = frozenset(str(state) for state in GOOD)
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TRACE_LINES: Final = 8


@dataclass(frozen=True)
class TaskStatus:
    """The status of a task: its ``state`` in the service's words, its last attempt's ``run_id``, seconds, and its page.

    ``started`` is in seconds since 1970, 0 before that; ``depends_on`` are the tasks before it, with their outcomes.
    ``attempts`` has the start of each attempt and its end.
    """

    key: str
    state: str
    run_id: int
    seconds: float
    link: str
    message: str = ""
    started: float = 0.0
    kind: str = ""
    depends_on: tuple[tuple[str, str], ...] = ()
    attempts: tuple[tuple[float, float], ...] = ()

    @property
    def is_over(self) -> bool:
        return self.state not in _ACTIVE


@dataclass(frozen=True)
class RunStatus:
    """The status of a run. ``started`` is a UTC time; ``parameters`` are the job's with their values, secrets hidden."""

    run_id: int
    job_id: int
    name: str
    state: str
    started: datetime
    seconds: float
    link: str
    message: str
    tasks: tuple[TaskStatus, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()

    @property
    def is_over(self) -> bool:
        return self.state not in _ACTIVE


def start(
    target: Target, key: str, parameters: Mapping[str, str], only: Collection[str], note: Callable[[str], None]
) -> int:
    """Starts a deployed job and returns the id of its run. An answer that is lost starts no second run.

    Raises :class:`Misconfigured` for parameters that the job cannot have, as a local run does.
    """
    job = target.bundle.job(key)
    findings = check_job(target.bundle, job, parameters)
    findings.enforce(f"job {key}")
    check_only(job, only)
    for problem in findings.notes:
        if problem.option.startswith("--param "):
            note(f"{problem.option}: {problem.text}")
    number = target.job_id(key)
    with refusals(f"job {key}"):
        more: dict[str, Any] = {_parameters_field(job): dict(parameters)} if parameters else {}
        more |= {"only": list(only)} if only else {}
        waiter = target.client.jobs.run_now(number, idempotency_token=uuid.uuid4().hex, **more)
        return int(waiter.run_id)


def status(client: WorkspaceClient, run_id: int) -> RunStatus:
    """The status of a run now."""
    with refusals(f"run {run_id}"):
        return _status(client.jobs.get_run(run_id))


def watch(client: WorkspaceClient, run_id: int, key: str, reporter: Reporter) -> State:
    """Waits for the end of a run and tells of each task that starts and ends, with its error; returns the run's state.

    ``KeyboardInterrupt`` leaves the run as it is.
    """
    shown: dict[str, str] = {}
    began = time.monotonic()
    run = status(client, run_id)
    reporter.line(f"{key}  run {run_id}  {run.link}")
    records = TaskRecords(client, dict(run.parameters), run.started.timestamp())
    reporter.watch(in_time(records.standings))
    with reporter.running(key):
        while True:
            for task in sorted(run.tasks, key=lambda task: (not task.is_over, task.started)):
                if shown.get(task.key) != task.state:
                    shown[task.key] = task.state
                    _tell(client, task, reporter)
            if run.is_over:
                break
            running = [task for task in run.tasks if task.state == "RUNNING"]
            records.since = min((task.started for task in running), default=records.since)
            reporter.doing(key, ", ".join(task.key for task in running) or run.state.lower())
            time.sleep(_POLL if time.monotonic() - began < _SLOW_AFTER else _SLOW_POLL)
            run = status(client, run_id)
    state = State(run.state) if run.state in State.__members__ else State.FAILED
    reporter.ended(key, state, run.seconds, run.message if not run.tasks else "")
    return state


def recent(target: Target, limit: int) -> list[RunStatus]:
    """The latest runs of the target's deployed jobs, the newest first."""

    def of_job(number: int) -> list[RunStatus]:
        with refusals(f"the runs of job {number}"):
            runs = target.client.jobs.list_runs(job_id=number, limit=min(limit, 25))
            return [_status(run) for _, run in zip(range(limit), runs, strict=False)]

    with ThreadPoolExecutor(8) as pool:
        runs = [run for runs in pool.map(of_job, target.job_ids(target.bundle.jobs).values()) for run in runs]
    return sorted(runs, key=lambda run: run.started, reverse=True)[:limit]


def cancel(client: WorkspaceClient, run_id: int) -> None:
    """Asks the service to cancel a run; it ends a little later."""
    with refusals(f"run {run_id}"):
        client.jobs.cancel_run(run_id)


def description(client: WorkspaceClient, run: RunStatus) -> Iterator[str]:
    """A run as lines: its tasks with their states, links and errors."""
    yield f"{run.name}  {run.state}  {run.seconds:.1f} s  started {run.started:%Y-%m-%d %H:%M:%S} UTC  {run.link}"
    for name, value in run.parameters:
        yield f"  {name}={value}"
    for task in run.tasks:
        yield f"  {task.key}  {task.state}  {task.seconds:.1f} s  {task.link}"
        if task.state in _BROKEN:
            yield from (f"      {line}" for line in failure(client, task)[0].splitlines())


def failure(client: WorkspaceClient, task: TaskStatus) -> tuple[str, str]:
    """Why a task failed, with the lines of the cell where it did, and what its notebook said at its exit."""
    try:
        with refusals(f"the output of {task.key}"):
            output = client.jobs.get_run_output(task.run_id)
    except WorkspaceError as refused:  # a condition, a loop, a run that the service has forgotten
        return task.message or str(refused), ""
    said = (output.notebook_output.result or "") if output.notebook_output else ""
    error, trace = output.error or "", _excerpt(output.error_trace or "")
    place = "" if not trace or trace in error else trace.removeprefix(error).strip("\n")
    return "\n".join(part for part in (error or task.message, place) if part), said


_BROKEN: Final = frozenset({"FAILED", "TIMEDOUT", "INTERNAL_ERROR"})


def _tell(client: WorkspaceClient, task: TaskStatus, reporter: Reporter) -> None:
    if not task.is_over:
        if task.state == "RUNNING":
            reporter.line(f"{task.key}  RUNNING  {task.link}")
        return
    state = State(task.state) if task.state in State.__members__ else State.FAILED
    asks = state in GOOD or task.state in _BROKEN
    report, said = failure(client, task) if asks else ("", "")
    reporter.ended(task.key, state, task.seconds, "" if state in GOOD else report, said)


def _status(run: Any) -> RunStatus:
    latest: dict[str, Any] = {}
    attempts: dict[str, list[tuple[float, float]]] = {}
    for task in run.tasks or []:
        key = str(task.task_key)
        if start := (task.start_time or 0) / 1000:
            attempts.setdefault(key, []).append((start, start + _seconds(task)))
        if key not in latest or (task.attempt_number or 0) >= (latest[key].attempt_number or 0):
            latest[key] = task
    tasks = tuple(replace(_task_status(key, task), attempts=tuple(attempts.get(key, ()))) for key, task in latest.items())
    pairs = tuple(
        (item.name or "", masked(item.name or "", item.value if item.value is not None else item.default or ""))
        for item in run.job_parameters or []
    )
    started = datetime.fromtimestamp((run.start_time or 0) / 1000, timezone.utc)
    name, link = run.run_name or f"run {run.run_id}", run.run_page_url or ""
    return RunStatus(
        run.run_id or 0, run.job_id or 0, name, _state(run), started, _seconds(run), link, _message(run), tasks, pairs
    )


def _task_status(key: str, task: Any) -> TaskStatus:
    kind = next((kind for kind in KINDS if getattr(task, kind, None) is not None), "")
    above = tuple((str(other.task_key), str(other.outcome or "")) for other in task.depends_on or [])
    link, started = task.run_page_url or "", (task.start_time or 0) / 1000
    return TaskStatus(key, _state(task), task.run_id or 0, _seconds(task), link, _message(task), started, kind, above)


def _state(run: Any) -> str:
    """The result where there is one, else where the run is."""
    cycle = run.state.life_cycle_state.value if run.state and run.state.life_cycle_state else "PENDING"
    result = run.state.result_state.value if run.state and run.state.result_state else ""
    return result or ("FAILED" if cycle == "INTERNAL_ERROR" else cycle) if cycle in _ENDED else cycle


def _message(run: Any) -> str:
    return (run.state.state_message or "") if run.state else ""


def _seconds(run: Any) -> float:
    if not run.start_time:
        return 0.0
    end = run.end_time or time.time() * 1000
    return float(max(0.0, (end - run.start_time) / 1000))


def _parameters_field(job: Job) -> str:
    """The field for the values of a run: a job without parameters of its own hands them to its notebooks."""
    return "job_parameters" if job.parameters else "notebook_params"


def _excerpt(trace: str) -> str:
    """The lines of a traceback around the one that failed, without colours; short ones whole."""
    lines = [_ANSI.sub("", line).rstrip() for line in trace.splitlines()]
    lines = [line for line in lines if line and not set(line) <= {"-"}]
    at = next((n for n, line in enumerate(lines) if re.match(r"-+> ", line)), None)
    if at is not None:
        return "\n".join(lines[max(0, at - 2) : at + 3])
    return "\n".join(lines if len(lines) <= _TRACE_LINES + 4 else lines[-_TRACE_LINES:])


def is_terminal() -> bool:
    """True where a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()
