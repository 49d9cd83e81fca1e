"""Times as positions hold them, and how far a time may be read now.

Rows may still come with any time from now on, so nothing is read past the database's clock less ``timestampDelay``. A time
without a zone is a wall clock, which in autumn shows an hour twice: rows of that hour wait until it is over for good.
"""

from __future__ import annotations

import datetime
import re
from typing import Any, Final
from zoneinfo import ZoneInfo

UTC: Final = datetime.timezone.utc
_FOLD: Final = datetime.timedelta(hours=26)
"""No clock is put back further than from one day to the one before."""
_STEP: Final = datetime.timedelta(minutes=15)
_SECOND: Final = datetime.timedelta(seconds=1)

AWARE, WALL, DAY, PLAIN = "aware", "wall", "day", "plain"
"""Times with a zone, without one, dates, and what a database without types of its own has."""


def kind_of(sql: str) -> str:
    """What times in a column of the database's type ``sql`` are; ``""`` for a type that is no time."""
    name = sql.lower()
    if name.startswith(("timestamptz", "timestamp with time zone")) or re.fullmatch(r"timestamp(\(\d\))? with time zone", name):
        return AWARE
    if name.startswith(("timestamp", "datetime")):
        return WALL
    return DAY if name == "date" else ""


def limit(now: datetime.datetime, delay: float, kind: str, zone: ZoneInfo) -> str:
    """The last time that may be read at ``now`` (with a zone), as text for a column of ``kind``."""
    until = now - datetime.timedelta(seconds=delay)
    if kind == AWARE:
        return until.astimezone(UTC).isoformat(" ", "microseconds")
    wall = safe_wall(until, zone)
    if kind == DAY:
        return (wall.date() - datetime.timedelta(days=1)).isoformat()
    return wall.isoformat(" ", "microseconds")


def safe_wall(now: datetime.datetime, zone: ZoneInfo) -> datetime.datetime:
    """The latest time on the wall in ``zone`` that the clock there will not show again, at ``now`` or later."""
    wall = now.astimezone(zone).replace(tzinfo=None)
    moment = now.astimezone(UTC)
    while (moment := moment + _STEP) < now + _FOLD:
        before, after = (one.astimezone(zone) for one in (moment - _STEP, moment))
        if after.utcoffset() < before.utcoffset():  # type: ignore[operator]
            again = _put_back(moment - _STEP, moment, zone)
            wall = min(wall, again - datetime.timedelta(microseconds=1))
    return wall


def _put_back(before: datetime.datetime, after: datetime.datetime, zone: ZoneInfo) -> datetime.datetime:
    """What the clock shows when it is put back, somewhere between two moments."""
    old = before.astimezone(zone).utcoffset()
    while after - before > _SECOND:
        middle = before + (after - before) / 2
        before, after = (middle, after) if middle.astimezone(zone).utcoffset() == old else (before, middle)
    return after.replace(microsecond=0).astimezone(zone).replace(tzinfo=None)


# ---- databases without a type for times


def moment_of(plain: Any, zone: ZoneInfo) -> datetime.datetime | None:
    """The latest moment that ``plain``, a text or a number, can mean in ``zone``; ``None`` if it is no time."""
    if isinstance(plain, (int, float)):
        return datetime.datetime.fromtimestamp(plain / _scale(plain), UTC)
    try:
        text = re.sub(r"\.(\d{1,6})\d*", lambda found: "." + found[1].ljust(6, "0"), str(plain).strip())
        found = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=zone, fold=1)


def like(sample: Any, until: datetime.datetime, zone: ZoneInfo) -> Any:
    """The last time that may be read, ``until``, in the form that ``sample`` has, so that it compares as that does."""
    if isinstance(sample, (int, float)):
        return type(sample)(until.timestamp() * _scale(sample))
    text = str(sample).strip()
    if len(text) == 10:
        return limit(until, 0, DAY, zone)
    between = "T" if "T" in text else " "
    if text.endswith(("Z", "+00:00")):
        end = "Z" if text.endswith("Z") else "+00:00"
        return until.astimezone(UTC).replace(tzinfo=None).isoformat(between, "microseconds") + end
    return safe_wall(until, zone).isoformat(between, "microseconds")


def _scale(number: float) -> int:
    """Units in a second: numbers are seconds, milliseconds or microseconds since 1970, whichever makes a year near ours."""
    return next((scale for scale in (1, 1000, 1_000_000) if abs(number) < 1e11 * scale), 1_000_000_000)
