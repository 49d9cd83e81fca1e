"""The server goes away, or ends a transaction, at the worst moments; every row is compared."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from connectors.core import Batch, Fatal, Transient
from connectors.core.commit import Commit
from connectors.core.ledger import Verdict
from connectors.systems.jdbc import JdbcSink
from connectors.testing.servers import HOST, MariaDbServer, PostgresServer
from tests.servers import optional, required

from .contexts import PostgresContext, PreparedMariaDbContext, Preparing, table_in
from .faults import EXPECTED, Keyless, Prepare, PrepareOnMariaDb, batch_of, sink_of, staged
from .proxy import Proxy
from .test_operations import UPSERT, content

database = table_in(batch=Keyless, prepared=Prepare)
preparing = table_in(postgresql=Prepare, mariadb=PrepareOnMariaDb)


@pytest.mark.parametrize("when", ["before", "at", "after"])
def test_a_connection_lost_around_commit_loses_and_doubles_nothing(database: PostgresContext, when: str) -> None:
    with Proxy(required(PostgresServer).port) as proxy:
        sink = sink_of(database, url=f"postgresql://{HOST}:{proxy.port}/postgres", sinkId=f"lost {when}")
        batch = batch_of(sink)
        commit = Commit(sink)
        commit.begin(batch)
        committables = staged(sink, batch)
        proxy.arm("COMMIT\0", when)
        commit.finish(batch, committables)
        assert proxy.dropped == 1
        assert content(database) == EXPECTED
        assert Commit(sink).begin(batch) is Verdict.SKIP


def test_a_connection_lost_at_commit_prepared_is_made_good_in_the_same_run(preparing: Preparing) -> None:
    mariadb = isinstance(preparing, PreparedMariaDbContext)
    server, word = (optional(MariaDbServer), "XA COMMIT") if mariadb else (required(PostgresServer), "COMMIT PREPARED")
    with Proxy(server.port) as proxy:
        sink = sink_of(preparing, url=preparing.address()["url"].replace(str(server.port), str(proxy.port)))
        batch = batch_of(sink)
        committables = staged(sink, batch)
        proxy.arm(word, "before")
        Commit(sink).finish(batch, committables)
        assert proxy.dropped == 1
    assert content(preparing) == EXPECTED


def test_an_outage_that_lasts_fails_the_batch_and_the_next_run_writes_it(database: PostgresContext) -> None:
    with Proxy(required(PostgresServer).port) as proxy:
        sink = sink_of(database, url=f"postgresql://{HOST}:{proxy.port}/postgres", **{"retry.maxRetries": "1"})
        batch = batch_of(sink)
        committables = staged(sink, batch)
        proxy.arm("BEGIN", "before", times=2)
        with pytest.raises(Transient):
            Commit(sink).finish(batch, committables)
        assert content(database) == []
        commit = Commit(sink)
        assert commit.begin(batch) is Verdict.WRITE
        commit.finish(batch, staged(sink, batch))
    assert content(database) == EXPECTED


def test_a_server_that_restarts_between_stage_and_commit_loses_nothing(tmp_path: Path) -> None:
    """Of its own, since it is killed. Unlogged tables are empty after a crash: that must not become an empty batch."""
    with PostgresServer() as server:
        address = {"url": server.jdbc, "user": server.user, "dbtable": "t", "createTable": "true", "retry.maxRetries": "0"}
        for way in ("batch", "prepared"):
            sink = JdbcSink.of({**address, "commit": way})
            batch = Batch(sink.sink_id(), "22222222-query", 0 if way == "batch" else 1)
            committables = staged(sink, batch)
            if way == "batch":
                with contextlib.closing(sink.dialect().connect()) as connection:
                    connection.execute("CHECKPOINT")
            server.kill()
            server.relaunch()
            if way == "batch":
                with pytest.raises(Fatal, match="3 rows were staged and 0 are there"):
                    Commit(sink).finish(batch, committables)
                commit = Commit(sink)
                assert commit.begin(batch) is Verdict.WRITE
                committables = staged(sink, batch)
            Commit(sink).finish(batch, committables)
            with contextlib.closing(sink.dialect().connect()) as connection:
                found = connection.rows("SELECT id, name, n FROM t")
            assert sorted(found) == sorted(EXPECTED * (1 if way == "batch" else 2))


def test_xa_transactions_outlive_a_killed_server(tmp_path: Path) -> None:
    """Of its own, since it is killed, and with settings by which what is prepared is on the disk."""
    optional(MariaDbServer)
    with MariaDbServer(**{"innodb-flush-log-at-trx-commit": "1", "sync-binlog": "1"}) as server:
        address = {"url": server.jdbc, "user": server.user, "password": server.password, "dbtable": "t"}
        sink = JdbcSink.of({**address, "createTable": "true", "commit": "prepared"})
        batch = batch_of(sink)
        committables = staged(sink, batch)
        server.kill()
        server.relaunch()
        Commit(sink).finish(batch, committables)
        with contextlib.closing(sink.dialect().connect()) as connection:
            assert sorted(connection.rows("SELECT id, name, n FROM t")) == EXPECTED
            assert connection.rows("XA RECOVER") == []


def test_a_deadlock_is_tried_again(tmp_path: Path) -> None:
    class Keyed(PostgresContext):
        body = "id BIGINT PRIMARY KEY, name TEXT, n INTEGER"

    with contextlib.closing(Keyed(tmp_path / "target")) as database:
        sink = sink_of(database, **UPSERT)
        Commit(sink).finish(batch_of(sink), staged(sink, batch_of(sink)))
        other = database.connect()
        other.execute("BEGIN")
        other.execute(f"UPDATE {database.table} SET n = 0 WHERE id = 2")
        ours = threading.Thread(target=lambda: Commit(sink).finish(batch_of(sink, 1), staged(sink, batch_of(sink, 1))))
        ours.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        while ours.is_alive() and not database.query(waiting):
            pass
        other.execute("SET deadlock_timeout = '60s'")  # the other one finds it
        other.execute(f"UPDATE {database.table} SET n = 0 WHERE id = 1")
        other.execute("COMMIT")
        other.close()
        ours.join()
        assert content(database) == EXPECTED
