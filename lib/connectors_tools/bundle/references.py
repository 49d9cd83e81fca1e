"""``{{...}}``: the references that the service replaces, as plain text, when a task starts.

What has not the form of a reference, or belongs to no known namespace, stays as it is (so does
``{{secrets/scope/key}}``); an unknown member of a known namespace is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from .configuration import as_text

_BRACES: Final = re.compile(r"\{\{((?:[^{}`]|`[^`]*`)*)\}\}")
_PART: Final = r"[A-Za-z0-9_]+|`[^`]+`"
_PATH: Final = re.compile(rf"(?:{_PART})(?:\.(?:{_PART}))*")
_OLD: Final = {
    "job_id": "job.id", "run_id": "task.run_id", "parent_run_id": "job.run_id", "task_key": "task.name",
    "start_date": "job.start_time.iso_date", "start_time": "job.start_time.timestamp_ms",
    "task_retry_count": "task.execution_count",
}  # fmt: skip
NAMESPACES: Final = ("job", "task", "tasks", "input", "workspace", "backfill")
_TIMES: Final[Mapping[str, Callable[[datetime], Any]]] = {
    "iso_date": lambda t: t.date().isoformat(),
    "iso_datetime": lambda t: t.replace(tzinfo=None).isoformat(),
    "year": lambda t: t.year,
    "month": lambda t: t.month,
    "day": lambda t: t.day,
    "hour": lambda t: t.hour,
    "minute": lambda t: t.minute,
    "second": lambda t: t.second,
    "timestamp_ms": lambda t: int(t.timestamp() * 1000),
    "iso_weekday": lambda t: t.isoweekday(),
    "is_weekday": lambda t: t.isoweekday() <= 5,
}


class BadReference(ValueError):
    """A reference that cannot have a value; the message quotes it and says why."""


@dataclass(frozen=True)
class Reference:
    """One reference of a text: its ``path`` without braces, and where it stands in the text."""

    path: tuple[str, ...]
    text: str


@dataclass
class Scope:
    """The meanings of references at one place and time. ``tasks`` holds, per ended upstream task, its members."""

    job: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    start: datetime = field(default_factory=datetime.now)
    task: dict[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    input: Any = None
    in_loop: bool = False


def references(text: str) -> Iterator[Reference]:
    """The references in ``text`` that belong to a known namespace, and the outdated ones."""
    for match in _BRACES.finditer(text):
        path = _path(match[1])
        if path and (path[0] in NAMESPACES or match[1] in _OLD):
            yield Reference(path, match[0])


def misspelled(text: str) -> Iterator[str]:
    """The texts in double braces that look like a reference, but are none and stay as they are."""
    for match in _BRACES.finditer(text):
        if not _path(match[1]) and re.match(rf"\s*(?:{'|'.join(NAMESPACES)})\b", match[1]):
            yield match[0]


def replaced(text: str, scope: Scope) -> str:
    """``text`` with every reference replaced. Raises :class:`BadReference` for one that has no value."""

    def value(match: re.Match[str]) -> str:
        path = _path(match[1])
        if not path or (path[0] not in NAMESPACES and match[1] not in _OLD):
            return match[0]
        return in_text(lookup(Reference(path, match[0]), scope))

    return _BRACES.sub(value, text)


def lookup(reference: Reference, scope: Scope) -> Any:
    """The value of one reference. Raises :class:`BadReference` when it has none."""
    head, *rest = reference.path
    if head in _OLD and not rest:
        raise BadReference(f"{reference.text} is outdated; write {{{{{_OLD[head]}}}}}")
    if head == "backfill":
        raise BadReference(f"{reference.text} has a value in a backfill run only, which a local run is not")
    return {"job": _job, "task": _task, "tasks": _tasks, "input": _input, "workspace": _workspace}[head](
        reference, rest, scope
    )


def in_text(value: Any) -> str:
    """A value as it stands in a parameter: text as it is, booleans ``true``/``false``, lists and maps as JSON."""
    return json.dumps(value) if isinstance(value, (list, dict)) else as_text(value)


def _path(inner: str) -> tuple[str, ...]:
    if not _PATH.fullmatch(inner):
        return ()
    return tuple(part.strip("`") for part in re.findall(_PART, inner))


def _job(reference: Reference, rest: list[str], scope: Scope) -> Any:
    if len(rest) == 2 and rest[0] == "parameters":
        return _member(reference, scope.parameters, rest[1], "job parameter")
    if len(rest) == 2 and rest[0] == "start_time":
        return _member(reference, _TIMES, rest[1], "part of a time")(scope.start)
    return _member(reference, scope.job, ".".join(rest), "member of job")


def _task(reference: Reference, rest: list[str], scope: Scope) -> Any:
    return _member(reference, scope.task, ".".join(rest), "member of task")


def _tasks(reference: Reference, rest: list[str], scope: Scope) -> Any:
    if len(rest) < 2:
        raise BadReference(f"{reference.text} needs a task and what of it, such as {{{{tasks.load.values.rows}}}}")
    task = _member(reference, scope.tasks, rest[0], "upstream task that has run")
    if rest[1] == "values" and len(rest) == 3:
        return _member(reference, task["values"], rest[2], f'value that task "{rest[0]}" has set')
    members = {name: value for name, value in task.items() if name != "values"}
    return _member(reference, members, ".".join(rest[1:]), "member of a task")


def _input(reference: Reference, rest: list[str], scope: Scope) -> Any:
    if not scope.in_loop:
        raise BadReference(f"{reference.text} has a value inside a for_each_task only")
    if not rest:
        return scope.input
    return _member(reference, scope.input if isinstance(scope.input, dict) else {}, ".".join(rest), "key of the input")


def _workspace(reference: Reference, rest: list[str], scope: Scope) -> Any:
    return _member(reference, {"id": 0, "url": "http://localhost"}, ".".join(rest), "member of workspace")


def _member(reference: Reference, members: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in members:
        known = ", ".join(sorted(members)) or "none"
        raise BadReference(f'{reference.text}: "{name}" is no {kind}; known: {known}')
    return members[name]
