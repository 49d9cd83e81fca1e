"""Jobs and tasks as the runner sees them, made from a resolved configuration; their order; and their result states.

States are in the words of the Jobs service, with its rules that lead from one task's state to the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final

from .configuration import Config, Findings, as_text, did_you_mean


class State(str, Enum):
    """The state in which a task or a job ended."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    TIMEDOUT = "TIMEDOUT"
    CANCELED = "CANCELED"
    EXCLUDED = "EXCLUDED"
    DISABLED = "DISABLED"
    UPSTREAM_FAILED = "UPSTREAM_FAILED"
    UPSTREAM_CANCELED = "UPSTREAM_CANCELED"
    SUCCESS_WITH_FAILURES = "SUCCESS_WITH_FAILURES"
    MAXIMUM_CONCURRENT_RUNS_REACHED = "MAXIMUM_CONCURRENT_RUNS_REACHED"

    def __str__(self) -> str:
        return self.value


class RunIf(str, Enum):
    """The condition for a task to run, judged by the states of the tasks it depends on."""

    ALL_SUCCESS = "ALL_SUCCESS"
    AT_LEAST_ONE_SUCCESS = "AT_LEAST_ONE_SUCCESS"
    NONE_FAILED = "NONE_FAILED"
    ALL_DONE = "ALL_DONE"
    AT_LEAST_ONE_FAILED = "AT_LEAST_ONE_FAILED"
    ALL_FAILED = "ALL_FAILED"


GOOD: Final = frozenset({State.SUCCESS, State.SUCCESS_WITH_FAILURES})
"""The states that the service counts as success."""

_PASSED: Final = GOOD | {State.EXCLUDED}  # "excluded" counts as success for the next condition
_CANCELED: Final = frozenset({State.CANCELED, State.UPSTREAM_CANCELED})
_WANTS_FAILURE: Final = frozenset({RunIf.AT_LEAST_ONE_FAILED, RunIf.ALL_FAILED})


def failed(state: State) -> bool:
    """True for every state that counts as a failure: also timeouts, and failures or cancellations upstream."""
    return state not in _PASSED and state is not State.DISABLED


def instead_of_running(run_if: RunIf, dependencies: Collection[State]) -> State | None:
    """The state of a task that does not run because of its dependencies' states; None when it runs."""
    if not dependencies:
        return None
    if all(state is State.EXCLUDED for state in dependencies):
        return State.EXCLUDED
    if _met(run_if, dependencies):
        return None
    if _could_be_met(run_if, dependencies):
        return State.DISABLED
    if run_if in _WANTS_FAILURE:
        return State.EXCLUDED
    bad = {state for state in dependencies if failed(state)}
    return State.UPSTREAM_CANCELED if bad and bad <= _CANCELED else State.UPSTREAM_FAILED


def _met(run_if: RunIf, states: Collection[State]) -> bool:
    passed = [state in _PASSED for state in states]
    bad = [failed(state) for state in states]
    return {
        RunIf.ALL_SUCCESS: all(passed),
        RunIf.AT_LEAST_ONE_SUCCESS: any(passed),
        RunIf.NONE_FAILED: any(passed) and not any(bad),
        RunIf.ALL_DONE: True,
        RunIf.AT_LEAST_ONE_FAILED: any(bad),
        RunIf.ALL_FAILED: all(bad),
    }[run_if]


def _could_be_met(run_if: RunIf, states: Collection[State]) -> bool:
    """True when only disabled tasks keep the condition from being met: had they run, it might have been."""
    if State.DISABLED not in states:
        return False
    return any(
        _met(run_if, [other if state is State.DISABLED else state for state in states])
        for other in (State.SUCCESS, State.FAILED)
    )


def job_state(leaves: Iterable[State], others: Iterable[State]) -> State:
    """A job's state by the tasks that nothing depends on; a failure elsewhere is named but does not fail the job."""
    if any(failed(state) for state in leaves):
        return State.FAILED
    return State.SUCCESS_WITH_FAILURES if any(failed(state) for state in others) else State.SUCCESS


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


