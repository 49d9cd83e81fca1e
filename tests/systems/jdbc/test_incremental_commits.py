"""Transactions of PostgreSQL that are neither open nor seen: those that are being committed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.connection import Connection
from connectors.systems.jdbc.incremental.writers import Transactions
from connectors.testing.servers import PostgresServer

STATE = "SELECT wait_event FROM pg_stat_activity WHERE pid = {0}"


def test_a_transaction_that_is_being_committed_counts_as_open() -> None:
    """A standby that never answers holds a commit that is on the disk, and whose rows nobody sees."""
    with PostgresServer(synchronous_standby_names="nobody", synchronous_commit="local") as server:
        sink = JdbcSink.of({"url": server.jdbc, "user": server.user, "dbtable": "t"})
        with contextlib.closing(sink.dialect().connect()) as writer, contextlib.closing(sink.dialect().connect()) as reader:
            reader.execute("CREATE TABLE t (id BIGINT)")
            writer.execute("BEGIN")
            writer.execute("SET LOCAL synchronous_commit = on")
            writer.execute("INSERT INTO t VALUES (1)")
            ((number, pid),) = writer.rows("SELECT pg_current_xact_id()::text::bigint, pg_backend_pid()")
            commit = threading.Thread(target=writer.commit)
            commit.start()
            while reader.rows(STATE.format(pid)) != [("SyncRep",)]:
                pass
            reader.execute("INSERT INTO t VALUES (2)")  # a newer one is over, without the standby
            assert reader.rows("SELECT id FROM t") == [(2,)]
            assert number in _open(reader)
            reader.execute(f"SELECT pg_cancel_backend({pid})")  # the commit then does without the standby
            commit.join(30)
            assert reader.rows("SELECT count(*) FROM t") == [(2,)]
            assert number not in _open(reader)


class OlderServer:
    """Answers as releases of PostgreSQL that call a transaction committed a moment before its rows can be seen."""

    def rows(self, sql: str, values: Sequence[int] = ()) -> list[tuple[int, ...]]:
        if "pg_snapshot_xmax" in sql:
            return [(105, 100)]
        return [(102,)] if "pg_snapshot_xip" in sql else []  # all are over, and 102 is not seen


def test_what_is_committed_and_not_seen_counts_as_open_and_so_do_its_subtransactions() -> None:
    server: Any = OlderServer()
    assert Transactions().ended(server).open == ((102, 104),)


def _open(reader: Connection) -> set[int]:
    return {n for first, last in Transactions().ended(reader).open for n in range(first or 0, last + 1)}
