"""An error as a person wants to read it: its own message first, then where, then nothing more."""

from __future__ import annotations

import re
from typing import Final

from .execution import CellFailure

_LINES: Final = 12
_WIDTH: Final = 400
_AROUND: Final = 2


def message(error: BaseException) -> str:
    """The error's message without stack traces; of an error inside a Spark worker, that error's own message."""
    text = str(error).strip()
    inner = _innermost(text)
    text = inner or _without_stacks(text)
    name = type(error).__name__
    told = text if inner or text.startswith(name) else f"{name}: {text}" if text else name
    lines = [line[:_WIDTH] for line in told.splitlines()]
    more = [f"… {len(lines) - _LINES} more lines in the executed notebook"] if len(lines) > _LINES else []
    return "\n".join([*lines[:_LINES], *more])


def excerpt(failure: CellFailure) -> str:
    """The lines of the cell around the one that failed, which is marked."""
    lines = failure.source.splitlines()
    at = min(failure.line or 1, len(lines))
    first = max(1, at - _AROUND)
    shown = enumerate(lines[first - 1 : at + _AROUND], start=first)
    return "\n".join(f"{'>' if number == at and failure.line else ' '} {number:3} {line}" for number, line in shown)


def told(failure: CellFailure, notebook: str, executed: str) -> str:
    """The whole report of a failing cell."""
    return f"{message(failure.error)}\nin {notebook}, cell {failure.number}:\n{excerpt(failure)}\nall of it: {executed}"


def _innermost(text: str) -> str:
    """What stands after the last Python traceback inside the text: the exception of the worker, all its lines."""
    *_, after = text.rpartition("Traceback (most recent call last):")
    if after == text:
        return ""
    lines = after.splitlines()
    start = next((n for n, line in enumerate(lines) if line and not line.startswith((" ", "\t", "^"))), None)
    return "" if start is None else _without_stacks("\n".join(lines[start:]))


def _without_stacks(text: str) -> str:
    text = re.split(r"\n\s*(?:JVM stacktrace:|== SQL|Driver stacktrace:|at [\w.$]+\()", text, maxsplit=1)[0]
    return "\n".join(line for line in text.splitlines() if line.strip())
