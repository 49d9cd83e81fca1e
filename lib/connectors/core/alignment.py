"""Sources that wait for each other: those of a group, in one query or in several, each with a file in a folder of the group.

A file has the time of the oldest record that its source has yet to read, a number that grows while the source lives, and the
seconds after which a number that does not change says that it is dead. They are measured by the reader's own clock: no clocks
are compared. A dead source holds back nobody.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import Final

from ..ground import machine
from ..ground.errors import ConnectorError
from ..ground.state import digest
from ..storage.base import Storage

_log = logging.getLogger("connectors")
_LEAST_PAUSE: Final = 0.05


class AlignmentGroup:
    """One source in the group ``name``. It is dead for the others when it has said nothing for ``idle`` seconds."""

    def __init__(self, storage: Storage, name: str, idle: float) -> None:
        self.storage, self.idle = storage, idle
        self.folder = f"alignment/{digest(name, length=24)}"
        self.file = f"{self.folder}/{machine.token()}"
        self._slowest: int | None = None
        self._beats = 0
        self._seen: dict[str, tuple[int, float, int | None]] = {}
        """By file: its number, when this source first saw that, and the time in it."""
        self._lock = threading.Lock()
        self._end = machine.event()
        self._thread: threading.Thread | None = None

    def exchange(self, slowest: int | None) -> list[int]:
        """Tells the time of this source's oldest unread record, ``None`` for none, and returns those of the other sources."""
        self._slowest = slowest
        self._tell()
        if self._thread is None:
            self._thread = machine.thread(self._beat, "connectors-alignment")
            self._thread.start()
        return [time for time in map(self._time_of, self._others()) if time is not None]

    def close(self) -> None:
        """Leaves the group: the others do not wait for this source any more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self.storage.delete(self.file)

    def _others(self) -> list[str]:
        names = [f"{self.folder}/{item.name}" for item in self.storage.items(self.folder) if not item.name.startswith(".")]
        self._seen = {name: seen for name, seen in self._seen.items() if name in names}
        return [name for name in names if name != self.file]

    def _time_of(self, name: str) -> int | None:
        """The time in a file of another source; ``None`` if it is dead, or has nothing to read."""
        try:
            beats, slowest, idle = json.loads(self.storage.read(name))
        except (FileNotFoundError, ValueError):  # it has just left, or a power failure has emptied its file
            return None
        number, since, _ = self._seen.get(name, (None, 0.0, None))
        if number != beats:
            since = machine.monotonic()
        self._seen[name] = beats, since, slowest
        if machine.monotonic() - since < idle:
            return None if slowest is None else int(slowest)
        if machine.monotonic() - since > 10 * idle:
            self.storage.delete(name)
        return None

    def _tell(self) -> None:
        with self._lock:
            if not self._end.is_set():
                self._beats += 1
                self.storage.replace(self.file, json.dumps([self._beats, self._slowest, self.idle]).encode())

    def _beat(self) -> None:
        """Shows that this source lives while its batches run."""
        while not self._end.wait(max(_LEAST_PAUSE, self.idle / 4)):
            try:
                self._tell()
            except (OSError, ConnectorError):
                _log.warning("the alignment group in %s cannot be told that a source lives", self.storage.root, exc_info=True)
