"""The record of a run, for its page: each attempt with its queries, verdicts of quality and dead letters."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connectors.core.letter_files import letters_in, open_letters
from connectors.ground.options import masked
from connectors.metrics.frame import abouts_of
from connectors.metrics.history import QueryHistory
from connectors.quality.report import Report, observed_reports
from connectors.storage.location import storage_of
from connectors.workbench.task_record import versions

from ..report.records import AttemptRecord, DeadLetterRecord, LetterSample, QueryRecord, RunRecord, TaskRecord
from .configuration import as_text
from .model import Job, State

if TYPE_CHECKING:
    from .engine import NotebookEngine
    from .loading import Bundle

PAGE: Final = "index.html"
"""The page of a run, in the run's folder."""
_SAMPLES: Final = 5
_FILES: Final = 500
"""Of a folder with dead letters, so many of the newest files are read."""
_LONGEST: Final = 400


class RunRecorder:
    """Records one run of a job while it runs."""

    def __init__(self, engine: NotebookEngine) -> None:
        self._engine = engine
        self._started = time.time()
        self._attempts: dict[str, list[AttemptRecord]] = {}
        self._shown: set[str] = set()
        self._reports: list[Report] = []
        self._task = ""

    def task(self, key: str) -> None:
        """The attempts that follow belong to this task, those of its iterations too."""
        self._task = key

    @contextmanager
    def attempt(self, label: str, number: int) -> Iterator[dict[str, Any]]:
        """Records what happens inside. The block puts ``state``, and what else it knows, into the dict."""
        outcome: dict[str, Any] = {"state": State.CANCELED}
        started, reports = time.time(), list[Report]()
        with observed_reports(reports.append):
            try:
                yield outcome
            finally:
                ended = time.time()
                notebook: Path | None = outcome.pop("notebook", None)
                runs = self._queries(started)
                queries: list[QueryRecord] = []
                with suppress(Exception):  # a run never fails for what its page would tell
                    queries = [_query(run) for run in runs]
                own = [report for report in reports if not any(report is other for other in self._reports)]
                self._reports += own
                record = AttemptRecord(
                    label, number, str(outcome.pop("state")), started, ended - started,
                    notebook=notebook if notebook and notebook.exists() else None,
                    queries=queries,
                    quality=own,
                    letters=_letters([run.query for run in runs], started),
                    **outcome,
                )  # fmt: skip
                self._attempts.setdefault(self._task, []).append(record)

    def finish(
        self, bundle: Bundle, job: Job, run: str, state: State, parameters: Mapping[str, str], states: Mapping[str, Any]
    ) -> RunRecord:
        """The whole run. ``states`` has each task's state, and what a condition came to, by its key."""
        tasks = [
            TaskRecord(
                key, str(states[key][0]) if key in states else str(State.EXCLUDED), task.kind,
                {other.task: other.outcome or "" for other in task.depends_on},
                states[key][1] or "" if key in states else "", self._attempts.get(key, ()),
            )
            for key, task in job.tasks.items()
        ]  # fmt: skip
        return RunRecord(
            job.key, run, str(state), self._started, time.time() - self._started, tasks,
            description=as_text(job.config.get("description") or ""), target=bundle.target, where=platform.node(),
            parameters={name: masked(name, value) for name, value in parameters.items()},
            versions=versions(),
        )  # fmt: skip

    def _queries(self, since: float) -> list[QueryHistory]:
        """The runs of queries since then that no attempt inside this one has taken."""
        runs: list[QueryHistory] = []
        with suppress(Exception):  # of a session that its notebook has stopped
            runs = self._engine.queries.since(since) if self._engine.queries else []
        runs = [run for run in runs if run.run not in self._shown]
        self._shown.update(run.run for run in runs)
        return runs


def _query(run: QueryHistory) -> QueryRecord:
    abouts = abouts_of(run.query)
    targets = {component: about["target"] for component, about in abouts.items() if "target" in about}
    return QueryRecord(run.standing(), run.started, list(run.batches), run.error, targets)


def _letters(queries: Sequence[str], since: float) -> list[DeadLetterRecord]:
    """The dead letters that the queries have set aside since then, by their folders."""
    abouts = (about for query in queries for about in abouts_of(query).values())
    records = []
    for place in dict.fromkeys(about["letters"] for about in abouts if "letters" in about):
        with suppress(Exception):  # a folder that needs keys which only the query had
            records.append(dead_letters(place, since))
    return [letters for letters in records if letters.count]


def dead_letters(place: str, since: float, until: float = math.inf) -> DeadLetterRecord:
    """The dead letters in the folder ``place`` that were set aside from ``since`` until ``until``."""
    storage = storage_of(place)
    items = [item for item in storage.items() if item.name.endswith(".parquet") and not item.name.startswith(".")]
    newest = sorted((item for item in items if not 0 < item.changed < (since - 60) * 1e9), key=lambda item: -item.changed)
    total, samples = 0, list[LetterSample]()
    for item in newest[:_FILES]:
        with open_letters(storage, item.name) as file:
            for letter in letters_in(file):
                if since <= letter["at"].timestamp() <= until:
                    total += 1
                    samples += [_sample(letter)] if len(samples) < _SAMPLES else []
    return DeadLetterRecord(place, total, samples)


def _sample(letter: Mapping[str, Any]) -> LetterSample:
    record = (letter["record"] or b"").decode("utf-8", "replace")
    shown = record if len(record) <= _LONGEST else f"{record[:_LONGEST]}…"
    return LetterSample(str(letter["position"]), str(letter["error"])[:_LONGEST], shown)
