"""A run as its page shows it, in plain values. Times are seconds since 1970, durations are seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from connectors.metrics.history import BatchRecord, Standing
from connectors.quality.report import Report


@dataclass(frozen=True)
class QueryRecord:
    """A streaming query: where it stood at its end, its newest ``batches``, and what it died of.

    ``targets`` says by component of the query's table what it writes to.
    """

    standing: Standing
    started: float
    batches: Sequence[BatchRecord] = ()
    error: str = ""
    targets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LetterSample:
    """A dead letter: where the record was, what is wrong with it, and its beginning as text."""

    position: str
    error: str
    record: str


@dataclass(frozen=True)
class DeadLetterRecord:
    """The dead letters of a run in one folder, ``place``: how many, and ``samples`` of them."""

    place: str
    count: int
    samples: Sequence[LetterSample] = ()


@dataclass(frozen=True)
class AttemptRecord:
    """One try of a task. ``label`` names it; ``number`` is 1 for the first try.

    ``error`` is the report of its failure, ``said`` what its notebook gave to ``dbutils.notebook.exit``, ``notebook`` the file
    of the executed notebook, ``link`` the address of a page about it.
    """

    label: str
    number: int
    state: str
    started: float
    seconds: float
    error: str = ""
    said: str = ""
    notebook: Path | None = None
    link: str = ""
    queries: Sequence[QueryRecord] = ()
    quality: Sequence[Report] = ()
    letters: Sequence[DeadLetterRecord] = ()


@dataclass(frozen=True)
class TaskRecord:
    """A task of the job, whether it ran or not; a loop has the attempts of all its iterations.

    ``depends_on`` has the keys of the tasks before it, each with the outcome that it asks of them (empty: none). ``result`` is
    what a condition came to.
    """

    key: str
    state: str
    kind: str = ""
    depends_on: Mapping[str, str] = field(default_factory=dict)
    result: str = ""
    attempts: Sequence[AttemptRecord] = ()

    @property
    def started(self) -> float | None:
        return min((attempt.started for attempt in self.attempts), default=None)

    @property
    def seconds(self) -> float:
        """From its first start to its last end."""
        ends = [attempt.started + attempt.seconds for attempt in self.attempts]
        return max(ends) - (self.started or 0.0) if ends else 0.0

    @property
    def last(self) -> AttemptRecord | None:
        """The attempt that decided."""
        return self.attempts[-1] if self.attempts else None


@dataclass(frozen=True)
class RunRecord:
    """A run of a job. ``link`` is the address of the run in its workspace, ``where`` the machine or workspace it ran on.

    ``note`` says what a reader may miss on the page.
    """

    job: str
    run: str
    state: str
    started: float
    seconds: float
    tasks: Sequence[TaskRecord] = ()
    description: str = ""
    target: str = ""
    where: str = ""
    link: str = ""
    note: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def attempts(self) -> Iterator[tuple[TaskRecord, AttemptRecord]]:
        """Every attempt, with its task."""
        return ((task, attempt) for task in self.tasks for attempt in task.attempts)
