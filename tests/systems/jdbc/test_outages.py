"""The server goes away, or ends a transaction, at the worst moments; every row is compared."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Batch, Fatal, Transient
from connectors.core.commit import Commit
from connectors.core.ledger import Verdict
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.connection import LockTimeout
from connectors.systems.jdbc.dialects.base import Dialect
from connectors.systems.jdbc.load import CopyLoader
from connectors.systems.jdbc.prepared import lock_name
from connectors.testing.servers import HOST, MariaDbServer, PostgresServer
from tests.servers import optional, required

from .contexts import DatabaseContext, MariaDbContext, PostgresContext, PreparedMariaDbContext, Preparing, table_in
from .faults import BATCH, EXPECTED, Keyless, KeylessOnMariaDb, Prepare, PrepareOnMariaDb, batch_of, sink_of, staged
from .proxy import Proxy
from .test_operations import UPSERT, content

database = table_in(batch=Keyless, prepared=Prepare)
preparing = table_in(postgresql=Prepare, mariadb=PrepareOnMariaDb)
everywhere = table_in(batch=Keyless, prepared=Prepare, mariadb=KeylessOnMariaDb, prepared_mariadb=PrepareOnMariaDb)


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


def test_a_query_waits_for_a_database_that_starts_later_if_it_is_told_to(database: PostgresContext) -> None:
    with socket.create_server((HOST, 0)) as place:
        port = place.getsockname()[1]
    url = f"postgresql://{HOST}:{port}/postgres"
    options = {"retry.maxRetries": "0", "outageTimeout": "60s"}
    hasty = sink_of(database, url=url, sinkId="early", **options)
    with pytest.raises(Transient):
        Commit(hasty).begin(batch_of(hasty))
    sink = sink_of(database, url=url, sinkId="early", **options, **{"outageTimeout.atStart": "true"})
    with contextlib.ExitStack() as later, ThreadPoolExecutor(1) as thread:
        starting = thread.submit(lambda: time.sleep(1) or later.enter_context(Proxy(required(PostgresServer).port, port)))
        commit, batch = Commit(sink), batch_of(sink)
        assert commit.begin(batch) is Verdict.WRITE
        starting.result()
        commit.finish(batch, staged(sink, batch))
        assert content(database) == EXPECTED


def is_mariadb(database: DatabaseContext) -> bool:
    return isinstance(database, MariaDbContext)


@contextlib.contextmanager
def through_proxy(database: DatabaseContext) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the database's server, and the URL through it."""
    port = (optional(MariaDbServer) if is_mariadb(database) else required(PostgresServer)).port
    with Proxy(port) as proxy:
        yield proxy, database.address()["url"].replace(f":{port}/", f":{proxy.port}/")


