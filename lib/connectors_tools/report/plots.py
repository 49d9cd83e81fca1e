"""Small plots as SVG that take their colours from the page, light or dark, and need no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from connectors.metrics.history import BatchRecord
from connectors.metrics.words import amount

from .records import QueryRecord

_WIDTH, _HEIGHT = 360, 168
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 8, 26, 24
_BARS: Final = 90
"""A plot has so many bars at most; of more batches, each bar stands for several."""
_SIGNS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def plots_of(query: QueryRecord) -> list[str]:
    """Rows and duration of each batch, and the lag after it where it is known; nothing of a single batch."""
    batches = query.batches
    if len(batches) < 2:
        return []
    plots = [
        _plot("Rows of a batch", batches, lambda batch: float(batch.rows), lambda value: f"{value:,.0f} rows"),
        _plot("Seconds of a batch", batches, lambda batch: batch.seconds, lambda value: f"{value:,.1f} s"),
    ]
    if any(batch.lag is not None for batch in batches):
        unit = query.standing.unit
        title = f"Lag after a batch, {unit}" if unit else "Lag after a batch"
        plots.append(_plot(title, batches, lambda batch: float(batch.lag or 0), lambda value: f"{amount(value, unit)} left",
                           "lag", join=lambda values: values[-1]))  # fmt: skip
    return plots


def _plot(
    title: str,
    batches: Sequence[BatchRecord],
    value_of: Callable[[BatchRecord], float],
    words: Callable[[float], str],
    kind: str = "",
    join: Callable[[Sequence[float]], float] = max,
) -> str:
    groups = _groups(batches)
    values = [join([value_of(batch) for batch in group]) for group in groups]
    top, step = scale(max(values))
    inner, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    lines = axis(top, step, _LEFT, _WIDTH - _RIGHT, lambda value: _TOP + height * (1 - value / top))
    width = inner / len(values)
    gap = min(3.0, width * 0.2)
    bars = []
    for number, (group, value) in enumerate(zip(groups, values, strict=True)):
        tall = height * value / top
        x, y = _LEFT + number * width + gap / 2, _TOP + height - tall
        wide = min(width - gap, 46.0)
        x += (width - gap - wide) / 2
        tip = escape(f"{_numbers(group)}: {words(value)}")
        place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{max(tall, 0.8):.1f}"'
        bars.append(f'<rect {place} rx="1.5"><title>{tip}</title></rect>')
    return (
        f'<svg class="plot {kind}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'<text class="title" x="0" y="13">{escape(title)}</text>{lines}{"".join(bars)}'
        f"{_ends(groups, width)}</svg>"
    )


def _groups(batches: Sequence[BatchRecord]) -> list[Sequence[BatchRecord]]:
    size = math.ceil(len(batches) / _BARS)
    return [batches[start : start + size] for start in range(0, len(batches), size)]


def _numbers(group: Sequence[BatchRecord]) -> str:
    first, last = group[0].number, group[-1].number
    return f"batch {first}" if first == last else f"batches {first} to {last}"


def scale(largest: float) -> tuple[float, float]:
    """The top of an axis for values up to ``largest``, and the step of its lines: 1, 2, 2.5 or 5 times a power of ten."""
    if largest <= 0:
        return 1.0, 1.0
    rough = largest / 3
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return step * math.ceil(largest / step * 0.9999), step


def axis(top: float, step: float, left: int, right: int, place: Callable[[float], float]) -> str:
    """A line from ``left`` to ``right`` at each step up to ``top``, with its number. ``place`` is the height of a value."""
    lines = []
    for number in range(round(top / step) + 1):
        y = place(number * step)
        lines.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{short(number * step)}</text>')
    return "".join(lines)


def _ends(groups: Sequence[Sequence[BatchRecord]], width: float) -> str:
    """The numbers of the first and the last batch below their bars."""
    y = _HEIGHT - 7
    first = f'<text x="{_LEFT + width / 2:.1f}" y="{y}" text-anchor="middle">{groups[0][0].number}</text>'
    last = f'<text x="{_WIDTH - _RIGHT - width / 2:.1f}" y="{y}" text-anchor="middle">{groups[-1][-1].number}</text>'
    name = f'<text x="{_LEFT + (_WIDTH - _LEFT - _RIGHT) / 2:.1f}" y="{y}" text-anchor="middle">batch</text>'
    return first + (last + (name if len(groups) > 2 else "") if len(groups) > 1 else "")


def short(value: float) -> str:
    """A number for an axis: ``80k``, ``2.5M``, ``0.2``."""
    for size, sign in _SIGNS:
        if abs(value) >= size:
            return f"{value / size:g}{sign}"
    return f"{value:.3g}"
