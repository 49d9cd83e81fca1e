"""``connectors files seal PATH``: what waits in a folder becomes visible now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core import Misconfigured, Problem
from .place import place, sink_ids
from .rolling import MAX_PART_SIZE, RollingPolicy
from .sealing import Sealer


def seal_folder(path: str, storage: Mapping[str, Any] | None = None, max_part_size: int = MAX_PART_SIZE) -> int:
    """Seals all hidden parts in the folder ``path``, whichever sink wrote them. Returns how many files appeared.

    Harmless while a query writes there, and when it is called twice. ``storage`` is ``storageOptions``;
    ``max_part_size`` bounds the files, in bytes. Raises :class:`Misconfigured` where no sink has ever written.
    """
    found = sink_ids(path, storage or {})
    if not found:
        raise Misconfigured("connectors.files", [Problem("path", f'no sink has written to "{path}".')])
    policy = RollingPolicy(max_part_size=max_part_size)
    return sum(Sealer(place(path, sink_id, storage or {}), policy).seal(ending=True) for sink_id in found)
