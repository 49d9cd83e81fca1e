"""The end of a process that Python does not see: Spark's workers end by ``os._exit`` and by signals, without ``atexit``."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

_SECONDS: Final = 10.0
_SIGNALS: Final = (signal.SIGHUP, signal.SIGTERM)
_callbacks: dict[int, list[Callable[[], None]]] = {}
"""What is to be done, by process: a forked one begins without."""


def call_at_end(work: Callable[[], None]) -> None:
    """Calls ``work`` once when this process ends by ``os._exit``, SIGHUP or SIGTERM; never where it is killed by SIGKILL.

    It runs in a thread of its own, and the process waits for it for ten seconds at most. A handler that the program has set
    stays; so does the default one where this is not called from the main thread.
    """
    callbacks = _callbacks.setdefault(os.getpid(), [])
    if not callbacks:
        _watch_exit()
        _watch_signals()
    if work not in callbacks:
        callbacks.append(work)


def _end() -> None:
    callbacks = _callbacks.pop(os.getpid(), [])
    if not callbacks:
        return
    thread = threading.Thread(target=_call_each, args=(callbacks,), name="connectors-end", daemon=True)
    thread.start()
    thread.join(_SECONDS)


def _call_each(callbacks: list[Callable[[], None]]) -> None:
    for work in callbacks:
        with contextlib.suppress(Exception):  # the others have their turn
            work()


def _watch_exit() -> None:
    exit_now = os._exit

    def exit_after_end(status: int) -> NoReturn:
        _end()
        exit_now(status)

    os._exit = exit_after_end


def _watch_signals() -> None:
    def end(number: int, frame: Any) -> None:
        _end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)
