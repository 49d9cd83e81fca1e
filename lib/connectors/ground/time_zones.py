"""Time zones. Arrow brings no data of its own, and takes that of the machine; Python takes it, or the package tzdata."""

from __future__ import annotations

import contextlib
import datetime
import functools
import zoneinfo
from typing import Final

import pyarrow as pa

UTC: Final = frozenset(("Z", "UTC", "Etc/UTC"))
"""The names that need no data: the times of a column with a zone are those of UTC."""


def zone_problem(zone: str) -> str:
    """The reason why Arrow cannot read a region or an offset on this machine, for a :class:`Problem`; empty if it can."""
    if zone in UTC or _is_known(zone):
        return ""
    if _is_known("Etc/GMT"):
        return f'must be a region or an offset that Arrow knows; got "{zone}".'
    return f'"{zone}" cannot be read: this machine has no time zone data. Install its package tzdata, or take UTC.'


@functools.cache
def region_problem(region: str) -> str:
    """The reason why Python and Arrow do not read times of a region alike on this machine, as :func:`zone_problem`."""
    import pyarrow.compute as pc

    if region == "UTC":
        return ""
    with contextlib.suppress(KeyError, ValueError, OSError):
        zone, noons = zoneinfo.ZoneInfo(region), [datetime.datetime(2024, month, 1, 12) for month in (1, 7)]
        moments = pc.assume_timezone(pa.array(noons, pa.timestamp("us")), region).cast(pa.timestamp("us", "UTC"))
        if moments.to_pylist() == [noon.replace(tzinfo=zone) for noon in noons]:
            return ""
    text = f"must be a region such as Europe/Berlin, with data on this machine; got {region!r}"
    return f"{text}. If it is one, install the time-zone data of the system, such as the package tzdata of Debian."


def _is_known(zone: str) -> bool:
    import pyarrow.compute as pc

    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("us", zone)))
    except pa.ArrowInvalid:
        return False
    return True
