"""One Spark task: Arrow batches in, Arrow batches out, the engine on the worker's event loop between them.

It has three threads, since each may block: one reads the input, the event loop's thread runs the calls, and the generator's
thread passes on results, so that they leave while the input is idle. They meet once per Arrow batch.

Spark runs one task after the other in a Python worker. A client belongs to its event loop. A worker therefore keeps one loop,
and with it the clients and caches, between tasks (in a stream: between micro-batches).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import inspect
import logging
import os
import queue
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa

from ..core.metrics import Component, Meter, Place
from ..ground import machine
from ..ground.retry import Breaker
from ..ground.state import digest
from ..ground.threads import DaemonThreads
from .batches import Call, Columns, EngineSettings, Output, RowBatch
from .calls import Attempts, Cache, Cached, CircuitBreaker, Limiter, Retry, as_list, one_at_a_time
from .engine import AsyncEngine
from .function import AsyncFunction, Context, Counters, Fallbacks, count_calls, invoker, run_step

_WORKER_MODULE: Final = "connectors_async_io_worker"
_MOST_OPERATORS: Final = 16
_GRACE: Final = 5.0
_GARBAGE: Final = 10_000
"""New objects before Python looks for cycles. With Python's 700, a thousand calls in flight cost a quarter more CPU."""


def worker() -> Any:
    """The state of this process: ``loop``, ``clients``, ``operators``.

    It is a separate module: if Spark ships this library to the workers by value, each task gets new copies of the library's
    globals. A forked child starts with a new state, since threads do not survive a fork.
    """
    state: Any = sys.modules.get(_WORKER_MODULE)
    if state is None or state.pid != os.getpid():
        state = types.ModuleType(_WORKER_MODULE)
        state.__dict__.update(pid=os.getpid(), lock=threading.Lock(), loop=None, clients={}, operators=OrderedDict())
        sys.modules[_WORKER_MODULE] = state
        atexit.register(_close_clients, state)
    return state


def _close_clients(state: Any) -> None:
    """Closes the clients when a worker exits normally; after a kill the servers must notice."""
    if state.loop is not None and state.pid == os.getpid():
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(_closed(list(state.clients.values())), state.loop).result(_GRACE)


async def _closed(clients: list[Any]) -> None:
    for client in clients:
        with contextlib.suppress(Exception):
            ready = await client if isinstance(client, asyncio.Future) else client
            close = getattr(ready, "aclose", None) or getattr(ready, "close", None) or getattr(ready, "dispose", None)
            if close and inspect.isawaitable(closing := close()):
                await closing


def event_loop() -> asyncio.AbstractEventLoop:
    """The process's event loop on a daemon thread; uvloop's if that is installed."""
    state = worker()
    with state.lock:
        if state.loop is None or state.loop.is_closed():
            state.loop = _new_loop()
            gc.set_threshold(max(_GARBAGE, gc.get_threshold()[0]), *gc.get_threshold()[1:])
            machine.thread(partial(_run, state.loop), "async_io").start()
        loop: asyncio.AbstractEventLoop = state.loop
        return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while not loop.is_closed():
        with contextlib.suppress(SystemExit, KeyboardInterrupt):  # from a task that a user's call has started
            loop.run_forever()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def of_operator(operator: str, name: str, make: Callable[[], Any]) -> Any:
    """The cache or breaker that all tasks of an operator share; the first task makes it by ``make()``."""
    operators = worker().operators
    operators.setdefault(operator, {})
    operators.move_to_end(operator)
    while len(operators) > _MOST_OPERATORS:
        operators.popitem(last=False)
    policies: dict[str, Any] = operators[operator]
    if name not in policies:
        policies[name] = make()
    return policies[name]


_LOG: Final = logging.getLogger(__name__)
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"


@dataclass(frozen=True)
class Plan:
    """The plan of an operator's tasks, made on the driver and pickled."""

    name: str
    operator_id: str
    function: AsyncFunction
    settings: EngineSettings
    keep: tuple[str, ...]
    results: pa.Schema
    retry: Retry | None = None
    cache: Cache | None = None
    rate_limit: float | None = None
    circuit_breaker: CircuitBreaker | None = None
    report: Callable[[Mapping[str, float]], None] | None = None


