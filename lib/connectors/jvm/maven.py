"""Jars from a Maven repository, fetched once by the Ivy that PySpark carries, and kept in the cache of this machine."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ..ground.cache_folder import cache
from ..ground.errors import Misconfigured, Problem
from .java import use_java

JARS: Final = ("jar", "bundle")
"""The kinds of files that hold classes."""
_MODULE: Final = """\
<ivy-module version="2.0">
  <info organisation="connectors" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""
_DEPENDENCY: Final = '<dependency org="{}" name="{}" rev="{}" conf="default->master,compile,runtime"/>'
_ALONE: Final = '<dependency org="{}" name="{}" rev="{}" conf="default->master"/>'
_EXCLUDE: Final = '<exclude org="{}" module="{}"/>'


class Unresolved(Misconfigured):
    """A package that no Maven repository gives."""


def class_path(
    name: str,
    coordinates: Sequence[str],
    without: Sequence[str] = (),
    alone: Sequence[str] = (),
    types: Sequence[str] = JARS,
) -> list[str]:
    """The jars of Maven ``coordinates`` (``group:artifact:version``) and of what they need, called ``name`` in the cache.

    ``without`` names the dependencies (``group:artifact``) that the caller adds; ``alone`` are more coordinates, of which
    nothing is fetched that they need. ``types`` are the kinds of files to fetch. The first call takes a minute or two.
    Raises :class:`Unresolved` where a repository does not have them.
    """
    folder = cache("jars") / name
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two first starts at once would write into one Ivy cache
        record = [*coordinates, *alone]
        jars = _remembered(folder, record)
        if not jars:
            _resolve(folder, name, coordinates, without, alone, types)
            (folder / "coordinates").write_text("\n".join(record))
            jars = _remembered(folder, record)
    return jars


def spark_jars() -> Path:
    """The folder of the jars that Spark brings. Raises :class:`Misconfigured` without PySpark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Misconfigured("Spark", [Problem("pyspark", "is not installed; its jars are needed.")])
    package = spec.origin.split(f"{os.sep}python{os.sep}lib{os.sep}")[0]  # Spark's Python processes import it out of its home
    homes = [Path(package), Path(spec.origin).parent, Path(os.environ.get("SPARK_HOME") or spec.origin)]
    return next((home / "jars" for home in homes if (home / "jars").is_dir()), Path(spec.origin).parent / "jars")


def _remembered(folder: Path, coordinates: Sequence[str]) -> list[str]:
    """The jars that were resolved for exactly these coordinates; none if one of them is gone."""
    jars, source = folder / "classpath", folder / "coordinates"
    if not (jars.exists() and source.exists() and source.read_text() == "\n".join(coordinates)):
        return []
    paths = jars.read_text().strip().split(os.pathsep)
    return paths if all(Path(jar).exists() for jar in paths) else []


def _resolve(
    folder: Path,
    name: str,
    coordinates: Sequence[str],
    without: Sequence[str],
    alone: Sequence[str],
    types: Sequence[str],
) -> None:
    dependencies = "".join(_DEPENDENCY.format(*coordinate.split(":")) for coordinate in coordinates)
    dependencies += "".join(_ALONE.format(*coordinate.split(":")) for coordinate in alone)
    dependencies += "".join(_EXCLUDE.format(*module.split(":")) for module in without)
    (folder / "ivy.xml").write_text(_MODULE.format(name=name, dependencies=dependencies))
    print(f"Fetching {', '.join(coordinates)} and what it needs, once …", file=sys.stderr, flush=True)
    options = ["-ivy", str(folder / "ivy.xml"), "-confs", "default", "-types", *types]
    files = ["-cache", str(folder.parent / "ivy"), "-cachepath", str(folder / "classpath")]
    ivy = [str(use_java() / "bin" / "java"), "-jar", str(max(spark_jars().glob("ivy-*.jar")))]
    done = subprocess.run([*ivy, *options, *files], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Unresolved("Maven", [Problem(", ".join(coordinates), _reason(done.stdout + done.stderr))])


def _reason(log: str) -> str:
    lines = [line.strip() for line in log.splitlines()]
    missing = [line.partition("not found:")[2].strip() for line in lines if "module not found:" in line]
    failed = [line for line in lines if "FAILED" in line or "UnknownHost" in line or "refused" in line]
    if missing:
        names = ", ".join(dict.fromkeys(name.replace("#", ":").replace(";", ":") for name in missing))
        return f"cannot be fetched: no repository has {names}. Correct the coordinate, or connect once."
    return f"cannot be fetched from a Maven repository: {'; '.join(failed[:3]) or log[-500:]}"
