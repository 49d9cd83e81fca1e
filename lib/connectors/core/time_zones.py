"""Time zones as Arrow reads them: it brings no data of its own, and takes that of the machine."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

UTC: Final = frozenset(("Z", "UTC", "Etc/UTC"))
"""The names that need no data: the times of a column with a zone are those of UTC."""


def zone_problem(zone: str) -> str:
    """What is wrong with a region or an offset on this machine, for a :class:`Problem`; empty if nothing is."""
    if zone in UTC or _is_known(zone):
        return ""
    if _is_known("Etc/GMT"):
        return f'must be a region or an offset that Arrow knows; got "{zone}".'
    return f'"{zone}" cannot be read: this machine has no time zone data. Install its package tzdata, or take UTC.'


def _is_known(zone: str) -> bool:
    import pyarrow.compute as pc

    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("us", zone)))
    except pa.ArrowInvalid:
        return False
    return True