def run(plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs ``plan`` over the batches of one task; ``mapInArrow`` calls it in each task."""
    task = _Task(plan, batches, _place())
    columns = Columns(plan.keep, plan.results, plan.name)
    task.start()
    try:
        for output in task.outputs():
            batch = columns.build(output.source, output.indices, output.results)
            if batch is not None:
                yield batch
        task.raise_failure()
    finally:
        task.stop()


def _place() -> tuple[int, int]:
    """Partition and attempt of this task; outside Spark the first ones."""
    pyspark = sys.modules.get("pyspark")
    context = pyspark.TaskContext.get() if pyspark else None
    return (context.partitionId(), context.attemptNumber()) if context else (0, 0)


def _counted_at(plan: Plan) -> Place | None:
    """The place under which metrics count this task's calls; ``None`` outside a streaming query."""
    pyspark = sys.modules.get("pyspark")
    context: Any = pyspark.TaskContext.get() if pyspark else None
    query = context.getLocalProperty(_QUERY_ID) if context else None
    if query is None:
        return None
    called = getattr(plan.function, "function", plan.function)
    name = getattr(called, "__name__", type(called).__name__)
    operator = digest(plan.name, plan.keep, plan.results.remove_metadata())  # the same after a restart
    component = Component("async", name, operator)
    batch, run = int(context.getLocalProperty(_BATCH_ID) or 0), str(context.getLocalProperty(_RUN_ID) or "")
    return Place(query, component, batch, context.partitionId(), run)


@dataclass
class _Task:
    plan: Plan
    batches: Iterator[pa.RecordBatch]
    place: tuple[int, int]
    finished: queue.SimpleQueue[Output | None] = field(default_factory=queue.SimpleQueue)
    room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    def start(self) -> None:
        self.loop = event_loop()
        self.counters = Counters()
        self.meter = Meter(_counted_at(self.plan))
        self.serving = asyncio.run_coroutine_threadsafe(self._serve(), self.loop)

    def outputs(self) -> Iterator[Output]:
        """The outputs of the engine, until it ends. Each one taken makes room for more input."""
        while (output := self.finished.get()) is not None:
            self.loop.call_soon_threadsafe(self.engine.delivered, output)
            yield output

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """Ends everything that still runs, when the consumer has everything or wants no more."""
        self.serving.cancel()
        self.ended.wait(3 * self.plan.settings.close_timeout)
        self.room.release()

    # -- on the event loop

    async def _serve(self) -> None:
        threads = DaemonThreads("async_io-call")
        try:
            await self._serve_on(threads)
        except BaseException as error:
            self.failure = error
        finally:
            threads.shutdown()
            self._report()
            self.ended.set()
            self.finished.put(None)

    async def _serve_on(self, threads: Executor) -> None:
        plan, function = self.plan, self.plan.function
        fallback = Fallbacks(function, plan.cache.key if plan.cache else plan.keep, plan.name, self.counters)
        self.engine = AsyncEngine(
            self._call(threads),
            fallback,
            emit=self.finished.put,
            want=self.room.release,
            settings=plan.settings,
            counters=self.counters,
        )
        try:
            await run_step(function.open, self._context())
            machine.thread(self._read, "async_io-input").start()
            await self.engine.run()
        except BaseException:
            try:
                await self._close()
            except Exception:
                _LOG.warning("%s: close() failed as well", plan.name, exc_info=True)
            raise
        await self._close()

    def _context(self) -> Context:
        partition, attempt = self.place
        settings = self.plan.settings
        clients = worker().clients
        return Context(partition, attempt, settings.capacity, settings.batch_size, self.plan.results, clients)

    def _call(self, threads: Executor) -> Call:
        """The user's function, wrapped in the layers of its policies."""
        plan, cache, invoke = self.plan, self.plan.cache, invoker(self.plan.function, threads)
        call: Call = lambda rows, slot: invoke(rows)  # noqa: E731
        if plan.retry or plan.rate_limit or plan.circuit_breaker:
            call = Attempts(invoke, self.counters, plan.retry, self._limiter(), self._breaker())
        if cache is None:
            return call
        single = plan.settings.batch_size == 1
        store = of_operator(plan.operator_id, "cache", lambda: _store(cache, self.loop.time))
        cached = Cached(as_list(call) if single else call, cache.key, store, self.counters)
        return one_at_a_time(cached) if single else cached

    def _limiter(self) -> Limiter | None:
        if self.plan.rate_limit is None:
            return None
        from aiolimiter import AsyncLimiter

        burst = max(1.0, self.plan.rate_limit / 10)  # in any second at most a tenth above the limit
        return AsyncLimiter(burst, burst / self.plan.rate_limit)

    def _breaker(self) -> Breaker | None:
        policy = self.plan.circuit_breaker
        if policy is None:
            return None
        breaker: Breaker = of_operator(self.plan.operator_id, "breaker", lambda: Breaker(policy, self.loop.time))
        return breaker

    async def _close(self) -> None:
        grace = self.plan.settings.close_timeout
        closing = asyncio.ensure_future(run_step(self.plan.function.close))
        await asyncio.wait([closing], timeout=grace)
        if not closing.done():
            closing.cancel()
            _LOG.warning("%s: close() did not end within %g s and was given up", self.plan.name, grace)
            return
        closing.result()

    def _report(self) -> None:
        count_calls(self.meter, self.counters, failed=self.failure is not None)
        if self.plan.report is None:
            return
        try:
            self.plan.report(self.counters.snapshot())
        except Exception:
            _LOG.warning("%s: the report of a task's counters failed", self.plan.name, exc_info=True)

    # -- on the reader's thread

    def _read(self) -> None:
        """Reads a batch whenever the engine has room, and converts it to rows here, off the loop."""
        then: Callable[[], Any] = self.engine.finish
        try:
            while self._has_room():
                batch = next(self.batches, None)
                if batch is None:
                    break
                self.loop.call_soon_threadsafe(self.engine.add, RowBatch(Columns.rows(batch), batch))
        except BaseException as error:
            failure = error
            then = lambda: self.engine.fail(failure)  # noqa: E731
        self.loop.call_soon_threadsafe(then)

    def _has_room(self) -> bool:
        self.room.acquire()
        return not self.ended.is_set()


def _store(cache: Cache, now: Callable[[], float]) -> Any:
    from cachetools import LRUCache, TTLCache

    ttl = cache.ttl_seconds
    return LRUCache(cache.size) if ttl is None else TTLCache(cache.size, ttl, timer=now)
