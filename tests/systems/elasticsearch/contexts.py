"""A search engine as the suites see it: an index of its own for each test."""

from __future__ import annotations

import contextlib
import urllib.error
import uuid
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from connectors.core import Guarantee
from connectors.systems.elasticsearch import ElasticsearchSink, ElasticsearchSource
from connectors.testing import SinkContext, SourceContext
from connectors.testing.servers import OpenSearchServer
from tests.servers import required

from .writing import write


class IndexContext(SinkContext):
    """An index of one shard. ``extra`` are more options."""

    sink = ElasticsearchSink
    guarantee = Guarantee.IDEMPOTENT
    extra: ClassVar[dict[str, str]] = {"idColumn": "id"}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(OpenSearchServer)
        self.index = f"t-{uuid.uuid4().hex[:12]}"
        self.server.ask("PUT", f"/{self.index}", {"settings": {"number_of_shards": 1, "number_of_replicas": 0}})

    def options(self) -> dict[str, str]:
        quick = {"retry.initialBackoff": "10ms", "batch.maxRecords": "4"}
        return {"hosts": self.server.url, "index": self.index, **quick, **self.extra}

    def rows(self) -> list[dict[str, Any]]:
        return list(self.server.documents(self.index).values())

    def close(self) -> None:
        with contextlib.suppress(urllib.error.HTTPError):
            self.server.ask("DELETE", f"/{self.index}")


class UpsertContext(IndexContext):
    extra: ClassVar[dict[str, str]] = {"idColumn": "id", "operation": "upsert"}


class AtLeastOnceContext(IndexContext):
    guarantee = Guarantee.AT_LEAST_ONCE
    extra: ClassVar[dict[str, str]] = {}


class DocumentsContext(SourceContext):
    """An index of two shards, to which documents are added."""

    source = ElasticsearchSource
    schema = pa.schema([("_id", pa.string()), ("n", pa.int64()), ("name", pa.string())])
    body: ClassVar[dict[str, Any]] = {"properties": {"n": {"type": "long"}, "name": {"type": "keyword"}}}
    unordered = "an index has no order of writing"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(OpenSearchServer)
        self.index = f"t-{uuid.uuid4().hex[:12]}"
        settings = {"number_of_shards": 2, "number_of_replicas": 0}
        self.server.ask("PUT", f"/{self.index}", {"settings": settings, "mappings": self.body})
        self.count = 0

    def options(self) -> dict[str, str]:
        quick = {"retry.initialBackoff": "10ms", "pageSize": "4"}
        return {"hosts": self.server.url, "index": self.index, "idColumn": "_id", **quick}

    def write(self, count: int) -> list[dict[str, Any]]:
        numbers = range(self.count, self.count + count)
        self.count += count
        rows = [{"n": n, "name": f"row {n}"} for n in numbers]
        write(self.server.url, self.index, rows, idColumn="n")
        return [{"_id": str(row["n"]), **row} for row in rows]

    def close(self) -> None:
        self.server.ask("DELETE", f"/{self.index}")
