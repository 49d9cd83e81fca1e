"""Runs a job: its tasks one at a time, each when its turn has come and its conditions are met."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .checks import check_job, job_run_by
from .engine import Engine
from .failures import message
from .graph import in_order, leaves, upstream
from .limits import Expired, Limits
from .loading import Bundle
from .model import CONDITION, Job, Task
from .progress import Clock, Reporter
from .references import Scope, replaced
from .run_folder import one_of, run_folder
from .states import GOOD, State, failed, instead_of_running, job_state
from .tasks import Attempt, Outcome, run_once


@dataclass(frozen=True)
class Ended:
    """A task that has ended, after how many attempts, or that did not run at all (0)."""

    state: State
    run_id: int = 0
    attempts: int = 0
    outcome: Outcome = field(default_factory=lambda: Outcome(State.SUCCESS))


def run_job(
    bundle: Bundle,
    key: str,
    parameters: Mapping[str, str] | None = None,
    reporter: Reporter | None = None,
    runs: Path | None = None,
    only: Collection[str] = (),
) -> State:
    """Runs the job ``key`` and returns its state.

    ``parameters`` win over the job's defaults. Executed notebooks are written below ``runs``, by default the folder
    ``runs`` beside ``databricks.yml``. ``only`` runs just these tasks, without looking at conditions. Raises
    :class:`Misconfigured` with everything that is wrong, before anything starts.
    """
    reporter = reporter or Reporter()
    job = bundle.job(key)
    found = check_job(bundle, job, parameters)
    bundle.findings.enforce("the bundle")
    found.enforce(f"job {key}")
    _check_only(job, only)
    for note in found.notes:
        reporter.note(f"{note.option}: {note.text}")
    with one_of(job.max_concurrent_runs, (runs or bundle.root / "runs") / key, job.queued, reporter) as free:
        if not free:
            reporter.ended(key, State.MAXIMUM_CONCURRENT_RUNS_REACHED, 0.0)
            return State.MAXIMUM_CONCURRENT_RUNS_REACHED
        folder = run_folder((runs or bundle.root / "runs") / key)
        engine = Engine(folder / "spark.log")
        try:
            return JobRun(bundle, job, parameters or {}, engine, folder, reporter, Limits(), only=only).run()
        finally:
            engine.stop()


class JobRun:
    """One run of a job; what a task needs of it is public."""

    def __init__(
        self,
        bundle: Bundle,
        job: Job,
        parameters: Mapping[str, str],
        engine: Engine,
        folder: Path,
        reporter: Reporter,
        limits: Limits,
        trigger: str = "one_time",
        only: Collection[str] = (),
    ) -> None:
        self.bundle, self.job, self.engine, self.folder, self.reporter = bundle, job, engine, folder, reporter
        self._limits = limits
        self._only = frozenset(only)
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
        clock = Clock()
        limits, own = self._limits.within(f'job "{self.job.key}"', self.job.timeout)
        stopped = None
        try:
            for task in self._tasks.values():
                self._ended[task.key] = self._turn_of(task, limits)
        except Expired as expired:
            if expired.limit is not own:
                raise
            stopped = State.TIMEDOUT
            self._end_early(State.TIMEDOUT, str(expired))
        except KeyboardInterrupt:
            self.engine.cancel()
            stopped = State.CANCELED
            self._end_early(State.CANCELED, "interrupted")
        state = stopped or self._state()
        self.reporter.ended(self.job.key, state, clock.seconds)
        return state

    def job_run_by(self, task: Task) -> str:
        """The key of the job that a run_job_task runs."""
        return job_run_by(task) or ""

    def with_retries(self, task: Task, label: str, scope: Scope, limits: Limits, reporter: Reporter) -> Ended:
        """Runs a task until it succeeds or has no more tries, and tells how it ended."""
        clock = Clock()
        ended = self._attempts(task, label, scope, limits, reporter)
        reporter.ended(label, ended.state, clock.seconds, ended.outcome.report, ended.outcome.said)
        return ended

    def _turn_of(self, task: Task, limits: Limits) -> Ended:
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

    def _attempts(self, task: Task, label: str, scope: Scope, limits: Limits, reporter: Reporter) -> Ended:
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
            reporter.line(f"{label}  attempt {number} {outcome.state}, trying again")
            reporter.line("\n".join(f"    {line}" for line in outcome.report.splitlines()[:3]))
            limits.sleep(started + task.min_retry_interval - time.monotonic())

    def _attempt(self, attempt: Attempt) -> Outcome:
        limits, own = attempt.limits.within(f'task "{attempt.label}"', attempt.task.timeout)
        try:
            return run_once(replace(attempt, limits=limits))
        except Expired as expired:
            self.engine.cancel()
            if expired.limit is not own:
                raise
            return Outcome(State.TIMEDOUT, str(expired))
        except Exception as error:
            return Outcome(State.FAILED, message(error))
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

    def _end_early(self, state: State, report: str) -> None:
        """The task that was running takes ``state``, the ones that had not begun are canceled."""
        for task in self._tasks.values():
            if task.key not in self._ended:
                self._ended[task.key] = Ended(state)
                self.reporter.ended(task.key, state, 0.0, report)
                state, report = State.CANCELED, ""

    def _state(self) -> State:
        states = {key: ended.state for key, ended in self._ended.items()}
        last = leaves(self._tasks)
        return job_state([states[key] for key in last], [states[key] for key in states if key not in last])

    def _introduce(self) -> None:
        if len(self._tasks) > 1:
            self.reporter.note(f"{self.job.key}: tasks run one at a time: {', '.join(self._tasks)}")
        if self.job.ignored:
            self.reporter.note(f"{self.job.key}: without effect in a local run: {', '.join(self.job.ignored)}")
        loops = [t.key for t in self._tasks.values() if int(t.spec.get("concurrency") or 1) > 1]
        if loops:
            told = f"iterations run one at a time, whatever the concurrency of {', '.join(loops)}"
            self.reporter.note(f"{self.job.key}: {told}")


def _may_retry(task: Task, attempts: int, state: State) -> bool:
    if task.kind == CONDITION or (state is State.TIMEDOUT and not task.retry_on_timeout):
        return False
    return failed(state) and (task.max_retries < 0 or attempts <= task.max_retries)


def _check_only(job: Job, only: Collection[str]) -> None:
    from .findings import Findings, did_you_mean

    found = Findings()
    for key in only:
        if key not in job.tasks:
            found.problem(f"--only {key}", f"is no task of this job{did_you_mean(key, job.tasks)}")
    found.enforce(f"job {job.key}")


def _number(key: str) -> int:
    """A number that stands for a job, the same in every run: the service's ids are numbers."""
    return sum((n + 1) * ord(letter) for n, letter in enumerate(key))
