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
_threads: dict[int, threading.Thread] = {}


def call_at_end(work: Callable[[], None]) -> None:
    """Calls ``work`` once when this process ends by ``os._exit``, SIGHUP or SIGTERM; never where it is killed by SIGKILL.

    It runs in a thread of its own, and the process waits for it for ten seconds at most. A handler of the program's own stays.
    Signals are noticed where the first call comes from the main thread.
    """
    callbacks = _callbacks.setdefault(os.getpid(), [])
    if not callbacks:
        _watch_exit()
        _watch_signals()
    if work not in callbacks:
        callbacks.append(work)


def _end() -> None:
    """Does the work, or waits for it: a signal may come while the process ends by itself."""
    process = os.getpid()
    if callbacks := _callbacks.pop(process, []):
        _threads[process] = threading.Thread(target=_call_each, args=(callbacks,), name="connectors-end", daemon=True)
        _threads[process].start()
    if process in _threads:
        _threads[process].join(_SECONDS)


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
    if threading.current_thread() is not threading.main_thread():
        return
    set_handler = signal.signal

    def end(number: int, frame: Any) -> None:
        _end()
        set_handler(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def set_handler_unless_default(signalnum: int, handler: Any) -> Any:
        """Spark's worker sets the default handlers again before each task."""
        is_default = signalnum in _SIGNALS and handler == signal.SIG_DFL and bool(_callbacks.get(os.getpid()))
        return set_handler(signalnum, end if is_default else handler)

    signal.signal = set_handler_unless_default
    for number in _SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            set_handler(number, end)
