"""A REST API on this machine, as the suites see it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from connectors.core import Guarantee
from connectors.systems.http import HttpSink, HttpSource
from connectors.testing import SinkContext, SourceContext
from connectors.testing.servers import ApiService
from tests.servers import required

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("updated_at", pa.string())])
CURSOR = {"field": "updated_at"}
SINCE = {"since": "{position}"}
SHAPES: dict[str, dict[str, Any]] = {
    "page": {"paging": {"kind": "page", "size": 10}},
    "offset": {"paging": {"kind": "offset", "size": 10, "total": "total"}, "records": "items"},
    "cursor": {"paging": {"kind": "cursor", "path": "meta.next_cursor"}, "records": "data.records"},
    "header": {"paging": {"kind": "cursor", "header": "X-Next-Cursor"}},
    "link": {"paging": {"kind": "link"}},
    "next": {"paging": {"kind": "next", "path": "next"}, "records": "results"},
    "search": {"paging": {"kind": "page", "pages": "pages"}, "records": "hits", "method": "POST"},
}
"""How the service pages, by the first part of its paths."""


def resource(shape: str, table: str, **more: Any) -> dict[str, Any]:
    """A resource of the service, read since a position."""
    selection = {"body": {"filter": SINCE}} if shape == "search" else {"parameters": SINCE}
    return {"name": table, "path": f"{shape}/{table}", "key": ["id"], "cursor": CURSOR, **SHAPES[shape], **selection, **more}


class ApiContext(SourceContext):
    """A table of its own on the shared service."""

    source = HttpSource
    schema = SCHEMA
    undated = "an API does not say when a record came"
    shape: ClassVar = "page"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(ApiService)
        self.server.behave()
        self.table = f"t-{uuid.uuid4().hex[:12]}"
        self.count = 0

    def options(self) -> dict[str, str]:
        config = {"baseUrl": self.server.url, "resources": [resource(self.shape, self.table)]}
        return {
            "config": json.dumps(config),
            "stateLocation": str(self.folder / "log"),
            "pollInterval": "20ms",
            "drainTimeout": "20ms",
            "retry.initialBackoff": "10ms",
        }

    def write(self, count: int) -> list[dict[str, Any]]:
        numbers = range(self.count, self.count + count)
        self.count += count
        times = [f"2026-01-01T00:00:00.{number // 3:06}Z" for number in numbers]  # some records share one
        rows = [{"id": number, "name": f"n{number}", "updated_at": at} for number, at in zip(numbers, times, strict=True)]
        self.server.add(self.table, rows)
        return rows

    def partition(self, row: Any) -> str:
        return self.table


class SearchContext(ApiContext):
    """The same by POST."""

    shape = "search"


class RequestsContext(SinkContext):
    """A table that takes a request for each row, with a key."""

    sink = HttpSink
    guarantee = Guarantee.IDEMPOTENT
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    extra: ClassVar[dict[str, str]] = {"idempotencyHeader": "Idempotency-Key", "idColumn": "id"}
    path: ClassVar = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(ApiService)
        self.server.behave()
        self.table = f"t-{uuid.uuid4().hex[:12]}"

    def options(self) -> dict[str, str]:
        return {"url": f"{self.server.url}/rows/{self.table}{self.path}", "retry.initialBackoff": "10ms", **self.extra}

    def rows(self) -> list[dict[str, Any]]:
        return self.server.rows(self.table)


class PutContext(RequestsContext):
    """Rows in the place of those of their id."""

    extra: ClassVar[dict[str, str]] = {"method": "PUT"}
    path = "/{id}"


class LinesContext(RequestsContext):
    """Many rows to a request."""

    guarantee = Guarantee.AT_LEAST_ONCE
    extra: ClassVar[dict[str, str]] = {"body": "ndjson", "batch.maxRecords": "4"}