NOTEBOOK, CONDITION, FOR_EACH, RUN_JOB = "notebook_task", "condition_task", "for_each_task", "run_job_task"
PIPELINE = "pipeline_task"
KINDS: Final = (NOTEBOOK, CONDITION, FOR_EACH, RUN_JOB, PIPELINE)
SERVICE_KINDS: Final = (
    "alert_task", "clean_rooms_notebook_task", "dashboard_task", "dbt_cloud_task", "dbt_platform_task", "dbt_task",
    "gen_ai_compute_task", "power_bi_task", "python_operator_task", "python_wheel_task",
    "spark_jar_task", "spark_python_task", "spark_submit_task", "sql_task",
)  # fmt: skip
"""Tasks that only the service runs."""
_TASK_FIELDS: Final = (
    "task_key", "description", "depends_on", "run_if", "disabled", "max_retries", "min_retry_interval_millis",
    "retry_on_timeout", "timeout_seconds",
)  # fmt: skip
_TASK_IGNORED: Final = (
    "compute", "disable_auto_optimization", "email_notifications", "environment_key", "existing_cluster_id", "health",
    "job_cluster_key", "libraries", "new_cluster", "notification_settings", "webhook_notifications",
)  # fmt: skip
_JOB_FIELDS: Final = (
    "name", "description", "parameters", "tasks", "timeout_seconds", "max_concurrent_runs", "queue",
)  # fmt: skip
_JOB_IGNORED: Final = (
    "budget_policy_id", "continuous", "deployment", "edit_mode", "email_notifications", "environments", "format",
    "health", "job_clusters", "lifecycle", "notification_settings", "performance_target", "permissions", "run_as",
    "schedule", "tags", "trigger", "usage_policy_id", "webhook_notifications",
)  # fmt: skip


@dataclass(frozen=True)
class Dependency:
    """A task that must have ended before; ``outcome`` is what a condition must have come to, if it matters."""

    task: str
    outcome: str | None = None


@dataclass(frozen=True)
class Task:
    """A task of a job. Times are in seconds; a ``timeout`` of 0 is none; ``max_retries`` of -1 is for ever."""

    key: str
    kind: str
    spec: Config
    depends_on: tuple[Dependency, ...] = ()
    run_if: RunIf = RunIf.ALL_SUCCESS
    disabled: bool = False
    max_retries: int = 0
    min_retry_interval: float = 0.0
    retry_on_timeout: bool = False
    timeout: float = 0.0
    nested: Task | None = None

    @property
    def notebook(self) -> Path | None:
        """The notebook file that this task runs, if it runs one."""
        path = self.spec.get("notebook_path") if self.kind == NOTEBOOK else None
        return Path(path) if path else None

    @property
    def parts(self) -> tuple[Task, ...]:
        """The task and, for a loop, the task inside."""
        return (self, self.nested) if self.nested else (self,)


@dataclass(frozen=True)
class Job:
    """A job: ``parameters`` are its declared ones with their defaults, ``ignored`` what only the service acts on.

    ``findings`` have what is wrong with its configuration: they concern no other job.
    """

    key: str
    name: str
    tasks: dict[str, Task]
    parameters: dict[str, str] = field(default_factory=dict)
    timeout: float = 0.0
    max_concurrent_runs: int = 1
    queued: bool = True
    ignored: tuple[str, ...] = ()
    config: Config = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)

    @property
    def parts(self) -> list[Task]:
        """All tasks, those inside loops too."""
        return [part for task in self.tasks.values() for part in task.parts]


def job(key: str, config: Config, prefix: str) -> Job:
    """The job that ``config`` defines; ``prefix`` goes before its name."""
    findings = Findings()
    if "git_source" in config:
        findings.problem(key, "git_source is not supported locally: the runner takes notebooks from this folder.")
    _unknown_fields(key, config, (*_JOB_FIELDS, *_JOB_IGNORED, "git_source"), findings)
    tasks = [_task(key, entry, findings) for entry in _list(key, "tasks", config, findings)]
    known = {task.key: task for task in tasks if task is not None}
    if not tasks:
        findings.problem(key, "has no tasks.")
    check_graph(key, known, findings)
    check_permissions(key, config, findings)
    of_tasks = {name for task in config.get("tasks") or [] if isinstance(task, dict) for name in task}
    ignored = [name for name in _JOB_IGNORED if name in config] + [name for name in _TASK_IGNORED if name in of_tasks]
    return Job(
        key=key,
        name=prefix + str(config.get("name") or key),
        tasks=known,
        parameters=_parameters(key, config, findings),
        timeout=_number(key, "timeout_seconds", config, findings),
        max_concurrent_runs=int(_number(key, "max_concurrent_runs", config, findings, 4 if prefix else 1)),
        queued=flag("enabled", config.get("queue") or {"enabled": True}),
        ignored=tuple(dict.fromkeys(ignored)),
        config=config,
        findings=findings,
    )


