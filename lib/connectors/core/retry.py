"""Trying again: how often, how long to wait, and what counts as an outage. The waiting itself is tenacity's."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from .errors import Transient
from .options import Duration, Int, Options, Values

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")

_on_retry: ContextVar[Callable[[], None] | None] = ContextVar("on_retry", default=None)


@contextlib.contextmanager
def counted_retries(on_retry: Callable[[], None]) -> Iterator[None]:
    """Inside, ``on_retry`` is called before each further try that :class:`Retry` makes."""
    outer = _on_retry.set(on_retry)
    try:
        yield
    finally:
        _on_retry.reset(outer)


def _told(state: tenacity.RetryCallState) -> None:
    count_retry()


def count_retry() -> None:
    """For code that tries again by other means than :class:`Retry`: one more try is counted."""
    if on_retry := _on_retry.get():
        on_retry()


RETRY_OPTIONS = Options(
    {
        "retry.maxRetries": Int(5, at_least=0),
        "retry.initialBackoff": Duration(1.0),
        "retry.maxBackoff": Duration(60.0),
        "retry.multiplier": Int(2, at_least=1),
    }
)


@dataclass(frozen=True)
class Retry:
    """``max_retries`` tries after the first one; the pauses (seconds) grow by ``multiplier``; jitter only shortens them."""

    max_retries: int = 5
    initial_backoff: float = 1.0
    max_backoff: float = 60.0
    multiplier: float = 2.0

    @classmethod
    def of(cls, values: Values) -> Retry:
        """The ``retry.*`` options."""
        return cls(
            values["retry.maxRetries"],
            values["retry.initialBackoff"],
            values["retry.maxBackoff"],
            values["retry.multiplier"],
        )

    def pause(self, failures: int, outage: BaseException | None = None) -> float:
        """Seconds to wait after so many failures in a row; what the system asked for (``retry_after``) wins."""
        if isinstance(outage, Transient) and outage.retry_after is not None:
            return max(0.0, min(outage.retry_after, self.max_backoff))
        steps = min(failures - 1, 64)  # enough for any maximum, and no overflow after a long outage
        full = min(self.max_backoff, self.initial_backoff * self.multiplier**steps)
        return full * random.uniform(0.5, 1.0)

    def call(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, tried again while it raises :class:`Transient`; the last one is raised."""
        import tenacity

        trying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            stop=tenacity.stop_after_attempt(self.max_retries + 1),
            wait=lambda state: self.pause(state.attempt_number, state.outcome.exception() if state.outcome else None),
            before_sleep=_told,
            reraise=True,
        )
        return trying(work)


class Backoff:
    """The same for a loop that must not be left, such as a generator: ``wait`` after a failure, ``reset`` on progress."""

    def __init__(self, retry: Retry | None = None) -> None:
        self.retry = retry or Retry()
        self.failures = 0

    def reset(self) -> None:
        self.failures = 0

    def wait(self, outage: Transient, awake: threading.Event) -> None:
        """Waits, or raises ``outage`` when the tries are used up or ``awake`` says that nobody waits any more."""
        self.failures += 1
        if self.failures > self.retry.max_retries or awake.wait(self.retry.pause(self.failures, outage)):
            raise outage
