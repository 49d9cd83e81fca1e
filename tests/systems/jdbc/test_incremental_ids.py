"""Ids that become visible late are read once: of prepared transactions over a restart, and of open ones in MariaDB."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.core.errors import Misconfigured
from connectors.core.planning import Offset
from connectors.systems.jdbc.incremental.writers import Holes, Writers
from connectors.systems.jdbc.source import JdbcSource
from connectors.testing.servers import PostgresServer
from connectors.testing.source_suite import SourceQuery

from .contexts import MariaDbContext, PostgresContext
from .incremental_writers import Schedule, Writer
from .test_incremental_writers import BODY, Growing

MARIADB_BODY = "id BIGINT AUTO_INCREMENT PRIMARY KEY, version BIGINT, changed DATETIME(6)"


class InMariaDb(Growing):
    database = type("Database", (MariaDbContext,), {"body": MARIADB_BODY})


@pytest.fixture
def mariadb(tmp_path: Path) -> Iterator[InMariaDb]:
    with contextlib.closing(InMariaDb(tmp_path / "system")) as system:
        yield system


def insert(connection: Any, table: str) -> None:
    connection.execute(f"INSERT INTO {table} (version, changed) VALUES (0, now())")


def ids(reading: SourceQuery, log: list[Offset]) -> list[int]:
    return [row["id"] for row in reading.rest(log)]


def test_ids_of_a_transaction_that_was_prepared_before_a_restart_are_read_when_it_is_committed(tmp_path: Path) -> None:
    with PostgresServer() as server:

        class Own(PostgresContext):
            body = BODY

            def address(self) -> dict[str, str]:
                return {"url": server.jdbc, "user": server.user}

        system = type("System", (Growing,), {"database": Own})(tmp_path / "system")
        table = system.target.table
        with contextlib.closing(system.target.connect()) as writer:
            writer.execute("BEGIN")
            insert(writer, table)
            system.target.run(f"INSERT INTO {table} (version, changed) VALUES (0, now())")
            reading, log = SourceQuery(system), list[Offset]()
            assert ids(reading, log) == [2]
            writer.execute("PREPARE TRANSACTION 'late'")
        server.kill()
        server.relaunch()
        with contextlib.closing(system.target.connect()) as other:
            insert(other, table)
            ((after,),) = other.rows(f"SELECT max(id) FROM {table}")  # a crash may skip some ids of a sequence
            assert ids(reading, log) == [after]
            other.execute("COMMIT PREPARED 'late'")
        assert ids(reading, log) == [1]
        reading.planner.close()


def test_a_hole_that_was_given_up_is_not_watched_for_a_transaction_that_a_restart_has_renamed() -> None:
    holes, hole = Holes(), [(1, 1)]
    holes.watch("t", hole, Writers(frozenset({"3/12"}), frozenset({"3/12"})))
    assert holes.open("t", hole, Writers()) == []
    renamed = frozenset({"-1/700"})
    assert holes.open("t", hole, Writers(renamed, renamed, renamed)) == []


def test_mariadb_commits_ids_out_of_order_and_each_is_read_once(mariadb: InMariaDb) -> None:
    table = mariadb.target.table
    with contextlib.closing(mariadb.target.connect()) as first, contextlib.closing(mariadb.target.connect()) as second:
        first.execute("BEGIN")
        insert(first, table)
        insert(second, table)
        reading, log = SourceQuery(mariadb), list[Offset]()
        assert ids(reading, log) == [2]
        insert(second, table)
        assert ids(reading, log) == [3]
        first.commit()
        assert ids(reading, log) == [1]
        reading.planner.close()


def test_mariadb_reads_ids_of_a_prepared_transaction_whose_session_is_gone(mariadb: InMariaDb) -> None:
    table, name = mariadb.target.table, f"'{uuid.uuid4().hex}'"
    with contextlib.closing(mariadb.target.connect()) as other:
        with contextlib.closing(mariadb.target.connect()) as writer:
            writer.execute(f"XA START {name}")
            insert(writer, table)
            insert(other, table)
            reading, log = SourceQuery(mariadb), list[Offset]()
            assert ids(reading, log) == [2]
            writer.execute(f"XA END {name}")
            writer.execute(f"XA PREPARE {name}")
        insert(other, table)
        assert ids(reading, log) == [3]
        while other.rows("SELECT 1 FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = 0") == []:
            pass
        other.execute(f"XA COMMIT {name}")
        assert ids(reading, log) == [1]
        reading.planner.close()


class InSessions(Schedule):
    """Writers of MariaDB, which has no PREPARE of an ordinary transaction."""

    def insert(self, writer: Writer) -> None:
        rows = ", ".join(["(0, now(6))"] * self.chance.randint(1, 3))
        self.run_sql(writer, f"INSERT INTO {self.table} (version, changed) VALUES {rows}")

    def end(self, writer: Writer) -> None:
        if writer.busy:
            self.run_sql(writer, self.chance.choice(("COMMIT", "COMMIT", "ROLLBACK")))
            writer.busy, writer.depth = False, 0


@pytest.mark.parametrize("seed", range(4))
def test_every_id_of_mariadb_is_read_once_whatever_the_order_of_commits(mariadb: InMariaDb, seed: int) -> None:
    InSessions(mariadb, seed, updates=False).run(45)


def test_a_user_who_may_not_see_other_transactions_is_told_what_to_grant(mariadb: InMariaDb) -> None:
    user, table = f"u{uuid.uuid4().hex[:12]}", mariadb.target.table
    with contextlib.closing(JdbcSource.of({**mariadb.options(), "user": "root", "password": ""}).dialect().connect()) as root:
        root.execute(f"CREATE USER {user}@'%' IDENTIFIED BY 'x'")
        root.execute(f"GRANT ALL ON {table.split('.')[0]}.* TO {user}@'%'")
        root.execute(f"GRANT SELECT ON test.* TO {user}@'%'")
    mariadb.mode = {**mariadb.mode, "user": user, "password": "x"}
    insert_one(mariadb)
    with pytest.raises(Misconfigured, match=r"user +may not see .* GRANT PROCESS .*singleWriter=true"):
        ids(SourceQuery(mariadb), [])
    assert ids(SourceQuery(mariadb, singleWriter="true"), []) == [1]


def insert_one(system: InMariaDb) -> None:
    with contextlib.closing(system.target.connect()) as connection:
        insert(connection, system.target.table)


def test_single_writer_is_refused_where_rows_are_read_by_time(mariadb: InMariaDb) -> None:
    with pytest.raises(Misconfigured, match=r"singleWriter +has no use with incremental=timestamp"):
        SourceQuery(mariadb, incremental="timestamp", timestampColumns="changed", incrementingColumn="", singleWriter="true")
