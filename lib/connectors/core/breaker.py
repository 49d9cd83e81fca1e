"""A circuit breaker: a service that fails again and again is spared for a while, and callers are told at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from .errors import Transient
from .options import Duration, Int, Options, Values

T = TypeVar("T")

BREAKER_OPTIONS = Options({"circuitBreaker.failures": Int(5, at_least=1), "circuitBreaker.resetTimeout": Duration(30.0)})


class CircuitOpen(Transient):
    """No call was made: the service failed too often in a row."""


class Policy(Protocol):
    """When a circuit opens, and for how long."""

    @property
    def failures(self) -> int: ...

    @property
    def reset_seconds(self) -> float: ...


@dataclass(frozen=True)
class BreakerPolicy:
    """Opens after so many ``failures`` in a row; after ``reset_seconds`` one call is let through."""

    failures: int = 5
    reset_seconds: float = 30.0

    @classmethod
    def of(cls, values: Values) -> BreakerPolicy:
        """The ``circuitBreaker.*`` options."""
        return cls(values["circuitBreaker.failures"], values["circuitBreaker.resetTimeout"])


class Breaker:
    """A circuit breaker's state: closed, open, or half-open with one call on trial. For one thread or event loop."""

    def __init__(self, policy: Policy, now: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._now = policy, now
        self._failures = 0
        self._opened: float | None = None
        self._on_trial = False

    @property
    def is_open(self) -> bool:
        """True from the failure that opened it until a call went well, also while one is on trial."""
        return self._opened is not None

    def seconds_open(self) -> float:
        """How long it stays open before a call on trial is let through; 0 where it is closed, or that time is over."""
        return 0.0 if self._opened is None else max(0.0, self._opened + self._policy.reset_seconds - self._now())

    def check(self) -> None:
        """Raises :class:`CircuitOpen` when no call may be made now."""
        left = self.seconds_open()
        if self._opened is not None and (self._on_trial or left > 0):
            raise CircuitOpen(f"the circuit is open after {self._failures} failures in a row", retry_after=left)

    def begin(self) -> None:
        """A call is made; where the circuit was open it is the one on trial."""
        self.check()
        self._on_trial = self._opened is not None

    def succeeded(self) -> None:
        self._failures, self._opened, self._on_trial = 0, None, False

    def given_up(self) -> None:
        """The call says nothing about the service: another may be on trial."""
        self._on_trial = False

    def failed(self) -> None:
        self._failures += 1
        if self._on_trial or (self._opened is None and self._failures >= self._policy.failures):
            self._opened, self._on_trial = self._now(), False

    def call(self, work: Callable[[], T]) -> T:
        """What ``work`` returns; only an outage (:class:`Transient`) counts as a failure."""
        self.begin()
        try:
            result = work()
        except Transient:
            self.failed()
            raise
        except BaseException:
            self.given_up()
            raise
        self.succeeded()
        return result
