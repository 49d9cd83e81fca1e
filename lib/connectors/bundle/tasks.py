"""What the kinds of tasks do when they run, once; retries and conditions are the runner's business."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connectors.workbench.shim import LARGEST_TASK_VALUE, DbUtils
from connectors.workbench.show import display, display_html

from .execution import execute
from .failures import told
from .interpolation import as_text
from .limits import Limits
from .model import CONDITION, FOR_EACH, NOTEBOOK, RUN_JOB, Task
from .notebooks import read_notebook
from .references import Reference, Scope, in_text, references, replaced
from .states import GOOD, State

if TYPE_CHECKING:
    from .runner import JobRun

_LONGEST_INPUTS: Final = 10_000


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended: the ``report`` of its failure, the task ``values`` it set, a condition's ``result``.

    ``said`` is what the notebook gave to ``dbutils.notebook.exit``.
    """

    state: State
    report: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    result: str | None = None
    said: str = ""


@dataclass(frozen=True)
class Attempt:
    """One try of a task; ``label`` names it to people and in file names, ``number`` is 1 for the first try."""

    run: JobRun
    task: Task
    label: str
    number: int
    scope: Scope
    limits: Limits

    def text(self, value: Any) -> str:
        """A field of the task as text, its references replaced."""
        return replaced(value, self.scope) if isinstance(value, str) else in_text(value)


def run_once(attempt: Attempt) -> Outcome:
    """Runs the task once. Raises what goes wrong outside of a notebook's own code."""
    kinds: dict[str, Callable[[Attempt], Outcome]] = {
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


def _notebook(attempt: Attempt) -> Outcome:
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
        run.reporter.doing(f"{attempt.label}  starting Spark")
        names["spark"] = run.engine.start()
    executed = run.folder / f"{attempt.label}-{attempt.number}.ipynb"

    def on_cell(number: int, total: int, source: str) -> None:
        first = next((line for line in source.splitlines() if line.strip()), "")
        run.reporter.doing(f"{attempt.label}  cell {number}/{total}  {first[:60]}")

    ended = execute(notebook, names, executed, attempt.limits, on_cell)
    if isinstance(ended, str):
        return Outcome(State.SUCCESS, values=values.own, said=ended)
    report = told(ended, _short(path, run.bundle.root), _short(executed, Path.cwd()))
    return Outcome(State.FAILED, report, values.own)


def _parameters(attempt: Attempt) -> dict[str, str]:
    """A notebook's parameters: those of the job win over the task's own, whether or not it declares them."""
    base = attempt.task.spec.get("base_parameters") or {}
    return {**{name: attempt.text(value) for name, value in base.items()}, **attempt.scope.parameters}


def _condition(attempt: Attempt) -> Outcome:
    spec = attempt.task.spec
    result = compare(str(spec["op"]), attempt.text(spec["left"]), attempt.text(spec["right"]))
    return Outcome(State.SUCCESS, result=as_text(result))


def compare(op: str, left: str, right: str) -> bool:
    """A condition's result: (in)equality compares text, order compares numbers. Raises ``ValueError`` for others."""
    if op in ("EQUAL_TO", "NOT_EQUAL"):
        return (left == right) is (op == "EQUAL_TO")
    first, second = _as_number(op, left), _as_number(op, right)
    return {
        "GREATER_THAN": first > second,
        "GREATER_THAN_OR_EQUAL": first >= second,
        "LESS_THAN": first < second,
        "LESS_THAN_OR_EQUAL": first <= second,
    }[op]


def _as_number(op: str, text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite():
        raise ValueError(f'{op} compares numbers; "{text}" is none')
    return number


def _for_each(attempt: Attempt) -> Outcome:
    """Every input gets its turn, also after one that failed; one failure fails the loop."""
    nested = attempt.task.nested
    assert nested is not None
    run, inputs = attempt.run, _inputs(attempt)
    failures = 0
    again = "" if attempt.number == 1 else f"-of-try-{attempt.number}"
    for number, item in enumerate(inputs, start=1):
        label = f"{attempt.label}-{number}{again}"
        scope = replace(attempt.scope, input=item, in_loop=True)
        ended = run.with_retries(nested, label, scope, attempt.limits, run.reporter.inside())
        failures += ended.state not in GOOD
    if failures:
        return Outcome(State.FAILED, f"{failures} of {len(inputs)} iterations failed")
    return Outcome(State.SUCCESS)


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


def _run_job(attempt: Attempt) -> Outcome:
    from .runner import JobRun

    run = attempt.run
    own = {name: attempt.text(value) for name, value in (attempt.task.spec.get("job_parameters") or {}).items()}
    job = run.bundle.job(run.job_run_by(attempt.task))
    child = JobRun(
        run.bundle,
        job,
        {**own, **attempt.scope.parameters},
        run.engine,
        run.folder / f"{attempt.label}-{attempt.number}",
        run.reporter.inside(),
        attempt.limits,
        trigger="run_job_task",
    )
    state = child.run()
    if state is State.CANCELED:  # a person has interrupted the child, and with it everything
        raise KeyboardInterrupt
    return Outcome(State.SUCCESS) if state in GOOD else Outcome(State.FAILED, f'job "{job.key}" ended with {state}')


def _short(path: Path, base: Path) -> str:
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)
