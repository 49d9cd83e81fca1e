"""Policies of calls (retries, a cache, a circuit breaker), and the layers between a slot and the user's function.

The engine calls a layer as ``await layer(rows, slot)``: with one row, or with a list if ``batch_size`` is above 1. All layers
belong to the thread of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Protocol

from ..ground.errors import Misconfigured, Problem, Transient
from ..ground.quantities import duration
from ..ground.retry import Breaker, CircuitOpen, RetrySettings
from .batches import Call, Slot
from .function import Counters

Seconds = str | float
"""A duration as a user types it: ``"200ms"``, ``"1 hour"``, or a number of seconds."""


@dataclass(frozen=True)
class Retry:
    """Retries a call with growing pauses; the row keeps its place in the capacity while it waits.

    ``max_retries`` (3) tries follow the first one. The pause is ``initial_backoff`` (100 ms), times ``multiplier``
    (2; 1 is a fixed delay) after each further failure, at most ``max_backoff`` (1 s); jitter only shortens it. ``on`` lists
    the exceptions to retry: by default ``ConnectionError``, and this library's ``Transient``, whose ``retry_after`` may
    exceed ``max_backoff``. ``when(result)`` is true for a result to retry (default: none); the last result always counts.
    The row's timeout covers all its tries. Raises :class:`Misconfigured` for values that cannot work.
    """

    max_retries: int = 3
    initial_backoff: Seconds = "100ms"
    max_backoff: Seconds = "1s"
    multiplier: float = 2
    on: tuple[type[BaseException], ...] = (ConnectionError, Transient)
    when: Callable[[Any], bool] | None = None
    pauses: RetrySettings = field(init=False, repr=False, compare=False)

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
        pauses = RetrySettings(self.max_retries, initial, highest, self.multiplier, longest_wait=inf)
        object.__setattr__(self, "pauses", pauses)


@dataclass(frozen=True)
class Cache:
    """Caches answers by key while the worker process lives; also that a key has no answer, but never failures.

    ``key`` names the input columns that the answer depends on. The cache holds ``size`` (10,000) answers and drops the least
    recently used; each expires after ``ttl`` (1 hour; ``None``: never). Rows in flight with equal keys share one call.
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
    """Protects a service that is down: after ``failures`` (5) calls in a row that raised or timed out, it stops calls.

    Rows then fail at once, so they get the function's ``timeout(row)``. After ``reset_timeout`` (30 s) it lets one call
    through: success closes the circuit, failure keeps it open for another ``reset_timeout``.
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
    """All problems of one description, so that one error can list them."""

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


Invoke = Callable[[Any], Awaitable[Any]]
_ASK_AGAIN: Final = "the call that others waited for was cancelled"


class Limiter(Protocol):
    """The part of ``aiolimiter.AsyncLimiter`` that calls use."""

    async def acquire(self, amount: float = 1) -> None: ...


class Attempts:
    """Calls the function with a rate limit, a circuit breaker and retries."""

    def __init__(
        self, invoke: Invoke, counters: Counters, retry: Retry | None, limiter: Limiter | None, breaker: Breaker | None
    ) -> None:
        self._invoke, self._counters = invoke, counters
        self._retry = retry or Retry(max_retries=0)
        self._limiter, self._breaker = limiter, breaker

    async def __call__(self, rows: Any, slot: Slot) -> Any:
        failures = 0
        while True:
            outage: Exception | None = None
            try:
                result = await self._attempt(rows, slot)
            except Exception as error:
                if self._is_last(failures, slot) or not self._worth_another(error):
                    raise
                outage = error
            else:
                when = self._retry.when
                if when is None or self._is_last(failures, slot) or not when(result):
                    return result
            failures += 1
            self._counters.retries += 1
            await asyncio.sleep(self._retry.pauses.pause(failures, outage))

    def _is_last(self, failures: int, slot: Slot) -> bool:
        """True if no tries are left, or the row has timed out and the call turned its cancel into another error."""
        return failures == self._retry.max_retries or slot.late

    def _worth_another(self, error: Exception) -> bool:
        return isinstance(error, self._retry.on) and not isinstance(error, CircuitOpen)

    async def _attempt(self, rows: Any, slot: Slot) -> Any:
        if self._breaker:
            await self._checked(self._breaker.check)
        if self._limiter:
            await _off_the_clock(self._limiter, slot)
        return await (self._guarded(rows, slot, self._breaker) if self._breaker else self._invoke(rows))

    async def _guarded(self, rows: Any, slot: Slot, breaker: Breaker) -> Any:
        await self._checked(breaker.begin)
        try:
            result = await self._invoke(rows)
        except Exception:
            breaker.failed()
            raise
        except BaseException:  # a cancel: a timeout is the service's failure, the end of the task is not
            (breaker.failed if slot.late else breaker.given_up)()
            raise
        (breaker.failed if slot.late else breaker.succeeded)()
        return result

    async def _checked(self, check: Callable[[], None]) -> None:
        try:
            check()
        except CircuitOpen:
            self._counters.rejected += 1
            await asyncio.sleep(0)  # else a slot would refuse all rows at once, before the trial call can return
            raise


async def _off_the_clock(limiter: Limiter, slot: Slot) -> None:
    """Waits for the rate limit. This is not the service's time, so the row's deadline moves by as much."""
    now = asyncio.get_running_loop().time
    began, since, slot.since = now(), slot.since, inf
    await limiter.acquire()
    slot.since = since + now() - began


class Cached:
    """Answers by key from ``store``; rows in flight with equal keys share one call. ``ask`` takes and returns lists.

    The first row that asks for a key leads; the others wait. They share the leader's failure. If the leader times out, one of
    them becomes the next leader, since they may have time left.
    """

    def __init__(
        self, ask: Call, key: Sequence[str], store: MutableMapping[tuple[Any, ...], Any], counters: Counters
    ) -> None:
        self._ask, self._key, self._store, self._counters = ask, key, store, counters
        self._calls: dict[tuple[Any, ...], asyncio.Future[Any]] = {}

    async def __call__(self, rows: list[Mapping[str, Any]], slot: Slot) -> list[Any]:
        keys = [tuple([row[name] for name in self._key]) for row in rows]
        by_key = dict(zip(keys, rows, strict=True))
        answers: dict[tuple[Any, ...], Any] = {}
        while len(answers) < len(by_key):
            self._look_up(by_key, answers)
            missing = [key for key in by_key if key not in answers]
            if unclaimed := [key for key in missing if key not in self._calls]:
                results = await self._lead(unclaimed, [by_key[key] for key in unclaimed], slot)
                answers.update(zip(unclaimed, results, strict=True))
            for key in missing:
                if key not in answers and (call := self._calls.get(key)):
                    await self._follow(key, call, answers)
        self._counters.cache_hits += len(rows) - len(by_key)
        return [answers[key] for key in keys]

    def _look_up(self, keys: Mapping[tuple[Any, ...], Any], answers: dict[tuple[Any, ...], Any]) -> None:
        for key in keys:
            if key not in answers and key in self._store:
                answers[key] = self._store[key]
                self._counters.cache_hits += 1

    async def _lead(self, keys: list[tuple[Any, ...]], rows: list[Any], slot: Slot) -> list[Any]:
        self._counters.cache_misses += len(keys)
        loop = asyncio.get_running_loop()
        self._calls.update((key, loop.create_future()) for key in keys)
        outcome: Any = _ASK_AGAIN
        try:
            answers = await self._ask(rows, slot)
            if slot.late:  # the result of a cancel is no answer to cache
                raise asyncio.CancelledError
            outcome = answers
            if not isinstance(outcome, list) or len(outcome) != len(keys):
                outcome = TypeError(f"a call of {len(keys)} rows must return a list with one entry for each")
                raise outcome
            self._store.update(zip(keys, outcome, strict=True))
            return outcome
        except Exception as error:
            outcome = error
            raise
        finally:
            for index, key in enumerate(keys):
                self._calls.pop(key).set_result(outcome[index] if isinstance(outcome, list) else outcome)

    async def _follow(
        self, key: tuple[Any, ...], call: asyncio.Future[Any], answers: dict[tuple[Any, ...], Any]
    ) -> None:
        outcome = await asyncio.shield(call)  # many wait for one future: the cancel of one row must not reach the others
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not _ASK_AGAIN:
            answers[key] = outcome
            self._counters.cache_hits += 1


def one_at_a_time(cached: Cached) -> Call:
    """``cached`` for a slot that serves single rows."""

    async def call(row: Any, slot: Slot) -> Any:
        return (await cached([row], slot))[0]

    return call


def as_list(call: Call) -> Call:
    """A call for one row as a call that takes and returns lists of one."""

    async def ask(rows: list[Any], slot: Slot) -> list[Any]:
        return [await call(rows[0], slot)]

    return ask
