"""Connections that load: the next load of a process takes an idle one, and never with an open transaction."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connectors.core.batch import Batch
from connectors.core.commit import Commit
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.connection import pooled_connection
from connectors.systems.jdbc.dialects import Dialect, Table
from connectors.systems.jdbc.load import CopyLoader
from connectors.systems.jdbc.prepared import prepared_name

from .contexts import DatabaseContext, PreparedContext, table_in
from .faults import Keyless, KeylessOnMariaDb, batch_of, sink_of, staged

ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]})
preparing = table_in(prepared=PreparedContext)
database = table_in(postgresql=Keyless, mariadb=KeylessOnMariaDb)


@pytest.fixture
def dialect(preparing: PreparedContext) -> Dialect:
    return JdbcSink.of(preparing.options()).dialect()


@pytest.fixture
def table(preparing: PreparedContext) -> Table:
    schema, _, name = preparing.table.partition(".")
    return Table(name, schema)


@pytest.fixture
def batch(preparing: PreparedContext) -> Batch:
    return Batch(JdbcSink.of(preparing.options()).sink_id(), "a-query", 0)


def server_process(loader: CopyLoader) -> int:
    return loader.connection.rows("SELECT pg_backend_pid()")[0][0]


def load(dialect: Dialect, table: Table) -> CopyLoader:
    loader = CopyLoader(dialect)
    loader.begin()
    loader.load(table, ROWS)
    return loader


def test_a_connection_outlives_what_it_has_prepared(
    preparing: PreparedContext, dialect: Dialect, table: Table, batch: Batch
) -> None:
    processes, names = set(), [prepared_name(batch) for _ in range(3)]
    for name in names:
        loader = load(dialect, table)
        processes.add(server_process(loader))
        loader.prepare(dialect.prepare(name))
        loader.close()
    assert len(processes) == 1
    assert preparing.prepared() == sorted(names)
    assert preparing.rows() == []


def test_a_connection_with_rows_that_nobody_has_committed_is_not_given_to_others(
    preparing: PreparedContext, dialect: Dialect, table: Table
) -> None:
    given_up = CopyLoader(dialect)
    first = server_process(given_up)
    given_up.commit()
    given_up.load(table, ROWS)
    given_up.close()
    other = load(dialect, table)
    assert server_process(other) != first
    other.commit()
    other.close()
    assert len(preparing.rows()) == ROWS.num_rows


def test_the_driver_opens_one_connection_for_all_steps_of_a_batch(
    database: DatabaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(database, **{"request.timeout": "29s"})  # so that no connection of another test is idle for it
    committables = staged(sink, batch_of(sink))
    dialect, opened = type(sink.dialect()), []
    connect = dialect.connect
    monkeypatch.setattr(dialect, "connect", lambda self: (opened.append(self), connect(self))[1])
    commit = Commit(sink)
    commit.begin(batch_of(sink))
    commit.finish(batch_of(sink), committables)
    assert len(opened) == 1


def test_an_idle_connection_that_the_server_has_ended_is_replaced(database: DatabaseContext) -> None:
    dialect = sink_of(database).dialect()
    number = "SELECT pg_backend_pid()" if isinstance(database, Keyless) else "SELECT connection_id()"
    with pooled_connection(dialect) as connection:
        ((first,),) = connection.rows(number)
    with pooled_connection(dialect) as connection:
        assert connection.rows(number) == [(first,)]
    ended = dialect.end_session(first)
    database.query(ended) if isinstance(database, Keyless) else database.run(ended)
    with pooled_connection(dialect) as connection:
        assert connection.rows(number) != [(first,)]
