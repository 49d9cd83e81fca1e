"""Time limits that interrupt what is running, also a call into Spark that is waiting for an answer."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

_AGAIN: Final = 5.0
"""Seconds after which the interruption is repeated, in case a bare ``except:`` of the notebook took it."""


@dataclass(frozen=True, eq=False)
class Limit:
    """A moment (of ``time.monotonic``) at which ``what`` must have ended; ``seconds`` is the limit as configured."""

    what: str
    seconds: float
    at: float

    @property
    def left(self) -> float:
        """Seconds that are left, never negative."""
        return max(0.0, self.at - time.monotonic())


class Expired(BaseException):
    """Raised in the main thread when ``limit`` has passed. No ``Exception``: a notebook must not swallow it."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(f"{limit.what} was stopped after {limit.seconds:g} s (timeout_seconds)")
        self.limit = limit


@dataclass(frozen=True)
class Limits:
    """The limits that hold at one place, of the job, a loop, an attempt; the earliest one counts."""

    all: tuple[Limit, ...] = ()

    def within(self, what: str, seconds: float) -> tuple[Limits, Limit | None]:
        """These limits and one more from now on; ``seconds`` of 0 adds none."""
        if seconds <= 0:
            return self, None
        limit = Limit(what, seconds, time.monotonic() + seconds)
        return Limits((*self.all, limit)), limit

    @property
    def first(self) -> Limit | None:
        """The limit that passes first."""
        return min(self.all, key=lambda limit: limit.at, default=None)

    def check(self) -> None:
        """Raises :class:`Expired` when a limit has passed."""
        if self.first is not None and self.first.left == 0:
            raise Expired(self.first)

    def sleep(self, seconds: float) -> None:
        """Waits, at most until the first limit; then raises :class:`Expired`."""
        limit = self.first
        time.sleep(max(0.0, seconds) if limit is None else min(max(0.0, seconds), limit.left))
        self.check()


def interruptible() -> None:
    """Lets Ctrl-C raise ``KeyboardInterrupt`` at once.

    Spark's own handler first asks the JVM to cancel its jobs, over the very connection on which the interrupted call
    is still waiting for its answer; the runner cancels them afterwards, over another one.
    """
    if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def enforced(limits: Limits) -> Iterator[None]:
    """Raises :class:`Expired` inside the block when a limit passes.

    This takes the process's alarm signal, so it works in the main thread; elsewhere limits are seen between cells only.
    """
    limits.check()
    limit = limits.first
    if limit is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(number: int, frame: Any) -> None:
        raise Expired(limit)

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, max(limit.left, 0.001), _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
