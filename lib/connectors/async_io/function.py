"""The user's function as a class or a plain function, its fallbacks, and the counters of a task."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pyarrow as pa

from ..core.metrics import Meter
from ..ground.errors import ConnectorError, Fatal, Misconfigured, Poison, Problem, Transient
from ..ground.options import is_secret

_SAMPLE: Final = 4096
_PERCENTILES: Final = (50, 95, 99)


@dataclass
class Counters:
    """The counters of one task, written on the event loop.

    ``in_flight_max`` is a number of calls; latencies are in seconds, of the last 4096 calls that ended in time.
    """

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
        """Every counter by name, and ``latency_p50``, ``latency_p95``, ``latency_p99`` in seconds."""
        numbers: dict[str, float] = {name: n for name, n in vars(self).items() if name != "latencies"}
        ordered = sorted(self.latencies)
        return numbers | {f"latency_p{percent}": _percentile(ordered, percent) for percent in _PERCENTILES}


def count_calls(meter: Meter, counters: Counters, *, failed: bool) -> None:
    """Adds the counters of a task to the query's metrics. The calls of a failed task count, its rows do not."""
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


T = TypeVar("T")

Row = Mapping[str, Any]
"""An input row: column names to Python values."""

Rows = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
"""A result: one row, several, or none (``None`` and ``[]``). A column that a row leaves out is null."""


@dataclass(frozen=True)
class Context:
    """The argument of :meth:`AsyncFunction.open`: where the function runs, its limits, the ``schema`` of its results."""

    partition: int
    attempt: int
    capacity: int
    batch_size: int
    schema: pa.Schema
    clients: dict[str, Any] = field(repr=False)

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """The client ``name``, made once by ``make()`` and shared by all tasks and batches of this worker process.

        The event loop lives as long, so a client may be tied to it. ``make`` may be a coroutine function: then await
        the result. ``name`` must contain everything that the client depends on, such as its URL. Do not close a shared
        client in ``close()``: the next task uses it.
        """
        if name not in self.clients:
            new = make()  # not isawaitable: some clients are awaitable themselves
            self.clients[name] = asyncio.ensure_future(new) if inspect.iscoroutine(new) else new
        client = self.clients[name]
        if isinstance(client, asyncio.Future) and client.done() and (client.cancelled() or client.exception()):
            del self.clients[name]
            return self.shared(name, make)
        return asyncio.shield(client) if isinstance(client, asyncio.Future) else client  # type: ignore[return-value]


class NoFallback(Exception):
    """A failed row has no fallback, so its error stands."""


class AsyncFunction:
    """The base class of functions that call a service for rows. Each task has an instance, pickled on the driver.

    Only :meth:`async_invoke` is required. Make clients in :meth:`open`, which runs in the task, never in ``__init__``:
    clients cannot be pickled.
    """

    def check_columns(self, columns: Sequence[str]) -> Iterator[Problem]:
        """The problems of the function with rows of these columns; by default none. Called on the driver."""
        yield from ()

    async def open(self, context: Context) -> None:
        """Called once per task, before any row."""

    async def async_invoke(self, row: Any) -> Any:
        """The result for ``row``: a dict, a list of dicts, or None for no row.

        With ``batch_size`` above 1, ``row`` is a list of rows and the result a list with one such entry for each. A
        plain ``def`` runs on a thread, for clients that block. Calls run concurrently, so keep no state of a row in
        ``self``. A cancelled call has timed out; whatever it still returns is dropped.
        """
        raise NotImplementedError(f"{type(self).__name__} needs async_invoke(row)")

    def timeout(self, row: Row) -> Rows:
        """The fallback result for a row that timed out, failed after its retries, or met an open circuit.

        ``{}`` keeps the row with nulls, ``None`` drops it. By default there is no fallback, and the task fails.
        """
        raise NoFallback

    async def close(self) -> None:
        """Called once per task after its last row, also if the task failed; it has ``close_timeout`` to finish."""


class Plain(AsyncFunction):
    """A plain function as an :class:`AsyncFunction`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.async_invoke = function  # type: ignore[method-assign]


def as_function(function: Any) -> AsyncFunction:
    """``function`` as an :class:`AsyncFunction`. Raises ``ValueError`` with a phrase that continues "must be"."""
    if isinstance(function, AsyncFunction):
        if type(function).async_invoke is AsyncFunction.async_invoke and not isinstance(function, Plain):
            raise ValueError("a subclass with async_invoke(row)")
        if inspect.iscoroutinefunction(function.timeout):
            raise ValueError("a function whose timeout(row) is a plain def: it must answer at once")
        return function
    if isinstance(function, type):
        raise ValueError(f"an instance; give {function.__name__}(…), not the class")
    if not callable(function):
        raise ValueError("an AsyncFunction, an async def, or a def")
    return Plain(function)


def invoker(function: AsyncFunction, threads: Executor) -> Callable[[Any], Awaitable[Any]]:
    """How the engine calls ``function``: directly, or on one of ``threads`` if it is a plain ``def``."""
    invoke = function.async_invoke
    if is_async(invoke):
        return invoke

    async def on_thread(row: Any) -> Any:
        result = await asyncio.get_running_loop().run_in_executor(threads, invoke, row)
        return await result if inspect.isawaitable(result) else result

    return on_thread


async def run_step(step: Callable[..., Any], *arguments: Any) -> None:
    """Runs ``open`` or ``close``, as coroutine or plain function; a blocking one must not stop the loop."""
    if is_async(step):
        await step(*arguments)
    elif inspect.isawaitable(result := await asyncio.to_thread(step, *arguments)):
        await result


def is_async(function: Callable[..., Any]) -> bool:
    """True for a coroutine function, a partial of one, or an object whose ``__call__`` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


_LONGEST: Final = 300
_WAY_OUT: Final = "give the function a timeout(row) that returns a fallback, or more retries or time."


class Fallbacks:
    """The engine's fallback. ``identity`` has the columns that name a row in an error (none: all of them)."""

    def __init__(self, function: AsyncFunction, identity: Sequence[str], operator: str, counters: Counters) -> None:
        self._function, self._identity, self._operator, self._counters = function, identity, operator, counters

    def __call__(self, row: Row, cause: BaseException) -> Any:
        self._counters.failures += 1
        if isinstance(cause, Misconfigured):
            raise cause
        try:
            result = self._function.timeout(row)
        except NoFallback:
            raise self._error(row, cause) from cause
        except Exception as error:
            raise self._error(row, error) from cause
        self._counters.fallbacks += 1
        return result

    def _error(self, row: Row, cause: BaseException) -> ConnectorError:
        where = f"row {named(row, self._identity)}"
        text = cause.message if isinstance(cause, ConnectorError) else str(cause)
        kind = type(cause).__name__
        message = f"the call failed: {kind}: {text}" if text else f"the call failed: {kind}"
        context: dict[str, Any] = {"connector": self._operator, "where": where}
        if isinstance(cause, Fatal):
            return Fatal(message, **context, way_out=cause.way_out)
        if isinstance(cause, (Transient, OSError, TimeoutError)) or kind in ("TimeoutError", "CancelledError"):
            return Transient(message, **context, way_out=_WAY_OUT)
        return Poison(message, record=where, **context, way_out=_WAY_OUT)


def named(row: Row, identity: Sequence[str]) -> str:
    """``row`` by its ``identity``, short enough for a message and without secrets."""
    shown = {name: "***" if is_secret(name) else row[name] for name in (identity or row)}
    text = repr(shown)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
