"""Ledgers, staging tables and prepared transactions that earlier versions of the sink have left, in their own SQL."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest

from connectors.core.commit import Commit
from connectors.core.ledger import Verdict
from connectors.core.state import digest, dumps, loads
from connectors.systems.jdbc import JdbcSink

from .contexts import DatabaseContext, Preparing, table_in
from .faults import EXPECTED, Prepare, PrepareOnMariaDb, batch_of, sink_of, staged
from .test_operations import content

preparing = table_in(postgresql=Prepare, mariadb=PrepareOnMariaDb)
QUERY = "11111111-query"
RANDOM = "0123456789abcdef01234567"


def schema_of(database: DatabaseContext) -> str:
    return database.table.split(".")[0]


def prepared_name(sink: JdbcSink, number: int, task: int) -> str:
    """Sink, batch, and a time and random part in one; without a run."""
    return f"connectors-{digest(sink.sink_id())}-{digest(sink.sink_id(), QUERY, number)}-6720a3b{task}{RANDOM}"


def prepare(database: DatabaseContext, name: str, rows: str) -> None:
    """Without a marker."""
    with contextlib.closing(database.connect()) as connection:
        connection.execute(connection.dialect.begin_prepared(name))
        connection.execute(f"INSERT INTO {database.table} VALUES {rows}")
        for statement in connection.dialect.prepare(name):
            connection.execute(statement)


def record(database: DatabaseContext, sink: JdbcSink, number: int, names: Sequence[str]) -> None:
    """The ledger of a batch that is decided; ``names`` are those of its prepared transactions."""
    ledger = f"{schema_of(database)}.connectors_ledger"
    database.run(
        f"CREATE TABLE IF NOT EXISTS {ledger} (sink_id VARCHAR(200) NOT NULL, query VARCHAR(200) NOT NULL, "
        "batch BIGINT NOT NULL, entry TEXT NOT NULL, PRIMARY KEY (sink_id, query))"
    )
    committables = [{"prepared": name} for name in names]
    entry = {"v": 1, "query": QUERY, "batch": number, "rows": 3, "committables": committables, "at": 1.7e9, "replace": False}
    database.run(f"INSERT INTO {ledger} VALUES ('{sink.sink_id()}', '{QUERY}', {number}, '{dumps(entry)}')")


@pytest.mark.parametrize("mode", ["auto", "batch", "prepared"])
def test_a_batch_that_was_decided_is_carried_through(preparing: Preparing, mode: str) -> None:
    """One of its transactions is committed by then, and its name gone."""
    sink = sink_of(preparing, commit=mode)
    names = [prepared_name(sink, 0, task) for task in range(2)]
    preparing.run(f"INSERT INTO {preparing.table} VALUES (1, 'a', 1), (2, 'b', 2)")
    prepare(preparing, names[1], "(3, 'c', 3)")
    record(preparing, sink, 0, names)
    assert Commit(sink).begin(batch_of(sink)) is Verdict.SKIP
    assert (content(preparing), preparing.prepared()) == (EXPECTED, [])
    ((entry,),) = preparing.query(f"SELECT entry FROM {schema_of(preparing)}.connectors_ledger")
    assert loads(entry, "the entry")["committables"] == []
    commit = Commit(sink)
    assert commit.begin(batch_of(sink, 1)) is Verdict.WRITE
    commit.drop_attempts(batch_of(sink, 1))
    commit.finish(batch_of(sink, 1), staged(sink, batch_of(sink, 1)))
    assert content(preparing) == sorted(EXPECTED * 2)


def test_what_was_prepared_and_not_decided_is_rolled_back_by_the_next_start(preparing: Preparing) -> None:
    sink = sink_of(preparing)
    batch = batch_of(sink, 1, run="new")
    record(preparing, sink, 0, [])
    prepare(preparing, prepared_name(sink, 1, 0), "(9, 'rolled back', 9)")
    commit = Commit(sink)
    assert commit.begin(batch) is Verdict.WRITE
    assert len(preparing.prepared()) == 1
    commit.drop_attempts(batch)
    assert preparing.prepared() == []
    commit.finish(batch, staged(sink, batch))
    assert content(preparing) == EXPECTED


def test_staging_tables_are_dropped_by_the_next_start(preparing: Preparing) -> None:
    sink = sink_of(preparing, commit="batch")
    batch = batch_of(sink, 1, run="new")
    record(preparing, sink, 0, [])
    stage = f"cst_{digest(sink.sink_id(), length=8)}_{batch.prefix()}_00075bcd_{RANDOM}"
    preparing.run(f"CREATE TABLE {schema_of(preparing)}.{stage} (c0 BIGINT, c1 TEXT, c2 INTEGER)")
    Commit(sink).drop_attempts(batch)
    catalog = "SELECT table_name FROM information_schema.tables WHERE table_name = '{}'"
    assert preparing.query(catalog.format(stage)) == []
