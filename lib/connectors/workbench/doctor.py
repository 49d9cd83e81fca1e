"""Checks whether this machine has what a local run needs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from connectors.ground.cache_folder import cache
from connectors.ground.errors import ConnectorError, Misconfigured
from connectors.jvm import java
from connectors.storage import checked_storage

from .class_archive import java_options, make_archive
from .home import spark_home
from .jars import delta_coordinate, delta_jars, remembered

_PACKAGES = ("pyspark", "delta-spark", "pandas", "pyarrow", "ipython", "matplotlib", "great-expectations")


@dataclass(frozen=True)
class Finding:
    """The result of one check; a local run does not need ``optional`` ones."""

    name: str
    ok: bool
    text: str
    optional: bool = False

    def __str__(self) -> str:
        mark = "ok      " if self.ok else "optional" if self.optional else "MISSING "
        return f"{mark}  {self.name:<20}  {self.text}"


def examine(fetch: bool = False) -> list[Finding]:
    """Checks everything that a local run needs; ``fetch`` gets what is missing: Delta's jars, the archive of classes."""
    packages = (_package(name) for name in _PACKAGES)
    spark = _attempt("spark home", lambda: str(spark_home()))
    own = [_delta(fetch), _classes(fetch), _bytecode(), _cache()]
    return [_python(), *packages, _java(), spark, *own, *_servers(), *_programs()]


def examine_folders(locations: Iterable[str]) -> Iterator[Finding]:
    """Checks whether these folders, mounts or URLs can hold ledgers. It creates and removes a file in each of them."""
    for location in locations:
        try:
            checked_storage("connectors doctor", "--folder", location, {}).check()
            yield Finding("folder", True, f"{location} can have a ledger")
        except (ConnectorError, OSError) as wrong:
            yield Finding("folder", False, " ".join(str(wrong).split()))


def _python() -> Finding:
    release = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", sys.version_info >= (3, 10), f"{release} (3.10 or newer is needed)")


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, version(name))
    except PackageNotFoundError:
        return Finding(name, False, "not installed; make setup")


def _java() -> Finding:
    def describe() -> str:
        home = java.use_java()
        return f"{java.version(home)} in {home}"

    return _attempt("java", describe)


def _delta(fetch: bool) -> Finding:
    if not fetch and not remembered():
        text = "fetched at the first start (about 90 MB), or now by: python -m connectors doctor --fetch"
        return Finding("delta jars", False, text, optional=True)
    return _attempt("delta jars", lambda: f"{len(delta_jars())} jars of {delta_coordinate()}")


def _classes(fetch: bool) -> Finding:
    name, text = "class archive", "Spark starts some seconds faster with it; python -m connectors doctor --fetch makes it"
    try:
        exists = make_archive() if fetch else bool(java_options())
    except Misconfigured:  # no Java, which has its own finding
        exists = False
    return Finding(name, exists, "there" if exists else text, optional=True)


def _bytecode() -> Finding:
    text = "PYTHONDONTWRITEBYTECODE is set: each Python that Spark starts compiles all that it imports anew; unset it"
    return Finding("compiled python", not sys.dont_write_bytecode, text if sys.dont_write_bytecode else "kept", optional=True)


def _cache() -> Finding:
    return _attempt("cache folder", lambda: str(cache("")))


def _servers() -> Iterator[Finding]:
    for name, server in (("kafka", "Kafka broker"), ("opensearch", "OpenSearch"), ("cassandra", "Cassandra")):
        exists = (cache("jars") / name / "classpath").exists()
        text = "there" if exists else "fetched when a notebook or a test starts one for the first time"
        yield Finding(f"{server} jars", exists, text, optional=True)


def _programs() -> Iterator[Finding]:
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for name, use in (("databricks", "to deploy to a workspace"), ("jupyter", "to open the notebooks")):
        path = shutil.which(name, path=beside)
        yield Finding(name, path is not None, path or f"not installed; needed only {use}", optional=True)


def _attempt(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, look())
    except (ConnectorError, PackageNotFoundError) as wrong:
        return Finding(name, False, " ".join(str(wrong).split()))
