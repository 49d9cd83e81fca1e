"""The log of a session's queries: their runs for whoever shows them, and a note of each for other processes."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..core.metrics import write_note
from ..ground import machine
from ..ground.messages import message_in
from .history import ENDED, FAILED, QueryHistory
from .queries import process_start
from .watch import Listening

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOTE_SECONDS: Final = 1.0
"""A note of a running query is renewed at most so often."""
_RUNS: Final = 1000
"""So many runs are remembered."""
_logs: dict[tuple[str, int], QueryLog] = {}
_lock = threading.Lock()


class QueryLog(Listening):
    """The runs of a session's queries since the log began.

    A note beside the metrics of each query says where it stands: ``python -m connectors status`` reads it.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._runs: dict[str, QueryHistory] = {}
        self._noted: dict[str, float] = {}
        super().__init__(spark)

    def running(self) -> list[QueryHistory]:
        """The runs that have not ended, in the order of their starts."""
        return [run for run in list(self._runs.values()) if run.ended is None]

    def run(self, run: str) -> QueryHistory | None:
        """The run with this id."""
        return self._runs.get(run)

    def take(self, kind: str, event: Any) -> None:
        if kind == "started":  # at once, in the call of start(): the first task has not counted anything yet
            with suppress(Exception):  # a run that is not known yet begins with its first progress
                self._begin(str(event.id), str(event.runId), event.name)
        super().take(kind, event)

    def since(self, moment: float) -> list[QueryHistory]:
        """The runs that began at ``moment`` (seconds since 1970) or later. Those that are over have had their last event."""
        self.await_events()
        return [run for run in list(self._runs.values()) if run.started >= moment]

    def handle(self, kind: str, event: Any) -> None:
        if kind == "progress":
            run = self._runs.get(str(event["runId"])) or self._begin(str(event["id"]), str(event["runId"]), event.get("name"))
            run.add(event)
            if machine.monotonic() - self._noted.get(run.run, 0.0) >= _NOTE_SECONDS:
                self._note(run)
        elif kind == "over" and (ended := self._runs.get(str(event.runId))):
            ended.end(FAILED if event.exception else ENDED, message_in(str(event.exception or "")))
            self._note(ended)

    def _begin(self, query: str, run: str, name: str | None) -> QueryHistory:
        from ..spark.execution import execution_of
        from ..spark.query_watch import SparkRun

        execution = execution_of(self._spark, query)
        history = QueryHistory(query, run, name, ends_by_itself=execution is not None and SparkRun(execution).ends_by_itself)
        self._runs[run] = history
        for old in list(self._runs)[:-_RUNS]:
            del self._runs[old]
            self._noted.pop(old, None)
        self._note(history)
        return history

    def _note(self, run: QueryHistory) -> None:
        self._noted[run.run] = machine.monotonic()
        write_note(run.query, note(run))


def note(run: QueryHistory) -> dict[str, Any]:
    """The note of a run for other processes. Its counts are in the query's own files."""
    last = run.batches[-1] if run.batches else None
    return {
        "name": run.name,
        "run": run.run,
        "state": run.state,
        "started": run.started,
        "ended": run.ended,
        "error": run.error[:2000],
        "batch": last.number if last else None,
        "progress": _offsets_only(run.progress),
        "process": os.getpid(),
        "process_start": _start_of(os.getpid()),
        "machine": platform.node(),
        "folder": _working_folder(),
    }


def _working_folder() -> str:
    """The working folder of this process; empty if it has been deleted."""
    with suppress(OSError):
        return str(Path.cwd())
    return ""


@lru_cache(maxsize=1)
def _start_of(process: int) -> str | None:
    return process_start(process)


def _offsets_only(progress: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The part of a progress that tells of positions and lag."""
    if progress is None:
        return None
    sources = [{"endOffset": source.get("endOffset")} for source in progress.get("sources", [])]
    return {"id": progress["id"], "batchId": progress["batchId"], "sources": sources}


def query_log(spark: SparkSession) -> QueryLog:
    """The log of the session, begun at the first call for it. For classic sessions."""
    from ..spark.session import session_key

    key = session_key(spark)
    with _lock:
        if key not in _logs:
            for over in [other for other in _logs if other[0] != key[0]]:  # a process has one Spark at a time
                del _logs[over]
            _logs[key] = QueryLog(spark)
        return _logs[key]


def known_log(spark: SparkSession) -> QueryLog | None:
    """The log of a classic session, if it has one."""
    from ..spark.session import session_key

    return _logs.get(session_key(spark))
