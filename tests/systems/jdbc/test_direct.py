"""Rows that go straight into the table: how they are grouped, tried again and refused."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal, Guarantee, Misconfigured, Transient
from connectors.core.writing import stage
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.direct import DirectWriter
from connectors.systems.jdbc.load import RowLoader
from connectors.testing.servers import HOST, PostgresServer
from tests.servers import required

from .contexts import DatabaseContext
from .proxy import Proxy
from .test_operations import DATABASES, KEYED, ROWS, UPSERT, content, rows

SLOW = {"batch.maxTime": "1 hour"}


@pytest.fixture(params=DATABASES, ids=lambda kind: kind.__name__.removesuffix("Context").lower())
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseContext]:
    class Keyed(request.param):  # type: ignore[name-defined, misc]
        body = KEYED
        extra = {"guarantee": "at-least-once"}  # noqa: RUF012

    database = Keyed(tmp_path / "target")
    with contextlib.closing(database):
        yield database


def write(database: DatabaseContext, *batches: Any, **options: str) -> JdbcSink:
    sink = JdbcSink.of({**database.options(), **options})
    stage(sink, Batch(sink.sink_id(), "query", 0), batches[0].schema, 0, iter(batches))
    return sink


def test_inserts_upserts_updates_and_deletes(database: DatabaseContext) -> None:
    sink = write(database, rows((1, "a", 1), (2, "b", 2), (3, "c", 3)))
    assert sink.guarantee() is Guarantee.AT_LEAST_ONCE
    write(database, rows((2, "B", 4), (4, "d", 4)), **UPSERT, guarantee="idempotent")
    write(database, rows((1, "A", 9), (8, "x", 8)), operation="update", keyColumns="id", updateColumns="name")
    gone = ROWS.append(pa.field("gone", pa.bool_()))
    write(database, rows((3, "c", 3, True), (5, "e", 5, False), schema=gone), **UPSERT, deleteColumn="gone")
    assert content(database) == [(1, "A", 1), (2, "B", 4), (4, "d", 4), (5, "e", 5)]


def test_bad_rows_are_left_out_of_their_transaction(database: DatabaseContext) -> None:
    if not JdbcSink.of(database.options()).dialect().savepoints:
        pytest.skip("no savepoints")
    write(database, rows((1, "a", 1), (None, "b", 2), (3, "c", 3)), errors="skip")
    assert content(database) == [(1, "a", 1), (3, "c", 3)]


def test_of_a_key_in_one_flush_the_last_wins_by_its_order(database: DatabaseContext) -> None:
    write(database, rows((1, "new", 5), (1, "old", 2), (1, "none", None)), **UPSERT, orderColumn="n")
    assert content(database) == [(1, "new", 5)]
    with pytest.raises(Fatal, match="orderColumn"):
        write(database, rows((2, "a", 1), (2, "b", 1)), **UPSERT)


ORDERED = {**UPSERT, "orderColumn": "n", "guarantee": "idempotent", **SLOW}


@pytest.mark.parametrize("operation", ["upsert", "update"])
def test_an_older_row_of_a_later_flush_does_not_win(database: DatabaseContext, operation: str) -> None:
    write(database, rows((1, "first", 3), (2, "null", None), (3, "x", 1)))
    changes = rows((1, "new", 5), (2, "b", 2), (1, "old", 4), (2, "null", None), (3, "same", 1))
    write(database, changes, **{**ORDERED, "operation": operation, "batchsize": "2"})
    assert content(database) == [(1, "new", 5), (2, "b", 2), (3, "same", 1)]


def test_a_table_that_is_made_or_widened_gets_the_order_that_flushes_are_compared_by(database: DatabaseContext) -> None:
    ordered = ROWS.append(pa.field("version", pa.int64()))
    table = f"{database.table}_made"
    for name, option in ((table, "createTable"), (database.table, "evolveSchema")):
        options = {**ORDERED, "orderColumn": "version", "dbtable": name, option: "true"}
        write(database, rows((1, "new", 1, 2), schema=ordered), **options)
        write(database, rows((1, "old", 1, 1), schema=ordered), **options)
        assert database.query(f"SELECT name, version FROM {name}") == [("new", 2)]
    database.run(f"DROP TABLE {table}")


def test_an_order_that_later_flushes_cannot_be_compared_by_is_refused(database: DatabaseContext) -> None:
    ordered = ROWS.append(pa.field("version", pa.int64()))
    with pytest.raises(Misconfigured, match=r'orderColumn +names "version", which .* lacks'):
        write(database, rows((1, "a", 1, 1), schema=ordered), **{**ORDERED, "orderColumn": "version"})
    with pytest.raises(Misconfigured, match=r"updateColumns +must have n, the orderColumn"):
        write(database, rows((1, "a", 1)), **ORDERED, updateColumns="name")
    with pytest.raises(Misconfigured, match=r"orderColumn +and deleteColumn need guarantee=exactly-once"):
        write(database, rows((1, "a", 1)), **ORDERED, deleteColumn="gone")


def test_rejects_of_a_flush_that_is_tried_again_count_once(database: DatabaseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    if not JdbcSink.of(database.options()).dialect().savepoints:
        pytest.skip("no savepoints")
    sink = JdbcSink.of({**database.options(), "errors": "skip", "retry.maxRetries": "3"})
    outages, commit = iter((True, False, True)), RowLoader.commit

    def lost(loader: RowLoader) -> None:
        if next(outages, False):
            raise Transient("the connection is lost before COMMIT")
        commit(loader)

    monkeypatch.setattr(RowLoader, "commit", lost)
    batch = Batch(sink.sink_id(), "query", 0)
    writer: Any = sink.writer(batch, ROWS, 0)
    with contextlib.closing(writer):
        writer.write(rows((1, "a", 1), (None, "b", 2), (3, "c", 3)))
        writer.prepare()
    assert writer.rejects.count == 1
    assert content(database) == [(1, "a", 1), (3, "c", 3)]


def test_a_text_with_a_zero_byte_is_a_bad_row_of_postgresql(tmp_path: Path) -> None:
    class Postgres(DATABASES[0]):  # type: ignore[name-defined, misc]
        body = KEYED

    with contextlib.closing(Postgres(tmp_path / "target")) as database:
        bad = rows((1, "a", 1), (2, "b\0", 2))
        write(database, bad, guarantee="at-least-once", commit="auto", errors="skip")
        write(database, rows((3, "\0", 1)), **UPSERT, guarantee="idempotent", commit="auto", errors="skip")
        assert content(database) == [(1, "a", 1)]


def test_transactions_have_as_many_rows_as_was_asked(database: DatabaseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    inner = DirectWriter._write
    monkeypatch.setattr(DirectWriter, "_write", lambda self, batch: (sizes.append(len(batch)), inner(self, batch))[1])
    many = [(number, "x", 0) for number in range(25)]
    write(database, rows(*many[:4]), rows(*many[4:]), batchsize="10", **SLOW)
    assert sizes == [10, 10, 5]
    assert len(content(database)) == 25


def test_rows_that_wait_are_written_when_the_time_is_over(database: DatabaseContext) -> None:
    sink = JdbcSink.of({**database.options(), "batch.maxTime": "20ms"})
    arrived = threading.Event()

    def slow() -> Iterator[Any]:
        yield rows((1, "a", 1))
        until = time.monotonic() + 60
        while not content(database):
            assert time.monotonic() < until, "the row was not written while the query waited"
            time.sleep(0.05)  # a database in a file has one user at a time: leaves it to the writer
        arrived.set()
        yield rows((2, "b", 2))

    stage(sink, Batch(sink.sink_id(), "query", 0), ROWS, 0, slow())
    assert arrived.is_set()
    assert content(database) == [(1, "a", 1), (2, "b", 2)]


def test_tasks_that_add_keys_side_by_side_do_not_lock_each_other_out(database: DatabaseContext) -> None:
    """MariaDB locks the gap of a key that is not there; with a retry, this test would hide a deadlock."""
    if JdbcSink.of(database.options()).dialect().one_writer:
        pytest.skip("one writer at a time")
    options = {**UPSERT, "guarantee": "idempotent", "commit": "auto", "batchsize": "100", "retry.maxRetries": "0"}
    options["outageTimeout"] = "0s"
    parts = [rows(*[(4 * number + task, "x", task) for number in range(1000)]) for task in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(write, database, part, **options) for part in parts]:
            future.result()
    assert len(content(database)) == 4000


def test_rows_go_through_a_view_of_postgresql_which_takes_no_copy(tmp_path: Path) -> None:
    class Postgres(DATABASES[0]):  # type: ignore[name-defined, misc]
        body = KEYED

    with contextlib.closing(Postgres(tmp_path / "target")) as database:
        view = f"{database.table}_view"
        database.run(f"CREATE VIEW {view} AS SELECT * FROM {database.table}")
        write(database, rows((1, "a", 1)), dbtable=view, guarantee="at-least-once", commit="auto")
        assert content(database) == [(1, "a", 1)]
        database.run(f"DROP VIEW {view}")


def test_a_lost_connection_is_tried_again(tmp_path: Path) -> None:
    class Postgres(DATABASES[0]):  # type: ignore[name-defined, misc]
        body = KEYED

    with contextlib.closing(Postgres(tmp_path / "target")) as database, Proxy(required(PostgresServer).port) as proxy:
        proxy.arm("COMMIT\0", "before", times=2)
        url = f"postgresql://{HOST}:{proxy.port}/postgres"
        write(database, rows((1, "a", 1)), **UPSERT, url=url, guarantee="idempotent", commit="auto")
        assert proxy.dropped == 2
        assert content(database) == [(1, "a", 1)]
