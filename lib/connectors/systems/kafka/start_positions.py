"""The start and the end of a query over Kafka: the options, and the offsets that they mean in a cluster."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core import Misconfigured, Problem
from ...ground.options import Option, Values
from .cluster import Cluster, KafkaHead, first_records
from .positions import Partition, partition_name

LATEST, EARLIEST = -1, -2
"""Kafka's numbers for both, which Spark also takes in JSON."""

NumbersByTopic = dict[str, dict[str, int]]
"""Numbers by topic and partition, as JSON has them."""


@dataclass(frozen=True)
class OffsetsOption(Option):
    """One of ``words``, or JSON such as ``{"orders": {"0": 23, "1": -2}}``; the value is the word or the object."""

    words: tuple[str, ...] = ()

    def parse(self, text: str) -> str | NumbersByTopic:
        if text.strip().lower() in self.words:
            return text.strip().lower()
        expected = f'{", ".join(self.words)} or JSON such as {{"orders": {{"0": 23}}}}'.removeprefix(" or ")
        return _numbers_by_topic(text, expected, least=EARLIEST)

    def accepts(self) -> str:
        return ", ".join([*self.words, "JSON"])


class TimesOption(Option):
    """JSON such as ``{"orders": {"0": 1700000000000}}``, in milliseconds; the value is the object."""

    def parse(self, text: str) -> NumbersByTopic:
        return _numbers_by_topic(text, 'JSON of milliseconds such as {"orders": {"0": 1700000000000}}', least=0)

    def accepts(self) -> str:
        return "JSON"


class PartitionsOption(Option):
    """JSON such as ``{"orders": [0, 1]}``; the value is a tuple of partitions."""

    def parse(self, text: str) -> tuple[Partition, ...]:
        expected = 'JSON such as {"orders": [0, 1]}'
        topics = _json_object(text, expected)
        if not topics or not all(isinstance(numbers, list) and numbers for numbers in topics.values()):
            raise ValueError(expected)
        if not all(_is_number(number) and number >= 0 for numbers in topics.values() for number in numbers):
            raise ValueError(expected)
        return tuple(sorted((topic, number) for topic, numbers in topics.items() for number in set(numbers)))

    def accepts(self) -> str:
        return "JSON"


def _numbers_by_topic(text: str, expected: str, least: int) -> NumbersByTopic:
    topics = _json_object(text, expected)
    for numbers in topics.values():
        if not isinstance(numbers, dict):
            raise ValueError(expected)
        for partition, number in numbers.items():
            if not partition.isdecimal() or not _is_number(number) or number < least:
                raise ValueError(expected)
    return topics


