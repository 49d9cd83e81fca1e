"""The page of a proof, and its record as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from connectors.metrics.words import count

from ..report.page import templates
from ..report.plots import axis, scale
from .rounds import FAULTS, Outcome
from .verdict import Verdict

_WIDTH, _HEIGHT = 900, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 96, 24, 30

Series = Sequence[tuple[float, int]]
"""Rows by time, in seconds since the proof began."""


@dataclass(frozen=True)
class ProofRecord:
    """A proof that has ended. ``started`` is in seconds since 1970."""

    pipeline: str
    command: str
    started: float
    seconds: float
    outcomes: Sequence[Outcome]
    verdict: Verdict
    delivered: Series
    demonstrations: Sequence[str]
    unprotected: bool
    latencies: Sequence[float] = ()
    """The seconds that rows have taken from the source into the target, after the faults."""

    @property
    def ok(self) -> bool:
        """True if every promise was kept although a fault struck; without protection, if the proof has seen doubles."""
        if self.unprotected:
            return any(place.doubled for place in self.verdict.comparisons)
        return self.verdict.ok and self.has_struck

    @property
    def has_struck(self) -> bool:
        return any(outcome.struck for outcome in self.outcomes)

    @property
    def title(self) -> str:
        """The verdict in a few words."""
        sums = {kind: sum(getattr(place, kind) for place in self.verdict.comparisons) for kind in ("lost", "doubled", "wrong")}
        if self.verdict.error:
            return "the pipeline does not go on"
        if not self.verdict.is_complete:
            return "the undisturbed run lacks or doubles rows"
        words = [f"{number:,} {kind}" for kind, number in sums.items() if number]
        words += [] if self.verdict.letters_ok else ["dead letters differ"]
        return ", ".join(words) or "every row once"

    @property
    def judgement(self) -> str:
        """What the verdict says of the promises."""
        if self.verdict.ok and not self.has_struck:
            return "nothing is proven, as no fault has struck; give more --kills, or another --seed"
        if not self.unprotected:
            return "every promise was kept" if self.ok else "a promise was broken"
        none = "no doubles: this target needs no ledger, or nothing has struck it"
        return "the proof sees what the ledger prevents" if self.ok else none

    def as_json(self) -> str:
        """The record, with its verdict in words."""
        verdict = {**asdict(self.verdict), "ok": self.verdict.ok}
        return json.dumps({**asdict(self), "verdict": verdict, "ok": self.ok, "title": self.title}, indent=2)


def write_proof(record: ProofRecord, folder: Path) -> Path:
    """Writes ``proof.json`` and the page into ``folder``; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "proof.json").write_text(record.as_json(), encoding="utf-8")
    page = folder / "index.html"
    struck = sum(outcome.struck for outcome in record.outcomes)
    lead = f"{count(struck, 'fault')} struck while the pipeline read {record.verdict.fed:,} rows; then every row was compared."
    if record.unprotected:
        lead += " The ledger of the sink was taken away, to show that the comparison sees doubles."
    text = (
        templates()
        .get_template("proof.html")
        .render(record=record, title=record.title, lead=lead, figures=_figures(record), faults=FAULTS, plot=_plot(record))
    )
    page.write_text(text, encoding="utf-8")
    return page


def _figures(record: ProofRecord) -> list[tuple[str, str, str]]:
    struck = sum(outcome.struck for outcome in record.outcomes)
    figures = [
        (f"{record.verdict.fed:,}", "rows in the source", ""),
        (f"{struck} of {len(record.outcomes)}", "faults have struck", "" if struck else "fair"),
    ]
    for kind in ("lost", "doubled", "wrong"):
        number = sum(getattr(place, kind) for place in record.verdict.comparisons)
        figures.append((f"{number:,}", f"rows {kind}", "bad" if number else ""))
    if record.latencies:
        figures.append((f"{median(record.latencies):,.2f} s", f"median latency, at most {max(record.latencies):,.2f} s", ""))
    return figures


def _plot(record: ProofRecord) -> str:
    """Rows in the source and delivered rows over time, with a line at each fault."""
    if not record.outcomes:
        return ""
    seconds = max(record.seconds, 1.0)
    top, step = scale(record.verdict.fed)
    inner, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(time: float) -> float:
        return _LEFT + inner * min(max(time / seconds, 0.0), 1.0)

    def y(rows: float) -> float:
        return _TOP + height * (1 - rows / top)

    parts = [axis(top, step, _LEFT, _WIDTH - _RIGHT, y)]
    for outcome in (outcome for outcome in record.outcomes if outcome.struck):
        place = x(outcome.end)
        parts.append(f'<line class="fault" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text class="bad" x="{place:.1f}" y="{_TOP - 8}" text-anchor="middle">{outcome.number + 1}</text>')
    fed = [*((outcome.start, outcome.rows) for outcome in record.outcomes), (record.outcomes[-1].end, record.verdict.fed)]
    for kind, words, series in (("fed", "in the source", fed), ("delivered", "delivered", record.delivered)):
        if series:
            parts.append(f'<polyline class="{kind}" points="{_steps([*series, (seconds, series[-1][1])], x, y)}"/>')
            last = y(series[-1][1]) + (-2 if kind == "fed" else 14)
            parts.append(f'<text class="{kind}" x="{_WIDTH - _RIGHT + 6}" y="{last:.1f}">{words}</text>')
    ends = [(0.0, "start"), (seconds, "end")] if seconds < 2 else [(0.0, "0 s"), (seconds, f"{seconds:,.0f} s")]
    for (time, text), anchor in zip(ends, ("start", "end"), strict=True):
        parts.append(f'<text x="{x(time):.1f}" y="{_HEIGHT - 9}" text-anchor="{anchor}">{text}</text>')
    return f'<svg class="proof" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Rows over time">{"".join(parts)}</svg>'


def _steps(series: Series, x: Any, y: Any) -> str:
    """The points of a line that stays until the next value."""
    points: list[tuple[float, float]] = [(x(series[0][0]), y(0))]
    for time, rows in series:
        points += [(x(time), points[-1][1]), (x(time), y(rows))]
    return " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
