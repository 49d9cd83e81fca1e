"""Pythons with other packages than the project's, each made once and kept in the cache of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from connectors.ground.cache_folder import cache
from connectors.testing.servers import Unavailable


def python_with(name: str, *packages: str) -> Path:
    """A Python, called ``name`` in the cache, with ``packages``. Raises :class:`Unavailable` where there is no ``uv``."""
    folder = cache("pythons") / name
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists() or ready.read_text() != "\n".join(packages):
        uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        if uv is None:
            raise Unavailable("uv is not installed")
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--no-cache", "--python", str(python), *packages], check=True)
        ready.write_text("\n".join(packages))
    return python
