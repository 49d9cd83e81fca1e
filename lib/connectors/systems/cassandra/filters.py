"""Filters of Spark that Cassandra can answer: whole partition keys, and clustering keys."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final

from ...core import Predicate, Split
from .tables import Column, Table, quoted

_MOST_PARTITIONS: Final = 1000
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint")
_ORDERED: Final = (*_NUMBERS, "text", "ascii", "timestamp", "date", "boolean")
"""Types that Spark and Cassandra order alike."""
_EQUAL_ONLY: Final = ("uuid", "timeuuid")
"""Types whose texts may be written in two ways: Spark compares once more."""
_LONGEST_KEY: Final = (1 << 16) - 1
_START, _END = (">", ">="), ("<", "<=")


@dataclass(frozen=True)
class Pushed:
    """A filter that Cassandra answers. Where it ``is_exact``, Spark need not look again."""

    predicate: Predicate
    column: Column
    is_exact: bool

    @property
    def text(self) -> str:
        return f"{quoted(self.column.name)} {self.predicate.operator} ?"


@dataclass(frozen=True)
class Partition(Split):
    """One partition, by the values of its key."""

    key: tuple[Any, ...]


def pushed(table: Table, predicates: Sequence[Predicate]) -> list[Pushed]:
    """The filters that Cassandra can answer: on all of the partition key, or none of it, and on clustering keys."""
    columns = {column.name: column for column in table.columns if column.kind in ("partition_key", "clustering")}
    known = [
        Pushed(predicate, columns[predicate.column], columns[predicate.column].type not in _EQUAL_ONLY)
        for predicate in predicates
        if predicate.column in columns and _has_counterpart(columns[predicate.column], predicate)
    ]
    keys: dict[str, Pushed] = {}
    for filter in known:
        if filter.column.kind == "partition_key" and filter.predicate.operator in ("=", "in"):
            keys.setdefault(filter.column.name, filter)
    whole = list(map(keys.get, table.names("partition_key")))
    of_partitions = [filter for filter in whole if filter is not None]
    if len(of_partitions) < len(whole) or prod(len(filter.predicate.values) for filter in of_partitions) > _MOST_PARTITIONS:
        of_partitions = []
    return of_partitions + _of_clustering([filter for filter in known if filter.column.kind == "clustering"])


def partitions(filters: Sequence[Pushed]) -> list[Partition]:
    """The partitions that filters name; none where they name no whole key."""
    values = [dict.fromkeys(filter.predicate.values) for filter in filters if filter.column.kind == "partition_key"]
    return [Partition(key) for key in product(*values)] if values else []


def conditions(filters: Sequence[Pushed]) -> tuple[list[str], list[Any]]:
    """The conditions on clustering keys, and their values."""
    of_clustering = [filter for filter in filters if filter.column.kind == "clustering"]
    return [filter.text for filter in of_clustering], [filter.predicate.values[0] for filter in of_clustering]


def _of_clustering(filters: Sequence[Pushed]) -> list[Pushed]:
    """One filter for each end of a column, as CQL has it; an equal one stands alone."""
    taken: dict[tuple[str, str], Pushed] = {}
    for filter in filters:
        name, operator = filter.column.name, filter.predicate.operator
        end = "=" if operator == "=" else "start" if operator in _START else "end" if operator in _END else ""
        if end:
            taken.setdefault((name, end), filter)
    equal = {name for name, end in taken if end == "="}
    return [filter for (name, end), filter in taken.items() if end == "=" or name not in equal]


def _has_counterpart(column: Column, predicate: Predicate) -> bool:
    """True if the values of a filter are values of the column's type, and are compared alike."""
    if column.type in _EQUAL_ONLY:
        return predicate.operator in ("=", "in") and all(_is_id(column.type, value) for value in predicate.values)
    if column.kind == "partition_key" and "" in predicate.values:  # Cassandra refuses to look for it
        return False
    return column.type in _ORDERED and all(_is_of(column.type, value) for value in predicate.values)


def _is_of(kind: str, value: Any) -> bool:
    if kind in _NUMBERS:
        bits = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}[kind]
        return type(value) is int and -(1 << bits) <= value < 1 << bits
    if kind == "timestamp":
        return isinstance(value, datetime.datetime) and value.microsecond % 1000 == 0
    if kind == "date":
        return type(value) is datetime.date
    if kind == "boolean":
        return isinstance(value, bool)
    return isinstance(value, str) and len(value.encode()) <= _LONGEST_KEY and (kind != "ascii" or value.isascii())


def _is_id(kind: str, value: Any) -> bool:
    try:
        version = uuid.UUID(value).bytes[6] >> 4
    except (ValueError, AttributeError):  # AttributeError: it is no text
        return False
    return kind == "uuid" or version == 1
