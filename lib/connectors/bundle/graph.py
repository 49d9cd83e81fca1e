"""The order of a job's tasks."""

from __future__ import annotations

from collections.abc import Mapping

from .findings import Findings, did_you_mean
from .model import CONDITION, Task


def check_graph(job: str, tasks: Mapping[str, Task], found: Findings) -> None:
    """Reports dependencies on tasks that do not exist, cycles, and outcomes asked of tasks that have none."""
    nested = {task.nested.key: task.key for task in tasks.values() if task.nested}
    for task in tasks.values():
        for dependency in task.depends_on:
            _check_dependency(f"{job}.{task.key}", dependency.task, dependency.outcome, tasks, nested, found)
    circle = _cycle(tasks)
    if circle:
        found.problem(job, f"tasks depend on each other in a circle: {' -> '.join(circle)}")


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
    found: set[str] = set()
    waiting = [key]
    while waiting:
        task = tasks.get(waiting.pop())
        new = {dependency.task for dependency in task.depends_on} - found if task else set()
        found |= new
        waiting += new
    return found


def leaves(tasks: Mapping[str, Task]) -> set[str]:
    """The keys of the tasks that no other task depends on."""
    return set(tasks) - {dependency.task for task in tasks.values() for dependency in task.depends_on}


def _check_dependency(
    where: str, key: str, outcome: str | None, tasks: Mapping[str, Task], nested: Mapping[str, str], found: Findings
) -> None:
    if key in nested and key not in tasks:
        found.problem(where, f'depends on "{key}", which is inside a loop; name the loop, "{nested[key]}".')
    elif key not in tasks:
        found.problem(where, f'depends on "{key}", which is no task of this job{did_you_mean(key, tasks)}')
    elif outcome is not None and tasks[key].kind != CONDITION:
        found.problem(where, f'asks for the outcome "{outcome}" of "{key}", which is no condition_task.')
    elif outcome not in (None, "true", "false"):
        found.problem(where, f'asks for the outcome "{outcome}" of "{key}"; a condition comes to "true" or "false".')


def _cycle(tasks: Mapping[str, Task]) -> list[str]:
    finished: set[str] = set()

    def walk(key: str, path: list[str]) -> list[str]:
        if key in path:
            return [*path[path.index(key) :], key]
        if key in finished or key not in tasks:
            return []
        for dependency in tasks[key].depends_on:
            circle = walk(dependency.task, [*path, key])
            if circle:
                return circle
        finished.add(key)
        return []

    return next((circle for key in tasks if (circle := walk(key, []))), [])
