"""Rows as text: JSON lines of Arrow record batches."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa


def to_json_lines(batch: pa.RecordBatch) -> bytes:
    """One JSON object a row, each ended by a newline; nulls left out, as Spark's JSON writer does."""
    lines = [to_json({name: cell for name, cell in row.items() if cell is not None}) for row in batch.to_pylist()]
    return "".join(line + "\n" for line in lines).encode()


def to_json(row: Mapping[str, Any]) -> str:
    """One row as a JSON object on one line."""
    return json.dumps(dict(row), ensure_ascii=False, default=_plain)


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
