"""Rows as records of a stream."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from ...batching import Failure, Throttled, batching_options
from ...core import Batch, Flag, Options, Poison
from ...core.datasets import Dataset
from ...ground import machine
from ...ground.columns import TEXT, Column
from ..aws import RECORD_OPTIONS, RecordSink, RecordWriter, aws_dataset
from .source import STREAM

_LONGEST_KEY: Final = 256
_HASH: Final = re.compile("0{0,99}[0-9]{1,39}")
_LARGEST_HASH: Final = 1 << 128


class KinesisSink(RecordSink):
    """Puts each row as a record: ``dataColumn``, or the whole row as JSON.

    The partition key is that of ``partitionKeyColumn``, else random, and the service spreads the rows over the shards. Records
    that the service refuses for now are put again alone, so that they may come after later ones; with ``ordered`` the rows of
    a partition key keep the order in which a task has them, and a request has one of each key.

    Guarantee: at-least-once: a replay puts again.
    """

    name = "kinesis"
    options = (
        STREAM
        | batching_options(max_records=500, max_bytes="5MB", max_time="100ms", most_records=500, most_bytes=10 << 20)
        | RECORD_OPTIONS
        | Options(
            partitionKeyColumn=Column(None, TEXT, meaning="a column of text, 1 to 256 characters; default: random"),
            explicitHashKeyColumn=Column(None, TEXT, meaning="a column with the hash that chooses the shard, a number as text"),
            ordered=Flag(
                False, only_with="partitionKeyColumn: random keys have no order",
                meaning="the rows of a partition key keep their order",
            ),
        )
    )
    conditions = "a stream cannot be asked what was put by a batch"
    most_record_bytes = 1 << 20

    def target(self) -> str:
        values = self.values
        return f"{values['endpoint'] or values['region'] or ''}/{values['streamArn'] or values['streamName']}"

    def datasets(self) -> Sequence[Dataset]:
        return [aws_dataset("kinesis", self.values, self.values["streamArn"] or self.values["streamName"])]

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> KinesisWriter:
        return KinesisWriter(self, batch)


class KinesisWriter(RecordWriter):
    """Puts the rows of one task."""

    def __init__(self, sink: KinesisSink, batch: Batch) -> None:
        super().__init__(sink, batch, "kinesis")
        values = sink.values
        self._name = str(values["streamArn"] or values["streamName"])
        self._stream = {"StreamARN": values["streamArn"]} if values["streamArn"] else {"StreamName": values["streamName"]}

    def entries(self, rows: pa.RecordBatch) -> Sequence[Any]:
        column, hash_column = self._values["partitionKeyColumn"], self._values["explicitHashKeyColumn"]
        keys = _random_keys(rows.num_rows) if column is None else rows.column(column).to_pylist()
        bodies = self.bodies(rows)
        entries: list[Any] = [
            body if isinstance(body, Poison) else _record(body, key) for body, key in zip(bodies, keys, strict=True)
        ]
        if hash_column is not None:
            hashes = rows.column(hash_column).to_pylist()
            entries = [_with_hash(entry, hash_key) for entry, hash_key in zip(entries, hashes, strict=True)]
        return entries

    def sizes(self, entries: Sequence[Any]) -> list[int]:
        return [len(entry["Data"]) + len(entry["PartitionKey"].encode()) for entry in entries]

    def keys(self, entries: Sequence[Any]) -> Sequence[Hashable] | None:
        return [entry["PartitionKey"] for entry in entries] if self._values["ordered"] else None

    def send(self, entries: list[Any]) -> Iterator[Failure]:
        if self._values["ordered"]:
            yield from self._send_in_order(entries)
        else:
            yield from self._put(entries)

    def _send_in_order(self, entries: list[Any]) -> Iterator[Failure]:
        """Puts one record of each key at a time. What follows a record that was refused waits until that one is put again."""
        end = machine.monotonic() + self.limits.timeout / 2
        refused: dict[str, BaseException] = {}
        for places in _rounds([entry["PartitionKey"] for entry in entries]):
            if machine.monotonic() > end:
                refused |= {entries[place]["PartitionKey"]: Throttled("the request takes too long") for place in places}
            free = [place for place in places if entries[place]["PartitionKey"] not in refused]
            failures = dict(self._put([entries[place] for place in free])) if free else {}
            refused |= {entries[free[number]]["PartitionKey"]: error for number, error in failures.items()}
            for place in places:
                if error := refused.get(entries[place]["PartitionKey"]):
                    yield place, error

    def _put(self, entries: list[Any]) -> Iterator[Failure]:
        return self.put(f"the stream {self._name}", "put_records", "Records", **self._stream, Records=entries)


def _record(body: bytes, key: str | None) -> dict[str, Any] | Poison:
    if not key or len(key.encode("utf-16-le")) > 2 * _LONGEST_KEY:
        return Poison(f"the partition key must have 1 to {_LONGEST_KEY} characters; it is {key!r:.300}")
    return {"Data": body, "PartitionKey": key}


def _with_hash(entry: dict[str, Any] | Poison, hash_key: str | None) -> dict[str, Any] | Poison:
    if isinstance(entry, Poison) or hash_key is None:
        return entry
    if not _HASH.fullmatch(hash_key) or int(hash_key) >= _LARGEST_HASH:
        return Poison(f"the explicit hash key must be a whole number below 2^128; it is {hash_key!r:.300}")
    return {**entry, "ExplicitHashKey": str(int(hash_key))}  # the service refuses zeros before a number


def _random_keys(count: int) -> list[str]:
    digits = os.urandom(8 * count).hex()
    return [digits[start : start + 16] for start in range(0, len(digits), 16)]


def _rounds(keys: Sequence[str]) -> list[list[int]]:
    """The places of ``keys``, so that a key is once in each round, in its order."""
    seen: dict[str, int] = {}
    rounds: list[list[int]] = []
    for place, key in enumerate(keys):
        number = seen[key] = seen.get(key, -1) + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(place)
    return rounds
