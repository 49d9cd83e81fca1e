"""What outlives a task: one event loop per process, and the things kept for the tasks that follow.

Spark runs one task after the other in a Python worker. A client belongs to its event loop, so keeping clients and
caches between tasks (for a stream: between micro-batches) means keeping the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import inspect
import os
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

_HOME: Final = "connectors_async_io_worker"
_OPERATORS_KEPT: Final = 16
_GRACE: Final = 5.0
_GARBAGE: Final = 10_000
"""New objects before Python looks for cycles. With its own 700, a thousand calls in flight cost a quarter more CPU."""


def home() -> Any:
    """This process's loop and kept things: ``loop``, ``shared``, ``operators``.

    They hang on a module of their own: where this library is sent to the workers by value, each task gets new copies
    of our modules' globals. A forked child starts afresh, for threads do not survive a fork.
    """
    found: Any = sys.modules.get(_HOME)
    if found is None or found.pid != os.getpid():
        found = types.ModuleType(_HOME)
        found.__dict__.update(pid=os.getpid(), lock=threading.Lock(), loop=None, shared={}, operators=OrderedDict())
        sys.modules[_HOME] = found
        atexit.register(_close_shared, found)
    return found


def _close_shared(at: Any) -> None:
    """A worker that ends in order closes its clients; one that is killed leaves that to their servers."""
    if at.loop is not None and at.pid == os.getpid():
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(_closed(list(at.shared.values())), at.loop).result(_GRACE)


async def _closed(clients: list[Any]) -> None:
    for client in clients:
        with contextlib.suppress(Exception):
            made = await client if isinstance(client, asyncio.Future) else client
            close = getattr(made, "aclose", None) or getattr(made, "close", None) or getattr(made, "dispose", None)
            if close and inspect.isawaitable(closing := close()):
                await closing


def event_loop() -> asyncio.AbstractEventLoop:
    """The process's event loop, running on a daemon thread: uvloop's where it is installed."""
    at = home()
    with at.lock:
        if at.loop is None or at.loop.is_closed():
            at.loop = _new_loop()
            gc.set_threshold(max(_GARBAGE, gc.get_threshold()[0]), *gc.get_threshold()[1:])
            threading.Thread(target=_run, args=(at.loop,), name="async_io", daemon=True).start()
        loop: asyncio.AbstractEventLoop = at.loop
        return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while not loop.is_closed():
        with contextlib.suppress(SystemExit, KeyboardInterrupt):  # of a task that a user's call started by itself
            loop.run_forever()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def kept(operator: str, name: str, make: Callable[[], Any]) -> Any:
    """``make()``, or what it returned before for this operator: a cache or breaker serves all tasks of its query."""
    operators = home().operators
    operators.setdefault(operator, {})
    operators.move_to_end(operator)
    while len(operators) > _OPERATORS_KEPT:
        operators.popitem(last=False)
    things: dict[str, Any] = operators[operator]
    if name not in things:
        things[name] = make()
    return things[name]