def _json_object(text: str, expected: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError(expected) from None
    if not isinstance(value, dict):
        raise ValueError(expected)
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _by_partition(topics: NumbersByTopic) -> dict[Partition, int]:
    return {(name, int(text)): number for name, numbers in topics.items() for text, number in numbers.items()}


@dataclass(frozen=True)
class QueryBound:
    """The start or end of a query: ``word`` earliest, latest or committed; or ``offsets``; or ``times`` in milliseconds.

    ``option`` is the option that sets it, for messages.
    """

    word: str | None = None
    offsets: Mapping[Partition, int] | None = None
    times: Mapping[Partition, int] | int | None = None
    option: str = ""


def start_of(values: Values, *, streaming: bool) -> QueryBound:
    """The start of a new query. If several options set it, the one that Spark would take wins."""
    default = QueryBound("latest" if streaming else "earliest", option="startingOffsets")
    return _bound(values, "starting") or default


def end_of(values: Values) -> QueryBound | None:
    """The end of the query; ``None`` if it has none."""
    if values["stopAt"] is not None:
        return QueryBound(times=math.ceil(values["stopAt"] * 1000), option="stopAt")
    bound = _bound(values, "ending")
    return None if bound is None or bound.word == "latest" else bound


def _bound(values: Values, side: str) -> QueryBound | None:
    timestamp, times, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if values[timestamp] is not None:
        return QueryBound(times=values[timestamp], option=timestamp)
    if values[times] is not None:
        return QueryBound(times=_by_partition(values[times]), option=times)
    if isinstance(values[offsets], str):
        return QueryBound(values[offsets], option=offsets)
    return None if values[offsets] is None else QueryBound(offsets=_by_partition(values[offsets]), option=offsets)


def check_bounds(values: Values, *, streaming: bool) -> Iterator[Problem]:
    """The problems of a start and an end in a stream or a batch, apart from those of a single option."""
    start, end = start_of(values, streaming=streaming), values["endingOffsets"]
    if not streaming and (start.word == "latest" or LATEST in (start.offsets or {}).values()):
        text = "must not be latest in a batch, which would be empty; give earliest or offsets."
        yield Problem("startingOffsets", text)
    if streaming and end == "latest":
        yield Problem("endingOffsets", "latest ends no stream; leave it out, or use the trigger availableNow.")
    if isinstance(end, dict) and EARLIEST in _by_partition(end).values():
        yield Problem("endingOffsets", "must not be earliest (-2), which would always be empty.")
    if start.word == "committed" and not values["kafka.group.id"]:
        yield Problem("kafka.group.id", "missing; startingOffsets=committed needs the group whose offsets are meant.")


def topic_names(values: Values, cluster: Cluster) -> list[str]:
    """The topics to read, whether they exist or not; for a pattern the existing topics that match."""
    if values["subscribePattern"] is not None:
        pattern = re.compile(values["subscribePattern"])
        return [name for name in cluster.names() if pattern.fullmatch(name)]
    if values["assign"] is not None:
        return sorted({topic for topic, _ in values["assign"]})
    return sorted(set(values["subscribe"]))


class StartOffsets:
    """The offsets where a new query begins, as its options say and the cluster answers."""

    def __init__(self, values: Values, cluster: Cluster, head: KafkaHead) -> None:
        self.values = values
        self.cluster = cluster
        self.head = head

    def resolve(self, start: QueryBound, end: QueryBound | None) -> dict[Partition, int]:
        """The first offset of every partition. Raises ``Misconfigured`` for topics or partitions that do not fit."""
        self._require_topics()
        if end is not None:
            self._require_all(end, end.offsets if end.times is None else end.times)
        if start.times is not None:
            return self._by_time(start)
        if start.offsets is not None:
            self._require_all(start, start.offsets)
            words = {EARLIEST: self.head.first, LATEST: self.head.last}
            offsets = {partition: start.offsets[partition] for partition in self.head.last}
            return {name: words[offset][name] if offset in words else offset for name, offset in offsets.items()}
        if start.word == "committed":
            return self._of_group()
        return dict(self.head.first if start.word == "earliest" else self.head.last)

    def _of_group(self) -> dict[Partition, int]:
        offsets = self.cluster.committed(self.head.last)
        missing = [partition_name(partition) for partition in self.head.last if partition not in offsets]
        fallback = self.values["startingOffsets.fallback"]
        if missing and fallback == "none":
            group = self.values["kafka.group.id"]
            text = (
                f'committed, but group "{group}" has no offsets of {", ".join(missing)}; '
                "set startingOffsets.fallback to earliest or latest."
            )
            raise Misconfigured("connectors.kafka", [Problem("startingOffsets", text)])
        defaults = self.head.first if fallback == "earliest" else self.head.last
        return {partition: offsets.get(partition, defaults[partition]) for partition in self.head.last}

    def _by_time(self, start: QueryBound) -> dict[Partition, int]:
        times = dict.fromkeys(self.head.last, start.times) if isinstance(start.times, int) else start.times
        self._require_all(start, times)
        offsets = first_records(self.cluster, {name: times[name] for name in self.head.last}, self.head.last)  # type: ignore[index]
        missing = [partition_name(partition) for partition, offset in offsets.items() if offset is None]
        if missing and self.values["startingOffsetsByTimestampStrategy"] == "error":
            text = (
                f"there is no record of that time or later in {', '.join(missing)}; "
                "set startingOffsetsByTimestampStrategy=latest to begin there with the next one."
            )
            raise Misconfigured("connectors.kafka", [Problem(start.option, text)])
        return {name: self.head.last[name] if offset is None else offset for name, offset in offsets.items()}

    def _require_topics(self) -> None:
        if self.values["subscribePattern"] is not None:
            return
        option = "assign" if self.values["assign"] is not None else "subscribe"
        missing = [name for name in topic_names(self.values, self.cluster) if name not in self.head.topics]
        if option == "assign" and not missing:
            missing = [partition_name(name) for name in self.values["assign"] if name not in self.head.last]
        if missing:
            close = difflib.get_close_matches(missing[0], self.cluster.names(), n=1)
            hint = f'; did you mean "{close[0]}"?' if close else "."
            raise Misconfigured("connectors.kafka", [Problem(option, f"{', '.join(missing)} does not exist{hint}")])

    def _require_all(self, bound: QueryBound, numbers: Mapping[Partition, int] | int | None) -> None:
        """Raises unless ``numbers`` has exactly the partitions to read."""
        if not isinstance(numbers, Mapping):
            return
        missing = [partition_name(partition) for partition in sorted(self.head.last) if partition not in numbers]
        unknown = [partition_name(partition) for partition in sorted(numbers) if partition not in self.head.last]
        if missing or unknown:
            excess = f"names {', '.join(unknown)}, which is not read"
            problem = f"says nothing of {', '.join(missing)}" if missing else excess
            text = f"{problem}. Give every partition; -2 is the earliest offset and -1 the latest."
            raise Misconfigured("connectors.kafka", [Problem(bound.option, text)])
