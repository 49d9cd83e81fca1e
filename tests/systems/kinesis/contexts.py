"""Kinesis on this machine, as the suites see it."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from connectors.core import Guarantee
from connectors.systems.kinesis import KinesisSink, KinesisSource
from connectors.systems.kinesis.cursor import SCHEMA
from connectors.testing import SinkContext, SourceContext
from connectors.testing.servers import KinesisServer
from tests.servers import required

ACCOUNT = {"region": "us-east-1", "accessKeyId": "test", "secretAccessKey": "test"}


class StreamContext(SourceContext):
    """A stream of its own on the shared server, with two shards at first."""

    source = KinesisSource
    schema = SCHEMA
    latest: ClassVar[Mapping[str, str]] = {"startingPosition": "LATEST"}
    consumer: ClassVar[Mapping[str, str]] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(KinesisServer)
        self.stream = f"s-{uuid.uuid4().hex[:12]}"
        self.server.create(self.stream)
        self.count = 0

    def options(self) -> dict[str, str]:
        return {
            **ACCOUNT,
            "endpoint": self.server.url,
            "streamName": self.stream,
            "startingPosition": "TRIM_HORIZON",
            "stateLocation": str(self.folder / "log"),
            "pollInterval": "100ms",
            "drainTimeout": "300ms",
            "discoveryInterval": "0s",
            "fetchInterval": "20ms",
            **self.consumer,
        }

    def write(self, count: int) -> list[dict[str, Any]]:
        numbers = range(self.count, self.count + count)
        self.count += count
        records = [(f"key-{number % 17}", b"%d" % number) for number in numbers]
        return self.put(records)

    def put(self, records: Sequence[tuple[str, bytes]]) -> list[dict[str, Any]]:
        """Puts records, each a partition key and data, and returns their rows."""
        places = self.server.put(self.stream, records)
        arrivals = {
            record["SequenceNumber"]: record["ApproximateArrivalTimestamp"] for record in self.server.records(self.stream)
        }
        return [
            {
                "data": data,
                "partitionKey": key,
                "sequenceNumber": number,
                "subSequenceNumber": 0,
                "shardId": shard,
                "approximateArrivalTimestamp": arrivals[number].astimezone(datetime.timezone.utc),
                "stream": self.stream,
            }
            for (key, data), (shard, number) in zip(records, places, strict=True)
        ]

    def partition(self, row: Mapping[str, Any]) -> str:
        return str(row["shardId"])

    def close(self) -> None:
        self.server.client.delete_stream(StreamName=self.stream, EnforceConsumerDeletion=True)


class FanOutContext(StreamContext):
    """The stream read by a consumer of its own."""

    consumer: ClassVar[Mapping[str, str]] = {
        "consumer": "efo",
        "consumerName": "query",
        "pollInterval": "2500ms",
        "drainTimeout": "2500ms",
    }


class PutContext(SinkContext):
    """A stream whose records are read back."""

    sink = KinesisSink
    guarantee = Guarantee.AT_LEAST_ONCE
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(KinesisServer)

    @cached_property
    def stream(self) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.server.create(name, 1)
        return name

    def options(self) -> dict[str, str]:
        return {**ACCOUNT, "endpoint": self.server.url, "streamName": self.stream, "retry.initialBackoff": "10ms"}

    def rows(self) -> list[dict[str, Any]]:
        import orjson

        return [orjson.loads(record["Data"]) for record in self.server.records(self.stream)]
