"""Jars of servers that are written in Java: resolved once, by the Ivy that PySpark carries, and remembered."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ...core.errors import Misconfigured
from ...workbench.java import use_java
from ...workbench.paths import cache
from .base import Unavailable

_MODULE: Final = """\
<ivy-module version="2.0">
  <info organisation="connectors" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""
_DEPENDENCY: Final = '<dependency org="{}" name="{}" rev="{}" conf="default->master,compile,runtime"/>'
_EXCLUDE: Final = '<exclude org="{}" module="{}"/>'


def java() -> str:
    """The ``java`` that Spark also runs on. Raises :class:`Unavailable` when there is none."""
    try:
        return str(use_java() / "bin" / "java")
    except Misconfigured as missing:
        raise Unavailable(str(missing)) from None


def classpath(name: str, *coordinates: str, without: tuple[str, ...] = ()) -> str:
    """The class path of Maven ``coordinates`` (``group:artifact:version``), called ``name`` in the cache.

    ``without`` names what they need and somebody else brings (``group:artifact``).

    The first call needs a Maven repository and takes a minute or two; later ones read the remembered paths. Raises
    :class:`Unavailable` when the jars cannot be had.
    """
    folder = cache("jars") / name
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two first starts at once would write into one Ivy cache
        paths = _remembered(folder, coordinates)
        if not paths:
            _resolve(folder, name, coordinates, without)
            paths = _remembered(folder, coordinates)
    return paths


def _remembered(folder: Path, coordinates: tuple[str, ...]) -> str:
    """The class path that was resolved for exactly these coordinates; empty if there is none or a jar is gone."""
    found, asked = folder / "classpath", folder / "coordinates"
    if not (found.exists() and asked.exists() and asked.read_text() == "\n".join(coordinates)):
        return ""
    paths = found.read_text().strip()
    return paths if all(Path(jar).exists() for jar in paths.split(os.pathsep)) else ""


def _resolve(folder: Path, name: str, coordinates: tuple[str, ...], without: tuple[str, ...]) -> None:
    dependencies = "".join(_DEPENDENCY.format(*coordinate.split(":")) for coordinate in coordinates)
    dependencies += "".join(_EXCLUDE.format(*module.split(":")) for module in without)
    (folder / "ivy.xml").write_text(_MODULE.format(name=name, dependencies=dependencies))
    print(f"Fetching {', '.join(coordinates)} and what it needs, once …", file=sys.stderr, flush=True)
    options = ["-ivy", str(folder / "ivy.xml"), "-confs", "default", "-types", "jar", "bundle"]
    places = ["-cache", str(folder.parent / "ivy"), "-cachepath", str(folder / "classpath")]
    done = subprocess.run([java(), "-jar", _ivy(), *options, *places], capture_output=True, text=True)
    if done.returncode:
        told = done.stdout[-2000:] + done.stderr[-1000:]
        raise Unavailable(f"the jars of {name} cannot be fetched from a Maven repository:\n{told}")
    (folder / "coordinates").write_text("\n".join(coordinates))


def _ivy() -> str:
    spec = find_spec("pyspark")
    jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not jars:
        raise Unavailable("install pyspark, whose Ivy fetches the jars")
    return str(jars[-1])
