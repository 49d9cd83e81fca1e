"""The engine's heart in time that passes at once: a target that does what a script says, and no threads."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from connectors.batching.flow import Flow, FlowLimits, Request
from connectors.batching.pieces import Chunk, Piece
from connectors.core import Transient
from connectors.ground.retry import Breaker, BreakerPolicy, Contact, RetrySettings

NEVER = float("inf")
LIMITS = FlowLimits(records=10, bytes=1000, seconds=5.0, record_bytes=1000, in_flight=3, buffered=30, timeout=60.0)
RETRY = RetrySettings(5, 1.0, 60.0, 2)
NO_BREAKER = BreakerPolicy(1000, 30.0)


@dataclass
class Answer:
    """What becomes of one request: it takes ``seconds``; as a whole it raises ``error``, else ``refuse`` says for each entry.

    ``refuse(entry)`` is the entry's error, or ``None`` if it is taken.
    """

    seconds: float = 1.0
    error: Callable[[], BaseException] | None = None
    refuse: Callable[[Any], BaseException | None] = lambda entry: None


@dataclass
class Sent:
    at: float
    entries: list[Any]


@dataclass
class Simulation:
    """Feeds ``input`` (lists of entries, each after a gap in seconds) and lets ``answer(request number)`` decide."""

    answer: Callable[[int, list[Any]], Answer]
    limits: FlowLimits = LIMITS
    retry: RetrySettings = RETRY
    breaker: BreakerPolicy = NO_BREAKER
    reached: bool = False
    key: Callable[[Any], Any] | None = None
    size: Callable[[Any], int] = lambda entry: 1
    now: float = 0.0
    sent: list[Sent] = field(default_factory=list)
    applied: list[Any] = field(default_factory=list)
    rejected: list[tuple[dict[str, Any], BaseException]] = field(default_factory=list)
    refusals: Counter[Any] = field(default_factory=Counter)
    most_in_flight: int = 0
    limits_seen: set[int] = field(default_factory=set)

    def run(self, input: Sequence[tuple[float, list[Any]]]) -> Flow:
        self.flow = flow = Flow(
            self.limits,
            Contact(self.retry, reached=self.reached),
            Breaker(self.breaker, lambda: self.now),
            lambda: self.now,
        )
        self._events: list[tuple[float, int, Request, Answer]] = []
        feeding = self._feed(list(input))
        due = next(feeding)
        for _ in range(100_000):
            flow.expire()
            self._land()
            while due is not None and flow.error is None and (due <= self.now or (due == NEVER and flow.room())):
                due = next(feeding)
            self._send_what_is_due()
            self.rejected += flow.rejected()
            if (flow.done() and due is None) or flow.error is not None:
                return flow
            if self._events and self._events[0][0] <= self.now:
                continue
            moments = [event[0] for event in self._events[:1]] + [due, flow.wakes_at()]
            self.now = min(moment for moment in moments if moment is not None and self.now < moment < NEVER)
        raise AssertionError("the run does not come to its end")

    def _feed(self, input: list[tuple[float, list[Any]]]) -> Any:
        """When it goes on: a moment, ``NEVER`` while there is no room, ``None`` at the end of the input."""
        at = 0.0
        for number, (gap, entries) in enumerate(input):
            at = max(at, self.now) + gap
            while self.now < at:
                yield at
            rows = pa.RecordBatch.from_pydict({"entry": [repr(entry) for entry in entries]})
            keys = [self.key(entry) for entry in entries] if self.key else None
            chunk = Chunk.of(number, self.now, entries, [self.size(entry) for entry in entries], keys, rows)
            rest = Piece(chunk, 0, len(entries))
            while len(rest):
                while not self.flow.room():
                    yield NEVER
                piece, rest = rest.cut(min(self.flow.room(), len(rest)))
                self.flow.offer(piece)
                self._send_what_is_due()
        self.flow.drain()
        yield None

    def _send_what_is_due(self) -> None:
        while (request := self.flow.next()) is not None:
            entries = request.entries()
            self.sent.append(Sent(self.now, entries))
            answer = self.answer(len(self.sent) - 1, entries)
            if answer.seconds < NEVER:
                heapq.heappush(self._events, (self.now + answer.seconds, request.number, request, answer))
            self.most_in_flight = max(self.most_in_flight, len(self.flow.under_way))
            self.limits_seen.add(self.flow.rate.limit)

    def _land(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            _, _, request, answer = heapq.heappop(self._events)
            if answer.error is not None:
                error = answer.error()
                self.refusals.update(request.entries() if isinstance(error, Transient) else [])
                self.flow.refused(request, error)
                continue
            failures = [(place, answer.refuse(entry)) for place, entry in enumerate(request.entries())]
            self.applied += [entry for entry, (_, error) in zip(request.entries(), failures, strict=True) if error is None]
            refused = [(place, error) for place, error in failures if error is not None]
            self.refusals.update(request.entries()[place] for place, error in refused if isinstance(error, Transient))
            self.flow.answered(request, refused)
