"""Durations, sizes and times as a person writes them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from fractions import Fraction
from typing import Final

_DURATIONS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_SIZES: Final = {
    **dict.fromkeys(("b", ""), 1),
    **dict.fromkeys(("k", "kb", "kib"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tib"), 1 << 40),
}
_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def duration(value: str | float, unit: str = "s") -> float:
    """Seconds of ``30s``, ``200ms``, ``15 minutes``; a bare number is in ``unit``. Raises ``ValueError`` otherwise."""
    return float(_quantity(str(value), _DURATIONS, unit, "a duration such as 30s, 200ms or 15 minutes"))


def size(value: str | int) -> int:
    """Bytes of ``256MB`` or ``64k`` (powers of 1024); a bare number is bytes. Raises ``ValueError`` otherwise."""
    return int(_quantity(str(value), _SIZES, "b", "a size such as 256MB"))


def _quantity(text: str, units: Mapping[str, float], bare: str, expected: str) -> Fraction:
    match = _QUANTITY.fullmatch(text)
    unit = (match[2].lower() or bare) if match else ""
    if not match or unit not in units:
        raise ValueError(expected)
    value = Fraction(match[1]) * Fraction(units[unit])  # a float would round large sizes
    if value >= 1 << 63:
        raise ValueError(expected)
    return value


_MILLISECONDS: Final = re.compile(r"\d{12,14}")
"""Fewer digits are seconds, or a date such as 20261128."""


def moment(text: str) -> float:
    """Seconds since 1970 of milliseconds, or of ISO text such as ``2026-11-28T10:00:00``, which is in UTC unless it says more.

    Raises ``ValueError`` for anything else, and for times before 1970.
    """
    text, seconds = text.strip(), -1.0
    with contextlib.suppress(ValueError):
        if _MILLISECONDS.fullmatch(text):
            seconds = int(text) / 1000
        elif not text.isdecimal():
            time = datetime.fromisoformat(text.replace("Z", "+00:00"))
            seconds = (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()
    if seconds < 0:  # Kafka takes the milliseconds -1 for the end of a partition
        raise ValueError("a time such as 2026-11-28T10:00:00Z, or milliseconds since 1970 (13 digits)")
    return seconds
