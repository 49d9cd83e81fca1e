"""Consumers that outlive a batch: a worker keeps the ones that its tasks have used, with their connections."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from ...core.errors import Fatal
from ...core.state import digest, dumps
from .failures import client, meaning

_log = logging.getLogger("connectors.kafka")
_MOST_IDLE: Final = 8
_IDLE_SECONDS: Final = 300.0


class Kept:
    """A consumer, and the last thing that it said about its brokers."""

    def __init__(self, config: Mapping[str, str], use: str) -> None:
        self.key = _key(config, use)
        self.fault: Any = None
        self.returned = 0.0
        self.consumer = client().Consumer({**config, "error_cb": self._hear})

    def _hear(self, error: Any) -> None:
        self.fault = error

    def check(self, what: str) -> None:
        """Raises what waiting does not heal, such as a wrong password."""
        if self.fault is not None and isinstance(error := meaning(self.fault.name(), self.fault.str(), what), Fatal):
            raise error


_idle: list[Kept] = []
_lock = threading.Lock()
_owner = os.getpid()


def take(config: Mapping[str, str], use: str) -> Kept:
    """A consumer with these settings that nobody else uses, and that was for the same ``use`` before."""
    global _owner
    with _lock:
        if _owner != os.getpid():  # a client does not survive a fork
            _idle.clear()
            _owner = os.getpid()
        found = next((kept for kept in _idle if kept.key == _key(config, use)), None)
        if found is not None:
            _idle.remove(found)
    if found is None:
        return Kept(config, use)
    found.fault = None
    return found


def give_back(kept: Kept) -> None:
    """Keeps the consumer for the next task; the ones that have rested for long are closed."""
    kept.consumer.unassign()
    kept.returned = time.monotonic()
    with _lock:
        _idle.append(kept)
        old = [one for one in _idle if kept.returned - one.returned > _IDLE_SECONDS]
        old += _idle[: max(0, len(_idle) - _MOST_IDLE)]
        _idle[:] = [one for one in _idle if one not in old]
    for one in old:
        one.consumer.close()


def idle() -> int:
    """How many consumers wait for a task in this process."""
    return len(_idle)


def close_all() -> None:
    """Closes the consumers that nobody uses."""
    with _lock:
        resting, _idle[:] = list(_idle), []
    for one in resting:
        one.consumer.close()


def _key(config: Mapping[str, str], use: str) -> str:
    return f"{use} {digest(dumps(dict(config)))}"
