"""Threads for calls that may hang: they do not keep the process alive, and a new thread replaces each that hangs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final

from . import machine

_log = logging.getLogger("connectors")
_MOST: Final = 1000


class DaemonThreads(Executor):
    """An executor that starts a thread whenever all others are busy, up to ``most``; then calls wait.

    How many calls run at once is the caller's to bound. Python's own pool has a fixed number of threads, which calls that
    never return use up, and waits for them when the process ends.
    """

    def __init__(self, name: str, most: int = _MOST) -> None:
        self._name, self._most = name, most
        self._calls: deque[tuple[Future[Any], Callable[[], Any]] | None] = deque()
        self._changed = machine.condition()
        self._threads = self._pending = 0
        self._warned = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            self._calls.append((future, partial(fn, *args, **kwargs)))
            self._pending += 1
            if self._pending > self._threads:
                self._start()
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Ends the threads when their calls have returned. Never waits for them."""
        with self._changed:
            self._calls.extend([None] * self._threads)
            self._changed.notify_all()

    def _start(self) -> None:
        if self._threads < self._most:
            self._threads += 1
            machine.thread(self._serve, self._name).start()
        elif not self._warned:
            self._warned = True
            text = "%s: %d threads are busy with calls that do not return; further calls wait. Give them a timeout of their own"
            _log.warning(text, self._name, self._threads)

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            future, work = call
            report: Callable[[], None] = lambda: None  # noqa: E731
            if future.set_running_or_notify_cancel():
                try:
                    report = partial(future.set_result, work())
                except BaseException as error:  # whatever it is, it is the caller's
                    report = partial(future.set_exception, error)
            with self._changed:
                self._pending -= 1  # first, so that who hears of the result finds this thread free
            report()

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._calls:
                self._changed.wait()
            return self._calls.popleft()
