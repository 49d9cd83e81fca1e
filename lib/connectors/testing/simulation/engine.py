"""The engine of a history: that of :mod:`connectors.testing.engine`, with each task in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...core.batch import Batch, Committable
from ...core.reading import read_slice
from ...core.sink import Sink
from ...core.source import Slice, Source
from ...core.writing import stage
from ..engine import Engine
from .adversary import Adversary, Move
from .scheduler import Event, Thread

_LOOK_SECONDS: Final = 1.0
_WEIGHT: Final = 5.0
"""A task has few steps, and more can go wrong at each of them."""


@dataclass
class _Attempt:
    thread: Thread
    results: list[Committable] = field(default_factory=list)
    is_given_up: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_given_up or not self.thread.is_alive()


@dataclass
class SimulatedEngine(Engine):
    """Runs the tasks of a batch side by side, some of them twice. ``make_source`` and ``make_sink`` are called in each task.

    As Spark: a task that has failed is tried again, a slow one may get a second copy, and one whose executor is lost goes on
    unseen. The first attempt that ends counts.
    """

    adversary: Adversary = field(kw_only=True)
    make_source: Callable[[], Source] = field(kw_only=True)
    make_sink: Callable[[], Sink] = field(kw_only=True)
    measures: bool = field(kw_only=True, default=False)

    def stage(self, batch: Batch, slices: Sequence[Slice], staged: list[Committable]) -> None:
        scheduler, adversary = self.adversary.scheduler, self.adversary
        changed = scheduler.event()
        scheduler.note(f"batch {batch.number}: {len(slices)} tasks")
        attempts = [[self._start(batch, index, part, 0, changed)] for index, part in enumerate(slices)]
        done: dict[int, Committable] = {}
        while len(done) < len(slices):
            changed.wait(_LOOK_SECONDS)
            changed.clear()
            for index, tries in enumerate(attempts):
                if index in done:
                    continue
                if results := [result for attempt in tries for result in attempt.results if not attempt.is_given_up]:
                    done[index] = results[0]
                    continue
                if all(attempt.is_over for attempt in tries):
                    if len(tries) >= self.attempts + 2:
                        errors = [attempt.thread.error for attempt in tries if isinstance(attempt.thread.error, Exception)]
                        raise errors[0] if errors else RuntimeError("the executors of all attempts at a task were lost")
                    tries.append(self._start(batch, index, slices[index], len(tries), changed))
                elif adversary.strikes(Move.COPY, f"task {index}"):
                    tries.append(self._start(batch, index, slices[index], len(tries), changed))
                elif adversary.strikes(Move.GIVE_UP, f"task {index}"):
                    tries[-1].is_given_up = True
        for attempt in [attempt for tries in attempts for attempt in tries if attempt.thread.is_alive()]:
            if adversary.chance() < 0.5:
                attempt.thread.process.alive = False
        staged += [done[index] for index in sorted(done)]

    def measure(self, slices: Sequence[Slice]) -> tuple[int | None, str | None]:
        return super().measure(slices) if self.measures else (None, None)

    def _start(self, batch: Batch, index: int, part: Slice, attempt: int, changed: Event) -> _Attempt:
        results: list[Committable] = []

        def work() -> None:
            try:
                source, sink = self.make_source(), self.make_sink()
                rows = map(self.convert, read_slice(source, replace(part, retried=attempt > 0), self.schema))
                results.append(stage(sink, batch, self.convert_schema(), index, rows))
            finally:
                changed.set()

        return _Attempt(self.adversary.scheduler.spawn(f"task {batch.number}.{index}.{attempt}", work, weight=_WEIGHT), results)
