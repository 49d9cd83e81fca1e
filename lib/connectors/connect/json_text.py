"""JSON of partitions, offsets and values: by orjson where it is installed, else by Python's own library."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

try:
    import orjson
except ImportError:  # pragma: no cover - the library's requirements have it
    orjson = None  # type: ignore[assignment]


def json_number(digits: str) -> Any:
    """A number for :func:`json_bytes` with exactly these ``digits``."""
    return float(digits) if orjson is None else orjson.Fragment(digits)


def exactly_parsed_json(text: str | bytes) -> Any:
    """As :func:`parsed_json`, and slower: fractions are ``Decimal``."""
    return json.loads(text, parse_float=Decimal)


def sorted_json(value: Any) -> str:
    """``value`` as canonical JSON: sorted keys, no blanks. Raises ``TypeError`` for what JSON lacks."""
    if orjson is None:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def json_bytes(value: Any) -> bytes:
    """``value`` as JSON in the order of its keys. Raises ``TypeError`` for what JSON lacks."""
    if orjson is None:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def parsed_json(text: str | bytes) -> Any:
    """The value that JSON ``text`` holds. Raises ``ValueError``."""
    return json.loads(text) if orjson is None else orjson.loads(text)
