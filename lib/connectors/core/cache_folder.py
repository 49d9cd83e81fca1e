"""The cache of this machine: jars, servers and builds that later processes use again."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import Misconfigured, Problem


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
