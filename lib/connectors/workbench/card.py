"""The card of a query in a notebook: one output that is updated in place, and finally sums up the run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from ..metrics.frame import abouts_of
from ..metrics.history import RUNNING, BatchRecord, Standing
from ..metrics.words import amount, duration

_BARS: Final = 24
_HEIGHTS: Final = "▁▂▃▄▅▆▇█"
_HEADINGS: Final = ("query", "state", "rows", "rows/s", "batches", "lag", "dead letters", "time")


class Card:
    """An output of the running cell. It is a plain table, so that every viewer of notebooks can show it."""

    def __init__(self) -> None:
        from IPython import display

        shown: Any = display
        self._html = shown.HTML
        self._handle = shown.display(self._html(""), display_id=True)
        self._last = ""

    def show(self, standing: Standing, batches: Sequence[BatchRecord]) -> None:
        """Shows the state of the query."""
        html = card(standing, batches)
        if html != self._last:
            self._last = html
            self._handle.update(self._html(html))


def card(standing: Standing, batches: Sequence[BatchRecord]) -> str:
    """The HTML of a card."""
    lag = "" if standing.lag is None else amount(standing.lag, standing.unit) if standing.lag else "0"
    spent = duration(standing.seconds)
    left = "" if standing.left is None else f", about {duration(standing.left)} left"
    values = (
        standing.name, standing.state, f"{standing.rows:,}", f"{standing.rate:,.0f}" if standing.rate else "",
        f"{standing.batches:,}{sparkline(batches)}", lag, f"{standing.dead_letters:,}", f"{spent}{left}",
    )  # fmt: skip
    head = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
    body = "".join(f"<td>{escape(value)}</td>" for value in values)
    notes = "".join(f"<br><small>{escape(note)}</small>" for note in _notes(standing))
    return f"<table><thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table>{notes.removeprefix('<br>')}"


def _notes(standing: Standing) -> Iterator[str]:
    """The notes of a card: what the query waits for; at its end, what its sinks have committed."""
    if standing.waiting_for:
        yield f"waiting for {duration(standing.waiting_seconds)}: {' '.join(standing.waiting_for.split())}"
    if standing.state == RUNNING:
        return
    abouts = abouts_of(standing.query)
    for row in standing.table:
        if row["component"].startswith("sink ") and row["last_commit"]:
            name = row["component"].removeprefix("sink ").split(" (")[0]
            target = abouts.get(row["component"], {}).get("target", "")
            commit = time.strftime("%H:%M:%S", time.localtime(row["last_commit"]))
            rows = "" if row["rows"] is None else f"{row['rows']:,} rows, "
            yield f"{name} {target}: {rows}last commit {commit}, {row['commit_ms']:,} ms"


def sparkline(batches: Sequence[BatchRecord]) -> str:
    """The rows of the newest batches as bars of text, after a blank; nothing for a single batch."""
    rows = [batch.rows for batch in batches][-_BARS:]
    largest = max(rows, default=0)
    if len(rows) < 2 or not largest:
        return ""
    return " " + "".join(_HEIGHTS[min(len(_HEIGHTS) - 1, number * len(_HEIGHTS) // largest)] for number in rows)
