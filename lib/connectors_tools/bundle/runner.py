"""Runs a job: its tasks one at a time, each when its turn has come and its conditions are met.

:mod:`.tasks` has what an attempt at a task does; the run of the job decides on conditions, retries and time limits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

from connectors.ground.messages import is_permanent

from .checks import check_job, check_only
from .declarative import LOG
from .engine import NotebookEngine
from .execution import Expired, RunLimits
from .live import Clock
from .loading import Bundle
from .model import (
    CONDITION,
    GOOD,
    PIPELINE,
    RUN_JOB,
    Job,
    State,
    Task,
    failed,
    in_order,
    instead_of_running,
    job_state,
    leaves,
    upstream,
)
from .progress import Reporter, in_brief, message, reserved_run, run_folder
from .record import PAGE, RunRecorder
from .references import Scope, replaced
from .tasks import Attempt, TaskOutcome, run_once, short_path

OnPage = Callable[[Path], object]
"""A function that is called with the page of a run."""


@dataclass(frozen=True)
class Ended:
    """A task that has ended, after how many attempts, or that did not run at all (0)."""

    state: State
    run_id: int = 0
    attempts: int = 0
    outcome: TaskOutcome = field(default_factory=lambda: TaskOutcome(State.SUCCESS))


def run_job(
    bundle: Bundle,
    key: str,
    parameters: Mapping[str, str] | None = None,
    reporter: Reporter | None = None,
    runs: Path | None = None,
    only: Collection[str] = (),
    on_page: OnPage | None = None,
) -> State:
    """Runs the job ``key`` and returns its state.

    ``parameters`` win over the job's defaults. Executed notebooks are written below ``runs``, by default the folder
    ``runs`` beside ``databricks.yml``. ``only`` runs just these tasks, without looking at conditions. With ``on_page``
    the page of the run is written, too, and handed to it. Raises :class:`Misconfigured` with everything that is wrong, before
    anything starts.
    """
    reporter = reporter or Reporter()
    job = bundle.job(key)
    findings = check_job(bundle, job, parameters)
    bundle.findings.enforce("the bundle")
    findings.enforce(f"job {key}", local=True)
    check_only(job, only)
    for note in findings.notes:
        is_of_call = note.option.startswith("--param ")
        (reporter.note if is_of_call else reporter.remark)(f"{note.option}: {note.text}")
    with reserved_run(job.max_concurrent_runs, (runs or bundle.root / "runs") / key, job.queued, reporter) as free:
        if not free:
            reporter.ended(key, State.MAXIMUM_CONCURRENT_RUNS_REACHED, 0.0)
            return State.MAXIMUM_CONCURRENT_RUNS_REACHED
        folder = run_folder((runs or bundle.root / "runs") / key)
        engine = NotebookEngine(folder / "spark.log")
        reporter.watch(engine.standings)
        if on_page:
            # The import takes a second, in which a run waits for Spark anyway.
            threading.Thread(target=import_module, args=["connectors_tools.report.page"], daemon=True).start()
        run = JobRun(bundle, job, parameters or {}, engine, folder, reporter, RunLimits(), only=only, on_page=on_page)
        try:
            return run.run()
        finally:
            engine.stop()


class JobRun:
    """One run of a job; what a task needs of it is public."""

    def __init__(
        self,
        bundle: Bundle,
        job: Job,
        parameters: Mapping[str, str],
        engine: NotebookEngine,
        folder: Path,
        reporter: Reporter,
        limits: RunLimits,
        trigger: str = "one_time",
        only: Collection[str] = (),
        on_page: OnPage | None = None,
    ) -> None:
        self.bundle, self.job, self.engine, self.folder, self.reporter = bundle, job, engine, folder, reporter
        self.on_page = on_page
        self._recorder = RunRecorder(engine)
        self._limits = limits
        self._only = frozenset(only)
        self._is_first = trigger == "one_time"
        self._ended: dict[str, Ended] = {}
        self._tasks = {task.key: task for task in in_order(job.tasks) if not only or task.key in self._only}
        run_id = time.time_ns() // 1000
        self._ids = iter(range(run_id + 1, run_id + 1_000_000))
        about = {"id": _number(job.key), "name": job.name, "run_id": run_id, "repair_count": 0, "trigger.type": trigger}
        self._scope = Scope(about, start=datetime.now(timezone.utc))
        texts = {**job.parameters, **parameters}
        self._scope.parameters = {name: replaced(text, self._scope) for name, text in texts.items()}

    def run(self) -> State:
        """Runs the tasks and returns the job's state; a line tells how each task ended, the last one the job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._introduce()
        clock = task_clock = Clock()
        limits, own = self._limits.within(f'job "{self.job.key}"', self.job.timeout)
        stopped = None
        try:
            for task in self._tasks.values():
                task_clock = Clock()
                self._ended[task.key] = self._turn_of(task, limits)
        except Expired as expired:
            if expired.limit is not own:
                raise
            stopped = State.TIMEDOUT
            self._end_early(State.TIMEDOUT, task_clock.seconds, str(expired))
        except KeyboardInterrupt:
            self.engine.cancel()
            stopped = State.CANCELED
            self._end_early(State.CANCELED, task_clock.seconds, "interrupted")
        state = stopped or self._state()
        if self.on_page:
            self._write_page(state, self.on_page)
        if self._is_first:
            patterns = {"executed notebook": "*.ipynb", "picture": "*.png"}
            counts = {kind: len(list(self.folder.rglob(pattern))) for kind, pattern in patterns.items()}
            page = self.folder / PAGE
            self.reporter.files(short_path(page if page.exists() else self.folder, Path.cwd()), counts)
        self.reporter.ended(self.job.key, state, clock.seconds)
        return state

    @property
    def is_permanent(self) -> bool:
        """True if each task that failed here, and not because of another, did so for good."""
        outcomes = [ended.outcome for ended in self._ended.values() if ended.attempts and failed(ended.state)]
        return bool(outcomes) and all(outcome.is_permanent for outcome in outcomes)

    def child(self, job: Job, parameters: Mapping[str, str], folder: Path, limits: RunLimits) -> JobRun:
        """The run of a job that a task of this one starts."""
        on_page = (lambda _: None) if self.on_page else None
        reporter = self.reporter.inside()
        trigger = "run_job_task"
        return JobRun(self.bundle, job, parameters, self.engine, folder, reporter, limits, trigger, on_page=on_page)

    def with_retries(self, task: Task, label: str, scope: Scope, limits: RunLimits, reporter: Reporter) -> Ended:
        """Runs a task until it succeeds or has no more tries, and tells how it ended."""
        clock = Clock()
        ended = self._attempts(task, label, scope, limits, reporter)
        reporter.ended(label, ended.state, clock.seconds, ended.outcome.report, ended.outcome.said)
        return ended

    def _write_page(self, state: State, on_page: OnPage) -> None:
        states = {key: (ended.state, ended.outcome.result) for key, ended in self._ended.items()}
        try:
            from ..report.page import write_page

            record = self._recorder.finish(self.bundle, self.job, self.folder.name, state, self._scope.parameters, states)
            on_page(write_page(record, self.folder / PAGE))
        except Exception as error:
            self.reporter.note(f"the page of the run cannot be written: {message(error)}")

    def _turn_of(self, task: Task, limits: RunLimits) -> Ended:
        self._recorder.task(task.key)
        instead = None if self._only else self._instead_of_running(task)
        if instead is not None:
            self.reporter.ended(task.key, instead, 0.0)
            return Ended(instead)
        above = upstream(self.job.tasks, task.key)
        ended = {key: self._members(key, end) for key, end in self._ended.items() if key in above}
        scope = replace(self._scope, tasks=ended)
        with self.reporter.running(task.key):
            return self.with_retries(task, task.key, scope, limits, self.reporter)

    def _instead_of_running(self, task: Task) -> State | None:
        if task.disabled:
            return State.DISABLED
        for dependency in task.depends_on:
            result = self._ended[dependency.task].outcome.result
            if dependency.outcome is not None and result is not None and dependency.outcome != result:
                return State.EXCLUDED
        return instead_of_running(task.run_if, [self._ended[other.task].state for other in task.depends_on])

    def _attempts(self, task: Task, label: str, scope: Scope, limits: RunLimits, reporter: Reporter) -> Ended:
        number = 0
        while True:
            number += 1
            run_id, started = next(self._ids), time.monotonic()
            about = {"name": task.key, "run_id": run_id, "execution_count": number}
            about["notebook_path"] = str(task.notebook or "")
            attempt_scope = replace(scope, task=about)
            outcome = self._attempt(Attempt(self, task, label, number, attempt_scope, limits))
            if outcome.state in GOOD or not _may_retry(task, number, outcome.state):
                return Ended(outcome.state, run_id, number, outcome)
            if outcome.is_permanent:
                reporter.note(f"{label} is not tried again, since that cannot mend it; a workspace would (max_retries)")
                return Ended(outcome.state, run_id, number, outcome)
            reporter.line(f"{label}  attempt {number} {outcome.state}, trying again")
            reporter.line("\n".join(f"    {line}" for line in in_brief(outcome.report)))
            limits.sleep(started + task.min_retry_interval - time.monotonic())

    def _attempt(self, attempt: Attempt) -> TaskOutcome:
        with self._recorder.attempt(attempt.label, attempt.number) as record:
            outcome = self._outcome(attempt)
            record.update(state=outcome.state, error=outcome.report, said=outcome.said, notebook=attempt.executed)
            if page := {RUN_JOB: PAGE, PIPELINE: LOG}.get(attempt.task.kind):
                record["link"] = f"{attempt.executed.stem}/{page}"
            return outcome

    def _outcome(self, attempt: Attempt) -> TaskOutcome:
        limits, own = attempt.limits.within(f'task "{attempt.label}"', attempt.task.timeout)
        try:
            return run_once(replace(attempt, limits=limits))
        except Expired as expired:
            self.engine.cancel()
            if expired.limit is not own:
                raise
            return TaskOutcome(State.TIMEDOUT, str(expired))
        except Exception as error:
            return TaskOutcome(State.FAILED, message(error), is_permanent=is_permanent(error))
        finally:
            for stream in self.engine.tidy():
                self.reporter.note(f'stream "{stream}" was still active at the end of {attempt.label} and was stopped')

    def _members(self, key: str, ended: Ended) -> dict[str, Any]:
        return {
            "run_id": ended.run_id,
            "result_state": ended.state.value.lower(),
            "execution_count": ended.attempts,
            "notebook_path": str(self.job.tasks[key].notebook or ""),
            "values": ended.outcome.values,
        }

    def _end_early(self, state: State, seconds: float, report: str) -> None:
        """The task that was running takes ``state`` after so many ``seconds``, the ones that had not begun are canceled."""
        for task in self._tasks.values():
            if task.key not in self._ended:
                self._ended[task.key] = Ended(state)
                self.reporter.ended(task.key, state, seconds, report)
                state, seconds, report = State.CANCELED, 0.0, ""

    def _state(self) -> State:
        states = {key: ended.state for key, ended in self._ended.items()}
        last = leaves(self._tasks)
        return job_state([states[key] for key in last], [states[key] for key in states if key not in last])

    def _introduce(self) -> None:
        if len(self._tasks) > 1:
            self.reporter.remark(f"{self.job.key}: tasks run one at a time: {', '.join(self._tasks)}")
        if self.job.ignored:
            self.reporter.remark(f"{self.job.key}: without effect in a local run: {', '.join(self.job.ignored)}")
        loops = [t.key for t in self._tasks.values() if int(t.spec.get("concurrency") or 1) > 1]
        if loops:
            text = f"iterations run one at a time, whatever the concurrency of {', '.join(loops)}"
            self.reporter.remark(f"{self.job.key}: {text}")


def _may_retry(task: Task, attempts: int, state: State) -> bool:
    if task.kind == CONDITION or (state is State.TIMEDOUT and not task.retry_on_timeout):
        return False
    return failed(state) and (task.max_retries < 0 or attempts <= task.max_retries)


def _number(key: str) -> int:
    """A number that stands for a job, the same in every run: the service's ids are numbers."""
    return sum((n + 1) * ord(letter) for n, letter in enumerate(key))
