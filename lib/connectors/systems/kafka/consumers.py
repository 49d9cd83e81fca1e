"""The consumers of a process: each is one task's, and the next one's when that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...core.errors import Fatal
from ...core.state import digest, dumps
from .failures import client, meaning
from .resting import Resting


class Kept:
    """A consumer, and the last thing that it said about its brokers."""

    def __init__(self, config: Mapping[str, str], key: str) -> None:
        self.key = key
        self.fault: Any = None
        self.consumer = client().Consumer({**config, "error_cb": self._hear})

    def _hear(self, error: Any) -> None:
        self.fault = error

    def check(self, what: str) -> None:
        """Raises what waiting does not heal, such as a wrong password."""
        if self.fault is not None and isinstance(error := meaning(self.fault.name(), self.fault.str(), what), Fatal):
            raise error

    def close(self) -> None:
        self.consumer.close()


RESTING: Final = Resting(Kept.close)


def take(config: Mapping[str, str], use: str) -> Kept:
    """A consumer with these settings that nobody else uses, and that was for the same ``use`` before."""
    key = f"{use} {digest(dumps(dict(config)))}"
    found = RESTING.take(key)
    if found is None:
        return Kept(config, key)
    found.fault = None
    return found


def give_back(kept: Kept) -> None:
    """Keeps the consumer for the next task."""
    kept.consumer.unassign()
    RESTING.give_back(kept.key, kept)
