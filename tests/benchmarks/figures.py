"""Figures of the benchmarks: printed one way, judged one way, and recorded for the page of all (``make bench``)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

RECORD = "FIGURES"
"""The environment variable that names the file to which figures are added, as lines of JSON."""


@dataclass(frozen=True)
class Figure:
    """What a benchmark has measured, in rounds: by itself, or beside a ``peer`` that took turns with it.

    ``unit`` is of ``rounds`` and ``peer_rounds``; one that ends with ``/s`` is better the larger it is, another the smaller.
    The goal, ``least`` or ``most``, is of :attr:`values`.
    """

    benchmark: str
    what: str
    unit: str
    rounds: Sequence[float]
    peer: str = ""
    peer_rounds: Sequence[float] = ()
    least: float | None = None
    most: float | None = None

    @property
    def values(self) -> list[float]:
        """By round how many times as fast as the peer; without a peer the rounds."""
        if not self.peer:
            return list(self.rounds)
        pairs = zip(self.rounds, self.peer_rounds, strict=True)
        return [ours / peer if self.unit.endswith("/s") else peer / ours for ours, peer in pairs]

    @property
    def goal(self) -> str:
        """The goal in words; empty where there is none."""
        unit = "" if self.peer or not self.unit else f" {self.unit}"
        if self.least is not None:
            return f"at least {self.least:,g}{unit}"
        return "" if self.most is None else f"at most {self.most:,g}{unit}"

    @property
    def verdict(self) -> str:
        """``reached`` or ``missed`` where the rounds agree, else ``no verdict``; empty without a goal."""
        if not self.goal:
            return ""
        reached = {self._reaches(value) for value in self.values}
        return "no verdict" if len(reached) > 1 else "reached" if reached.pop() else "missed"

    def _reaches(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def measure(self) -> str:
        """The median, with its range and the peer's median."""
        measured = f"{shown(median(self.rounds))} {self.unit}".rstrip()
        values = self.values
        spread = f" ({shown(min(values))} to {shown(max(values))})" if len(values) > 1 else ""
        if not self.peer:
            return measured + spread
        return f"{shown(median(values))}{spread} of {self.peer}: {measured}, it {shown(median(self.peer_rounds))}"


def figure(
    what: str,
    unit: str,
    rounds: Sequence[float],
    peer: str = "",
    peer_rounds: Sequence[float] = (),
    *,
    least: float | None = None,
    most: float | None = None,
) -> Figure:
    """Prints a figure of the benchmark that runs, and adds it to the record if there is one."""
    name = Path(sys.argv[0]).stem.removeprefix("bench_")
    result = Figure(name, what, unit, list(rounds), peer, list(peer_rounds), least, most)
    print(f"{what:<60} {result.measure}" + (f"; {result.goal}: {result.verdict}" if result.goal else ""), flush=True)
    if os.environ.get(RECORD):
        with Path(os.environ[RECORD]).open("a") as record:
            record.write(json.dumps(asdict(result)) + "\n")
    return result


def shown(value: float) -> str:
    """A number with three digits, or all of a whole one."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or not value else f"{value:.2g}"
