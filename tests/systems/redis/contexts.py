"""Redis on this machine, as the suites see it."""

from __future__ import annotations

import datetime
import json
import time
import uuid
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import redis

from connectors.core import Guarantee
from connectors.systems.redis import RedisSink, RedisSource
from connectors.systems.redis.source import SCHEMA
from connectors.testing import SinkContext, SourceContext
from connectors.testing.servers import RedisServer
from tests.servers import required


class StreamContext(SourceContext):
    """A stream of its own on the shared server."""

    source = RedisSource
    schema = SCHEMA
    unordered = "several readers take entries from one group"
    min_idle = 60.0
    short_lease: ClassVar = {"minIdle": "1s"}
    count = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(RedisServer)
        self.stream, self.group = f"stream-{uuid.uuid4().hex}", "spark"

    @cached_property
    def client(self) -> Any:
        return redis.Redis.from_url(self.server.url)

    def options(self) -> dict[str, str]:
        return {
            "url": self.server.url,
            "stream": self.stream,
            "group": self.group,
            "minIdle": f"{self.min_idle}s",
            "stateLocation": str(self.folder / "log"),
            "pollInterval": "20ms",
            "drainTimeout": "20ms",
        }

    def write(self, count: int) -> list[dict[str, Any]]:
        numbers = range(self.count, self.count + count)
        self.count += count
        pipeline = self.client.pipeline(transaction=False)
        for number in numbers:
            pipeline.xadd(self.stream, {"number": number, b"\xc3\xbc": b"\xff\x00"})
        return [self.row(id.decode(), number) for id, number in zip(pipeline.execute(), numbers, strict=True)]

    def row(self, id: str, number: int) -> dict[str, Any]:
        moment = datetime.datetime.fromtimestamp(0, datetime.timezone.utc) + datetime.timedelta(
            milliseconds=int(id.partition("-")[0])
        )
        fields: Sequence[Any] = [("number", str(number).encode()), ("ü", b"\xff\x00")]
        return {"stream": self.stream, "id": id, "timestamp": moment, "fields": fields}

    def lose(self) -> bool:
        self.client.xtrim(self.stream, maxlen=0, approximate=False)
        return True

    def settle(self) -> None:
        time.sleep(self.min_idle)

    def close(self) -> None:
        self.client.delete(self.stream)
        self.client.close()


class RedisTarget(SinkContext):
    """Keys of a prefix of their own. ``extra`` are more options."""

    sink = RedisSink
    guarantee = Guarantee.IDEMPOTENT
    extra: ClassVar[dict[str, str]] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(RedisServer)
        self.prefix = f"t-{uuid.uuid4().hex[:12]}"

    @cached_property
    def client(self) -> Any:
        return redis.Redis.from_url(self.server.url)

    def options(self) -> dict[str, str]:
        quick = {"retry.initialBackoff": "10ms", "batch.maxRecords": "4"}
        extra = {name: value.replace("PREFIX", self.prefix) for name, value in self.extra.items()}
        return {"url": self.server.url, "key": self.prefix, **quick, **extra}

    def close(self) -> None:
        if keys := list(self.client.scan_iter(f"{self.prefix}*")):
            self.client.delete(*keys)
        self.client.close()


class HashContext(RedisTarget):
    """One hash, with a row as JSON in each field."""

    extra: ClassVar[dict[str, str]] = {"field": "{id}"}

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(value) for value in self.client.hgetall(self.prefix).values()]


class FieldsContext(RedisTarget):
    """A hash for each row, with its columns as fields."""

    extra: ClassVar[dict[str, str]] = {"key": "PREFIX:{id}"}

    def rows(self) -> list[dict[str, Any]]:
        hashes = [self.client.hgetall(key) for key in self.client.scan_iter(f"{self.prefix}:*")]
        return [{"id": int(fields[b"id"]), "name": fields[b"name"].decode()} for fields in hashes]


class EntriesContext(RedisTarget):
    """A stream."""

    guarantee = Guarantee.AT_LEAST_ONCE
    extra: ClassVar[dict[str, str]] = {"command": "xadd"}

    def rows(self) -> list[dict[str, Any]]:
        entries = [fields for _, fields in self.client.xrange(self.prefix)]
        return [{"id": int(fields[b"id"]), "name": fields[b"name"].decode()} for fields in entries]


class ListContext(RedisTarget):
    """A list, which would show a row that was written twice: a script runs the commands of a batch."""

    guarantee = Guarantee.EXACTLY_ONCE
    extra: ClassVar[dict[str, str]] = {"command": "rpush", "guarantee": "exactly-once", "sinkId": "PREFIX"}

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(value) for value in self.client.lrange(self.prefix, 0, -1)]

    def leftovers(self) -> list[str]:
        return sorted(key.decode() for key in self.client.scan_iter("connectors:*:stage:*"))

    def close(self) -> None:
        if keys := list(self.client.scan_iter("connectors:*")):
            self.client.delete(*keys)
        super().close()
