"""Times in a time zone, a whole column at a time, as Java knows the zone: any year, any of Spark's names for a zone."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .errors import Misconfigured, Problem

Numbers = npt.NDArray[np.int64]

_UTC: Final = ("UTC", "GMT", "UT", "Z")
_FIXED: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d)(?::?(\d\d))?)?")
_SECOND: Final = 1_000_000
_EARLY: Final = -6_000_000_000_000_000  # the year 1779, before any zone was introduced
_LATE: Final = 2_114_380_800_000_000  # the year 2037: Arrow knows no change of a clock from there on
_CYCLE: Final = 12_622_780_800 * _SECOND  # 400 years, after which the calendar repeats
_QUARTER: Final = 900 * _SECOND


def offsets(times: Numbers, zone: str) -> Numbers:
    """The offset of ``zone`` from UTC, in seconds, at each of ``times`` (microseconds since 1970).

    Raises :class:`Misconfigured` for a zone that has no region and no offset here.
    """
    fixed = _fixed(zone)
    if fixed is not None:
        return np.full(len(times), fixed, np.int64)
    near = np.clip(times, _EARLY, _LATE)
    try:
        wall = pc.local_timestamp(pa.array(near, pa.timestamp("us", zone)))
    except pa.ArrowInvalid:
        text = f'is "{zone}", which only Java knows; set a region such as Europe/Berlin, or an offset such as +02:00.'
        raise Misconfigured("connectors", [Problem("spark.sql.session.timeZone", text)]) from None
    found: Numbers = (wall.cast(pa.int64()).to_numpy() - near) // _SECOND
    late = times >= _LATE
    if late.any():
        found[late] = _late(times[late], zone)
    return found


def _fixed(zone: str) -> int | None:
    if zone in _UTC:
        return 0
    parts = _FIXED.fullmatch(zone)
    if parts is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in parts.groups()[1:])
    return (hours * 3600 + minutes * 60 + seconds) * (-1 if parts[1] == "-" else 1)


def _late(times: Numbers, zone: str) -> Numbers:
    """Python's rules, which go on for ever; they are asked once for each quarter of an hour."""
    quarters, places = np.unique(((times - _LATE) % _CYCLE + _LATE) // _QUARTER, return_inverse=True)
    region = zoneinfo.ZoneInfo(zone)
    moments = (datetime.datetime.fromtimestamp(quarter * 900, region).utcoffset() for quarter in quarters.tolist())
    return np.array([int(offset.total_seconds()) for offset in moments if offset is not None], np.int64)[places]
