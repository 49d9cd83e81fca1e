"""The one Spark session of a job run: made at its first use, tidied after each task, stopped at the end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connectors.metrics.history import Standing
from connectors.metrics.log import QueryLog, query_log
from connectors.spark.session import canceling, forget_connection, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CANCEL_SECONDS: Final = 30.0
"""Seconds to wait for Spark to cancel jobs."""


class NotebookEngine:
    """The session for the tasks of a run; ``log`` is the file for the output of Spark and its workers."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._settings: dict[str, str] | None = None
        self._place = ("", "")
        """The current catalog and database at the start."""
        self._foreign = self.session is not None
        self.queries: QueryLog | None = None
        """The log of the session's queries; ``None`` before its start, and on Spark Connect."""

    @property
    def session(self) -> SparkSession | None:
        """The running session, or None when no task has needed one yet."""
        if "pyspark.sql" not in sys.modules:
            return None
        from connectors.workbench.start import running

        return running()

    def start(self) -> SparkSession:
        """The session, started now if there is none."""
        from connectors.workbench.start import start

        spark = start(log=self.log)
        if self._settings is None:
            self._settings = _settings(spark)
            self._place = _place(spark)
        self.queries = None if is_connect(spark) else query_log(spark)
        return spark

    def standings(self) -> list[Standing]:
        """The standings of the queries that run now."""
        return [run.standing() for run in self.queries.running()] if self.queries else []

    def tidy(self) -> list[str]:
        """Stops active streams, drops temporary views, puts the current database and the settings back.

        Returns the names of the streams.
        """
        stopped: list[str] = []
        steps: list[Callable[[SparkSession], object]] = [
            lambda spark: stopped.extend(map(_stop, spark.streams.active)),
            self._reset_place,
            _drop_temporary_views,
            self._reset_settings,
        ]
        for step in steps:
            with suppress(Exception):  # a session that a notebook has broken shows itself to who needs it next
                spark = self.session
                if spark is not None and (self._settings is not None or not self._foreign):
                    step(spark)
        return stopped

    def cancel(self) -> None:
        """Ends all running Spark jobs, after a call was interrupted while it waited for one."""
        forget_connection()
        spark = self.session
        if spark is None:
            return
        # A new thread has its own link to the JVM; that of this thread was cut in the middle of a call.
        thread = threading.Thread(target=_quietly(canceling(spark)), daemon=True)
        thread.start()
        thread.join(_CANCEL_SECONDS)

    def stop(self) -> None:
        """Stops the session, if this run started it."""
        spark = None if self._foreign else self.session
        if spark is not None:
            with suppress(Exception):
                spark.stop()

    def _reset_place(self, spark: SparkSession) -> None:
        if self._settings is not None and _place(spark) != self._place:
            catalog, database = self._place
            spark.catalog.setCurrentCatalog(catalog)
            spark.catalog.setCurrentDatabase(database)

    def _reset_settings(self, spark: SparkSession) -> None:
        now = _settings(spark)
        before = now if self._settings is None else self._settings
        for key in (key for key in {*before, *now} if before.get(key) != now.get(key) and spark.conf.isModifiable(key)):
            spark.conf.set(key, before[key]) if key in before else spark.conf.unset(key)


def _settings(spark: SparkSession) -> dict[str, str]:
    return dict(spark.conf.getAll)


def _place(spark: SparkSession) -> tuple[str, str]:
    return spark.catalog.currentCatalog(), spark.catalog.currentDatabase()


def _drop_temporary_views(spark: SparkSession) -> None:
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)


def _stop(query: Any) -> str:
    name = str(query.name or query.id)
    with suppress(Exception):  # its own failure is reported already, or does not matter any more
        query.stop()
    return name


def _quietly(call: Callable[[], Any]) -> Callable[[], None]:
    def called() -> None:
        with suppress(Exception):
            call()

    return called
