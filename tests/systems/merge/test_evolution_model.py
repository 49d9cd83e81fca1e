"""All short sequences of statements, and what a table makes of the log: under ``evolve`` it is equal or it stops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from connectors.core import Fatal
from connectors.systems.delta.evolution import evolution_of
from connectors.systems.delta.log_state import LogState

Record = tuple[int, int, Mapping[str, tuple[int, int]]]
"""A row, the time of its change, and for each column its number and that time, which stand for the value."""
FIRST = {"id": 1, "a": 2, "b": 3}


class Source:
    """A table of a database: ``columns`` are numbers by name, in their order, and ``log`` has a record for each change."""

    def __init__(self) -> None:
        self.columns, self.last = dict(FIRST), 3
        self.values = {row: dict.fromkeys((2, 3), 0) for row in (1, 2)}
        self.log: list[Record] = []

    def alter(self, statement: str) -> None:
        kind, name, new = (*statement.split(), "")[:3]
        if kind == "rename":
            self.columns = {new if name == old else old: number for old, number in self.columns.items()}
        elif kind == "drop":
            del self.columns[name]
        elif kind == "add":
            self.last += 1
            self.columns[name] = self.last
        else:
            row, time = int(name), len(self.log) + 1
            self.values[row] = dict.fromkeys(self.columns.values(), time)
            self.log.append((row, time, {column: (number, time) for column, number in self.columns.items()}))

    def statements(self) -> Iterator[str]:
        free = [name for name in ("a", "b", "x") if name not in self.columns]
        for name in self.columns.keys() - {"id"}:
            yield f"drop {name}"
            yield from (f"rename {name} {new}" for new in free)
        yield from (f"add {name}" for name in free)
        yield from ("change 1", "change 2")

    def rows(self) -> dict[str, dict[int, Any]]:
        own = {name: number for name, number in self.columns.items() if name != "id"}
        return {
            name: {row: (number, values[number]) if number in values else None for row, values in self.values.items()}
            for name, number in own.items()
        }

    def is_seen(self) -> bool:
        """False if a column of the same name is another one in the next record, and the records have no other names."""
        columns = [FIRST, *({name: number for name, (number, _) in record[2].items()} for record in self.log)]
        for before, after in itertools.pairwise(columns):
            others = {name for name in before.keys() & after.keys() if before[name] != after[name]}
            gone, new = {*before.values()} - {*after.values()}, {*after.values()} - {*before.values()}
            is_anew = any(before[name] in gone and after[name] in new for name in others)
            if is_anew or (others and before.keys() == after.keys()):
                return False
        return True


class Table:
    """A table that follows the log of a :class:`Source` as the merge does."""

    def __init__(self) -> None:
        identities = {name: f"9.{number}" for name, number in FIRST.items()}
        self.state = LogState("shop.public.t", ("id",), columns=dict.fromkeys(FIRST, "int"), identities=identities)
        self.rows: dict[str, dict[int, Any]] = {name: dict.fromkeys((1, 2), (FIRST[name], 0)) for name in ("a", "b")}
        self.times = {1: 0, 2: 0}

    def merge(self, records: Sequence[Record], catalog: Mapping[str, int]) -> None:
        schemas = [list(names) for names in {tuple(record[2]): None for record in reversed(records)}][::-1]
        current = {name: f"9.{number}" for name, number in catalog.items()}
        evolution = evolution_of(self.state, schemas, lambda: current, is_strict=True)
        for name, *new in evolution.steps(self.rows):
            cells = self.rows.pop(name)
            for new_name in new:
                assert new_name not in self.rows
                self.rows[new_name] = cells
        names = {tuple(schema): evolution.names(schema) for schema in schemas}
        seen = {name for known in names.values() for name in known if name}
        self.rows |= {name: {1: None, 2: None} for name in seen - self.rows.keys() - {"id"}}
        declared = dict.fromkeys([*filter(None, names[tuple(schemas[-1])]), *evolution.survivors], "int")
        self.state = evolution.state(self.state).declaring(declared, seen)
        for row, time, values in records:
            if time > self.times[row]:
                for name, value in zip(names[tuple(values)], values.values(), strict=True):
                    if name not in (None, "id"):
                        self.rows[name][row] = value
                self.times[row] = time


def sequences(length: int) -> Iterator[list[str]]:
    found: list[list[str]] = [[]]
    for _ in range(length):
        found = [[*known, statement] for known in found for statement in source_of(known)[0].statements()]
        yield from found


def source_of(statements: Sequence[str]) -> tuple[Source, list[Mapping[str, int]]]:
    """The source behind ``statements``, and its columns at each change."""
    source, catalogs = Source(), []
    for statement in statements:
        source.alter(statement)
        if statement.startswith("change"):
            catalogs.append(source.columns)
    return source, catalogs


def merged(source: Source, catalogs: Sequence[Mapping[str, int]], batches: str) -> Table:
    """A table that has the log of ``source``, whose columns are ``catalogs`` at each change.

    ``behind``: the catalog is that of the end; ``again``: the connector starts again, and repeats its records.
    """
    table, each = Table(), [([record], catalog) for record, catalog in zip(source.log, catalogs, strict=True)]
    behind = [(records, source.columns) for records, _ in each]
    plans = {"one": [(source.log, source.columns)], "each": each, "behind": behind, "again": [*each, *behind]}
    for records, catalog in plans[batches]:
        table.merge(records, catalog)
    return table


@pytest.mark.parametrize("batches", ["one", "each", "behind", "again"])
def test_a_table_is_equal_or_stops(batches: str) -> None:
    equal = 0
    for statements in sequences(4):
        source, catalogs = source_of([*statements, "change 1"])
        if not source.is_seen():
            continue
        try:
            table = merged(source, catalogs, batches)
        except Fatal:
            continue
        assert table.rows == source.rows(), statements
        equal += 1
    assert equal > 1500


@pytest.mark.parametrize(
    ("batches", "statements"),
    [
        ("one", "drop b, change 1, add b, change 2, rename b x, change 1"),
        ("behind", "rename a x, rename b a, change 2, drop x, rename a x, change 1"),
    ],
    ids=["the order of records", "the order of numbers"],
)
def test_what_an_order_refutes_stops_a_table(batches: str, statements: str) -> None:
    with pytest.raises(Fatal):
        merged(*source_of(statements.split(", ")), batches)
