"""Runs a job: its tasks one at a time, each when its turn has come and its conditions are met.

An attempt runs a task once, by its kind; the run of the job decides on conditions, retries and time limits.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from connectors.ground.messages import is_permanent
from connectors.workbench.shim import LARGEST_TASK_VALUE, DbUtils, display, display_html

from .checks import check_job, check_only, job_run_by
from .configuration import as_text
from .engine import NotebookEngine
from .execution import Expired, RunLimits, execute
from .live import Clock
from .loading import Bundle
from .model import (
    CONDITION,
    FOR_EACH,
    GOOD,
    NOTEBOOK,
    RUN_JOB,
    Job,
    State,
    Task,
    compare,
    failed,
    in_order,
    instead_of_running,
    job_state,
    leaves,
    upstream,
)
from .notebooks import pictures, read_notebook
from .progress import Reporter, cell_report, in_brief, log_traceback, message, reserved_run, run_folder
from .record import PAGE, RunRecorder, warm_up
from .references import Reference, Scope, in_text, references, replaced

OnPage = Callable[[Path], object]
"""A function that is called with the page of a run."""
_LONGEST_INPUTS: Final = 10_000


@dataclass(frozen=True)
class TaskOutcome:
    """The outcome of one attempt: the ``report`` of its failure, the task ``values`` it set, a condition's ``result``.

    ``said`` is what the notebook gave to ``dbutils.notebook.exit``. ``is_permanent``: no new try can end better.
    """

    state: State
    report: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    result: str | None = None
    said: str = ""
    is_permanent: bool = False


@dataclass(frozen=True)
class Attempt:
    """One try of a task; ``label`` names it to people and in file names, ``number`` is 1 for the first try."""

    run: JobRun
    task: Task
    label: str
    number: int
    scope: Scope
    limits: RunLimits

    @property
    def executed(self) -> Path:
        """The executed notebook; for a task that runs a job, without its suffix, the folder of that run."""
        return self.run.folder / f"{self.label}-{self.number}.ipynb"

    def text(self, value: Any) -> str:
        """A field of the task as text, its references replaced."""
        return replaced(value, self.scope) if isinstance(value, str) else in_text(value)


def run_once(attempt: Attempt) -> TaskOutcome:
    """Runs the task once. Raises what goes wrong outside of a notebook's own code."""
    kinds: dict[str, Callable[[Attempt], TaskOutcome]] = {
        NOTEBOOK: _notebook, CONDITION: _condition, FOR_EACH: _for_each, RUN_JOB: _run_job
    }  # fmt: skip
    return kinds[attempt.task.kind](attempt)


class UpstreamValues:
    """The task values that one attempt sets, and those of the tasks upstream of it."""

    def __init__(self, attempt: Attempt) -> None:
        self.own: dict[str, Any] = {}
        self._upstream = attempt.scope.tasks

    def set(self, key: str, value: Any) -> None:
        self.own[key] = value

    def get(self, task: str, key: str) -> Any:
        if task not in self._upstream:
            known = ", ".join(self._upstream) or "none"
            raise KeyError(f'task "{task}" is not upstream of this one; upstream are: {known}')
        values = self._upstream[task]["values"]
        if key not in values:
            raise KeyError(f'task "{task}" has set no value "{key}"; it has set: {", ".join(values) or "none"}')
        return values[key]


def _notebook(attempt: Attempt) -> TaskOutcome:
    run, path = attempt.run, attempt.task.notebook
    assert path is not None
    notebook = read_notebook(path)
    values = UpstreamValues(attempt)
    names: dict[str, Any] = {
        "dbutils": DbUtils(_parameters(attempt), values),
        "display": display,
        "displayHTML": display_html,
    }
    if notebook.uses_spark:
        run.reporter.doing(attempt.label, "starting Spark")
        names["spark"] = run.engine.start()
    executed = attempt.executed

    def on_cell(number: int, total: int, heading: str) -> None:
        run.reporter.doing(attempt.label, f"cell {number}/{total}  {heading[:60]}".rstrip())

    ended = execute(notebook, names, executed, attempt.limits, on_cell)
    if isinstance(ended, str):
        _store_pictures(executed)
        return TaskOutcome(State.SUCCESS, values=values.own, said=ended)
    log_traceback(ended.error, run.engine.log)
    files = (_short(executed, Path.cwd()), _short(run.engine.log, Path.cwd()))
    report = cell_report(ended, _short(path, run.bundle.root), *files)
    return TaskOutcome(State.FAILED, report, values.own, is_permanent=is_permanent(ended.error))


