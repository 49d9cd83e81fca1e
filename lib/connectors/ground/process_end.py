"""The end of a process that Python does not see: Spark's workers end by ``os._exit`` and by signals, without ``atexit``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

_SECONDS: Final = 10.0
_SIGNALS: Final = (signal.SIGHUP, signal.SIGTERM)
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
_set_handler: Final = signal.signal
_callbacks: dict[int, list[Callable[[], None]]] = {}
"""The calls to make at the end of a process, by its id: a forked one begins without."""
_threads: dict[int, threading.Thread] = {}


def die_with_parent() -> None:
    """Called in a child before its program: the kernel ends it by SIGTERM when the *thread* that started it ends.

    A process that is killed ends no children itself. Has an effect on Linux.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def call_at_end(work: Callable[[], None]) -> None:
    """Calls ``work`` once when this process ends by ``os._exit``, SIGHUP or SIGTERM; never where it is killed by SIGKILL.

    It runs in a thread of its own, if one can be started, and the process waits for it for ten seconds at most. A handler of
    the program's own stays. Signals are noticed from a call in the main thread on, until :func:`end_at_signals`.
    """
    callbacks = _callbacks.setdefault(os.getpid(), [])
    if not callbacks:
        _watch_exit()
    if work not in callbacks:
        callbacks.append(work)
    _watch_signals()


def end_at_signals() -> None:
    """Signals end this process at once again, without the work, until the next :func:`call_at_end`.

    Python notices a signal when its main thread is back from a library's call, which may never be: such a process would live
    on and write. Has an effect in the main thread.
    """
    if _is_main_thread():
        if signal.signal is _set_handler_unless_default:
            signal.signal = _set_handler
        for number in _SIGNALS:
            if signal.getsignal(number) is _end_by_signal:
                _set_handler(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=end_at_signals)  # it has no work, and must end also where it waits for a lock


def _end() -> None:
    """Does the work, or waits for it: a signal may come while the process ends by itself."""
    process = os.getpid()
    if callbacks := _callbacks.pop(process, []):
        _threads[process] = threading.Thread(target=_call_each, args=(callbacks,), name="connectors-end", daemon=True)
        try:
            _threads[process].start()
        except RuntimeError:  # the machine has no more, or Python 3.12 ends: the process must end all the same
            del _threads[process]
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


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _watch_signals() -> None:
    if _is_main_thread():
        signal.signal = _set_handler_unless_default
        for number in _SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                _set_handler(number, _end_by_signal)


def _end_by_signal(number: int, frame: Any) -> None:
    _end()
    _set_handler(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _set_handler_unless_default(signalnum: int, handler: Any) -> Any:
    """Spark's worker sets the default handlers again before each task."""
    is_default = signalnum in _SIGNALS and handler == signal.SIG_DFL and bool(_callbacks.get(os.getpid()))
    return _set_handler(signalnum, _end_by_signal if is_default else handler)
