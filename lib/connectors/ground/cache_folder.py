"""The cache of this machine: jars, servers and builds that later processes use again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from . import machine
from .errors import Misconfigured, Problem
from .state import digest

_MOMENT: Final = 60.0


def cache(name: str) -> Path:
    """A folder that outlives the process: ``$CONNECTORS_CACHE/name``, by default below ``~/.cache/connectors``."""
    root = os.environ.get("CONNECTORS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "connectors"
    folder = Path(root).expanduser() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        text = f"cannot make {folder}: {refused.strerror}. Name a folder that can be written."
        raise Misconfigured("the workbench", [Problem("CONNECTORS_CACHE", text)]) from refused
    return folder


def is_told(text: str) -> bool:
    """True for what was told a moment ago: Spark asks in each of the processes that it starts for a query."""
    with contextlib.suppress(OSError, Misconfigured):
        mark = cache("notes") / digest(text)
        is_told = mark.exists() and machine.time() - mark.stat().st_mtime < _MOMENT
        mark.touch()
        return is_told
    return False
