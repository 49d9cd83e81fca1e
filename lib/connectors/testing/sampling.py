"""``Sampler`` records a value over time, in a thread while other code runs; ``wait_until`` waits for a condition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_POLL_SECONDS: Final = 0.05


class Sampler(Generic[T]):
    """Calls ``take()`` in a thread, from now until :meth:`stop`, with a pause of ``pause`` seconds after each call.

    ``samples`` has the returned values, each with the seconds since the start.
    """

    def __init__(self, take: Callable[[], T], pause: float = 0.0) -> None:
        self.samples: list[tuple[float, T]] = []
        self._take, self._pause, self._start = take, pause, time.monotonic()
        self._end = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> list[tuple[float, T]]:
        """Takes a last sample and returns all. Raises the error of ``take``."""
        self._end.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._add()
        return self.samples

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                self._add()
                self._end.wait(self._pause)
        except Exception as error:
            self._error = error

    def _add(self) -> None:
        value = self._take()
        self.samples.append((time.monotonic() - self._start, value))


def wait_until(condition: Callable[[], object], seconds: float = 600.0) -> None:
    """Returns as soon as ``condition()`` is true; calls of it take at most half of the time.

    Raises ``TimeoutError`` if it is not true within ``seconds``.
    """
    start = began = time.monotonic()
    while not condition():
        now = time.monotonic()
        if now > start + seconds:
            raise TimeoutError(f"not true within {seconds:g} s: {getattr(condition, '__qualname__', condition)}")
        time.sleep(max(_POLL_SECONDS, now - began))
        began = time.monotonic()
