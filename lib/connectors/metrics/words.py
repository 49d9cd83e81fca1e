"""A query's standing in words: the parts of a line, in the order in which a person needs them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .history import Standing

_BETWEEN: Final = " · "
_LONGEST_CAUSE: Final = 120
_SIZES: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True)
class Part:
    """A part of a line. Where the line is too long, the parts with the lowest ``weight`` are left out."""

    text: str
    weight: int = 9


def parts_of(standing: Standing) -> list[Part]:
    """The parts of the line about a query that runs, without its name and its time."""
    parts = []
    if standing.waiting_for:
        cause = " ".join(standing.waiting_for.split())[:_LONGEST_CAUSE]
        parts.append(Part(f"waiting for {duration(standing.waiting_seconds)}: {cause}", 8))
    parts.append(Part(f"{standing.rows:,} rows" if standing.rows or standing.batches else "no batch yet", 9))
    if standing.rate and standing.rate >= 0.5:
        parts.append(Part(f"{standing.rate:,.0f} rows/s", 6))
    if standing.batches:
        parts.append(Part(count(standing.batches, "batch", "batches"), 4))
    if standing.lag is not None:
        parts.append(Part(f"lag {amount(standing.lag, standing.unit)}", 5))
    if standing.snapshot_rows is not None:
        about = f" of about {standing.snapshot_total:,}" if standing.snapshot_total else ""
        parts.append(Part(f"snapshot {standing.snapshot_rows:,}{about} rows", 7))
    if standing.dead_letters:
        parts.append(Part(count(standing.dead_letters, "dead letter"), 3))
    if standing.retries:
        parts.append(Part(count(standing.retries, "retry", "retries"), 2))
    if standing.left is not None:
        parts.append(Part(f"about {duration(standing.left)} left", 7))
    return parts


def line(parts: Sequence[Part], width: int | None = None) -> str:
    """``parts`` as one line of at most ``width`` letters."""
    shown = list(parts)
    while width is not None and len(shown) > 1 and len(_BETWEEN.join(part.text for part in shown)) > width:
        shown.remove(min(shown, key=lambda part: part.weight))
    text = _BETWEEN.join(part.text for part in shown)
    return text if width is None or len(text) <= width else f"{text[: max(0, width - 1)]}…"


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``8 s``, ``95 s``, ``2 min 5 s``, ``3 h 4 min``."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(seconds: float) -> str:
    """A time (seconds since 1970) as a person of this machine's zone reads it."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def amount(number: float, unit: str = "") -> str:
    """A number with its unit; bytes in their sizes."""
    if unit != "bytes":
        return f"{number:,.0f} {unit}" if unit and unit != "records" else f"{number:,.0f}"
    size, step = float(number), 0
    while size >= 1000 and step < len(_SIZES) - 1:
        size, step = size / 1000, step + 1
    return f"{size:,.0f} {_SIZES[step]}" if size >= 100 or not step else f"{size:,.1f} {_SIZES[step]}"


def count(number: int, singular: str, plural: str = "") -> str:
    """``1 batch``, ``2 batches``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
