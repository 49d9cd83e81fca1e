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
import re
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from ..ground import machine
from ..ground.options import masked
from ..metrics.frame import abouts_of
from ..metrics.history import RUNNING, QueryHistory
from ..quality.report import Report, observed_reports
from ..storage.location import storage_of
from .settings import workdir

FOLDER: Final = "record"
_FORMAT: Final = 1
_NAME: Final = re.compile(r"\d+\.[0-9a-f]{32}\.json")
"""The name of a record. Other files in the folder belong to somebody else."""
_WRITE_SECONDS: Final = 5.0
"""A running query renews the record at most so often."""
_WRITE_SHARE: Final = 20
"""Renewing it takes at most 1/20 of the time."""
_PAUSE_SECONDS: Final = 60.0
"""The pause after the folder could not be written."""
_FILES: Final = 200
"""So many of the newest records remain in a folder."""
_QUERIES: Final = 50
_REPORTS: Final = 100
_BATCHES: Final = 500
"""A record has so many of the newest queries, of the newest reports, and of a query's newest batches."""
_LONGEST_VALUE: Final = 200
"""The most characters of a value in a sample row."""
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
        self._reports: deque[tuple[float, Report]] = deque(maxlen=_REPORTS)
        self._next_write = self._pause_end = 0.0
        self._is_first, self._has_warned = True, False
        self._observing = ExitStack()
        self._observing.enter_context(observed_reports(self._report))

    def query(self, history: QueryHistory) -> None:
        """Records a query, in its first call, when it ends, and now and then between."""
        is_due = history.run not in self._queries or history.state != RUNNING or machine.monotonic() >= self._next_write
        self._queries[history.run] = history
        for old in list(self._queries)[:-_QUERIES]:
            self._queries.pop(old, None)
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
            began = machine.monotonic()
            if began < self._pause_end:
                return
            try:
                storage = storage_of(workdir(self.folder))
                storage.replace(self._name, json.dumps(self._content(), separators=(",", ":"), default=str).encode())
                if self._is_first:
                    for old in sorted(name for name in storage.names() if _NAME.fullmatch(name))[:-_FILES]:
                        storage.delete(old)
                self._is_first = False
            except Exception as refused:
                self._pause_end = machine.monotonic() + _PAUSE_SECONDS
                if not self._has_warned:
                    text = "the queries are not recorded while %s cannot be written (%s)"
                    _log.warning(text, self.folder, str(refused)[:500])
                self._has_warned = True
            ended = machine.monotonic()
            self._next_write = ended + max(_WRITE_SECONDS, _WRITE_SHARE * (ended - began))

    def _content(self) -> dict[str, Any]:
        return {
            "v": _FORMAT,
            "started": self._started,
            "versions": versions(),
            "queries": [_query(history) for history in list(self._queries.values())],
            "reports": [{"at": at, "name": report.name, "checks": _checks(report)} for at, report in list(self._reports)],
        }


def begin(parameters: Mapping[str, str]) -> None:
    """Begins the record of a notebook with the ``parameters`` of its job."""
    global _current
    if _current is not None:
        _current.close()
        _current = None
    if folder := folder_of(parameters):
        _current = TaskRecord(folder)


def record_query(history: QueryHistory) -> None:
    """Records a query of this notebook, if its job has a record."""
    if _current is not None:
        _current.query(history)


def folder_of(parameters: Mapping[str, str]) -> str:
    """The folder with the records of a job with these parameters, as the job names it; empty if there is none."""
    place, name = parameters.get("workdir", "").strip(), parameters.get("name", "").strip()
    return "/".join((place.rstrip("/"), *filter(None, (name, FOLDER)))) if place else ""


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
        "error": masked("error", history.error)[:2000],
        "standing": asdict(history.standing()),
        "batches": [asdict(batch) for batch in list(history.batches)[-_BATCHES:]],
        "targets": {component: about["target"] for component, about in abouts.items() if "target" in about},
        "letters": sorted({about["letters"] for about in abouts.values() if "letters" in about}),
    }


def _checks(report: Report) -> list[dict[str, Any]]:
    return [{**vars(outcome), "sample": [_plain(row) for row in outcome.sample]} for outcome in report.outcomes]


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample row as JSON has it: numbers, and text no longer than people read."""
    plain = (type(None), bool, int, float)
    return {name: value if isinstance(value, plain) else str(value)[:_LONGEST_VALUE] for name, value in row.items()}
