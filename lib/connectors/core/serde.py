"""Single rows as JSON, the form of rows in dead letters."""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def to_json(row: Mapping[str, Any]) -> str:
    """One row, as ``to_pylist`` gives it, as a JSON object on one line: the form of dead letters.

    Nulls stay, times keep their microseconds and decimals are text, so that nothing of a row is lost. NaN and infinities
    are strings. A map is an object, unless it is empty: then nothing tells it from a list.
    """
    return json.dumps({name: _finite(value) for name, value in row.items()}, ensure_ascii=False, default=_plain)


def _finite(value: Any) -> Any:
    """``value`` without what ``json`` would write wrongly: numbers that are none, and the pairs of a map."""
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_key(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {_key(key): _finite(item) for key, item in value}
        return [_finite(item) for item in value]
    return value


def _key(key: Any) -> str:
    plain = key if isinstance(key, (str, bool, int, float)) else _finite(key)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=_plain).strip('"')


def _plain(value: Any) -> Any:
    """What JSON lacks: times as ISO 8601, binary as base64, decimals as numbers in text."""
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
