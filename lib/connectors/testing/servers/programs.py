"""Servers that npm or Go bring: fetched or built once, into the cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...workbench.paths import cache
from .base import Unavailable


def built(name: str, recipe: str, build: Callable[[Path], None]) -> Path:
    """The folder that ``build`` has filled for this ``recipe``; another text is another folder.

    Raises :class:`Unavailable` when ``build`` does, and builds anew at the next call.
    """
    folder = cache("programs") / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:10]}"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two first starts at once would build in one folder
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            print(f"Fetching {name}, once …", file=sys.stderr, flush=True)
            build(folder)
            (folder / ".complete").touch()
    return folder


def run(command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
    """Runs a step of a build in ``folder``. Raises :class:`Unavailable` with what it printed if it fails."""
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        output = done.stdout[-2000:] + done.stderr[-2000:]
        raise Unavailable(f"`{' '.join(command)}` failed:\n{output}")
