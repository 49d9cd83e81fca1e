"""Retries, outages and circuit breakers. Tenacity does the waiting of retried calls.

A call has two limits. ``retry.*`` is for a single request: a number of tries, with growing pauses. If a system is down for
longer, such as a database that restarts, that is an *outage*: a query that has reached the system before keeps trying for
``outageTimeout``. A system that has never answered may be a wrong address, so only ``retry.*`` applies to it, unless
``outageTimeout.atStart`` is set. A circuit breaker protects a service that fails again and again: its callers get an error
at once.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import logging
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from . import machine
from .errors import Transient
from .options import Duration, Flag, Int, Options, Values

T = TypeVar("T")

_log = logging.getLogger("connectors")
_STOP_SECONDS: Final = 0.5
"""The seconds after which a wait notices that its query was stopped."""


def seconds_of(retry_after: str | None) -> float | None:
    """The seconds in a ``Retry-After`` header, which holds a number or a date; ``None`` if it holds neither."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - machine.time())
    except (ValueError, OverflowError):
        return None


class RetryObserver:
    """Is told of each further try and of outages; the methods here do nothing."""

    def retried(self) -> None:
        """Called when one more try begins after an outage."""

    def waits(self, outage: Transient, since: float, next_try: float) -> None:
        """Called at the start of each pause in an outage that began at ``since``; both times are seconds since 1970."""

    def resumed(self) -> None:
        """Called when the wait is over."""


_observer: ContextVar[RetryObserver] = ContextVar("retry_observer")
_is_stopped: ContextVar[Callable[[], bool]] = ContextVar("is_stopped")


@contextlib.contextmanager
def observed_retries(observer: RetryObserver) -> Iterator[None]:
    """Inside, :class:`RetrySettings` and :class:`Backoff` tell ``observer`` of their retries in this thread."""
    outer = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(outer)


