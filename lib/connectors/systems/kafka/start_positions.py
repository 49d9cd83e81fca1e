"""Where a query over Kafka begins and ends: the options that say so, read and checked."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core import Misconfigured, Problem
from ...core.options import Option, Values
from .cluster import Cluster, Head
from .positions import Partition, named

LATEST, EARLIEST = -1, -2
"""Kafka's own numbers for the two, as Spark takes them in JSON."""

ByTopic = dict[str, dict[str, int]]
"""Numbers by topic and partition, as JSON has them."""


@dataclass(frozen=True)
class Bound(Option):
    """One of ``words``, or JSON such as ``{"orders": {"0": 23, "1": -2}}``; the value is the word or the object."""

    words: tuple[str, ...] = ()

    def parse(self, text: str) -> str | ByTopic:
        if text.strip().lower() in self.words:
            return text.strip().lower()
        expected = f'{", ".join(self.words)} or JSON such as {{"orders": {{"0": 23}}}}'.removeprefix(" or ")
        return numbers_by_topic(text, expected)


class PartitionList(Option):
    """JSON such as ``{"orders": [0, 1]}``; the value is a tuple of partitions."""

    def parse(self, text: str) -> tuple[Partition, ...]:
        expected = 'JSON such as {"orders": [0, 1]}'
        topics = _object(text, expected)
        if not topics or not all(isinstance(numbers, list) and numbers for numbers in topics.values()):
            raise ValueError(expected)
        if not all(_is_number(one) and one >= 0 for numbers in topics.values() for one in numbers):
            raise ValueError(expected)
        return tuple(sorted((topic, number) for topic, numbers in topics.items() for number in set(numbers)))


class TimesByPartition(Option):
    """JSON such as ``{"orders": {"0": 1700000000000}}``, in milliseconds; the value is the object."""

    def parse(self, text: str) -> ByTopic:
        expected = 'JSON of milliseconds such as {"orders": {"0": 1700000000000}}'
        return numbers_by_topic(text, expected, least=0)


def numbers_by_topic(text: str, expected: str, least: int = EARLIEST) -> ByTopic:
    topics = _object(text, expected)
    for numbers in topics.values():
        if not isinstance(numbers, dict):
            raise ValueError(expected)
        for partition, number in numbers.items():
            if not partition.isdecimal() or not _is_number(number) or number < least:
                raise ValueError(expected)
    return topics


def by_partition(topics: ByTopic) -> dict[Partition, int]:
    return {(name, int(one)): number for name, numbers in topics.items() for one, number in numbers.items()}


