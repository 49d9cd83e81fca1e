"""The ledger in the database: one row per sink and query, written first in the transaction that holds the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...core.errors import CommitRefused, ConnectorError, Poison
from ...core.ledger import Entry, is_stream
from ...core.state import dumps, loads
from .connection import Connection
from .dialects import Dialect, Table


class TableLedger:
    """The rows of ``sink_id`` in ``table``, which is made when it is first written to."""

    def __init__(self, dialect: Dialect, table: Table, sink_id: str) -> None:
        self.dialect = dialect
        self.table = table
        self.sink_id = sink_id
        self._there = False

    def make(self, connection: Connection) -> None:
        """Makes the table, if it is not there. Not to be called inside a transaction."""
        if not self._exists(connection):
            name = self.dialect.identifier
            kinds = {"sink_id": name, "query": name, "batch": "BIGINT", "entry": "TEXT"}
            columns = [f"{name} {kind} NOT NULL" for name, kind in kinds.items()]
            make_table(connection, self.table, ", ".join((*columns, "PRIMARY KEY (sink_id, query)")))
            self._there = True

    def last(self, connection: Connection, query: str) -> Entry | None:
        """The newest batch of ``query``."""
        found = self._rows(connection, "entry", "AND query = ?", [query])
        return Entry.of(loads(found[0][0], "a ledger row")) if found else None

    def queries(self, connection: Connection) -> frozenset[str]:
        return frozenset(query for (query,) in self._rows(connection, "query") if is_stream(query))

    def entries(self, connection: Connection) -> list[Entry]:
        return [Entry.of(loads(text, "a ledger row")) for (text,) in self._rows(connection, "entry")]

    def record(self, connection: Connection, entry: Entry) -> None:
        """The first statement of a batch's transaction. Raises :class:`CommitRefused` if the batch is there already.

        The row is locked from here to the end, so that of two runs with the same batch only one comes through.
        """
        text = dumps(entry.state())
        if not self.advance(connection, entry):
            try:
                sql = f"INSERT INTO {self._name()} (sink_id, query, batch, entry) VALUES ({self.dialect.slots(4)})"
                connection.execute(sql, [self.sink_id, entry.query, entry.batch, text])
            except Poison:
                raise refusal(entry) from None

    def advance(self, connection: Connection, entry: Entry) -> bool:
        """Replaces the row of an older batch of ``entry``'s query; false if there is none."""
        return self._change(connection, entry, dumps(entry.state()), "AND batch < ?", [entry.batch]) > 0

    def amend(self, connection: Connection, entry: Entry) -> None:
        """Replaces the row of ``entry``'s batch."""
        self._change(connection, entry, dumps(entry.state()), "AND batch = ?", [entry.batch])

    def forget(self, connection: Connection, query: str) -> None:
        """Removes the row of a write that is not repeated."""
        connection.execute(self._sql(f"DELETE FROM {self._name()} WHERE sink_id = ? AND query = ?"), [self.sink_id, query])

    def _change(self, connection: Connection, entry: Entry, text: str, where: str, more: Sequence[Any]) -> int:
        sql = self._sql(f"UPDATE {self._name()} SET batch = ?, entry = ? WHERE sink_id = ? AND query = ? {where}")
        values = [entry.batch, text, self.sink_id, entry.query, *more]
        return connection.dialect.count(connection, sql, values)

    def _rows(self, connection: Connection, what: str, where: str = "", more: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if not self._exists(connection):
            return []
        sql = self._sql(f"SELECT {what} FROM {self._name()} WHERE sink_id = ? {where}")
        return connection.rows(sql, [self.sink_id, *more])

    def _exists(self, connection: Connection) -> bool:
        if not self._there and exists(connection, self.table):
            self.dialect.correct_identifiers(connection, self.table, ("sink_id", "query"))
            self._there = True
        return self._there

    def _name(self) -> str:
        return self.dialect.table(self.table)

    def _sql(self, text: str) -> str:
        return text.replace("?", self.dialect.placeholder)


def exists(connection: Connection, table: Table) -> bool:
    """True if ``table`` exists."""
    return table.name in connection.dialect.tables(connection, table.schema, table.name)


def make_table(connection: Connection, table: Table, body: str) -> None:
    """Makes a table of the sink's own, unless it exists. Not to be called inside a transaction."""
    if exists(connection, table):
        return
    try:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {connection.dialect.table(table)} ({body})")
    except ConnectorError:
        if not exists(connection, table):  # else another session was faster
            raise


def refusal(entry: Entry) -> CommitRefused:
    """Another run was faster with the batch of ``entry``."""
    return CommitRefused(
        f"batch {entry.batch} of query {entry.query} has been committed by another run in the meantime",
        way_out="let one run at a time write with a checkpoint",
    )


def pending(entry: Entry) -> list[str]:
    """The prepared transactions that belong to a decided batch and may not be committed yet."""
    return [one["prepared"] for one in entry.committables]


def with_pending(entry: Entry, names: Sequence[str]) -> Entry:
    """``entry`` as it is kept: of what was staged, only what is still to be committed."""
    return replace(entry, committables=tuple({"prepared": name} for name in names))
