"""The record of a job's notebook: its queries, quality reports and versions, in a file below the job's ``workdir``.

The Jobs service of a workspace tells nothing of them. ``connectors run --on workspace`` and ``connectors runs show --html``
read the file from the volume::

    <workdir>/<name>/record/<start in milliseconds since 1970>.<token>.json

``workdir`` and ``name`` are parameters of the job. A job without ``workdir`` has no record.
"""

from __future__ import annotations

import json
import logging
import platform
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from ..ground import machine
from ..metrics.frame import abouts_of
from ..metrics.history import RUNNING, QueryHistory
from ..quality.report import Report, observed_reports
from ..storage.location import storage_of
from .settings import workdir

FOLDER: Final = "record"
_FORMAT: Final = 1
_WRITE_SECONDS: Final = 5.0
"""A running query renews the record at most so often."""
_FILES: Final = 20
"""So many of the newest records remain in a folder."""
_BATCHES: Final = 500
"""A record has so many of a query's newest batches."""
_PACKAGES: Final = ("pyspark", "delta-spark", "pandas", "pyarrow", "great-expectations")

_log = logging.getLogger("connectors")
_lock = threading.Lock()
_current: TaskRecord | None = None


class TaskRecord:
    """The record of the notebook that runs in this process. A notebook never fails for it: an error is a warning in the log."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._started = machine.time()
        self._name = f"{round(self._started * 1000)}.{machine.token()}.json"
        self._queries: dict[str, QueryHistory] = {}
        self._reports: list[tuple[float, Report]] = []
        self._next_write = 0.0
        self._is_off = False
        self._observing = ExitStack()
        self._observing.enter_context(observed_reports(self._report))

    def query(self, history: QueryHistory) -> None:
        """Records a query, in its first call, when it ends, and now and then between."""
        is_due = history.run not in self._queries or history.state != RUNNING or machine.monotonic() >= self._next_write
        self._queries[history.run] = history
        if is_due:
            self._write()

    def close(self) -> None:
        """Records no more reports."""
        self._observing.close()

    def _report(self, report: Report) -> None:
        self._reports.append((machine.time(), report))
        self._write()

    def _write(self) -> None:
        with _lock:
            if self._is_off:
                return
            try:
                storage, is_first = storage_of(self.folder), self._next_write == 0.0
                storage.replace(self._name, json.dumps(self._content(), separators=(",", ":"), default=str).encode())
                if is_first:
                    for old in sorted(name for name in storage.names() if name.endswith(".json"))[:-_FILES]:
                        storage.delete(old)
            except Exception as refused:
                self._is_off = True
                _log.warning("the queries are not recorded: %s cannot be written (%s)", self.folder, str(refused)[:500])
            self._next_write = machine.monotonic() + _WRITE_SECONDS

    def _content(self) -> dict[str, Any]:
        return {
            "v": _FORMAT,
            "started": self._started,
            "versions": versions(),
            "queries": [_query(history) for history in self._queries.values()],
            "reports": [{"at": at, "name": report.name, "checks": _checks(report)} for at, report in self._reports],
        }


def begin(parameters: Mapping[str, str]) -> None:
    """Begins the record of a notebook with the ``parameters`` of its job."""
    global _current
    if _current is not None:
        _current.close()
        _current = None
    if folder := folder_of(parameters):
        _current = TaskRecord(workdir(folder))


def record_query(history: QueryHistory) -> None:
    """Records a query of this notebook, if its job has a record."""
    if _current is not None:
        _current.query(history)


def folder_of(parameters: Mapping[str, str]) -> str:
    """The folder with the records of a job with these parameters, as the job names it; empty if there is none."""
    place, name = parameters.get("workdir", ""), parameters.get("name", "")
    return "/".join(filter(None, (place.rstrip("/"), name, FOLDER))) if place else ""


def versions() -> dict[str, str]:
    """The versions that a run runs on: Python, this library, the packages that matter most, and the system."""
    numbers = {"python": platform.python_version()}
    for name in ("connectors", *_PACKAGES):
        with suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return {**numbers, "system": f"{platform.system()} {platform.release()}, {platform.machine()}"}


def _query(history: QueryHistory) -> dict[str, Any]:
    abouts = abouts_of(history.query)
    return {
        "started": history.started,
        "error": history.error[:2000],
        "standing": asdict(history.standing()),
        "batches": [asdict(batch) for batch in list(history.batches)[-_BATCHES:]],
        "targets": {component: about["target"] for component, about in abouts.items() if "target" in about},
        "letters": sorted({about["letters"] for about in abouts.values() if "letters" in about}),
    }


def _checks(report: Report) -> list[dict[str, Any]]:
    names = ("check", "meaning", "ok", "failing", "rows", "sample")
    return [{name: getattr(outcome, name) for name in names} for outcome in report.outcomes]
