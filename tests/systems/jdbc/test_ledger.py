"""The rows of the ledger belong to the sinks and queries whose names they have, to the letter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Committable, Poison, Sink, SinkWriter
from connectors.core.commit import Commit
from connectors.core.ledger import Entry, Verdict
from connectors.core.writing import stage
from connectors.ground.errors import CommitRefused
from connectors.systems.jdbc import DatabaseCommitter
from connectors.systems.jdbc.connection import Connection
from connectors.systems.jdbc.dialects import Table
from connectors.systems.jdbc.ledger import TableLedger

from .contexts import DatabaseContext, MariaDbContext, PostgresContext
from .test_operations import DATABASES

NAMES = ("load", "Load", "load ", "löad")
"""Names that are one and the same for MariaDB's usual collation, and for one that pads."""


@pytest.fixture(params=DATABASES, ids=lambda kind: kind.__name__.removesuffix("Context").lower())
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseContext]:
    with contextlib.closing(request.param(tmp_path / "target")) as database:
        yield database


def table_of(database: DatabaseContext) -> Table:
    schema, _, _ = database.table.rpartition(".")
    return Table("connectors_ledger", schema)


def ledgers(connection: Connection, table: Table) -> dict[str, TableLedger]:
    return {name: TableLedger(connection.dialect, table, name) for name in NAMES}


def test_names_that_differ_in_a_letter_have_rows_of_their_own(database: DatabaseContext) -> None:
    with contextlib.closing(database.connect()) as connection:
        for number, (name, ledger) in enumerate(ledgers(connection, table_of(database)).items()):
            ledger.make(connection)
            assert ledger.last(connection, "query") is None, name
            ledger.record(connection, Entry("query", number))
            ledger.record(connection, Entry("Query", number + 10))
        for number, ledger in enumerate(ledgers(connection, table_of(database)).values()):
            batches = {query: last.batch for query in ("query", "Query") if (last := ledger.last(connection, query))}
            assert batches == {"query": number, "Query": number + 10}


def test_an_entry_names_the_prepared_transactions_of_thousands_of_tasks(database: DatabaseContext) -> None:
    prepared = tuple({"prepared": f"{number:0100d}"} for number in range(2000))
    with contextlib.closing(database.connect()) as connection:
        ledger = TableLedger(connection.dialect, table_of(database), "load")
        ledger.make(connection)
        for batch in range(2):
            ledger.record(connection, Entry("query", batch, committables=prepared))
        [entry] = ledger.unfinished(connection)
        assert (entry.batch, entry.committables) == (1, prepared)


@pytest.mark.parametrize("database", [PostgresContext, MariaDbContext], indirect=True)
def test_a_recovery_reads_no_entry_but_those_with_prepared_transactions(
    database: DatabaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(database.connect()) as connection:
        ledger = TableLedger(connection.dialect, table_of(database), "load")
        ledger.make(connection)
        with connection.transaction():
            for number in range(1000):
                ledger.record(connection, Entry(f"query {number}", 0))
            ledger.record(connection, Entry("query", 0, committables=({"prepared": "a"},)))
        entries, rows_of = list[Any](), connection.rows

        def rows(sql: str, values: Any = ()) -> Any:
            rows = rows_of(sql, values)
            entries.extend(rows)
            return rows

        monkeypatch.setattr(connection, "rows", rows)
        assert [entry.query for entry in ledger.unfinished(connection)] == ["query"]
        assert len(entries) == 1


def test_a_claim_that_comes_late_names_the_owner(database: DatabaseContext) -> None:
    with contextlib.closing(database.connect()) as connection:
        ledger = TableLedger(connection.dialect, table_of(database), "load")
        ledger.make(connection)
        ledger.record(connection, Entry("first", 0, claim=0))
        with pytest.raises(CommitRefused, match="already belongs to query first"):
            ledger.record(connection, Entry("late", 0, claim=0))


@pytest.mark.parametrize("database", [PostgresContext], indirect=True)
def test_a_claim_that_another_query_makes_behind_the_check_is_seen_by_the_key(database: DatabaseContext) -> None:
    with contextlib.closing(database.connect()) as connection, contextlib.closing(database.connect()) as other:
        first = TableLedger(connection.dialect, table_of(database), "load")
        first.make(connection)

        class Late(TableLedger):
            def last(self, connection: Connection, query: str) -> Entry | None:
                owner = super().last(connection, query)
                first.record(other, Entry("first", 0, claim=0))
                return owner

        with pytest.raises(CommitRefused, match="began at the same moment"), connection.transaction():
            Late(connection.dialect, first.table, "load").record(connection, Entry("late", 0, claim=0))
        assert first.last(connection, "late") is None


class Store(Sink):
    """A sink of an author's own, whose writers stage rows in a table ``staged``."""

    name = "store"
    database: DatabaseContext

    def target(self) -> str:
        return self.database.table

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        return StoreWriter(self.database, batch.attempt())

    def committer(self) -> DatabaseCommitter:
        address = self.database.address()
        login = {name: address[name] for name in ("user", "password") if name in address}
        return DatabaseCommitter(address["url"], self.sink_id(), self.publish, self.discard, **login)

    def publish(self, connection: Connection, staged: Committable) -> None:
        attempt = staged.data["attempt"]
        connection.execute(f"INSERT INTO {self.target()} SELECT id, name FROM {self.target()}_st WHERE attempt = '{attempt}'")
        self.discard(connection, staged)

    def discard(self, connection: Connection, staged: Committable) -> None:
        connection.execute(f"DELETE FROM {self.target()}_st WHERE attempt = '{staged.data['attempt']}'")


class StoreWriter(SinkWriter):
    def __init__(self, database: DatabaseContext, attempt: str) -> None:
        self.database, self.attempt, self.rows = database, attempt, 0

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self.database.run(f"INSERT INTO {self.database.table}_st VALUES ('{self.attempt}', {row['id']}, '{row['name']}')")
        self.rows += batch.num_rows

    def prepare(self) -> Committable:
        return Committable(self.rows, {"attempt": self.attempt})


def test_a_sink_of_an_author_commits_rows_and_ledger_row_in_one_transaction(database: DatabaseContext) -> None:
    database.run(f"CREATE TABLE {database.table}_st (attempt VARCHAR(100), id BIGINT, name VARCHAR(100))")
    sink: Any = Store.of({"sinkId": database.table})
    sink.database = database
    first = Batch(sink.sink_id(), "a-query", 0)
    rows = pa.RecordBatch.from_pylist([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])

    def staged(batch: Batch) -> list[Committable]:
        return [stage(sink, batch, rows.schema, 0, iter([rows]))]

    Commit(sink).finish(first, staged(first))
    assert sorted(row["id"] for row in database.rows()) == [1, 2]
    assert Commit(sink).begin(first) is Verdict.SKIP
    Commit(sink).finish(first, staged(first))  # a replay
    with pytest.raises(CommitRefused, match="has been committed by another run"):
        sink.committer().commit(Entry("a-query", 0), staged(first))

    second = Batch(sink.sink_id(), "a-query", 1)
    sink.publish = lambda connection, committable: (Store.publish(sink, connection, committable), refuse())
    with pytest.raises(Poison):
        Commit(sink).finish(second, staged(second))
    assert sorted(row["id"] for row in database.rows()) == [1, 2]
    last = sink.committer().last("a-query")
    assert last is not None
    assert last.batch == 0
    assert sink.committer().queries() == {"a-query"}
    database.run(f"DROP TABLE {database.table}_st")


def refuse() -> None:
    raise Poison("a row that is refused after all others")