def _task(job: str, entry: Any, findings: Findings, inside: str = "") -> Task | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("task_key"), str):
        findings.problem(job, f"each task needs a task_key; got {entry!r:.80}")
        return None
    where = f"{inside or job}.{entry['task_key']}"
    _unknown_fields(where, entry, (*_TASK_FIELDS, *_TASK_IGNORED, *KINDS, *SERVICE_KINDS), findings)
    kind = _kind(where, entry, findings, (NOTEBOOK, CONDITION, RUN_JOB, PIPELINE) if inside else KINDS)
    if kind is None:
        return None
    spec = entry[kind]
    nested = _task(job, spec.get("task"), findings, where) if kind == FOR_EACH else None
    _check_spec(where, kind, spec, findings)
    return Task(
        key=entry["task_key"],
        kind=kind,
        spec=spec,
        depends_on=tuple(_dependencies(where, entry, findings)),
        run_if=_run_if(where, entry, findings),
        disabled=flag("disabled", entry),
        max_retries=int(_number(where, "max_retries", entry, findings, least=-1)),
        min_retry_interval=_number(where, "min_retry_interval_millis", entry, findings) / 1000,
        retry_on_timeout=flag("retry_on_timeout", entry),
        timeout=_number(where, "timeout_seconds", entry, findings),
        nested=nested,
    )


def _kind(where: str, entry: Config, findings: Findings, allowed: tuple[str, ...]) -> str | None:
    kinds = [name for name in entry if name in KINDS or name in SERVICE_KINDS]
    for name in kinds:
        if name in SERVICE_KINDS:
            findings.local_problem(where, f"{name} is not supported locally; supported are {', '.join(allowed)}.")
        elif name not in allowed:
            findings.problem(
                where, f"{name} is not supported inside a for_each_task; supported are {', '.join(allowed)}."
            )
    if not kinds:
        findings.problem(where, f"has no task type; one of {', '.join(allowed)}.")
    if len(kinds) > 1:
        findings.problem(where, f"has several task types, {', '.join(kinds)}; make a task of each.")
    usable = [name for name in kinds if name in (*allowed, *SERVICE_KINDS) and isinstance(entry[name], dict)]
    return usable[0] if len(usable) == len(kinds) == 1 else None


_NEEDS: Final = {NOTEBOOK: ["notebook_path"], CONDITION: ["op", "left", "right"], FOR_EACH: ["inputs", "task"],
                 RUN_JOB: ["job_id"], PIPELINE: ["pipeline_id"]}  # fmt: skip
_OPERATORS: Final = (
    "EQUAL_TO", "NOT_EQUAL", "GREATER_THAN", "GREATER_THAN_OR_EQUAL", "LESS_THAN", "LESS_THAN_OR_EQUAL",
)  # fmt: skip


def _check_spec(where: str, kind: str, spec: Config, findings: Findings) -> None:
    for name in _NEEDS.get(kind, ()):
        if spec.get(name) is None:
            findings.problem(where, f"{kind} needs {name}.")
    if kind == CONDITION and spec.get("op") is not None and spec["op"] not in _OPERATORS:
        findings.problem(where, f"op must be one of {', '.join(_OPERATORS)}; got {spec['op']}")
    if kind == NOTEBOOK and spec.get("source") not in (None, "WORKSPACE"):
        findings.problem(where, f"source: {spec['source']} is not supported locally: the notebook is taken from here.")


def _dependencies(where: str, entry: Config, findings: Findings) -> list[Dependency]:
    dependencies = []
    for item in _list(where, "depends_on", entry, findings):
        if isinstance(item, dict) and isinstance(item.get("task_key"), str):
            outcome = as_text(item["outcome"]) if item.get("outcome") is not None else None
            dependencies.append(Dependency(item["task_key"], outcome))
        else:
            findings.problem(where, f"each entry of depends_on needs a task_key; got {item!r:.80}")
    return dependencies


def _run_if(where: str, entry: Config, findings: Findings) -> RunIf:
    name = entry.get("run_if") or RunIf.ALL_SUCCESS.value
    if name in RunIf.__members__:
        return RunIf(name)
    findings.problem(where, f"run_if must be one of {', '.join(RunIf.__members__)}; got {name}")
    return RunIf.ALL_SUCCESS


