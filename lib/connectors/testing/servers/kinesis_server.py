"""Kinesis by kinesis-local, an npm package: shards that split, merge and end, and enhanced fan-out, on node.

It takes about 1,000 records a second, more than 500 of them in a request, never throttles, and loses everything when it ends.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, Final

from .base import HOST, Server, find_program, free_ports, npm_package

_PACKAGE: Final = "kinesis-local@0.6.2"
_OPERATIONS: Final = (
    "CREATE_STREAM",
    "DELETE_STREAM",
    "REGISTER_STREAM_CONSUMER",
    "DEREGISTER_STREAM_CONSUMER",
    "SPLIT_SHARD",
    "MERGE_SHARDS",
    "UPDATE_SHARD_COUNT",
)
_PRELOAD: Final = """\
// The package has no option for the address that it listens at: this puts it on loopback.
const net = require('net'), listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...args) {
  if (args[0] !== null && typeof args[0] === 'object' && 'port' in args[0]) args[0] = {...args[0], host: '127.0.0.1'};
  else if (/^\\d+$/.test(args[0])) typeof args[1] === 'string' ? args[1] = '127.0.0.1' : args.splice(1, 0, '127.0.0.1');
  return listen.apply(this, args);
};
// The service begins each subscription with an event "initial-response", for which clients wait. The package leaves it out.
const {write} = net.Socket.prototype, event = Buffer.from('INITIAL', 'base64');
const part = Buffer.concat([Buffer.from(event.length.toString(16) + '\\r\\n'), event, Buffer.from('\\r\\n')]);
net.Socket.prototype.write = function (data, ...args) {
  const bytes = Buffer.from(data), end = bytes.indexOf('\\r\\n\\r\\n') + 4;
  if (end > 4 && bytes.subarray(0, end).includes('application/vnd.amazon.eventstream'))
    data = Buffer.concat([bytes.subarray(0, end), part, bytes.subarray(end)]);
  return write.call(this, data, ...args);
};
""".replace(
    "INITIAL",
    "AAAAcgAAAGCrgg2eDTptZXNzYWdlLXR5cGUHAAVldmVudAs6ZXZlbnQtdHlwZQcAEGluaXRpYWwtcmVzcG9uc2UNOmNvbnRlbnQtdHlwZQcAGmFwcGxp"
    "Y2F0aW9uL3gtYW16LWpzb24tMS4xe33hbmbk",
)
_ACCOUNT: Final = {"region": "us-east-1", "accessKeyId": "test", "secretAccessKey": "test"}
_ARGUMENTS: Final = {
    "region": "region_name",
    "endpoint": "endpoint_url",
    "accessKeyId": "aws_access_key_id",
    "secretAccessKey": "aws_secret_access_key",
    "sessionToken": "aws_session_token",
}
"""The arguments of boto3 for the options of a connector."""
_REQUEST: Final = 500


class KinesisStreams:
    """Streams that a test or a notebook makes, fills, splits and merges.

    ``options`` are those by which ``connectors.kinesis`` reaches the service: ``region``, ``endpoint``, a key.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    @cached_property
    def client(self) -> Any:
        """A boto3 client."""
        arguments = {_ARGUMENTS[name]: value for name, value in self.options.items()}
        return import_module("boto3").client("kinesis", **arguments)

    def create(self, stream: str, shards: int = 2) -> None:
        """A stream with so many shards, which share the keys evenly."""
        self.client.create_stream(StreamName=stream, ShardCount=shards)
        self._wait(stream)

    def put(self, stream: str, records: Sequence[tuple[str, bytes]]) -> list[tuple[str, str]]:
        """Puts records, each a partition key and data. Returns the shard and the sequence number of each."""
        places: list[tuple[str, str]] = []
        for start in range(0, len(records), _REQUEST):
            entries = [{"PartitionKey": key, "Data": data} for key, data in records[start : start + _REQUEST]]
            answer = self.client.put_records(StreamName=stream, Records=entries)
            places += [(record["ShardId"], record["SequenceNumber"]) for record in answer["Records"]]
        return places

    def records(self, stream: str) -> list[Mapping[str, Any]]:
        """All records, shard by shard."""
        records: list[Mapping[str, Any]] = []
        for shard in self.shards(stream):
            start = {"StreamName": stream, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
            iterator = self.client.get_shard_iterator(**start)["ShardIterator"]
            while iterator:
                answer = self.client.get_records(ShardIterator=iterator)
                records += answer["Records"]
                iterator = answer.get("NextShardIterator") if answer["Records"] else None
        return records

    def shards(self, stream: str) -> list[Mapping[str, Any]]:
        """The shards, open and closed."""
        shards: list[Mapping[str, Any]] = self.client.list_shards(StreamName=stream)["Shards"]
        return shards

    def open_shards(self, stream: str) -> list[str]:
        return [shard["ShardId"] for shard in self.shards(stream) if "EndingSequenceNumber" not in shard["SequenceNumberRange"]]

    def split(self, stream: str, shard: str) -> None:
        """Closes a shard; two children share its keys."""
        keys = next(entry["HashKeyRange"] for entry in self.shards(stream) if entry["ShardId"] == shard)
        middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2 + 1
        self.client.split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str(middle))
        self._wait(stream)

    def merge(self, stream: str, shard: str, neighbour: str) -> None:
        """Closes two shards whose keys are neighbours; one child has the keys of both."""
        self.client.merge_shards(StreamName=stream, ShardToMerge=shard, AdjacentShardToMerge=neighbour)
        self._wait(stream)

    def _wait(self, stream: str) -> None:
        end = time.monotonic() + 30
        while self.client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamStatus"] != "ACTIVE":
            assert time.monotonic() < end, f"{stream} is not active"
            time.sleep(0.01)


class KinesisServer(Server, KinesisStreams):
    """An empty Kinesis. ``url`` is its address; every key and secret is right."""

    required = True

    def __init__(self) -> None:
        Server.__init__(self)
        self.node = find_program("node")
        self.package = npm_package("kinesis", _PACKAGE) / "node_modules" / "kinesis-local"
        self.port, self._tls_port = free_ports(2)
        self.url = f"http://{HOST}:{self.port}"
        KinesisStreams.__init__(self, {"endpoint": self.url, **_ACCOUNT})

    def launch(self) -> None:
        preload = self.folder / "preload.js"
        preload.write_text(_PRELOAD)
        settings = {f"{operation}_DURATION": "20ms" for operation in _OPERATIONS} | {
            "KINESIS_MOCK_PLAIN_PORT": str(self.port),
            "KINESIS_MOCK_TLS_PORT": str(self._tls_port),
            "LOG_LEVEL": "ERROR",
            "SHARD_LIMIT": "1000",
            "AWS_REGION": _ACCOUNT["region"],
        }
        self.spawn([self.node, "-r", str(preload), "main.js"], settings, self.package)

    def ready(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/healthcheck", timeout=1) as answer:
            return int(answer.status) == 200
