"""The display of what runs now, for a person who waits: a live line on a terminal, a line every ten seconds on a pipe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from connectors.metrics.history import Standing
from connectors.metrics.words import duration, line, parts_of

Standings = Callable[[], Sequence[Standing]]
"""A function that gives the standings of the queries that run now."""

_SAMPLE_SECONDS: Final = 1.0
_SAMPLE_SHARE: Final = 20
"""Looking at the queries takes at most one part in so many of the time."""
_GAP: Final = "  "
_SHORTEST_DETAIL: Final = 8


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start


class Activity:
    """The task that runs: its ``label``, the ``detail`` of what it does, the time since its start, and its queries."""

    def __init__(self, label: str, standings: Standings = tuple) -> None:
        self.label, self.detail = label, ""
        self._clock = Clock()
        self._standings = standings
        self._sample: Sequence[Standing] = ()
        self._next_sample = 0.0

    def queries(self) -> Sequence[Standing]:
        """The standings of its queries. What cannot be read is left out: nothing may fail for it."""
        began = time.monotonic()
        if began >= self._next_sample:
            with suppress(Exception):
                self._sample = self._standings()
            taken = time.monotonic() - began
            self._next_sample = began + max(_SAMPLE_SECONDS, _SAMPLE_SHARE * taken)
        return self._sample

    def lines(self, width: int | None = None) -> list[str]:
        """The task and its query in one line of at most ``width`` letters; several queries follow in a line each."""
        queries = self.queries()
        elapsed = duration(self._clock.seconds)
        if len(queries) == 1:
            return [_joined(self.label, self.detail, lambda left: line(parts_of(queries[0]), left), elapsed, width)]
        first = _joined(self.label, self.detail, lambda left: "", elapsed, width)
        rest = (_joined(f"{_GAP}{query.name}", "", _words(query), duration(query.seconds), width) for query in queries)
        return [first, *rest]


def _words(standing: Standing) -> Callable[[int | None], str]:
    return lambda left: line(parts_of(standing), left)


def _joined(label: str, detail: str, words: Callable[[int | None], str], elapsed: str, width: int | None) -> str:
    """A line; where it is too long the detail is cut first, then the words."""
    if width is None:
        return _GAP.join(filter(None, (label, detail, words(None), elapsed)))
    left = width - len(label) - len(elapsed) - len(_GAP)
    report = words(max(1, left - len(_GAP)))
    left -= len(report) + len(_GAP) if report else 0
    room = left - len(_GAP)
    if len(detail) > room:
        detail = f"{detail[: room - 1]}…" if room >= _SHORTEST_DETAIL else ""
    return _GAP.join(filter(None, (label, detail, report, elapsed)))[: max(width, 1)]


def in_time(standings: Standings, seconds: float = 1.0) -> Standings:
    """``standings`` within so many seconds: until a call that takes longer ends, the answer is that of the call before."""
    newest: list[Sequence[Standing]] = [()]
    call = threading.Thread()

    def look() -> None:
        with suppress(Exception):
            newest[0] = standings()

    def latest() -> Sequence[Standing]:
        nonlocal call
        if not call.is_alive():
            call = threading.Thread(target=look, name="connectors.standings", daemon=True)
            call.start()
        call.join(seconds)
        return newest[0]

    return latest


class LiveLine:
    """The last line of a terminal, or the last lines: a spinner, what is running, and for how long."""

    def __init__(self, out: TextIO, activity: Activity) -> None:
        self.activity = activity
        self._console = Console(file=out)
        self._spinner = Spinner("dots")
        # Only our own lines go through rich: a notebook's output is taken elsewhere and must stay untouched.
        self._live = Live(
            console=self._console, get_renderable=self._shown, transient=True, refresh_per_second=8,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip

    def above(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _shown(self) -> Text:
        first, *others = self.activity.lines(self._console.width - 3)
        text = Text.assemble(self._spinner.render(time.monotonic()), " ", _styled(first, len(self.activity.label)))  # type: ignore[arg-type]
        for other in others:
            text.append("\n  ").append_text(_styled(other, 0))
        text.no_wrap = True
        return text

    def __enter__(self) -> LiveLine:
        self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._live.stop()


def _styled(line_text: str, label: int) -> Text:
    text = Text(line_text)
    text.stylize("bold", 0, label)
    text.highlight_regex(r"waiting for .*?(?= · |$)", "yellow")
    text.highlight_regex(r"[\d,]+ dead letters?", "yellow")
    return text


class RepeatedLine:
    """A line every ten seconds, for a pipe or a file, that says what is running and for how long."""

    seconds: ClassVar[float] = 10.0

    def __init__(self, out: TextIO, activity: Activity) -> None:
        self.activity = activity
        self._out = out
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="connectors.progress", daemon=True)

    def above(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def _repeat(self) -> None:
        while not self._over.wait(self.seconds):
            self.above("\n".join(self.activity.lines()))

    def __enter__(self) -> RepeatedLine:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()
