"""A home for Spark in which its Python processes find PySpark compiled.

Spark puts ``python/lib/pyspark.zip`` of its home first on the path of every Python process that it starts. Python does not
store the code that it compiles from a zip file. Each process would therefore compile PySpark again, in half a second, and a
streaming query starts up to eight of them. The home made here links to the installed PySpark, but has the packages
themselves instead of their zip files. It is in the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from connectors.ground.cache_folder import cache
from connectors.ground.errors import Misconfigured, Problem

_OF_SPARK: Final = ("bin", "conf", "data", "jars", "sbin")


def spark_home() -> Path:
    """``SPARK_HOME`` if it is set; else a home for the installed PySpark, made at the first call.

    PySpark's own folder if links cannot be made, or if PySpark has no Spark jars.
    """
    if folder := os.environ.get("SPARK_HOME"):
        return Path(folder)
    pyspark = _package("pyspark")
    zips = {"pyspark.zip": pyspark, **{file.name: _package("py4j") for file in pyspark.glob("python/lib/py4j-*-src.zip")}}
    home = cache("spark-home") / hashlib.sha256(f"{zips}".encode()).hexdigest()[:16]
    if not home.exists() and (pyspark / "jars").exists():
        with contextlib.suppress(OSError):
            _make(home, pyspark, zips)
    return home if home.exists() else pyspark


@contextlib.contextmanager
def at_home() -> Iterator[None]:
    """Inside, sets the environment for a JVM on this machine; the JVM passes it on to its processes.

    ``SPARK_HOME`` is :func:`spark_home`. NumPy has one thread in each Python process, unless ``OPENBLAS_NUM_THREADS`` says
    otherwise: tasks already use all cores, and each further thread spins for a tenth of a second at NumPy's import.
    """
    variables = {"SPARK_HOME": str(spark_home()), "OPENBLAS_NUM_THREADS": "1"}
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise Misconfigured("Spark", [Problem(name, "is not installed; make setup, or pip install -r requirements.txt")])
    return Path(spec.origin).parent


def _make(home: Path, pyspark: Path, zips: dict[str, Path]) -> None:
    part = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    try:
        for name in _OF_SPARK:
            if (pyspark / name).exists():
                (part / name).symlink_to(pyspark / name)
        for name, package in zips.items():
            folder = part / "python" / "lib" / name
            folder.mkdir(parents=True)
            (folder / package.name).symlink_to(package)
        part.rename(home)  # fails if another process was first
    finally:
        shutil.rmtree(part, ignore_errors=True)
