"""The time, pauses, chance and threads of the library: the one seam at which the simulator of the test kit takes their place.

Nothing else of the library asks ``time``, ``random`` and ``uuid``, or makes a thread or an event.
"""

from __future__ import annotations

import random
import threading
import time as _time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Machine:
    """The machine that this process runs on."""

    def time(self) -> float:
        return _time.time()

    def time_ns(self) -> int:
        return _time.time_ns()

    def monotonic(self) -> float:
        return _time.monotonic()

    def monotonic_ns(self) -> int:
        return _time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        _time.sleep(seconds)

    def token(self) -> str:
        return uuid.uuid4().hex

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def event(self) -> threading.Event:
        return threading.Event()

    def condition(self) -> threading.Condition:
        return threading.Condition()

    def new_thread(self, work: Callable[[], Any], name: str) -> threading.Thread:
        return threading.Thread(target=work, name=name, daemon=True)

    def each(self, work: Callable[[Any], Any], items: Sequence[Any], most: int) -> None:
        with ThreadPoolExecutor(most) as threads:
            list(threads.map(work, items))

    @property
    def values(self) -> dict[Any, Any]:
        """The values of :class:`PerProcess`; the same for all threads of a process."""
        return _values


_values: dict[Any, Any] = {}
here: Machine = Machine()


def time() -> float:
    """Seconds since 1970 by the machine's clock."""
    return here.time()


def time_ns() -> int:
    """Nanoseconds since 1970 by the machine's clock."""
    return here.time_ns()


def monotonic() -> float:
    """Seconds since some moment; the clock's corrections do not change it."""
    return here.monotonic()


def monotonic_ns() -> int:
    """:func:`monotonic` in nanoseconds."""
    return here.monotonic_ns()


def sleep(seconds: float) -> None:
    """Pauses this thread."""
    here.sleep(seconds)


def token() -> str:
    """32 hexadecimal digits that nobody has had before."""
    return here.token()


def uniform(low: float, high: float) -> float:
    """A number between ``low`` and ``high`` by chance."""
    return here.uniform(low, high)


def event() -> threading.Event:
    """A new event."""
    return here.event()


def condition() -> threading.Condition:
    """A new condition, with a lock that its thread may take twice."""
    return here.condition()


def thread(work: Callable[[], Any], name: str) -> threading.Thread:
    """A thread for ``work``, to be started, which does not keep the process alive."""
    return here.new_thread(work, name)


def each(work: Callable[[Any], Any], items: Sequence[Any], most: int) -> None:
    """Calls ``work`` for all ``items``, at most ``most`` at a time."""
    here.each(work, items, most)


class PerProcess(Generic[T]):
    """A value of each process, such as a cache: made by ``make`` at its first use."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __call__(self) -> T:
        values = here.values
        if self not in values:
            values[self] = self._make()
        value: T = values[self]
        return value