def _object(text: str, expected: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError(expected) from None
    if not isinstance(value, dict):
        raise ValueError(expected)
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Edge:
    """A start or an end: ``word`` earliest, latest or committed; or ``offsets``; or ``times`` in milliseconds."""

    word: str | None = None
    offsets: Mapping[Partition, int] | None = None
    times: Mapping[Partition, int] | int | None = None
    option: str = ""
    """The option that said so, for messages."""


def start_of(values: Values, *, streaming: bool) -> Edge:
    """Where a new query begins. Of several options the one that Spark would take wins: one time, times, then the rest."""
    return _edge(values, "starting") or Edge("latest" if streaming else "earliest", option="startingOffsets")


def end_of(values: Values) -> Edge | None:
    """Where the query ends, if it does."""
    edge = _edge(values, "ending")
    return None if edge is None or edge.word == "latest" else edge


def _edge(values: Values, side: str) -> Edge | None:
    single, several, plain = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if values[single] is not None:
        return Edge(times=values[single], option=single)
    if values[several] is not None:
        return Edge(times=by_partition(values[several]), option=several)
    given = values[plain]
    if given is None:
        return None
    return Edge(given, option=plain) if isinstance(given, str) else Edge(offsets=by_partition(given), option=plain)


def check_bounds(values: Values, *, streaming: bool) -> Iterator[Problem]:
    """What is wrong with a start and an end in a stream or a batch, beyond each by itself."""
    start, end = start_of(values, streaming=streaming), values["endingOffsets"]
    if not streaming and (start.word == "latest" or LATEST in (start.offsets or {}).values()):
        yield Problem(
            "startingOffsets", "must not be latest in a batch, which would be empty; give earliest or offsets."
        )
    if streaming and end == "latest":
        yield Problem("endingOffsets", "latest ends no stream; leave it out, or use the trigger availableNow.")
    if isinstance(end, dict) and EARLIEST in by_partition(end).values():
        yield Problem("endingOffsets", "must not be earliest (-2), which would always be empty.")
    if start.word == "committed" and not values["kafka.group.id"]:
        yield Problem("kafka.group.id", "missing; startingOffsets=committed needs the group whose offsets are meant.")


# MERGED Where a new query over Kafka begins: offsets by the options that say so, asked of the cluster once.

def wanted_names(values: Values, cluster: Cluster) -> list[str]:
    """The topics to read, whether they exist or not; by a pattern those that exist."""
    if values["subscribePattern"] is not None:
        pattern = re.compile(values["subscribePattern"])
        return [name for name in cluster.names() if pattern.fullmatch(name)]
    if values["assign"] is not None:
        return sorted({topic for topic, _ in values["assign"]})
    return sorted(set(values["subscribe"]))


class Origin:
    """The start of one query, given what there is."""

    def __init__(self, values: Values, cluster: Cluster, head: Head) -> None:
        self.values = values
        self.cluster = cluster
        self.head = head

    def offsets(self, start: Edge, end: Edge | None) -> dict[Partition, int]:
        """The first offset of every partition. Raises ``Misconfigured`` for topics or partitions that do not fit."""
        self._require_topics()
        if end is not None:
            self._require_all(end, end.offsets if end.times is None else end.times)
        if start.times is not None:
            return self._by_time(start)
        if start.offsets is not None:
            self._require_all(start, start.offsets)
            marks = {EARLIEST: self.head.first, LATEST: self.head.last}
            given = start.offsets
            return {one: marks[to][one] if (to := given[one]) in marks else to for one in self.head.last}
        if start.word == "committed":
            return self._of_group()
        return dict(self.head.first if start.word == "earliest" else self.head.last)

    def _of_group(self) -> dict[Partition, int]:
        found = self.cluster.committed(self.head.last)
        missing = [named(one) for one in self.head.last if one not in found]
        fallback = self.values["startingOffsets.fallback"]
        if missing and fallback == "none":
            group = self.values["kafka.group.id"]
            text = (
                f'committed, but group "{group}" has no offsets of {", ".join(missing)}; '
                "set startingOffsets.fallback to earliest or latest."
            )
            raise Misconfigured("connectors.kafka", [Problem("startingOffsets", text)])
        rest = self.head.first if fallback == "earliest" else self.head.last
        return {one: found.get(one, rest[one]) for one in self.head.last}

    def _by_time(self, edge: Edge) -> dict[Partition, int]:
        times = dict.fromkeys(self.head.last, edge.times) if isinstance(edge.times, int) else edge.times
        self._require_all(edge, times)
        found = self.cluster.after({one: times[one] for one in self.head.last})  # type: ignore[index]
        none = [named(one) for one, record in found.items() if record is None]
        if none and self.values["startingOffsetsByTimestampStrategy"] == "error":
            text = (
                f"there is no record of that time or later in {', '.join(none)}; "
                "set startingOffsetsByTimestampStrategy=latest to begin there with the next one."
            )
            raise Misconfigured("connectors.kafka", [Problem(edge.option, text)])
        return {one: record.offset if record else self.head.last[one] for one, record in found.items()}

    def _require_topics(self) -> None:
        if self.values["subscribePattern"] is not None:
            return
        option = "assign" if self.values["assign"] is not None else "subscribe"
        missing = [name for name in wanted_names(self.values, self.cluster) if name not in self.head.topics]
        if option == "assign" and not missing:
            missing = [named(one) for one in self.values["assign"] if one not in self.head.last]
        if missing:
            close = difflib.get_close_matches(missing[0], self.cluster.names(), n=1)
            hint = f'; did you mean "{close[0]}"?' if close else "."
            raise Misconfigured("connectors.kafka", [Problem(option, f"{', '.join(missing)} does not exist{hint}")])

    def _require_all(self, edge: Edge, given: Mapping[Partition, int] | int | None) -> None:
        if not isinstance(given, Mapping):
            return
        missing = [named(one) for one in sorted(self.head.last) if one not in given]
        unknown = [named(one) for one in sorted(given) if one not in self.head.last]
        if missing or unknown:
            said = f"names {', '.join(unknown)}, which is not read"
            what = f"says nothing of {', '.join(missing)}" if missing else said
            text = f"{what}. Give every partition; -2 is the earliest offset and -1 the latest."
            raise Misconfigured("connectors.kafka", [Problem(edge.option, text)])
