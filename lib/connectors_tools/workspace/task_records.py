"""The records that the notebooks of a run have written on a volume, read with the Files service.

See :mod:`connectors.workbench.task_record`. Nothing fails for a record: what cannot be read is left out.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from databricks.sdk import WorkspaceClient

from connectors.metrics.history import RUNNING, BatchRecord, Standing
from connectors.quality.report import CheckOutcome, Report
from connectors.workbench.task_record import folder_of

from ..bundle.record import dead_letters
from ..report.records import DeadLetterRecord, QueryRecord
from .client import brief

_VOLUMES: Final = "/Volumes/"
CLOCKS_SECONDS: Final = 30.0
"""The clocks of a cluster and of the service may differ by so much."""
_PATIENCE_SECONDS: Final = 10
"""Nobody waits for long for a record."""
_LETTER_FILES: Final = 50
"""So many of the newest files with dead letters are downloaded."""


@dataclass(frozen=True)
class TaskRecord:
    """The record of one notebook: its start in seconds since 1970, what it ran on, its queries and its reports."""

    started: float
    versions: Mapping[str, str]
    queries: tuple[QueryRecord, ...]
    quality: tuple[Report, ...]
    letters: tuple[str, ...]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> TaskRecord:
        """The record in a file's JSON."""
        queries = [
            QueryRecord(
                Standing(**query["standing"]), query["started"], [BatchRecord(**batch) for batch in query["batches"]],
                query["error"], query["targets"],
            )
            for query in content["queries"]
        ]  # fmt: skip
        reports = [Report(each["name"], [CheckOutcome(**check) for check in each["checks"]]) for each in content["reports"]]
        places = dict.fromkeys(place for query in content["queries"] for place in query["letters"])
        return cls(content["started"], content["versions"], tuple(queries), tuple(reports), tuple(places))


class TaskRecords:
    """The records of a job with these ``parameters`` from ``since`` until ``until``, in seconds since 1970."""

    def __init__(
        self, client: WorkspaceClient, parameters: Mapping[str, str], since: float, until: float = math.inf
    ) -> None:
        folder = folder_of(parameters)
        self.folder = folder if folder.startswith(_VOLUMES) else ""
        self._client, self.since, self._until = brief(client, _PATIENCE_SECONDS), since, until

    def all(self) -> list[TaskRecord]:
        """The records, the oldest first."""
        return list(self._read(newest=False))

    def standings(self) -> list[Standing]:
        """The standings of the queries that the newest record says are running."""
        return [
            query.standing for record in self._read(newest=True) for query in record.queries if query.standing.state == RUNNING
        ]

    def letters(self, record: TaskRecord, later: Sequence[TaskRecord] = ()) -> list[DeadLetterRecord]:
        """The dead letters from the start of this record to the end of the run, by their folders.

        Those of a folder that one of the ``later`` records has too are that record's from its start on.
        """
        counted = []
        for folder in (folder for folder in record.letters if _VOLUMES in folder):
            place = folder[folder.index(_VOLUMES) :]
            until = min((other.started for other in later if folder in other.letters), default=self._until)
            with suppress(Exception), tempfile.TemporaryDirectory() as copy:
                self._download_letters(place, Path(copy))
                found = dead_letters(copy, record.started, until)
                counted.append(DeadLetterRecord(place, found.count, found.samples))
        return [letters for letters in counted if letters.count]

    def _read(self, *, newest: bool) -> Iterator[TaskRecord]:
        names = []
        with suppress(Exception):  # no volume, no folder, or no right to read it
            entries = self._client.files.list_directory_contents(self.folder) if self.folder else ()
            names = sorted(str(entry.path) for entry in entries if self._is_of_run(str(entry.name)))
        for name in names[-1:] if newest else names:
            try:
                yield TaskRecord.of(json.loads(self._content(name)))
            except TimeoutError:  # the next one would be waited for as long
                return
            except Exception:
                continue

    def _is_of_run(self, name: str) -> bool:
        start, _, rest = name.partition(".")
        return rest.endswith("json") and start.isdecimal() and self._is_in_time(int(start) / 1000)

    def _is_in_time(self, at: float) -> bool:
        return self.since - CLOCKS_SECONDS <= at <= self._until + CLOCKS_SECONDS

    def _content(self, path: str) -> bytes:
        contents = self._client.files.download(path).contents
        assert contents is not None, "a download has contents"
        with contents:
            return contents.read()

    def _download_letters(self, place: str, copy: Path) -> None:
        entries = [
            entry
            for entry in self._client.files.list_directory_contents(place)
            if str(entry.name).endswith(".parquet") and self._is_in_time((entry.last_modified or 0) / 1000)
        ]
        for entry in sorted(entries, key=lambda entry: -(entry.last_modified or 0))[:_LETTER_FILES]:
            (copy / str(entry.name)).write_bytes(self._content(str(entry.path)))
