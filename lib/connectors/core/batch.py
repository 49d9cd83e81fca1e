"""The values that travel between driver, tasks and targets: a batch, and the staged output of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..ground import machine
from ..ground.state import digest


class DriverClock:
    """Microseconds since 1970. They never go back within a process, even if somebody sets the machine's clock back."""

    def __init__(self) -> None:
        self._ahead = 0

    def __call__(self) -> int:
        self._ahead = max(self._ahead, machine.time_ns() - machine.monotonic_ns())
        return (self._ahead + machine.monotonic_ns()) // 1000


_clock: Final = machine.PerProcess(DriverClock)


def driver_time() -> int:
    """Microseconds since 1970 by this process's :class:`DriverClock`."""
    return _clock()()


@dataclass(frozen=True)
class Batch:
    """One micro-batch: ``number`` of ``query`` (its id in the checkpoint), written by the sink called ``sink_id``.

    With ``replace`` the batch replaces everything in the target. ``run`` names the run of the query; each restart is a new
    run. ``time`` is when the driver began the batch, by :class:`DriverClock`; a replay has a later one. ``claim`` and
    ``recipe`` are those of :class:`~connectors.core.ledger.Entry`. ``is_observed``: Spark counts these rows, for example in an
    ``Observation``, and would count them twice if they were computed twice.
    """

    sink_id: str
    query: str
    number: int
    replace: bool = False
    run: str = ""
    time: int = field(default_factory=driver_time, compare=False)
    claim: int | None = field(default=None, compare=False)
    is_observed: bool = field(default=False, compare=False)
    recipe: str = field(default="", compare=False)

    def prefix(self) -> str:
        """The part of a staging name that all attempts at this batch share: letters and digits."""
        return digest(self.sink_id, self.query, self.number)

    def attempt(self) -> str:
        """A new staging name, at most 63 bytes: batch, run, and a random part, since a restart reuses attempt numbers."""
        return f"{self.prefix()}-{self.run_id()}-{machine.token()}"

    def run_id(self) -> str:
        """The part of a staging name that all attempts of this run share: 8 letters and digits."""
        return digest(self.run, length=8)

    def file_id(self) -> str:
        """The part of a file name that identifies the batch; names sort in the order of batches."""
        return f"{self.number:010d}-{self.prefix()}"

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.query}"


@dataclass(frozen=True)
class Committable:
    """The staged output of one task attempt: the number of its ``rows``, and in ``data`` its place (small JSON).

    The carrier fills in ``rejected``, the number of bad rows, and ``letters``, the name of their dead letters.
    ``is_set_aside``: the writer has written those dead letters itself.
    """

    rows: int
    data: Mapping[str, Any] = field(default_factory=dict)
    rejected: int = 0
    letters: str = ""
    is_set_aside: bool = False
