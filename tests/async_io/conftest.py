"""Time that does not pass by itself, and the engine driven by it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from connectors.async_io.batches import EngineSettings, Output, RowBatch
from connectors.async_io.engine import AsyncEngine
from connectors.async_io.function import Counters


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, moves the clock to it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "every task waits for something that will never come"
        self.now += timeout + 1e-9  # an instruction takes its time: a timer due "now" must not come for ever
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose hours pass at once: it never sleeps, it jumps to its next timer."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)
        self._clock_resolution = 1e-6  # timers this close fire together: races for the same instant do happen

    def time(self) -> float:
        return self._clock.now


def run_virtually(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work())
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(1000))
        loop.close()


@pytest.fixture(scope="session")
def virtually() -> Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]:
    """Runs a coroutine function in virtual time and returns its result."""
    return run_virtually


@dataclass
class Ran:
    """What came of a run: outcomes as (row, result) in the order of leaving, when each output left, the counters."""

    outcomes: list[tuple[Any, Any]] = field(default_factory=list)
    left_at: list[float] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    error: BaseException | None = None
    ended_at: float = 0.0
    most_open: int = 0


def no_fallback(row: Any, cause: BaseException) -> Any:
    raise cause


async def drive(
    call: Any,
    batches: list[list[Any]],
    *,
    fallback: Any = no_fallback,
    gap: float = 0.0,
    linger: float = 0.0,
    make_call: Any = None,
    **settings: Any,
) -> Ran:
    """Feeds ``batches``, ``gap`` seconds apart and whenever there is room, and ends the input ``linger`` s later."""
    ran = Ran()
    now = asyncio.get_running_loop().time
    room = asyncio.Semaphore(0)

    def emit(output: Output) -> None:
        rows = output.source if output.indices is None else [output.source[i] for i in output.indices]
        ran.outcomes.extend(zip(rows, output.results, strict=True))
        ran.left_at.append(now())
        asyncio.get_running_loop().call_soon(engine.delivered, output)

    async def feed() -> None:
        for rows in batches:
            await room.acquire()
            engine.add(RowBatch(list(rows), list(rows)))
            await asyncio.sleep(gap)
        await asyncio.sleep(linger)
        engine.finish()

    call = make_call(ran.counters) if make_call else call
    limits = EngineSettings(**settings)
    engine = AsyncEngine(call, fallback, emit=emit, want=room.release, settings=limits, counters=ran.counters)
    feeding = asyncio.ensure_future(feed())
    try:
        await engine.run()
    except Exception as error:
        ran.error = error
    feeding.cancel()
    ran.ended_at = now()
    return ran


@pytest.fixture(scope="session")
def driving() -> Callable[..., Coroutine[Any, Any, Ran]]:
    """The same as a coroutine function, for a test that does more in its time."""
    return drive


@pytest.fixture(scope="session")
def served() -> Callable[..., Ran]:
    """``served(call, batches, **settings)``: an engine over ``batches`` in virtual time."""

    def run(call: Any, batches: list[list[Any]], **options: Any) -> Ran:
        return run_virtually(lambda: drive(call, batches, **options))

    return run