def _parameters(key: str, config: Config, findings: Findings) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for item in _list(key, "parameters", config, findings):
        if not isinstance(item, dict) or not item.get("name") or item.get("default") is None:
            findings.problem(key, f"each job parameter needs a name and a default; got {item!r:.80}")
            continue
        name = str(item["name"])
        if not name.replace("-", "_").replace(".", "_").isidentifier() and not name.replace("_", "").isalnum():
            findings.problem(key, f'the name of parameter "{name}" may hold letters, digits, "_", "-" and "." only.')
        parameters[name] = as_text(item["default"])
    return parameters


PRINCIPALS: Final = ("user_name", "group_name", "service_principal_name")
"""Whom an entry of permissions may name."""


def check_permissions(where: str, config: Config, findings: Findings) -> None:
    """Reports entries of ``permissions`` that do not say who may do what."""
    for entry in _list(where, "permissions", config, findings):
        if not isinstance(entry, dict) or not entry.get("level") or not any(entry.get(name) for name in PRINCIPALS):
            text = f"each entry of permissions needs a level and one of {', '.join(PRINCIPALS)}; got {entry!r:.80}"
            findings.problem(where, text)


def _list(where: str, name: str, config: Config, findings: Findings) -> list[Any]:
    value = config.get(name)
    if value is None or isinstance(value, list):
        return value or []
    findings.problem(where, f"{name} must be a list; got {value!r:.80}")
    return []


def _number(where: str, name: str, config: Config, findings: Findings, default: int = 0, least: int = 0) -> float:
    value = config.get(name)
    if value is None:
        return default
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        findings.problem(where, f"{name} must be a whole number, {least} or more; got {value!r}")
        return default
    return number


def flag(name: str, config: Config) -> bool:
    """True for ``true``, also as the text that a variable of the command line brings."""
    return as_text(config.get(name)) == "true"


def _unknown_fields(where: str, config: Config, known: tuple[str, ...], findings: Findings) -> None:
    for name in config:
        if name not in known:
            findings.problem(where, f'"{name}" is no field here{did_you_mean(str(name), known)}')


def check_graph(job: str, tasks: Mapping[str, Task], findings: Findings) -> None:
    """Reports dependencies on tasks that do not exist, cycles, and outcomes asked of tasks that have none."""
    nested = {task.nested.key: task.key for task in tasks.values() if task.nested}
    for task in tasks.values():
        for dependency in task.depends_on:
            _check_dependency(f"{job}.{task.key}", dependency.task, dependency.outcome, tasks, nested, findings)
    try:
        TopologicalSorter({task.key: [other.task for other in task.depends_on] for task in tasks.values()}).prepare()
    except CycleError as circle:
        findings.problem(job, f"tasks depend on each other in a circle: {' -> '.join(reversed(circle.args[1]))}")


def in_order(tasks: Mapping[str, Task]) -> list[Task]:
    """The tasks, each after all it depends on; otherwise as written. Needs a graph without cycles."""
    done: dict[str, Task] = {}

    def visit(task: Task) -> None:
        if task.key in done:
            return
        for dependency in task.depends_on:
            visit(tasks[dependency.task])
        done[task.key] = task

    for task in tasks.values():
        visit(task)
    return list(done.values())


def upstream(tasks: Mapping[str, Task], key: str) -> set[str]:
    """The keys of all tasks that must have ended before task ``key`` starts."""
    ancestors: set[str] = set()
    waiting = [key]
    while waiting:
        task = tasks.get(waiting.pop())
        new = {dependency.task for dependency in task.depends_on} - ancestors if task else set()
        ancestors |= new
        waiting += new
    return ancestors


def leaves(tasks: Mapping[str, Task]) -> set[str]:
    """The keys of the tasks that no other task depends on."""
    return set(tasks) - {dependency.task for task in tasks.values() for dependency in task.depends_on}


def _check_dependency(
    where: str, key: str, outcome: str | None, tasks: Mapping[str, Task], nested: Mapping[str, str], findings: Findings
) -> None:
    if key in nested and key not in tasks:
        findings.problem(where, f'depends on "{key}", which is inside a loop; name the loop, "{nested[key]}".')
    elif key not in tasks:
        findings.problem(where, f'depends on "{key}", which is no task of this job{did_you_mean(key, tasks)}')
    elif outcome is not None and tasks[key].kind != CONDITION:
        findings.problem(where, f'asks for the outcome "{outcome}" of "{key}", which is no condition_task.')
    elif outcome not in (None, "true", "false"):
        findings.problem(where, f'asks for the outcome "{outcome}" of "{key}"; a condition comes to "true" or "false".')
