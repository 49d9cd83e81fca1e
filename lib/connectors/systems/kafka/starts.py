"""Where a query over Kafka begins and ends: the options that say so, read and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import Problem
from ...core.options import Option, Values
from .positions import Partition

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
