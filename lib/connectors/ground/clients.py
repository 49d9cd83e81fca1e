"""Client libraries, which are imported where they are used, and clients that outlive the task that opened them."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from . import machine
from .errors import Misconfigured, Problem
from .process_end import call_at_end, end_at_signals

Client = TypeVar("Client")
_CAPACITY: Final = 8
_IDLE_SECONDS: Final = 300.0


def client_library(module: str, install: str, *, connector: str, option: str = "format") -> Any:
    """The module of a client library.

    Raises :class:`~connectors.ground.errors.Misconfigured` when it is not installed; the error is about ``option`` and
    gives ``install``, the arguments of ``pip install``.
    """
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        text = f"needs a package that is not here ({missing.name or module}); pip install {install}"
        raise Misconfigured(connector, [Problem(option, text)]) from None


class _Idle(NamedTuple, Generic[Client]):
    process: int
    """A client does not survive a fork, and the forked process must not even close it."""
    key: str
    since: float
    client: Client


class ClientPool(Generic[Client]):
    """The idle clients of a process, at most eight, none for longer than five minutes. ``close`` ends a client.

    A client is in the pool while nobody uses it: :meth:`take` removes it, and its user gives it back. With ``idle_seconds``
    one that nobody takes is closed after that time, and at the end of the process unless a signal ends it between :meth:`take`
    and :meth:`give_back`; otherwise when others are given back.
    """

    def __init__(self, close: Callable[[Client], None], idle_seconds: float | None = None) -> None:
        self._close = close
        self._idle_seconds = idle_seconds
        self._entries: list[_Idle[Client]] = []
        self._lock = threading.Lock()
        atexit.register(self.close_all)

    def take(self, key: str) -> Client | None:
        """A client that was given back under ``key``; ``None`` when there is none."""
        if self._idle_seconds is not None:
            end_at_signals()  # whichever client is used now
        with self._lock:
            idle = next((idle for idle in self._idle() if idle.key == key), None)
            if idle is None:
                return None
            self._entries.remove(idle)
        return idle.client

    def give_back(self, key: str, client: Client) -> None:
        """Keeps the client for its next user, and closes clients that have been idle for too long."""
        now = machine.monotonic()
        with self._lock:
            self._entries.append(_Idle(os.getpid(), key, now, client))
            idle = self._idle()
            old = [*idle[:-_CAPACITY], *(entry for entry in idle[-_CAPACITY:] if now - entry.since > _IDLE_SECONDS)]
            self._entries = [entry for entry in self._entries if entry not in old]
        self._close_each(old)
        if self._idle_seconds is not None:
            call_at_end(self.close_all)
            timer = threading.Timer(self._idle_seconds, self._close_since, (now,))
            timer.daemon = True
            timer.start()

    def _close_since(self, moment: float) -> None:
        """Closes what has been idle since then."""
        with self._lock:
            old = [idle for idle in self._idle() if idle.since <= moment]
            self._entries = [entry for entry in self._entries if entry not in old]
        self._close_each(old)

    def close_all(self) -> None:
        """Closes the idle clients of this process."""
        with self._lock:
            idle = self._idle()
            self._entries = [entry for entry in self._entries if entry not in idle]
        self._close_each(idle)

    def clients(self) -> list[Client]:
        """The idle clients of this process, the last one given back at the end."""
        return [idle.client for idle in self._idle()]

    def _idle(self) -> list[_Idle[Client]]:
        return [entry for entry in self._entries if entry.process == os.getpid()]

    def _close_each(self, entries: list[_Idle[Client]]) -> None:
        for entry in entries:
            with contextlib.suppress(Exception):
                self._close(entry.client)
