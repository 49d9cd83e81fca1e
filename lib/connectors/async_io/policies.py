"""What a user asks for beside the call itself: retries, a cache, a circuit breaker. Descriptions; `calls` runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import Misconfigured, Problem, Transient
from ..core.options import duration
from ..core.retry import Retry as Pauses

Seconds = str | float
"""A duration as users type it: ``"200ms"``, ``"1 hour"``, or a number of seconds."""


@dataclass(frozen=True)
class Retry:
    """Tries after the first one, with pauses that grow; the row keeps its place in the capacity while it waits.

    ``max_retries`` (3) tries follow the first one, after pauses of ``initial_backoff`` (100 ms) times ``multiplier``
    (2; 1 is a fixed delay) for each failure, at most ``max_backoff`` (1 s); jitter only shortens them. ``on`` are the
    exceptions worth another try (``ConnectionError``, and this library's ``Transient``, whose ``retry_after`` is
    heeded); ``when(result)`` is true for a result worth one (none), and the last result counts, whatever it is.
    The row's timeout covers all its tries. Raises :class:`Misconfigured` for values that cannot work.
    """

    max_retries: int = 3
    initial_backoff: Seconds = "100ms"
    max_backoff: Seconds = "1s"
    multiplier: float = 2
    on: tuple[type[BaseException], ...] = (ConnectionError, Transient)
    when: Callable[[Any], bool] | None = None
    pauses: Pauses = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        problems = _Problems("async_io.Retry")
        problems.check("max_retries", self.max_retries, self.max_retries >= 0, "0 or more")
        problems.check("multiplier", self.multiplier, self.multiplier >= 1, "1 or more")
        initial = problems.seconds("initial_backoff", self.initial_backoff)
        highest = problems.seconds("max_backoff", self.max_backoff)
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        exceptions = all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)
        problems.check("on", self.on, exceptions, "exception classes")
        problems.check("when", self.when, self.when is None or callable(self.when), "a function of the result")
        problems.raise_any()
        object.__setattr__(self, "on", kinds)
        object.__setattr__(self, "pauses", Pauses(self.max_retries, initial, highest, self.multiplier))


@dataclass(frozen=True)
class Cache:
    """Answers kept by key, in the worker and as long as it lives: missing ones too, failures never.

    ``key`` names the input columns that the answer depends on. ``size`` (10,000) answers are kept, the least recently
    used go first; each for ``ttl`` (1 hour; ``None``: for ever). Rows with equal keys in flight are asked once.
    """

    key: Sequence[str]
    size: int = 10_000
    ttl: Seconds | None = "1 hour"
    ttl_seconds: float | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        problems = _Problems("async_io.Cache")
        names = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        problems.check("key", self.key, bool(names), "at least one column")
        problems.check("size", self.size, self.size >= 1, "1 or more")
        ttl = None if self.ttl is None else problems.seconds("ttl", self.ttl)
        problems.raise_any()
        object.__setattr__(self, "key", names)
        object.__setattr__(self, "ttl_seconds", ttl)


@dataclass(frozen=True)
class CircuitBreaker:
    """Spares a service that is down: after ``failures`` (5) calls in a row that raised or timed out, no more are made.

    Rows then fail at once, so they get the function's ``timeout(row)``. After ``reset_timeout`` (30 s) one call is let
    through: its success closes the circuit, its failure keeps it open for another ``reset_timeout``.
    """

    failures: int = 5
    reset_timeout: Seconds = "30s"
    reset_seconds: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        problems = _Problems("async_io.CircuitBreaker")
        problems.check("failures", self.failures, self.failures >= 1, "1 or more")
        seconds = problems.seconds("reset_timeout", self.reset_timeout)
        problems.raise_any()
        object.__setattr__(self, "reset_seconds", seconds)


class _Problems(list[Problem]):
    """Everything that is wrong with one description, so that one error can list it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def check(self, option: str, value: object, good: bool, expected: str) -> None:
        if not good:
            self.append(Problem(option, f"must be {expected}; got {value!r}"))

    def seconds(self, option: str, value: Seconds) -> float:
        try:
            return duration(value)
        except ValueError as wrong:
            self.append(Problem(option, f"must be {wrong}; got {value!r}"))
            return 0.0

    def raise_any(self) -> None:
        if self:
            raise Misconfigured(self.name, self)
