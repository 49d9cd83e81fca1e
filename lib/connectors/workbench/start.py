"""The Spark session of a notebook: the running session, or a new local one."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connectors.ground.errors import Misconfigured, MissingFeature, Problem
from connectors.ground.runtime import LIBRARY, in_workspace
from connectors.jvm.java import use_java
from connectors.metrics.log import query_log
from connectors.spark.session import active_session, classic_is_running, has_class, is_connect, launch_java, require

from .cell_errors import show_messages
from .class_archive import java_options
from .home import at_home
from .jars import delta_jars
from .settings import default_master, local_settings, prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger("connectors")
_DELTA: Final = "io.delta.sql.DeltaSparkSessionExtension"
_LAST_WORDS: Final = 500
"""The number of last characters shown of the output of a JVM that did not start."""


def session(conf: Mapping[str, Any] | None = None, master: str | None = None) -> SparkSession:
    """The Spark session, with every ``connectors.*`` format registered.

    In a workspace, or if a session is already active, it returns that session: ``conf`` then sets only settings that a
    running session can change, and ``master`` has no effect. Otherwise it starts a local session, with Delta if the package
    ``delta-spark`` is installed. If its jars cannot be had, the session says so, and only code that needs Delta fails.

    ``conf``: Spark's own settings; they win over the defaults of :mod:`connectors.workbench.settings`.
    ``master``: by default ``local[n,4]`` with all n cores, so that a failed task is retried; ``sc://host:port``
    connects to a Spark Connect server. The output of a local session and its workers goes to its log. A cell that fails with
    an error of Spark shows the library's message in it. Raises :class:`Misconfigured` if Java or pyspark is missing.
    """
    return start(conf, master)


def start(conf: Mapping[str, Any] | None = None, master: str | None = None, log: Path | None = None) -> SparkSession:
    """As :func:`session`, with the output of Spark and its workers in ``log`` (default: a temporary file of the session)."""
    from connectors import register

    settings = {key: _text(value) for key, value in (conf or {}).items()}
    _spark_session_class()
    require(LIBRARY)  # before a JVM starts in vain
    spark = running()
    if spark is None:
        spark = _connected(settings, master) if (master or "").startswith("sc://") else _local(settings, master, log)
    else:
        _set_what_can_be(spark, settings)
    register(spark)
    if not in_workspace():  # a workspace shows errors in its own way
        show_messages()
        _log_queries(spark)
    return spark


def _log_queries(spark: SparkSession) -> None:
    """Logs the session's queries for ``python -m connectors status``; the queries do not depend on it."""
    if not is_connect(spark):
        try:
            query_log(spark)
        except Exception:
            _log.warning("the queries of this session are not listed by connectors status", exc_info=True)


def running() -> SparkSession | None:
    """The existing session: a workspace's, the active one, or that of a running context; else None."""
    spark_session = _spark_session_class()
    if in_workspace() or "SPARK_REMOTE" in os.environ:
        return spark_session.builder.getOrCreate()
    return active_session(spark_session) or _of_running_context(spark_session)


def _of_running_context(spark_session: type[SparkSession]) -> SparkSession | None:
    return spark_session.builder.getOrCreate() if classic_is_running() else None


def _local(conf: Mapping[str, str], master: str | None, log: Path | None) -> SparkSession:
    use_java()
    prepare_environment()
    folder = Path(tempfile.mkdtemp(prefix="connectors-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    log = log or folder / "spark.log"
    jars, missing = _delta(conf)
    settings: dict[str, Any] = dict(local_settings(folder, log, jars, conf, java_options()))
    settings["spark.master"] = chosen = master or conf.get("spark.master") or default_master()
    with at_home() if chosen.startswith("local") else contextlib.nullcontext():  # a cluster has its own home
        _launch_java(settings, log)
        spark = _spark_session_class().builder.config(map=settings).getOrCreate()
    if missing is not None and not has_class(spark, _DELTA):  # the caller's settings may bring it
        from connectors.spark.formats import refuse_format

        _log.warning("The session starts without Delta. %s", missing)
        refuse_format(spark, "delta", missing)
    return spark


def _delta(conf: Mapping[str, str]) -> tuple[list[str], MissingFeature | None]:
    """Delta's jars, or the reason why there are none."""
    try:
        return delta_jars(conf), None
    except MissingFeature as missing:
        return [], missing


def _launch_java(settings: Mapping[str, Any], log: Path) -> None:
    from pyspark.errors import PySparkRuntimeError

    try:
        launch_java(settings, log)
    except PySparkRuntimeError as failed:
        if "JAVA_GATEWAY_EXITED" not in str(failed):
            raise
        said = " ".join(log.read_text(errors="replace").split())[-_LAST_WORDS:]
        memory = f"Has this machine {settings['spark.driver.memory']} of memory (spark.driver.memory) to spare?"
        text = f"{os.environ['JAVA_HOME']} did not start Spark. {memory} It said: {said}"
        raise Misconfigured("Spark", [Problem("JAVA_HOME", text)]) from None


def _connected(conf: Mapping[str, str], master: str | None) -> SparkSession:
    builder = _spark_session_class().builder.remote(str(master))
    return builder.config(map=dict(conf)).getOrCreate()


def _set_what_can_be(spark: SparkSession, conf: Mapping[str, str]) -> None:
    for key, value in conf.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _spark_session_class() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError as missing:
        way_out = Problem("pyspark", "is not installed; make setup, or pip install -r requirements.txt")
        raise Misconfigured("Spark", [way_out]) from missing
    return SparkSession
