"""The recorded offsets as connectors and tasks read them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from .host import Offsets
from .json_text import sorted_json


def partition_key(partition: Mapping[str, Any]) -> str:
    """The canonical text of a source partition: JSON with sorted keys."""
    return sorted_json(dict(partition))


class OffsetStorageReader:
    """The offset up to which each source partition was read. Reads nothing but memory: one call is as good as a thousand."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store

    def offset(self, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        """The source offset of ``partition``; ``None`` if nothing was recorded for it."""
        return self._store.get([partition_key(partition)])[0]

    def offsets(self, partitions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """The source offsets of many ``partitions``, in their order, in one read."""
        return self._store.get([partition_key(partition) for partition in partitions])


class OffsetStore:
    """The offsets of a query in memory, which the host keeps up to date; safe to use from several threads."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = {key: value for key, value in offsets.items() if value is not None}
        self._lock = threading.Lock()
        self.reads = 0
        """The number of reads, each of any number of partitions."""

    def get(self, keys: Sequence[str]) -> list[dict[str, Any] | None]:
        with self._lock:
            self.reads += 1
            return [self._offsets.get(key) for key in keys]

    def update(self, offsets: Offsets) -> None:
        with self._lock:
            for key, offset in offsets.items():
                if offset is None:
                    self._offsets.pop(key, None)
                else:
                    self._offsets[key] = offset
