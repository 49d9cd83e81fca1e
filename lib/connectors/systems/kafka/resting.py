"""Clients that outlive a batch: a process keeps those that its tasks have used, with their connections."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

Kind = TypeVar("Kind")
_MOST: Final = 8
_SECONDS: Final = 300.0


class _One(NamedTuple, Generic[Kind]):
    process: int
    """Whose it is: a client does not live on in a forked process, and must not even be closed there."""
    key: str
    since: float
    kept: Kind


class Resting(Generic[Kind]):
    """What nobody uses at the moment: at most :data:`_MOST`, and none for longer than five minutes. ``close`` ends one."""

    def __init__(self, close: Callable[[Kind], None]) -> None:
        self._close = close
        self._all: list[_One[Kind]] = []
        self._lock = threading.Lock()

    def take(self, key: str) -> Kind | None:
        """One that was given back under ``key``, for its taker alone."""
        with self._lock:
            found = next((one for one in self._mine() if one.key == key), None)
            if found is None:
                return None
            self._all.remove(found)
        return found.kept

    def give_back(self, key: str, kept: Kind) -> None:
        """Keeps it for whoever comes next, and closes those that have rested for long."""
        now = time.monotonic()
        with self._lock:
            self._all.append(_One(os.getpid(), key, now, kept))
            mine = self._mine()
            old = [*mine[:-_MOST], *(one for one in mine[-_MOST:] if now - one.since > _SECONDS)]
            self._all = [one for one in self._all if one not in old]
        for one in old:
            self._close(one.kept)

    def close_all(self) -> None:
        """Closes what nobody uses in this process."""
        with self._lock:
            mine = self._mine()
            self._all = [one for one in self._all if one not in mine]
        for one in mine:
            self._close(one.kept)

    def items(self) -> list[Kind]:
        """What rests in this process, last given back last."""
        return [one.kept for one in self._mine()]

    def _mine(self) -> list[_One[Kind]]:
        return [one for one in self._all if one.process == os.getpid()]
