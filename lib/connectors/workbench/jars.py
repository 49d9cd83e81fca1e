"""The jars of Delta: Spark's own resolver resolves them once, then every session gets them by path.

``spark.jars.packages`` alone would run the resolver and use the network at each start.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from ..ground.cache_folder import cache
from ..ground.errors import MissingFeature
from ..ground.options import masked
from ..ground.runtime import version_of
from .settings import library

_RESOLVE: Final = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
from connectors.spark.session import launch_java
from pyspark.sql import SparkSession
settings = {"spark.master": "local[1]", "spark.ui.enabled": "false", **json.load(sys.stdin)}
launch_java(settings, pathlib.Path("/dev/stderr"))
print("jars:" + SparkSession.builder.config(map=settings).getOrCreate().sparkContext.getConf().get("spark.jars"))
"""
_RESOLVER_SETTINGS: Final = ("spark.jars.ivy", "spark.jars.ivySettings", "spark.jars.repositories", "spark.jars.excludes")


def delta_coordinate() -> str:
    """Delta's Maven coordinate for the installed ``pyspark`` and ``delta-spark``."""
    spark = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"


def delta_jars(conf: Mapping[str, str] | None = None) -> list[str]:
    """Paths of the jars that Delta needs and Spark lacks.

    The first call takes about half a minute and needs a Maven repository: Maven Central, or the one that ``conf`` or
    ``spark-defaults.conf`` names by ``spark.jars.repositories`` or ``spark.jars.ivySettings``. Later calls read the
    stored paths. Empty if the package ``delta-spark`` is not installed: a session then has no Delta. Raises
    :class:`MissingFeature` if the jars cannot be had.
    """
    if find_spec("delta") is None:
        return []
    with open(_record().with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two first starts at once would write to one Ivy cache
        jars = remembered()
        if not jars:
            _refuse_newer_spark()
            jars = _without_sparks_own(_resolved(delta_coordinate(), conf or {}))
            _record().write_text("\n".join(jars))
    return jars


def remembered() -> list[str]:
    """The paths that were resolved before; empty if there are none or one of the files is gone."""
    jars = _record().read_text().splitlines() if _record().exists() else []
    return jars if all(Path(jar).exists() for jar in jars) else []


def _record() -> Path:
    return cache("jars") / (delta_coordinate().replace(":", "_") + ".txt")


def _refuse_newer_spark() -> None:
    """Raises before any request if Spark is newer than ``delta-spark`` supports: there are no such jars."""
    known = next((each for each in requires("delta-spark") or [] if each.startswith("pyspark")), "")
    newest = re.search(r"<=?\s*([\d.]+)", known)
    if newest is not None and version_of(version("pyspark")) > version_of(newest[1]):
        text = f"Delta is missing: delta-spark {version('delta-spark')} needs {known}, and this is pyspark {version('pyspark')}"
        raise MissingFeature(text, way_out="install versions that go together")


def _resolved(coordinate: str, conf: Mapping[str, str]) -> list[str]:
    print(f"Fetching {coordinate} and what it needs, once (about 90 MB) …", file=sys.stderr, flush=True)
    settings = {"spark.jars.packages": coordinate, **{key: conf[key] for key in _RESOLVER_SETTINGS if key in conf}}
    command = [sys.executable, "-c", _RESOLVE, str(library())]
    environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_SUBMIT_ARGS"}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    done = subprocess.run(command, input=json.dumps(settings), capture_output=True, text=True, env=environment)
    for line in done.stdout.splitlines():
        if line.startswith("jars:"):
            return [unquote(urlparse(jar).path) for jar in line.removeprefix("jars:").split(",")]
    raise _unresolved(coordinate, done.stderr)


def _without_sparks_own(jars: Sequence[str]) -> list[str]:
    """The jars that Spark does not bring: of two versions of a class, chance would decide which one is loaded."""
    import pyspark

    spark = {_artifact(jar.name) for jar in (Path(pyspark.__path__[0]) / "jars").glob("*.jar")}
    return [jar for jar in jars if _artifact(Path(jar).name.partition("_")[2]) not in spark]


def _artifact(jar: str) -> str:
    return re.split(r"-(?=\d)", jar, maxsplit=1)[0]


def _unresolved(coordinate: str, log: str) -> MissingFeature:
    telling = [line.strip() for line in log.splitlines() if re.search(r"not found|refused|Unable|Error|unknown", line)]
    said = masked("spark.jars.repositories", " ".join(telling[:3]))
    text = f"Delta is missing: {coordinate} cannot be fetched from a Maven repository: {said or 'see the log of spark-submit'}"
    way_out = "connect once, or name a repository that this machine reaches: session({'spark.jars.repositories': 'https://…'})"
    return MissingFeature(text, way_out=way_out)
