"""``connectors.kafka``, the source: its options, its columns and its guarantee."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...core import Misconfigured, Problem, RecordEmitter, Source, Split
from ...core.datasets import Dataset
from ...formats import check_format, format_options, value_type
from ...formats.emitter import FormatEmitter
from ...ground.options import Choice, Duration, Flag, Int, Names, Options, Text, Time, Values
from ...ground.retry import RetrySettings
from ...ground.state import digest
from ...storage.location import Location
from .cluster import Cluster
from .config import SOURCE_REFUSED, check_consumer_config, consumer_config, topic_dataset
from .enumerator import KafkaEnumerator
from .positions import OffsetRange
from .reader import KafkaReader
from .start_positions import OffsetsOption, PartitionsOption, TimesOption, check_bounds

_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_SIDES = ("key", "value")
_POSITION = ("topic", "partition", "offset")
_MAX_TASKS = 1000
_ANSWER_SECONDS = 20.0

_OPTIONS = Options(
    {
        "kafka.group.id": Text(None, meaning="its committed offsets may be the start, and lag tools see it"),
        "kafka.isolation.level": Choice(
            "read_committed",
            among=("read_committed", "read_uncommitted"),
            meaning="Spark's own source has read_uncommitted, and hands out aborted records",
        ),
        "kafkaConsumer.pollTimeoutMs": Duration(
            60.0, unit="ms", meaning="a task fails when no record comes for so long"
        ),
        "startingOffsets.fallback": Choice(
            "earliest", among=("earliest", "latest", "none"), meaning="the start in partitions of which the group has no offset"
        ),
    },
    numPartitions=Int(None, at_least=1, meaning="parallel readers; default: one for each partition"),
    subscribe=Names(None, meaning="topics; this option, subscribePattern or assign"),
    subscribePattern=Text(None, meaning="an expression that a whole name of a topic matches"),
    assign=PartitionsOption(None, meaning="partitions by topic"),
    startingOffsets=OffsetsOption(
        None, words=("earliest", "latest", "committed"), meaning="the start; default: latest in a stream, earliest in a batch"
    ),
    startingTimestamp=Int(None, at_least=0, meaning="milliseconds; the first record at or after it"),
    startingOffsetsByTimestamp=TimesOption(None, meaning="milliseconds by partition"),
    startingOffsetsByTimestampStrategy=Choice(
        "error", among=("error", "latest"), meaning="where no record is as new as the time"
    ),
    endingOffsets=OffsetsOption(
        None, words=("latest",), meaning="a batch, or a stream, ends there; default: latest in a batch"
    ),
    endingTimestamp=Int(None, at_least=0, meaning="milliseconds"),
    endingOffsetsByTimestamp=TimesOption(None, meaning="milliseconds by partition"),
    stopAt=Time(
        None, excludes=("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
        meaning="a time or milliseconds: each partition ends before its first record of then or later",
    ),
    failOnDataLoss=Flag(
        True, meaning="offsets that no longer exist are an error; false goes on from the earliest and reports it"
    ),
    discoveryInterval=Duration(30.0, meaning="how often new topics and partitions are looked for"),
    minPartitions=Int(None, at_least=1, meaning="large partitions are cut into several tasks"),
    maxRecordsPerPartition=Int(None, at_least=1, meaning="records of one task"),
    minOffsetsPerTrigger=Int(
        None, at_least=1, not_above="maxRowsPerTrigger", meaning="a batch waits until so many records are there"
    ),
    maxTriggerDelay=Duration(900.0, unit="ms", meaning="… at most so long"),
    maxDrift=Duration(
        None, meaning="no partition is read further past the slowest one, by the times of records; default: off"
    ),
    alignmentGroup=Text(
        None, only_with="maxDrift", meaning="no source of this group, in this query or another, is read further than maxDrift "
        "past the slowest one"
    ),
    stateLocation=Location(
        None, only_with="alignmentGroup", needed_by="alignmentGroup: a folder that all sources of the group share",
        meaning="the folder of alignmentGroup; any storage"
    ),
    idleTimeout=Duration(
        120.0, meaning="a partition without records for so long does not hold back the others, nor a dead source its group"
    ),
    includeHeaders=Flag(False, meaning="a column headers"),
    groupIdPrefix=Text(
        "connectors-kafka-source", meaning="of the consumer group's name, where kafka.group.id is not set"
    ),
    commitOffsets=Flag(True, meaning="with kafka.group.id: offsets are committed there too, for tools that show lag"),
    through={"kafka.": "every setting of Kafka's client; kafka.bootstrap.servers is required"},
    refused=SOURCE_REFUSED,
    alias={"fetchOffset.numRetries": "retry.maxRetries"},
)


class KafkaSource(Source):
    """The records of Kafka topics, each offset once.

    Columns as Spark's own: ``key`` and ``value`` (binary, or what their formats give), ``topic``, ``partition``, ``offset``,
    ``timestamp``, ``timestampType``, and with ``includeHeaders`` ``headers``.

    Guarantee: exactly-once. Offsets are in the checkpoint; the source reads the group's offsets only at the very first start.
    It reads new partitions from their first record, whatever the start was.
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
            problem = "missing; give one of" if not ways else f"{' and '.join(ways)} exclude each other; give one of"
            yield Problem(ways[-1] if ways else "subscribe", f"{problem} subscribe, subscribePattern or assign.")
        try:
            re.compile(values["subscribePattern"] or "")
        except re.error as error:
            text = f"must be a regular expression ({error}); got {values['subscribePattern']!r}."
            yield Problem("subscribePattern", text)
        yield from check_format(values)
        yield from check_consumer_config(values)

    @classmethod
    def start_options(cls, time: int | None) -> Mapping[str, str]:
        if time is None:
            return {"startingOffsets": "earliest"}
        return {"startingTimestamp": str(time), "startingOffsetsByTimestampStrategy": "latest"}

    def check_start(self) -> None:
        """Raises ``Misconfigured`` for a start or an end that makes no sense in a stream, or in a batch."""
        if problems := list(check_bounds(self.values, streaming=self.streaming)):
            raise Misconfigured(f"connectors.{self.name}", problems)

    @property
    def publishes(self) -> bool:
        """True if the source commits the offsets of a batch for the group."""
        return bool(self.streaming and self.values["kafka.group.id"] and self.values["commitOffsets"])

    def cut(self) -> dict[str, int]:
        """The settings that cut a range into more than one split per partition; the position records them."""
        least = max(self.values["minPartitions"] or 0, self.values["numPartitions"] or 0)
        most = self.values["maxRecordsPerPartition"]
        return {**({"least": least} if least else {}), **({"most": most} if most else {})}

    def parallelism(self) -> int:
        return int(self.values["numPartitions"] or _MAX_TASKS)

    def config(self) -> dict[str, str]:
        """The settings of this source's consumers."""
        group = f"{self.values['groupIdPrefix']}-{digest(self.values.extra['kafka.bootstrap.servers'])}"
        return consumer_config(self.values, self.values["kafka.group.id"] or group)

    def cluster(self) -> Cluster:
        committed = self.values["kafka.isolation.level"] == "read_committed"
        return Cluster(self.config(), committed=committed, timeout=_ANSWER_SECONDS)

    def datasets(self) -> Sequence[Dataset]:
        values = self.values
        assigned = {topic for topic, _ in values["assign"] or ()}
        names = sorted({*(values["subscribe"] or ()), *assigned, *filter(None, [values["subscribePattern"]])})
        return [topic_dataset(self.config(), name) for name in names]

    def enumerator(self) -> KafkaEnumerator:
        return KafkaEnumerator(self)

    def reader(self, schema: pa.Schema) -> KafkaReader:
        columns: Sequence[str] = schema.names
        if self._decodes():
            stamp = ("timestamp",) if self.values["errors"] == "deadLetter" else ()
            needed = {*schema.names, *_SIDES, *_POSITION, *stamp}
            columns = [name for name in (*_COLUMNS, "headers") if name in needed]
        return self._reader(columns, self.values["failOnDataLoss"])

    def _reader(self, columns: Sequence[str], fail: bool) -> KafkaReader:
        return KafkaReader(self.config(), columns, fail, self.values["kafkaConsumer.pollTimeoutMs"])

    def emitter(self, schema: pa.Schema) -> RecordEmitter | None:
        if not self._decodes():
            return None
        return FormatEmitter(f"connectors.{self.name}", self.values, schema, _POSITION, self._headers)

    def _headers(self, records: pa.RecordBatch, split: Split) -> Sequence[Any]:
        """The headers of bad records, from a second read, since a first read with headers takes twice as long."""
        offsets = records.column("offset").to_pylist()
        if not isinstance(split, OffsetRange) or not offsets:
            return [None] * len(offsets)
        part = replace(split, first=offsets[0], end=offsets[-1] + 1)
        headers = RetrySettings.of(self.values).call(lambda: self._headers_by_offset(part))
        return [headers.get(offset) for offset in offsets]

    def _headers_by_offset(self, split: OffsetRange) -> dict[int, Any]:
        headers: dict[int, Any] = {}
        with contextlib.closing(self._reader(("offset", "headers"), fail=False)) as reader:
            for batch in reader.read(split):
                headers.update(zip(batch.column("offset").to_pylist(), batch.column("headers").to_pylist(), strict=True))
        return headers

    def _decodes(self) -> bool:
        return (self.values["key.format"], self.values["value.format"]) != ("bytes", "bytes")


def _translated(typed: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Translates options of Spark's source whose values have another unit in this library."""
    for name, value in typed.items():
        if name.lower() == "fetchoffset.retryintervalms":
            yield "retry.initialBackoff", f"{value}ms"
        else:
            yield name, value