@contextlib.contextmanager
def waits_until(is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Inside, a wait for a system ends with :class:`Transient` as soon as ``is_stopped`` returns true."""
    outer = _is_stopped.set(is_stopped)
    try:
        yield
    finally:
        _is_stopped.reset(outer)


def is_stopped() -> bool:
    """True inside :func:`waits_until` when nobody waits any more."""
    return _is_stopped.get(lambda: False)()


def retry_observer() -> RetryObserver:
    """The observer of retries in this thread, for code with retries of its own."""
    return _observer.get(RetryObserver())


RETRY_OPTIONS = Options(
    {
        "retry.maxRetries": Int(5, at_least=0, meaning="tries after the first one"),
        "retry.initialBackoff": Duration(1.0, meaning="the pause before the second try"),
        "retry.maxBackoff": Duration(60.0, meaning="the longest pause"),
        "retry.multiplier": Int(2, at_least=1, meaning="how pauses grow"),
        "outageTimeout": Duration(
            600.0, meaning="how long a system that has answered before may be down until the query fails"
        ),
        "outageTimeout.atStart": Flag(
            False, meaning="outageTimeout holds for a system that has not answered yet, too: it may start beside the query"
        ),
    }
)


@dataclass(frozen=True)
class RetrySettings:
    """``max_retries`` tries after the first one. The pauses (seconds) grow by ``multiplier``; jitter only shortens them.

    After them the tries go on until ``outage_timeout`` seconds have passed since the first failure. If the system asks for a
    pause longer than ``max_backoff`` (``retry_after``), the limit is ``longest_wait`` instead, also at first contact.
    ``at_start``: ``outage_timeout`` holds at first contact, too.
    """

    max_retries: int = 5
    initial_backoff: float = 1.0
    max_backoff: float = 60.0
    multiplier: float = 2.0
    outage_timeout: float = 0.0
    longest_wait: float = 0.0
    at_start: bool = False

    @classmethod
    def of(cls, values: Values) -> RetrySettings:
        """The ``retry.*`` options and ``outageTimeout``."""
        return cls(
            values["retry.maxRetries"],
            values["retry.initialBackoff"],
            values["retry.maxBackoff"],
            values["retry.multiplier"],
            values["outageTimeout"],
            values["outageTimeout"],
            values["outageTimeout.atStart"],
        )

    def of_first_contact(self) -> RetrySettings:
        """The settings for a system that has not answered yet: without ``outage_timeout``, unless ``at_start``."""
        return self if self.at_start else replace(self, outage_timeout=0.0)

    def pause(self, failures: int, outage: BaseException | None = None) -> float:
        """Seconds to wait after so many failures in a row. A pause that the system asked for (``retry_after``) wins.

        A ``retry_after`` of zero, or a date in the past by this machine's clock, is ignored: it would use up all tries at once.
        """
        if isinstance(outage, Transient) and outage.retry_after is not None and outage.retry_after > 0:
            return min(outage.retry_after, max(self.max_backoff, self.longest_wait))
        steps = min(failures - 1, 64)  # enough for any maximum; no overflow after a long outage
        full = min(self.max_backoff, self.initial_backoff * self.multiplier**steps)
        return full * machine.uniform(0.5, 1.0)

    def patience(self, pause: float) -> float:
        """The seconds since the first failure after which a call fails, once no tries are left or ``pause`` is too long."""
        return self.longest_wait if pause > self.max_backoff else self.outage_timeout

    def call(self, work: Callable[[], T]) -> T:
        """Returns the result of ``work``. Retries it while it raises :class:`Transient`, and raises the last one."""
        try:
            return work()  # without tenacity, which costs more than some calls
        except Transient as outage:
            failed = [outage]

        def again() -> T:
            if failed:
                raise failed.pop()
            return work()

        import tenacity

        backoff = Backoff(self)
        trying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            wait=lambda state: backoff.pause(state.outcome.exception() if state.outcome else None),
            sleep=backoff.sleep,
            before_sleep=lambda _: backoff.observer.retried(),
        )
        try:
            return trying(again)
        finally:
            backoff.reset()


class Backoff:
    """The failures of one outage, for a loop that must retry itself, such as a generator: :meth:`wait` after each failure,
    :meth:`reset` on progress. It stores no exception, because its frames would keep connections open.
    """

    def __init__(self, retry: RetrySettings | None = None, observer: RetryObserver | None = None) -> None:
        self.retry = retry or RetrySettings()
        self.observer = observer or retry_observer()
        self.failures = 0
        self._began = 0.0
        self._is_waiting = False
        self._is_stopped = _is_stopped.get(lambda: False)

    def reset(self) -> None:
        if self._is_waiting:
            self.observer.resumed()
        self.failures, self._is_waiting = 0, False

    def pause(self, outage: BaseException | None) -> float:
        """Counts a failure and returns the seconds until the next try. Raises ``outage`` if no try is left."""
        if isinstance(outage, Transient) and outage.is_waited_for:
            raise outage
        self.failures += 1
        if self.failures == 1:
            self._began = machine.monotonic()
        seconds = self.retry.pause(self.failures, outage)
        has_tries = self.failures <= self.retry.max_retries and seconds <= self.retry.max_backoff
        if has_tries or not isinstance(outage, Transient):
            return seconds
        retry = replace(self.retry, outage_timeout=self.retry.patience(seconds))
        away = machine.monotonic() - self._began
        if away >= retry.outage_timeout:
            raise outage_error(outage, self.failures, away, retry)
        seconds = min(seconds, retry.outage_timeout - away)
        since = machine.time() - away
        self.observer.waits(outage, since, machine.time() + seconds)
        if not self._is_waiting:
            log_outage(outage, since, retry)
        self._is_waiting = True
        return seconds

    def sleep(self, seconds: float) -> None:
        """Sleeps for a pause. Raises :class:`Transient` if the query is stopped meanwhile."""
        until = machine.monotonic() + seconds
        while (left := until - machine.monotonic()) > 0:
            if self._is_stopped():
                raise Transient("the query was stopped while it waited for a system that is away")
            machine.sleep(min(left, _STOP_SECONDS))

    def wait(self, outage: Transient, awake: threading.Event) -> None:
        """Waits. Raises ``outage`` if no try is left, or if ``awake`` is set because nobody waits any more."""
        if awake.wait(self.pause(outage)):
            raise outage


def log_outage(outage: Transient, since: float, retry: RetrySettings) -> None:
    """Logs a warning that the query waits for a system; ``since`` is in seconds since 1970."""
    text = "waiting since %s for a system that is away (outageTimeout is %g s): %s"
    _log.warning(text, _clock(since), retry.outage_timeout, outage)


def outage_error(outage: Transient, failures: int, away: float, retry: RetrySettings) -> Transient:
    """The error at the end of all tries: ``outage``, which says how long they took if ``outageTimeout`` applied."""
    if retry.outage_timeout > 0 and failures > 1:
        since = _clock(machine.time() - away)
        longer = f", longer than outageTimeout, {retry.outage_timeout:g} s" if away >= retry.outage_timeout else ""
        outage.message += f" ({failures} tries since {since}{longer})"
        outage.is_waited_for = True
        again = "start the query again when the system is back; or raise outageTimeout"
        outage.way_out = f"{outage.way_out}; {again}" if outage.way_out else again
    return outage


def _clock(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%H:%M:%S UTC")


class Contact:
    """Calls to a system, each retried as :class:`RetrySettings` says.

    ``outage_timeout`` applies once the system has answered. ``reached``: the system has answered before.
    """

    def __init__(self, retry: RetrySettings, *, reached: bool = False) -> None:
        self._retry = retry
        self.reached = reached

    @property
    def retry(self) -> RetrySettings:
        return self._retry if self.reached else self._retry.of_first_contact()

    def call(self, work: Callable[[], T], *, reaches: bool = True) -> T:
        """As :meth:`RetrySettings.call`. ``reaches`` is false for work that may succeed without the system."""
        result = self.retry.call(work)
        self.reached |= reaches
        return result


BREAKER_OPTIONS = Options(
    {
        "circuitBreaker.failures": Int(5, at_least=1, meaning="so many failures in a row stop requests"),
        "circuitBreaker.resetTimeout": Duration(30.0, meaning="… for so long"),
    }
)


class CircuitOpen(Transient):
    """The breaker let no call through: the service has failed too often in a row."""


class RetryPolicy(Protocol):
    """The policy of a circuit breaker: after how many failures in a row it opens, and for how many seconds."""

    @property
    def failures(self) -> int: ...

    @property
    def reset_seconds(self) -> float: ...


@dataclass(frozen=True)
class BreakerPolicy:
    """A breaker opens after so many ``failures`` in a row; after ``reset_seconds`` it lets one call through."""

    failures: int = 5
    reset_seconds: float = 30.0

    @classmethod
    def of(cls, values: Values) -> BreakerPolicy:
        """The ``circuitBreaker.*`` options."""
        return cls(values["circuitBreaker.failures"], values["circuitBreaker.resetTimeout"])


class Breaker:
    """A circuit breaker: closed, open, or half-open with one trial call. For one thread or event loop."""

    def __init__(self, policy: RetryPolicy, now: Callable[[], float] = machine.monotonic) -> None:
        self._policy, self._now = policy, now
        self._failures = 0
        self._opened: float | None = None
        self._on_trial = False

    @property
    def is_open(self) -> bool:
        """True from the failure that opened the circuit until a call succeeds, also during a trial call."""
        return self._opened is not None

    def seconds_open(self) -> float:
        """The seconds until a trial call may go through; 0 if the circuit is closed or that time is over."""
        return 0.0 if self._opened is None else max(0.0, self._opened + self._policy.reset_seconds - self._now())

    def check(self) -> None:
        """Raises :class:`CircuitOpen` if no call may be made now."""
        left = self.seconds_open()
        if self._opened is not None and (self._on_trial or left > 0):
            raise CircuitOpen(f"the circuit is open after {self._failures} failures in a row", retry_after=left)

    def begin(self) -> None:
        """Notes the start of a call, after :meth:`check`. If the circuit is open, it is the trial call."""
        self.check()
        self._on_trial = self._opened is not None

    def succeeded(self) -> None:
        self._failures, self._opened, self._on_trial = 0, None, False

    def given_up(self) -> None:
        """Notes a call that says nothing about the service, so that another call may be the trial."""
        self._on_trial = False

    def failed(self) -> None:
        self._failures += 1
        if self._on_trial or (self._opened is None and self._failures >= self._policy.failures):
            self._opened, self._on_trial = self._now(), False

    def call(self, work: Callable[[], T]) -> T:
        """Returns the result of ``work``; only an outage (:class:`Transient`) counts as a failure."""
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
