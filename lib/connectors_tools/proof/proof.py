"""A proof: rows are fed, faults strike, and every row is compared."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from connectors.ground import machine
from connectors.ground.errors import Misconfigured, Problem
from connectors.metrics.words import count
from connectors.testing.demo import orders_of
from connectors.workbench import session

from .latency import latencies
from .rounds import FAULTS, Outcome, Rounds
from .subject import DEMONSTRATIONS, Subject
from .verdict import Verdict, delivered, verdict

_BATCHES: Final = 3
"""The batches of a round, where the source can be bounded."""
_FOLDERS: Final = ("state", "faults", "older", "newer", "tables")
"""What the proof makes in its folder, and removes with the names."""


@dataclass
class Proof:
    """A proof of the pipeline in the file ``notebook``.

    ``parameters`` are the notebook's, such as the address of the system; without one, a demonstration is proven. The proof
    makes names of its own there, which :meth:`names` tells, and removes them. Its state and log are in ``folder``.
    ``faults`` are names of :data:`~.rounds.FAULTS`; which one strikes when depends on ``seed`` alone. ``unprotected`` takes
    the ledgers away, to show that the method sees doubles. With ``latency`` the pipeline then runs without an end for half a
    minute. Raises :class:`~connectors.ground.errors.Misconfigured` if the
    notebook or a parameter cannot be proven.
    """

    notebook: Path
    parameters: Mapping[str, str]
    folder: Path
    kills: int = 10
    rows: int = 10_000
    faults: Sequence[str] = tuple(FAULTS)
    seed: int = 0
    unprotected: bool = False
    latency: bool = False
    token: str = field(default_factory=lambda: f"prove_{machine.token()[:8]}")
    outcomes: list[Outcome] = field(default_factory=list)
    started: float = 0.0
    """Seconds since 1970."""
    delivered: list[tuple[float, int]] = field(default_factory=list)
    """The rows delivered, by seconds since the start."""
    latencies: list[float] = field(default_factory=list)
    """The seconds that rows have taken from the source into the target."""
    _has_names: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        unknown = [name for name in self.faults if name not in FAULTS]
        problems = [Problem("--faults", f'must be of {", ".join(FAULTS)}; got "{name}".') for name in unknown]
        if not self.faults:
            problems.append(Problem("--faults", "missing; leave it out for all of them."))
        if self.rows < self.kills + 1:
            problems.append(Problem("--rows", f"must be more than the {self.kills} of --kills; got {self.rows}."))
        taken = [name for name in _FOLDERS if (self.folder / name).exists()]
        problems += [Problem("--folder", f"has {name} already; give an empty folder, not {self.folder}.") for name in taken]
        if problems:
            raise Misconfigured("connectors prove", problems)
        self.folder.mkdir(parents=True, exist_ok=True)
        atexit.register(shutil.rmtree, self.folder / DEMONSTRATIONS, ignore_errors=True)  # behind the ends of their servers
        self.subject = Subject(self.notebook, self.parameters, self.folder, self.token)
        if self.latency and (self.subject.is_copy or self.subject.is_merged):
            text = "does not fit the pipeline, which ends with each copy, or has no counts of batches; leave it out."
            raise Misconfigured("connectors prove", [Problem("--latency", text)])

    def names(self) -> list[str]:
        """What the proof makes in the systems, and removes."""
        return [str(name) for name in self.subject.names()]

    @property
    def is_demonstration(self) -> bool:
        """True if no system of the user's is touched."""
        return self.subject.is_demonstration

    def plan(self) -> list[str]:
        """What the proof will do, in words."""
        faults = f"{count(self.kills, 'round')} of faults ({', '.join(self.faults)}), {self.rows:,} rows"
        shown = ", ".join(self.subject.demonstrations)
        where = f", on a demonstration of {shown}" if shown else ""
        return [
            f"{self.notebook.stem}: {faults}{where}",
            f"makes, and removes at the end: {', '.join(self.names())}",
            f"writes its page and the log of its drivers into {self.folder}",
        ]

    def run(self, tell: Callable[[str], None] = print) -> Verdict:
        """Feeds, breaks and compares; ``tell`` gets a line for each step."""
        taken = [str(name) for name in self.subject.names() if name.scratch.exists(name.name)]
        if taken:
            text = f"is taken: {taken[0]} exists, and a proof touches no such name."
            raise Misconfigured("connectors prove", [Problem("token", text)])
        self._has_names = True
        if self.subject.source_end.system == "delta":
            session()
        self.subject.source.scratch.create(self.subject.source.name)
        for run in ("out", "ref"):
            target = self.subject.target(run)
            target.scratch.create(target.name) if target.system in ("kafka", "dynamodb") else None
        self.started, since = machine.time(), machine.monotonic()
        each = self.rows // (self.kills + 1)
        rounds = Rounds(
            self.subject, self.faults, self.seed, max(each // _BATCHES, 1), unprotected=self.unprotected, since=since
        )
        fed = 0
        try:
            for number in range(self.kills):
                fed = self._feed(fed, each)
                outcome = rounds.run(number, fed)
                self.outcomes.append(outcome)
                tell(f"round {number + 1} of {self.kills}, {fed:,} rows: {outcome}")
            fed = self._feed(fed, self.rows - fed)
            if error := rounds.finish():
                return Verdict([], fed, None, (0, 0), f"without faults, the pipeline fails: {error}")
        finally:
            rounds.end()
        spark = session()
        judgement = verdict(spark, self.subject, fed)
        self.delivered = [(time - self.started, rows) for time, rows in delivered(spark, self.subject)]
        if self.latency and judgement.ok:
            self.latencies = latencies(spark, self.subject, fed, self.folder / "drivers.log")
        return judgement

    def clean(self) -> list[str]:
        """Removes all that :meth:`run` has made; returns what it could not remove, and why."""
        for name in _FOLDERS:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return self.subject.drop() if self._has_names else []

    def _feed(self, first: int, rows: int) -> int:
        """Adds so many ``rows``, with numbers from ``first`` on, in some portions; returns how many there are."""
        portion = max(rows // _BATCHES, 1)
        for start in range(first, first + rows, portion):
            self.subject.put(list(orders_of(start, min(portion, first + rows - start))))
        return first + rows