def _store_pictures(executed: Path) -> None:
    """Writes the pictures of an executed notebook beside it."""
    for number, picture in enumerate(pictures(read_notebook(executed).content), start=1):
        executed.with_name(f"{executed.stem}-{number}.png").write_bytes(picture)


def _parameters(attempt: Attempt) -> dict[str, str]:
    """A notebook's parameters: those of the job win over the task's own, whether or not it declares them."""
    base = attempt.task.spec.get("base_parameters") or {}
    return {**{name: attempt.text(value) for name, value in base.items()}, **attempt.scope.parameters}


def _condition(attempt: Attempt) -> TaskOutcome:
    spec = attempt.task.spec
    result = compare(str(spec["op"]), attempt.text(spec["left"]), attempt.text(spec["right"]))
    return TaskOutcome(State.SUCCESS, result=as_text(result))


def _for_each(attempt: Attempt) -> TaskOutcome:
    """Every input gets its turn, also after one that failed; one failure fails the loop."""
    nested = attempt.task.nested
    assert nested is not None
    run, inputs = attempt.run, _inputs(attempt)
    failures: list[Ended] = []
    again = "" if attempt.number == 1 else f"-of-try-{attempt.number}"
    for number, item in enumerate(inputs, start=1):
        label = f"{attempt.label}-{number}{again}"
        if label in run.job.tasks:  # its notebook would be that of the task
            label = f"{attempt.label}-iteration-{number}{again}"
        scope = replace(attempt.scope, input=item, in_loop=True)
        ended = run.with_retries(nested, label, scope, attempt.limits, run.reporter.inside())
        failures += [ended] if ended.state not in GOOD else []
    if failures:
        report = f"{len(failures)} of {len(inputs)} iterations failed"
        return TaskOutcome(State.FAILED, report, is_permanent=all(ended.outcome.is_permanent for ended in failures))
    return TaskOutcome(State.SUCCESS)


def _inputs(attempt: Attempt) -> list[Any]:
    written = str(attempt.task.spec["inputs"])
    text = attempt.text(written)
    from_value = any(_is_task_value(reference) for reference in references(written))
    longest, unit = (LARGEST_TASK_VALUE, "bytes") if from_value else (_LONGEST_INPUTS, "characters")
    if (len(text.encode()) if from_value else len(text)) > longest:
        raise ValueError(f"the inputs of the loop are longer than {longest} {unit}")
    try:
        inputs = json.loads(text)
    except ValueError:
        inputs = None
    if not isinstance(inputs, list):
        raise ValueError(f"the inputs of the loop must be a JSON array; got {text[:200]}")
    return inputs


def _is_task_value(reference: Reference) -> bool:
    return reference.path[0] == "tasks" and "values" in reference.path


def _run_job(attempt: Attempt) -> TaskOutcome:
    run = attempt.run
    own = {name: attempt.text(value) for name, value in (attempt.task.spec.get("job_parameters") or {}).items()}
    job = run.bundle.job(job_run_by(attempt.task) or "")
    child = JobRun(
        run.bundle,
        job,
        {**own, **attempt.scope.parameters},
        run.engine,
        attempt.executed.with_suffix(""),
        run.reporter.inside(),
        attempt.limits,
        trigger="run_job_task",
        on_page=(lambda _: None) if run.on_page else None,
    )
    state = child.run()
    if state is State.CANCELED:  # a person has interrupted the child, and with it everything
        raise KeyboardInterrupt
    if state in GOOD:
        return TaskOutcome(State.SUCCESS)
    return TaskOutcome(State.FAILED, f'job "{job.key}" ended with {state}', is_permanent=child.is_permanent)


def _short(path: Path, base: Path) -> str:
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


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
            threading.Thread(target=warm_up, name="connectors.page", daemon=True).start()
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
            self.reporter.files(_short(page if page.exists() else self.folder, Path.cwd()), counts)
        self.reporter.ended(self.job.key, state, clock.seconds)
        return state

    @property
    def is_permanent(self) -> bool:
        """True if each task that failed here, and not because of another, did so for good."""
        outcomes = [ended.outcome for ended in self._ended.values() if ended.attempts and failed(ended.state)]
        return bool(outcomes) and all(outcome.is_permanent for outcome in outcomes)

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
            if attempt.task.kind == RUN_JOB:
                record["link"] = f"{attempt.executed.stem}/{PAGE}"
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
