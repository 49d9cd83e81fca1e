"""Versioned, canonical JSON: the only form in which state leaves a process.

Spark compares offsets as text and keeps them for years, so keys are sorted, values are plain, and a version says how to
read them. No pickle: a class that moves or changes must not make a checkpoint unreadable.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from .errors import StateError

VERSION: Final = 1
"""The version that this library writes. Older ones are read; a newer one is refused."""


def canonical(state: Any) -> Any:
    """``state`` with the keys of every object sorted, so that equal states are equal text."""
    if isinstance(state, dict):
        return {key: canonical(state[key]) for key in sorted(state)}
    if isinstance(state, (list, tuple)):
        return [canonical(item) for item in state]
    return state


def versioned(**fields: Any) -> dict[str, Any]:
    """A state object of the current version, without the fields that are ``None``."""
    body = {key: value for key, value in fields.items() if value is not None}
    return dict(canonical({"v": VERSION, **body}))


def checked(state: Any, what: str) -> dict[str, Any]:
    """``state`` as an object of a known version. Raises :class:`StateError` for anything else."""
    if not isinstance(state, dict) or not isinstance(state.get("v"), int):
        raise StateError(
            f"{what} is no state of this library: {dumps(state)[:200]}",
            way_out="the checkpoint or ledger belongs to another program, or is damaged; use one of its own",
        )
    if state["v"] > VERSION:
        raise StateError(
            f"{what} has version {state['v']}; this library reads versions up to {VERSION}",
            way_out="run the newer version of the library that wrote it",
        )
    return state


def dumps(state: Any) -> str:
    """``state`` as canonical JSON text."""
    return json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def loads(text: str | bytes, what: str) -> dict[str, Any]:
    """The state of JSON ``text``, its version checked; ``what`` names it in errors."""
    try:
        state = json.loads(text)
    except ValueError as error:
        raise StateError(f"{what} is not JSON: {error}", way_out="restore it from a copy") from None
    return checked(state, what)


def digest(*parts: object, length: int = 12) -> str:
    """A short name for ``parts`` that is the same in every process and run (hexadecimal, ``length`` characters)."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:length]
