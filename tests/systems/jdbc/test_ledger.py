"""The rows of the ledger belong to the sinks and queries whose names they have, to the letter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.ledger import Entry
from connectors.core.state import dumps
from connectors.systems.jdbc.connection import Connection
from connectors.systems.jdbc.dialects import Table
from connectors.systems.jdbc.ledger import TableLedger

from .contexts import DatabaseContext, MariaDbContext
from .test_operations import DATABASES

NAMES = ("load", "Load", "load ", "löad")
"""Names that are one and the same for MariaDB's usual collation, and for one that pads."""
LEDGER_BEFORE = (
    "CREATE TABLE {0} (sink_id VARCHAR(200) NOT NULL, query VARCHAR(200) NOT NULL, batch BIGINT NOT NULL, entry TEXT NOT NULL, "
    "PRIMARY KEY (sink_id, query)) DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
)


@pytest.fixture(params=DATABASES, ids=lambda kind: kind.__name__.removesuffix("Context").lower())
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseContext]:
    with contextlib.closing(request.param(tmp_path / "target")) as made:
        yield made


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
            assert {entry.query: entry.batch for entry in ledger.entries(connection)} == {"query": number, "Query": number + 10}


def test_a_ledger_of_mariadb_that_an_earlier_version_made_is_altered(tmp_path: Path) -> None:
    database = MariaDbContext(tmp_path / "target")
    with contextlib.closing(database), contextlib.closing(database.connect()) as connection:
        table = table_of(database)
        connection.execute(LEDGER_BEFORE.format(connection.dialect.table(table)))
        before = Entry("query", 7, at=1.0)
        sql = f"INSERT INTO {connection.dialect.table(table)} VALUES ('load', 'query', 7, %s)"
        connection.execute(sql, [dumps(before.state())])
        last = {name: ledger.last(connection, "query") for name, ledger in ledgers(connection, table).items()}
        assert last == {"load": before, "Load": None, "load ": None, "löad": None}
        TableLedger(connection.dialect, table, "Load").record(connection, Entry("query", 1))
        assert TableLedger(connection.dialect, table, "load").last(connection, "query") == before
