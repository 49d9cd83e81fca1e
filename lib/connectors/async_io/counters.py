"""What one task of an asynchronous operator did: plain numbers, written on the event loop, read when it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ..core.metrics import Meter

_SAMPLE: Final = 4096
_PERCENTILES: Final = (50, 95, 99)


@dataclass
class Counters:
    """``in_flight_max`` is a number of calls; latencies are seconds of the last 4096 calls that ended in time."""

    rows: int = 0
    in_flight: int = 0
    in_flight_max: int = 0
    timeouts: int = 0
    retries: int = 0
    failures: int = 0
    fallbacks: int = 0
    rejected: int = 0
    abandoned: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLE))

    def snapshot(self) -> dict[str, float]:
        """Every counter by its name, and ``latency_p50``, ``latency_p95``, ``latency_p99`` in seconds."""
        numbers: dict[str, float] = {name: n for name, n in vars(self).items() if name != "latencies"}
        ordered = sorted(self.latencies)
        return numbers | {f"latency_p{percent}": _percentile(ordered, percent) for percent in _PERCENTILES}


def count_calls(meter: Meter, counters: Counters, *, failed: bool) -> None:
    """Hands the numbers of a task to the query's metrics: rows belong to the batch, calls have happened in any case."""
    numbers = counters.snapshot()
    state = {name: numbers.pop(name) for name in list(numbers) if name.startswith("latency_")}
    most, rows = numbers.pop("in_flight_max"), numbers.pop("rows")
    numbers.pop("in_flight")
    meter.happened(**{name: number for name, number in numbers.items() if number})
    if not failed:
        meter.count(rows=rows)
        meter.now(in_flight=most, **state)
    meter.save()


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0
