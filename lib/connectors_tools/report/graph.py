"""The graph of a job as SVG: each task a box with its state and time, in the order of their dependencies.

It is drawn twice, from left to right for a wide page and from top to bottom for a phone; the page's styles choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from connectors.metrics.words import duration

from .records import RunRecord, TaskRecord

_WIDE_COLUMNS: Final = 5
"""More steps than these do not fit beside each other on a wide page."""
_NARROW_COLUMNS: Final = 2
_MARGIN: Final = 6


@dataclass(frozen=True)
class _Size:
    """The boxes of a drawing, and what is between them; ``letters`` fit into a box."""

    width: int
    height: int
    across: int
    along: int
    letters: int


_WIDE: Final = _Size(184, 62, 22, 44, 18)
_NARROW: Final = _Size(158, 62, 14, 34, 15)


def graph(run: RunRecord) -> str:
    """Both drawings; the page shows the one that fits."""
    ranks = ranks_of(run.tasks)
    sideways = len(ranks) <= _WIDE_COLUMNS
    rows = ranks if sideways else _wrapped(ranks, _WIDE_COLUMNS)
    wide = _drawing(run.tasks, rows, _WIDE, "wide", sideways=sideways)
    return wide + _drawing(run.tasks, _wrapped(ranks, _NARROW_COLUMNS), _NARROW, "narrow", sideways=False)


def ranks_of(tasks: Sequence[TaskRecord]) -> list[list[str]]:
    """The keys of the tasks by how many steps are before them; each rank ordered so that lines cross little."""
    known = {task.key: task for task in tasks}
    rank: dict[str, int] = {}

    def of(key: str) -> int:
        if key not in rank:
            rank[key] = 0  # a circle ends here
            rank[key] = max((of(other) + 1 for other in known[key].depends_on if other in known), default=0)
        return rank[key]

    ranks: list[list[str]] = [[] for _ in range(max(map(of, known), default=-1) + 1)]
    for key in known:
        ranks[of(key)].append(key)
    place: dict[str, float] = {}
    for row in ranks:
        row.sort(key=lambda key: _mean([place[other] for other in known[key].depends_on if other in place]))
        place.update({key: number / len(row) for number, key in enumerate(row)})
    return ranks


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _wrapped(ranks: Sequence[Sequence[str]], columns: int) -> list[list[str]]:
    return [list(row[start : start + columns]) for row in ranks for start in range(0, len(row), columns)]


def _drawing(tasks: Sequence[TaskRecord], rows: Sequence[Sequence[str]], size: _Size, kind: str, *, sideways: bool) -> str:
    boxes = dict(_boxes(rows, size, sideways))
    known = {task.key: task for task in tasks}
    width = max((x + size.width for x, _ in boxes.values()), default=0) + _MARGIN
    height = max((y + size.height for _, y in boxes.values()), default=0) + _MARGIN
    lines = "".join(_line(boxes, task.key, other, outcome, size, sideways)
                    for task in tasks for other, outcome in task.depends_on.items() if other in boxes)  # fmt: skip
    drawn = "".join(_box(known[key], x, y, size) for key, (x, y) in boxes.items())
    label = escape(", then ".join(" and ".join(row) for row in rows))
    return (
        f'<svg class="graph {kind}" viewBox="0 0 {width} {height}" style="max-width:{width}px" role="img" '
        f'aria-label="{label}">{lines}{drawn}</svg>'
    )


def _boxes(rows: Sequence[Sequence[str]], size: _Size, sideways: bool) -> Iterator[tuple[str, tuple[int, int]]]:
    """The left upper corner of each box; the boxes of a row are centred."""
    step = (size.height if sideways else size.width) + size.across
    longest = max(map(len, rows), default=0)
    for number, row in enumerate(rows):
        shift = (longest - len(row)) * step // 2
        for place, key in enumerate(row):
            across = _MARGIN + shift + place * step
            along = _MARGIN + number * ((size.width if sideways else size.height) + size.along)
            yield key, (along, across) if sideways else (across, along)


def _line(
    boxes: Mapping[str, tuple[int, int]], key: str, other: str, outcome: str, size: _Size, sideways: bool
) -> str:
    (from_x, from_y), (to_x, to_y) = boxes[other], boxes[key]
    if sideways:
        x1, y1, x2, y2 = from_x + size.width, from_y + size.height // 2, to_x, to_y + size.height // 2
        middle = (x1 + x2) // 2
        curve = f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2 - 7} {y2}"
        arrow = f"M{x2} {y2}l-8 -4.5v9z"
    else:
        x1, y1, x2, y2 = from_x + size.width // 2, from_y + size.height, to_x + size.width // 2, to_y
        middle = (y1 + y2) // 2
        curve = f"M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2 - 7}"
        arrow = f"M{x2} {y2}l-4.5 -8h9z"
    words = f'<text x="{(x1 + x2) // 2}" y="{(y1 + y2) // 2 - 4}" text-anchor="middle">{escape(outcome)}</text>'
    return f'<path class="edge" d="{curve}"/><path class="arrow" d="{arrow}"/>{words if outcome else ""}'


def _box(task: TaskRecord, x: int, y: int, size: _Size) -> str:
    key = task.key if len(task.key) <= size.letters else f"{task.key[: size.letters - 1]}…"
    texts = [duration(task.seconds)] if task.attempts else []
    texts += [task.result] if task.result else []
    texts += [f"{len(task.attempts)} attempts"] if len(task.attempts) > 1 else []
    words = " · ".join([state_words(task.state), *texts])
    return (
        f'<a href="#task-{escape(task.key)}"><g class="box {state_class(task.state)}">'
        f'<title>{escape(task.key)}: {escape(words)}</title>'
        f'<rect class="frame" x="{x}" y="{y}" width="{size.width}" height="{size.height}" rx="9"/>'
        f'<rect class="stripe" x="{x}" y="{y + 9}" width="4" height="{size.height - 18}" rx="2"/>'
        f'<text class="key" x="{x + 15}" y="{y + 26}">{escape(key)}</text>'
        f'<text class="told" x="{x + 15}" y="{y + 46}">{escape(words[: size.letters + 7])}</text></g></a>'
    )


def state_words(state: str) -> str:
    """A state of the service as people write it: ``Upstream failed``."""
    return state.replace("_", " ").capitalize().replace("Timedout", "Timed out")


def state_class(state: str) -> str:
    """The class of a state, for its look: ``good``, ``fair``, ``bad`` or ``soft``."""
    if state in ("SUCCESS", "ended"):
        return "good"
    if state in ("EXCLUDED", "DISABLED", "SKIPPED", "running", "RUNNING", "PENDING", "QUEUED", "WAITING_FOR_RETRY", "BLOCKED"):
        return "soft"
    return "fair" if state == "SUCCESS_WITH_FAILURES" else "bad"
