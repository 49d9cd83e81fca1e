"""The statements that write rows, and which rows of a request go together.

Each row has a time of writing of its own, so requests may overtake each other. Of two cells of one time Cassandra keeps the
larger, column by column, which would mix two rows: a cell that a later row of the same time replaces is not sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...core import Guarantee, Misconfigured, Poison, Problem, Values
from .connection import NAME, CassandraClient
from .decoding import cql_of
from .encoding import ColumnEncoder, refusal, sized
from .tables import Table, quoted

INSERT, DELETE, STATIC, ADD = "insert", "delete", "static", "add"
_MOST_TOGETHER: Final = 100
_NO_TIME: Final = struct.pack(">q", -(1 << 63))
"""In place of a time of writing, for Cassandra: it refuses a statement that has it."""

Key = tuple[Any, ...]


class Write(NamedTuple):
    """A statement, by its kind, with its cells. ``key`` are the cells of the primary key, ``partition`` the first of them."""

    kind: str
    partition: Key
    key: Key
    cells: Sequence[Any]
    size: int


@dataclass
class Group:
    """Statements of one partition that go together; ``places`` are the entries that each stands for."""

    writes: list[Write] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)

    def parts(self) -> Iterator[tuple[Write, list[int]]]:
        """Each statement, and its entries."""
        return zip(self.writes, self.places, strict=True)

    def done(self) -> list[int]:
        """The entries of all statements."""
        return [place for places in self.places for place in places]


class Statements:
    """Makes writes of rows of certain columns. ``static`` says that there are static columns among them, ``adds`` that they
    are added to counters, ``is_timed`` that each row has a time of writing: a counter and a lightweight transaction have none.
    """

    def __init__(self, client: CassandraClient, values: Values, table: Table, columns: Sequence[str]) -> None:
        self.client, self.values, self.table = client, values, table
        self.columns = columns
        self.partition_size, self.key_size = len(table.names("partition_key")), len(table.key)
        self._has_key = set(table.key) <= set(columns)
        self.adds = table.has_counters
        self._static = [place for place, name in enumerate(columns) if name in table.names("static")]
        self.static = bool(self._static)
        self.is_conditional: bool = values["ifNotExists"]
        self.is_timed = not (self.adds or self.is_conditional)
        self._unset = client.unset
        self._ttl = [] if values["ttl"] is None else [struct.pack(">i", int(values["ttl"]))]
        self.prepared = {kind: client.prepare(text) for kind, text in self._texts().items()}
        metadata = {column.name: column.type for column in self.prepared[ADD if self.adds else INSERT].column_metadata}
        self.types = [metadata[name] for name in columns]
        self._encoders = [ColumnEncoder(name, kind) for name, kind in zip(columns, self.types, strict=True)]

    @classmethod
    def of(cls, client: CassandraClient, values: Values, schema: pa.Schema) -> Statements:
        """Raises :class:`Misconfigured` where the table cannot take rows of ``schema``."""
        table = Table.of(client, values["keyspace"], values["table"])
        own = table.names()
        markers = [values[option] for option in ("orderColumn", "deleteColumn") if values[option] is not None]
        problems = [
            Problem("table", f'{table.name} has the key {", ".join(table.key)}, and the rows have no column "{name}".')
            for name in table.key
            if name not in schema.names and not (name in table.names("clustering") and _is_of_partitions(table, schema))
        ]
        if unknown := [name for name in schema.names if name not in own and name not in markers]:
            text = f'has no column "{unknown[0]}", which the rows have: {", ".join(own)}; names keep their case.'
            problems.append(Problem("table", f"{table.name} {text}"))
        problems += [*_counter_problems(table, values), *_list_problems(table, values, schema)]
        if problems:
            raise Misconfigured(NAME, problems)
        statements = cls(client, values, table, [name for name in own if name in schema.names])
        statements._refuse_types(schema)
        return statements

    def writes(self, rows: pa.RecordBatch, time: int) -> list[Write | Poison]:
        """A write for each row, or the :class:`Poison` that it is.

        Rows without a time of their own are as of ``time``, in microseconds, and each a microsecond after the one before it.
        """
        columns = [encode(rows.column(name)) for name, encode in zip(self.columns, self._encoders, strict=True)]
        deletes, times = self._flags(rows), self._times(rows, time)
        if self.values["orderColumn"] is not None:
            self._settle_ties(columns, deletes, times)
        bad = any(Poison in set(map(type, column)) for column in (*columns, times))
        keyless = not self._has_key or any(None in column for column in columns[: self.key_size])
        plain = not (bad or keyless or any(deletes))
        kind, size = ADD if self.adds else INSERT, self.partition_size
        writes: list[Write | Poison] = []
        for row, is_deleted, at in zip(zip(*columns, strict=True), deletes, times, strict=True):
            tail = () if at is None else (at,)
            if plain:
                writes.append(Write(kind, row[:size], row[: self.key_size], self._cells(kind, row, tail), _size(row)))
            else:
                writes.append(self._write(row, is_deleted, tail))
        return writes

    def groups(self, entries: Sequence[Write]) -> list[Group]:
        """The writes of a request, in groups of one partition each; lightweight transactions alone, one for each key."""
        if not self.is_conditional:
            return _grouped([([place], entry) for place, entry in enumerate(entries)])
        first: dict[Key, tuple[list[int], Write]] = {}
        for place, entry in enumerate(entries):
            first.setdefault(entry.key, ([], entry))[0].append(place)
        return _grouped(list(first.values()), single=True)

    def statement(self, group: Group) -> Any:
        """The statement, or the batch of statements, that the driver sends for a group."""
        bound = [self.client.bound(self.prepared[write.kind], self._bound_cells(write)) for write in group.writes]
        for statement in bound:
            statement.is_idempotent = not self.adds
        return bound[0] if len(bound) == 1 else self.client.batch(bound, counters=self.adds)

    def _bound_cells(self, write: Write) -> Sequence[Any]:
        if write.kind == DELETE or not (self.values["ignoreNulls"] or self.adds):  # a counter takes no null
            return write.cells
        return [self._unset if cell is None else cell for cell in write.cells]

    def _settle_ties(self, columns: list[list[Any]], deletes: list[bool], times: list[Any]) -> None:
        """Of the cells of one column, key and time the last one stays; the others are not set.

        A deletion takes along what has its time: one that a row of its key and time follows is as of a microsecond earlier.
        """
        size = self.key_size if self._has_key else self.partition_size
        keys = list(zip(*columns[:size], times, strict=True))
        if len(set(keys)) == len(keys) and not self.static:
            return
        partitions = list(zip(*columns[: self.partition_size], times, strict=True))
        cells = zip(*columns, times, strict=True)
        places = [place for place, row in enumerate(cells) if Poison not in set(map(type, row))][::-1]
        rows = [place for place in places if not deletes[place]]
        for number, column in enumerate(columns[size:], size):
            if number in self._static:
                self._keep_last(column, partitions, rows, deletes)
            else:
                self._keep_last(column, keys, places, deletes)
        followed = set[Key]()
        for place in places:
            if not deletes[place]:
                followed.add(keys[place])
            elif keys[place] in followed:
                times[place] = _earlier(times[place])

    def _keep_last(self, column: list[Any], owners: Sequence[Key], places: Sequence[int], deletes: Sequence[bool]) -> None:
        """Leaves of the cells of each owner the last one; ``places`` are those of the rows, the last one first."""
        settled = set[Key]()
        for place in places:
            if owners[place] in settled:
                column[place] = self._unset
            elif deletes[place] or column[place] is not None or not self.values["ignoreNulls"]:
                settled.add(owners[place])

    def _write(self, row: Key, is_deleted: bool, tail: Key) -> Write | Poison:
        bad = next((cell for cell in (*row, *tail) if isinstance(cell, Poison)), None)
        if bad is not None:
            return bad
        key, partition = row[: self.key_size], row[: self.partition_size]
        if not self._has_key or None in key:
            if None in partition or is_deleted or self.adds or not self._is_of_partition(row):
                nulls = (name for name, cell in zip(self.table.key, row, strict=False) if cell is None)
                text = "is null, and a part of the primary key"
                return Poison(f'the column "{next(nulls, self.table.key[-1])}" {text}')
            cells = [*partition, *(row[place] for place in self._static), *self._ttl, *tail]
            return Write(STATIC, partition, partition, cells, _size(cells))
        if is_deleted:
            return Write(DELETE, partition, key, [*tail, *key], _size(key))
        kind = ADD if self.adds else INSERT
        return Write(kind, partition, key, self._cells(kind, row, tail), _size(row))

    def _is_of_partition(self, row: Key) -> bool:
        """True for a row that has values of the partition alone: no clustering key, and nothing but static columns."""
        size = self.partition_size
        others = [cell for place, cell in enumerate(row) if place >= size and place not in self._static]
        return self.static and not any(isinstance(cell, bytes) for cell in others)

    def _cells(self, kind: str, row: Key, tail: Sequence[Any]) -> list[Any]:
        if kind == ADD:
            return [*row[self.key_size :], *row[: self.key_size]]
        return [*row, *self._ttl, *tail]

    def _flags(self, rows: pa.RecordBatch) -> list[bool]:
        name = self.values["deleteColumn"]
        return [False] * rows.num_rows if name is None else [bool(flag) for flag in rows.column(name).to_pylist()]

    def _times(self, rows: pa.RecordBatch, time: int) -> list[Any]:
        """The cell of the time of writing of each row; ``None`` where the statement takes none."""
        if not self.is_timed:
            return [None] * rows.num_rows
        name = self.values["orderColumn"]
        if name is None:
            return list(sized(pa.array(range(time, time + rows.num_rows), pa.int64()), ">i8"))
        column = rows.column(name)
        if pa.types.is_timestamp(column.type):
            column = pc.cast(column, pa.timestamp("us", column.type.tz))
        text = f'the column "{name}" is null, and the time of writing'
        bad: dict[Any, Any] = {None: Poison(text), _NO_TIME: Poison(text.replace("null", "the least long"))}
        return [bad.get(cell, cell) for cell in sized(column.cast(pa.int64()), ">i8")]

    def _texts(self) -> dict[str, str]:
        """The statements by their kinds."""
        name, key = self.table.full_name, [f"{quoted(column)} = ?" for column in self.table.key]
        if self.adds:
            added = ", ".join(f"{quoted(column)} = {quoted(column)} + ?" for column in self.columns[self.key_size :])
            return {ADD: f"UPDATE {name} SET {added} WHERE {' AND '.join(key)}"}
        time = "TIMESTAMP ?" if self.is_timed else ""
        using = " AND ".join(part for part in ("TTL ?" if self._ttl else "", time) if part)
        using = f" USING {using}" if using else ""
        using = f" IF NOT EXISTS{using}" if self.is_conditional else using
        texts = {INSERT: self._insert(self.columns) + using}
        if self.values["deleteColumn"] is not None:
            texts[DELETE] = f"DELETE FROM {name}{f' USING {time}' if time else ''} WHERE {' AND '.join(key)}"
        if self.static:
            columns = [*self.table.names("partition_key"), *(self.columns[place] for place in self._static)]
            texts[STATIC] = self._insert(columns) + using
            if not self._has_key:
                texts[INSERT] = texts[STATIC]
        return texts

    def _insert(self, columns: Sequence[str]) -> str:
        names = ", ".join(map(quoted, columns))
        return f"INSERT INTO {self.table.full_name} ({names}) VALUES ({', '.join('?' for _ in columns)})"

    def _refuse_types(self, schema: pa.Schema) -> None:
        problems = []
        for name, kind in zip(self.columns, self.types, strict=True):
            if reason := refusal(kind, schema.field(name).type):
                text = f'{self.table.name} has the column "{name}" of {cql_of(kind)}, and that of the rows {reason}.'
                problems.append(Problem("table", text))
        if problems:
            raise Misconfigured(NAME, problems)


def _grouped(writes: Sequence[tuple[list[int], Write]], *, single: bool = False) -> list[Group]:
    """Writes of one partition together, so many at most; each alone where they are ``single``."""
    groups: list[Group] = []
    open_groups: dict[Key, Group] = {}
    for places, write in writes:
        group = None if single else open_groups.get(write.partition)
        if group is None or len(group.writes) == _MOST_TOGETHER:
            group = open_groups[write.partition] = Group()
            groups.append(group)
        group.writes.append(write)
        group.places.append(places)
    return groups


def _size(cells: Sequence[Any]) -> int:
    return sum([len(cell) for cell in cells if type(cell) is bytes])


def _earlier(time: bytes) -> bytes:
    """A microsecond before ``time``."""
    return struct.pack(">q", struct.unpack(">q", time)[0] - 1)


def _is_of_partitions(table: Table, schema: pa.Schema) -> bool:
    """True for rows that have nothing but partition keys and static columns, which are no counters."""
    return (
        not table.has_counters
        and any(name in schema.names for name in table.names("static"))
        and not any(name in schema.names for name in table.names("clustering", "regular"))
    )


def _counter_problems(table: Table, values: Values) -> Iterator[Problem]:
    if not table.has_counters:
        return
    if values["guarantee"] != Guarantee.AT_LEAST_ONCE.value:
        text = f"{table.name} has counters: what Spark repeats, or is sent again after a timeout, would be added twice"
        yield Problem("guarantee", f"must be at-least-once; {text}. Give it if that may be.")
    for option in ("orderColumn", "deleteColumn", "ttl"):
        if values[option] is not None:
            yield Problem(option, f"has no use with {table.name}, which has counters.")
    for option in ("ifNotExists", "ignoreNulls"):
        if values[option]:
            yield Problem(option, f"has no use with {table.name}, which has counters.")


def _list_problems(table: Table, values: Values, schema: pa.Schema) -> Iterator[Problem]:
    """A write gives the elements of a list keys of its own, and takes away those of an older time: not those of the same."""
    lists = [column.name for column in table.columns if column.type.startswith("list<") and column.name in schema.names]
    if not lists or values["ifNotExists"]:
        return
    text = f'{table.name} has the list "{lists[0]}", which is not frozen: a row that is written again has its elements twice'
    way_out = "make the column a frozen list or a set"
    if values["orderColumn"] is not None:
        yield Problem("orderColumn", f"cannot be: {text}; {way_out}, or leave the option away.")
    elif values["guarantee"] != Guarantee.AT_LEAST_ONCE.value:
        yield Problem("guarantee", f"must be at-least-once; {text}. Give it if that may be, or {way_out}.")
