"""One attempt at a task, by its kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connectors.ground.messages import is_permanent
from connectors.workbench.shim import LARGEST_TASK_VALUE, DbUtils, display, display_html

from .checks import job_run_by, pipeline_run_by
from .configuration import Findings, as_text
from .declarative import LOG, PipelineFailed, run_pipeline
from .execution import RunLimits, execute
from .model import CONDITION, FOR_EACH, GOOD, NOTEBOOK, PIPELINE, RUN_JOB, State, Task, compare, flag
from .notebooks import pictures, read_notebook
from .progress import cell_report, log_traceback, message
from .references import Reference, Scope, in_text, references, replaced

if TYPE_CHECKING:
    from .runner import Ended, JobRun

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
        NOTEBOOK: _notebook, CONDITION: _condition, FOR_EACH: _for_each, RUN_JOB: _run_job, PIPELINE: _pipeline
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
    files = (short_path(executed, Path.cwd()), short_path(run.engine.log, Path.cwd()))
    report = cell_report(ended, short_path(path, run.bundle.root), *files)
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
    child = run.child(job, {**own, **attempt.scope.parameters}, attempt.executed.with_suffix(""), attempt.limits)
    state = child.run()
    if state is State.CANCELED:  # a person has interrupted the child, and with it everything
        raise KeyboardInterrupt
    if state in GOOD:
        return TaskOutcome(State.SUCCESS)
    return TaskOutcome(State.FAILED, f'job "{job.key}" ended with {state}', is_permanent=child.is_permanent)


def _pipeline(attempt: Attempt) -> TaskOutcome:
    run, spec = attempt.run, attempt.task.spec
    pipeline = pipeline_run_by(run.bundle, attempt.task, Findings())
    assert pipeline is not None
    refresh = ["*"] if flag("full_refresh", spec) else [str(table) for table in spec.get("full_refresh_selection") or ()]
    folder = attempt.executed.with_suffix("")
    flows: list[str] = []

    def on_event(text: str) -> None:
        run.reporter.doing(attempt.label, re.sub(r"\S+/", "", text)[:60])  # paths by their last part
        if match := re.fullmatch(r"Flow (\S+) has COMPLETED\.", text):
            flows.append(match[1].rpartition(".")[2])

    try:
        run_pipeline(pipeline, folder, refresh, attempt.limits, on_event)
    except PipelineFailed as error:
        report = f"{message(error)}\nall that Spark said: {short_path(folder / LOG, Path.cwd())}"
        return TaskOutcome(State.FAILED, report, is_permanent=is_permanent(error))
    return TaskOutcome(State.SUCCESS, said=f"flows complete: {', '.join(flows)}")


def short_path(path: Path, base: Path) -> str:
    """``path`` as a person in the folder ``base`` calls it."""
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)
