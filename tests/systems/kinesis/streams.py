"""What tests of the source of Kinesis share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from connectors.systems.kinesis import KinesisSource
from connectors.testing.servers.fault_proxy import Reply, Seen
from tests.systems.kinesis.contexts import StreamContext

Rows = list[dict[str, Any]]


def operation(request: Seen) -> str:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return headers["x-amz-target"].partition(".")[2]


def refusal(code: str, status: int = 400, message: str = "on purpose") -> Reply:
    return answered({"__type": code, "message": message}, status)


def answered(body: Mapping[str, Any], status: int = 200) -> Reply:
    return Reply(status, json.dumps(body).encode(), {"Content-Type": "application/x-amz-json-1.1"})


def numbers(rows: Rows | None) -> list[int]:
    return [int(row["data"]) for row in rows or []]


def check_keys(rows: Rows, count: int) -> None:
    """Every number once, and those of a key in their order."""
    assert sorted(numbers(rows)) == list(range(count))
    for key in {row["partitionKey"] for row in rows}:
        own = [int(row["data"]) for row in rows if row["partitionKey"] == key]
        assert own == sorted(own), key


def cursor_of(system: StreamContext, **options: str) -> Any:
    cursor = KinesisSource.of({**system.options(), **options}, streaming=True).cursor(system.schema)
    cursor.open()
    return cursor