def test_the_server_ends_a_session_whose_commit_got_lost_and_the_next_try_goes_on(
    everywhere: DatabaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sees a client that says nothing, and holds the ledger's row and the lock of the sink for it."""
    monkeypatch.setattr(Dialect, "idle_seconds", 1.0)
    with through_proxy(everywhere) as (proxy, url):
        sink = sink_of(everywhere, url=url, **{"request.timeout": "4s", "retry.maxRetries": "1", "outageTimeout": "0s"})
        batch = batch_of(sink)
        committables = staged(sink, batch)
        proxy.arm("\x03COMMIT" if is_mariadb(everywhere) else "COMMIT\0", "half")
        Commit(sink).finish(batch, committables)
        assert proxy.dropped == 1
    assert content(everywhere) == EXPECTED


def test_the_server_ends_the_session_of_a_task_whose_last_statement_got_lost(
    preparing: Preparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dialect, "idle_seconds", 1.0)
    with through_proxy(preparing) as (proxy, url):
        sink = sink_of(preparing, url=url)
        writer = sink.writer(batch_of(sink), BATCH[0].schema, 0)
        writer.write(BATCH[0])
        proxy.arm("XA PREPARE" if is_mariadb(preparing) else "PREPARE TRANSACTION", "half")
        with pytest.raises(Transient):
            writer.prepare()
        writer.close()
        assert proxy.dropped == 1
        preparing.run(
            f"LOCK TABLES {preparing.table} WRITE WAIT 30" if is_mariadb(preparing)
            else f"SET lock_timeout = '30s'; BEGIN; LOCK TABLE {preparing.table} IN EXCLUSIVE MODE"
        )  # fmt: skip


def test_a_task_may_wait_for_its_query_as_long_as_it_takes(preparing: Preparing) -> None:
    sink = sink_of(preparing)
    writer: Any = sink.writer(batch_of(sink), BATCH[0].schema, 0)
    writer.write(BATCH[0])
    writer._load()
    limit = "@@idle_transaction_timeout" if is_mariadb(preparing) else "current_setting('idle_in_transaction_session_timeout')"
    assert str(writer._loader.connection.rows(f"SELECT {limit}")[0][0]) == "0"
    writer._loader.limit_idle()
    assert str(writer._loader.connection.rows(f"SELECT {limit}")[0][0]) in ("30", "30s")
    writer.close()


def test_postgresql_asks_a_silent_client_whether_it_lives(tmp_path: Path) -> None:
    with contextlib.closing(Keyless(tmp_path / "target")) as database:
        dialect: Any = sink_of(database, **{"request.timeout": "12s"}).dialect()
        loader = CopyLoader(dialect)
        for connection in (dialect.connect(), loader.connection):
            names = "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"
            settings = [connection.rows(f"SELECT current_setting('{name}')")[0][0] for name in names]
            assert settings == ["12", "4", "3", "12000"]
            connection.close()


def test_a_session_that_keeps_a_batch_from_being_committed_is_named(everywhere: DatabaseContext) -> None:
    sink = sink_of(everywhere, **{"request.timeout": "1s", "retry.maxRetries": "0", "outageTimeout": "0s"})
    Commit(sink).finish(batch_of(sink), staged(sink, batch_of(sink)))
    later = batch_of(sink, 1)
    committables = staged(sink, later)
    with contextlib.closing(everywhere.connect()) as other:
        other.execute(other.dialect.begin)
        other.execute(f"UPDATE {everywhere.table.split('.')[0]}.connectors_ledger SET batch = batch")
        number = other.rows("SELECT connection_id()" if is_mariadb(everywhere) else "SELECT pg_backend_pid()")[0][0]
        command = f"KILL {number}" if is_mariadb(everywhere) else f"SELECT pg_terminate_backend({number})"
        with pytest.raises(LockTimeout, match=rf"session {number} of .* since 20") as timeout:
            Commit(sink).finish(later, committables)
        assert command in timeout.value.way_out
        everywhere.query(command) if not is_mariadb(everywhere) else everywhere.run(command)
    Commit(sink).finish(later, staged(sink, later))
    assert content(everywhere) == sorted(EXPECTED * 2)


def test_a_session_that_has_the_lock_of_the_sink_is_named(preparing: Preparing) -> None:
    sink = sink_of(preparing, **{"request.timeout": "1s", "retry.maxRetries": "0", "outageTimeout": "0s"})
    batch = batch_of(sink)
    committables = staged(sink, batch)
    with contextlib.closing(preparing.connect()) as other:
        number = other.rows("SELECT connection_id()" if is_mariadb(preparing) else "SELECT pg_backend_pid()")[0][0]
        other.dialect.lock(other, lock_name(sink.sink_id()))
        with pytest.raises(LockTimeout, match=rf"session {number} of .* since 20"):
            Commit(sink).finish(batch, committables)
    Commit(sink).finish(batch, committables)
    assert content(preparing) == EXPECTED


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
        url, impatient = f"postgresql://{HOST}:{proxy.port}/postgres", {"retry.maxRetries": "1", "outageTimeout": "0s"}
        sink = sink_of(database, url=url, **impatient)
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
        address = {"url": server.jdbc, "user": server.user, "dbtable": "t", "createTable": "true"}
        address |= {"retry.maxRetries": "0", "outageTimeout": "0s"}
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
                copied = connection.rows("SELECT id, name, n FROM t")
            assert sorted(copied) == sorted(EXPECTED * (1 if way == "batch" else 2))


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
        writer = threading.Thread(target=lambda: Commit(sink).finish(batch_of(sink, 1), staged(sink, batch_of(sink, 1))))
        writer.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        while writer.is_alive() and not database.query(waiting):
            pass
        other.execute("SET deadlock_timeout = '60s'")  # the other one finds it
        other.execute(f"UPDATE {database.table} SET n = 0 WHERE id = 1")
        other.execute("COMMIT")
        other.close()
        writer.join()
        assert content(database) == EXPECTED
