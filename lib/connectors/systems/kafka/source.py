"""The source of ``connectors.kafka``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...core import (
    Choice,
    Duration,
    Flag,
    Int,
    Misconfigured,
    Names,
    Options,
    Problem,
    RecordEmitter,
    Source,
    Split,
    Text,
)
from ...core.options import Values
from ...core.retry import Retry
from ...core.state import digest
from ...formats import check_format, format_options, value_type
from ...formats.emitter import FormatEmitter
from .cluster import Cluster
from .config import REFUSED, check_settings, consumer_config
from .enumerator import KafkaEnumerator
from .positions import Range
from .reader import KafkaReader
from .start_positions import Bound, PartitionList, TimesByPartition, check_bounds, end_of, start_of

_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_SIDES = ("key", "value")
_PLACE = ("topic", "partition", "offset")
_MOST_TASKS = 1000

_OPTIONS = Options(
    {
        "kafka.group.id": Text(None),
        "kafka.isolation.level": Choice("read_committed", among=("read_committed", "read_uncommitted")),
        "kafkaConsumer.pollTimeoutMs": Duration(60.0, unit="ms"),
        "startingOffsets.fallback": Choice("earliest", among=("earliest", "latest", "none")),
    },
    subscribe=Names(None),
    subscribePattern=Text(None),
    assign=PartitionList(None),
    startingOffsets=Bound(None, words=("earliest", "latest", "committed")),
    startingTimestamp=Int(None, at_least=0),
    startingOffsetsByTimestamp=TimesByPartition(None),
    startingOffsetsByTimestampStrategy=Choice("error", among=("error", "latest")),
    endingOffsets=Bound(None, words=("latest",)),
    endingTimestamp=Int(None, at_least=0),
    endingOffsetsByTimestamp=TimesByPartition(None),
    failOnDataLoss=Flag(True),
    discoveryInterval=Duration(30.0),
    minPartitions=Int(None, at_least=1),
    maxRecordsPerPartition=Int(None, at_least=1),
    minOffsetsPerTrigger=Int(None, at_least=1),
    maxTriggerDelay=Duration(900.0, unit="ms"),
    maxDrift=Duration(None),
    idleTimeout=Duration(120.0),
    includeHeaders=Flag(False),
    groupIdPrefix=Text("connectors-kafka-source"),
    commitOffsets=Flag(True),
    through=("kafka.",),
    refused=REFUSED,
    alias={"fetchOffset.numRetries": "retry.maxRetries"},
)


class KafkaSource(Source):
    """The records of Kafka topics, each offset once.

    Columns as Spark's own: ``key`` and ``value`` (binary, or what their formats give), ``topic``, ``partition``, ``offset``,
    ``timestamp``, ``timestampType``, and with ``includeHeaders`` ``headers``.

    Options: ``kafka.bootstrap.servers`` (required); one of ``subscribe`` (topics), ``subscribePattern`` (an expression that a
    whole name matches), ``assign`` (``{"topic": [0, 1]}``); ``startingOffsets`` earliest, latest, committed or JSON by
    partition (latest in a stream, earliest in a batch), ``startingOffsets.fallback`` (earliest) of a group without offsets,
    ``startingTimestamp`` (milliseconds), ``startingOffsetsByTimestamp``, the same with ``ending``, also for a stream;
    ``maxRowsPerTrigger`` (in offsets; alias ``maxOffsetsPerTrigger``), ``minOffsetsPerTrigger`` with ``maxTriggerDelay``;
    ``minPartitions``, ``maxRecordsPerPartition``, ``numPartitions`` (a task per partition); ``discoveryInterval`` (30s),
    ``failOnDataLoss`` (true), ``maxDrift`` (off) and ``idleTimeout`` (2 minutes): no partition is read further past the
    slowest one, by the times of records; ``kafka.group.id`` with ``commitOffsets`` (true): offsets for tools that show
    lag; ``kafka.isolation.level`` (read_committed; Spark's source has read_uncommitted), every other ``kafka.*`` setting of
    the client; ``kafkaConsumer.pollTimeoutMs`` (60000); ``key.format``, ``value.format`` (bytes) and the other options of
    formats, ``errors``, ``deadLetterPath``.

    Guarantee: exactly-once. Offsets are in the checkpoint; those of the group are only read at the very first start.
    New partitions are read from their first record, whatever the start was.
    """

    name = "kafka"
    limits = ("rows",)
    conditions = "records stay in the topic until their batch is done"
    options = _OPTIONS | format_options("bytes", key="bytes")

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        super().__init__(values, streaming=streaming)
        columns = [f"key {value_type(values, 'key')}", f"value {value_type(values)}", "topic string", "partition int"]
        columns += ["offset bigint", "timestamp timestamp", "timestampType int"]
        if values["includeHeaders"]:
            columns.append("headers array<struct<key: string, value: binary>>")
        self.schema = ", ".join(columns)
        if streaming:
            self.check_start()

    @classmethod
    def of(cls, typed: Mapping[str, Any], *, streaming: bool = False) -> Source:
        return super().of(dict(_translated(typed)), streaming=streaming)

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        ways = [name for name in ("subscribe", "subscribePattern", "assign") if values[name]]
        if len(ways) != 1:
            what = "missing; give one of" if not ways else f"{' and '.join(ways)} exclude each other; give one of"
            yield Problem(ways[-1] if ways else "subscribe", f"{what} subscribe, subscribePattern or assign.")
        try:
            re.compile(values["subscribePattern"] or "")
        except re.error as wrong:
            yield Problem(
                "subscribePattern", f"must be a regular expression ({wrong}); got {values['subscribePattern']!r}."
            )
        if values["minOffsetsPerTrigger"] and (values["maxRowsPerTrigger"] or 1 << 62) < values["minOffsetsPerTrigger"]:
            yield Problem(
                "minOffsetsPerTrigger", f"must not be above maxOffsetsPerTrigger ({values['maxRowsPerTrigger']})."
            )
        yield from check_format(values)
        yield from check_settings(values)

    def check_start(self) -> None:
        """Raises if the start or the end makes no sense in what this is: a stream or a batch."""
        if problems := list(check_bounds(self.values, streaming=self.streaming)):
            raise Misconfigured(f"connectors.{self.name}", problems)

    @property
    def start(self) -> Any:
        return start_of(self.values, streaming=self.streaming)

    @property
    def end(self) -> Any:
        return end_of(self.values)

    @property
    def publishes(self) -> bool:
        """Whether the offsets of a batch become those of the group."""
        return bool(self.streaming and self.values["kafka.group.id"] and self.values["commitOffsets"])

    def cut(self) -> dict[str, int]:
        """How a range is cut into splits beyond one per partition; it goes into the position."""
        least = max(self.values["minPartitions"] or 0, self.values["numPartitions"] or 0)
        most = self.values["maxRecordsPerPartition"]
        return {**({"least": least} if least else {}), **({"most": most} if most else {})}

    def parallelism(self) -> int:
        return int(self.values["numPartitions"] or _MOST_TASKS)

    def config(self) -> dict[str, str]:
        """The settings of this source's consumers."""
        own = digest(self.values.extra["kafka.bootstrap.servers"])
        return consumer_config(self.values, self.values["kafka.group.id"] or f"{self.values['groupIdPrefix']}-{own}")

    def cluster(self) -> Cluster:
        committed = self.values["kafka.isolation.level"] == "read_committed"
        return Cluster(self.config(), committed=committed, timeout=_ANSWER_SECONDS)

    def enumerator(self) -> KafkaEnumerator:
        return KafkaEnumerator(self)

    def reader(self, schema: pa.Schema) -> KafkaReader:
        columns = list(schema.names)
        if self._decodes():
            needed = {*schema.names, *_SIDES, *_PLACE, *(("timestamp",) if self.values["errors"] == "deadLetter" else ())}
            columns = [name for name in (*_COLUMNS, "headers") if name in needed]
        return KafkaReader(
            self.config(), columns, self.values["failOnDataLoss"], self.values["kafkaConsumer.pollTimeoutMs"]
        )

    def emitter(self, schema: pa.Schema) -> RecordEmitter | None:
        if not self._decodes():
            return None
        return FormatEmitter(f"connectors.{self.name}", self.values, schema, _PLACE, self._headers)

    def _headers(self, records: pa.RecordBatch, split: Split) -> Sequence[Any]:
        """The headers of bad records, read once more: to read them with every record takes twice as long."""
        offsets = records.column("offset").to_pylist()
        if not isinstance(split, Range) or not offsets:
            return [None] * len(offsets)
        between = replace(split, first=offsets[0], end=offsets[-1] + 1)
        headers = Retry.of(self.values).call(lambda: self._headers_by_offset(between))
        return [headers.get(offset) for offset in offsets]

    def _headers_by_offset(self, split: Range) -> dict[int, Any]:
        found: dict[int, Any] = {}
        reader = KafkaReader(self.config(), ("offset", "headers"), False, self.values["kafkaConsumer.pollTimeoutMs"])
        with contextlib.closing(reader):
            for batch in reader.read(split):
                found.update(zip(batch.column("offset").to_pylist(), batch.column("headers").to_pylist(), strict=True))
        return found

    def _decodes(self) -> bool:
        return (self.values["key.format"], self.values["value.format"]) != ("bytes", "bytes")


_ANSWER_SECONDS = 20.0


def _translated(typed: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Options of Spark's source whose values have another unit here."""
    for name, value in typed.items():
        if name.lower() == "fetchoffset.retryintervalms":
            yield "retry.initialBackoff", f"{value}ms"
        else:
            yield name, value
