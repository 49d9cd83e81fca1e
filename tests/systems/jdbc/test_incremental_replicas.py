"""A replica does not show who writes on its primary: a stream of one is refused, unless its options do without that."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pytest

from connectors.core.planning import Offset
from connectors.ground.errors import Misconfigured
from connectors.systems.jdbc.source import JdbcSource
from connectors.testing import SourceContext
from connectors.testing.servers import MariaDbServer, PostgresServer, Unavailable
from connectors.testing.source_suite import SourceQuery

BY_ID = {"incremental": "incrementing"}
BY_TIME = {"incremental": "timestamp", "timestampColumns": "changed"}
BOTH = {**BY_TIME, "incremental": "timestamp+incrementing"}
INSERT = "INSERT INTO t (changed) VALUES (clock_timestamp())"


class Standby(PostgresServer):
    """A hot standby of ``primary``, which must not run until this has copied its data."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self.primary = primary

    def _init(self, data: Path, env: dict[str, str]) -> None:
        shutil.copytree(self.primary.folder / "data", data)
        (data / "standby.signal").touch()
        if not os.getuid():
            for path in (data, *data.rglob("*")):
                shutil.chown(path, "nobody", "nogroup")
        self.settings["primary_conninfo"] = f"host=127.0.0.1 port={self.primary.port} user={self.primary.user}"


class Table(SourceContext):
    """The table ``t`` behind ``url``."""

    source = JdbcSource
    schema = pa.schema([("id", pa.int64())])
    login: ClassVar = {"dbtable": "t", "retry.initialBackoff": "10ms"}

    def __init__(self, url: str, user: str, **more: str) -> None:
        super().__init__(Path())
        self._options = {**self.login, "url": url, "user": user, **more}

    def options(self) -> dict[str, str]:
        return self._options

    def write(self, count: int) -> list[dict[str, Any]]:
        raise NotImplementedError


def ids(table: Table) -> list[int]:
    return sorted(row["id"] for row in SourceQuery(table).rest(list[Offset]()))


def connect(server: PostgresServer, database: str = "postgres") -> psycopg.Connection[Any]:
    address = f"host=127.0.0.1 port={server.port} dbname={database}"
    return psycopg.connect(address, user=server.user, autocommit=True)


def wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def standby() -> Iterator[PostgresServer]:
    """A standby that has two rows."""
    with PostgresServer() as primary:
        with connect(primary) as client:
            client.execute("CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, changed timestamptz)")
        for child in primary.children:
            child.send_signal(signal.SIGINT)
            child.wait()
        primary.children.clear()
        with Standby(primary) as standby:
            primary.relaunch()
            with connect(primary) as client, connect(standby) as reader:
                client.execute(INSERT)
                client.execute(INSERT)
                wait_until(lambda: reader.execute("SELECT count(*) FROM t").fetchone() == (2,))
            yield standby


@pytest.mark.parametrize(
    ("mode", "way_out"),
    [(BY_ID, "singleWriter=true"), (BY_TIME, "timestampDelay"), (BOTH, "timestampDelay"), ({**BY_ID, "tables": "t"}, "single")],
)
def test_a_standby_is_refused_with_the_way_out(standby: PostgresServer, mode: dict[str, str], way_out: str) -> None:
    table = Table(standby.jdbc, standby.user, **mode)
    if "tables" in mode:
        del table._options["dbtable"]
    with pytest.raises(Misconfigured, match=f"url +is that of a replica.*{way_out}"):
        ids(table)


@pytest.mark.parametrize(
    "mode", [{**BY_ID, "singleWriter": "true"}, {**BY_TIME, "timestampDelay": "1ms"}, {"incremental": "bulk"}]
)
def test_a_standby_is_read_where_the_options_do_without_its_transactions(
    standby: PostgresServer, mode: dict[str, str]
) -> None:
    query, log = SourceQuery(Table(standby.jdbc, standby.user, **mode)), list[Offset]()
    assert sorted(row["id"] for row in query.next(log) or []) == [1, 2]


def test_a_query_whose_connection_comes_to_a_standby_later_is_refused(
    standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, log = SourceQuery(Table(standby.primary.jdbc, standby.user, **BY_ID)), list[Offset]()
    assert len(query.rest(log)) == 2
    query.planner.close()
    moved = SourceQuery(Table(standby.jdbc, standby.user, **BY_ID))
    with pytest.raises(Misconfigured, match="is that of a replica"):
        moved.next(log)


def test_a_table_that_a_subscription_fills_is_refused_and_its_neighbour_is_read() -> None:
    with PostgresServer() as server:
        with connect(server) as source:
            source.execute("CREATE DATABASE copy")
            source.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
            source.execute("CREATE PUBLICATION p FOR TABLE t")
            source.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        with connect(server, "copy") as copy:
            copy.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
            copy.execute("CREATE TABLE own (id bigint PRIMARY KEY)")
            copy.execute("INSERT INTO own VALUES (7)")
            copy.execute("CREATE VIEW seen AS SELECT id FROM t UNION ALL SELECT id FROM own")
            copy.execute("CREATE TABLE whole (id bigint) PARTITION BY RANGE (id)")
            copy.execute("ALTER TABLE whole ATTACH PARTITION t FOR VALUES FROM (0) TO (1000)")
            address = f"host=127.0.0.1 port={server.port} dbname=postgres user={server.user}"
            copy.execute(f"CREATE SUBSCRIPTION s CONNECTION '{address}' PUBLICATION p WITH (create_slot = false)")
            url = server.jdbc.removesuffix("postgres") + "copy"
            for name in ("t", "seen", "whole"):
                with pytest.raises(Misconfigured, match="is that of a replica"):
                    ids(Table(url, server.user, **BY_ID, dbtable=name, incrementingColumn="id"))
            assert ids(Table(url, server.user, **BY_ID, dbtable="own")) == [7]
            copy.execute("ALTER SUBSCRIPTION s DISABLE")
            copy.execute("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
            copy.execute("DROP SUBSCRIPTION s")


def test_a_foreign_table_is_refused_since_its_writers_are_elsewhere() -> None:
    with PostgresServer() as server, connect(server) as client:
        client.execute("CREATE EXTENSION postgres_fdw")
        client.execute("CREATE TABLE far (id bigint PRIMARY KEY)")
        client.execute(f"CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '{server.port}')")
        client.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER s OPTIONS (user '{server.user}')")
        client.execute("CREATE FOREIGN TABLE t (id bigint) SERVER s OPTIONS (table_name 'far')")
        client.execute("CREATE VIEW seen AS SELECT id FROM t")
        client.execute("INSERT INTO far VALUES (7)")
        for name in ("t", "seen"):
            options = {**BY_ID, "dbtable": name, "incrementingColumn": "id"}
            with pytest.raises(Misconfigured, match=r"a table that another server fills.*singleWriter=true"):
                ids(Table(server.jdbc, server.user, **options))
            assert ids(Table(server.jdbc, server.user, **options, singleWriter="true")) == [7]


def test_a_replica_of_mariadb_is_refused_by_ids() -> None:
    try:
        primary, replica = MariaDbServer().start(), MariaDbServer(**{"server-id": "2"}).start()
    except Unavailable as missing:
        pytest.skip(f"MariaDbServer: {missing}")
    with contextlib.ExitStack() as servers:
        servers.callback(primary.stop)
        servers.callback(replica.stop)
        login = {"password": primary.password, **BY_ID}
        create = "CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY)"
        with contextlib.closing(_mariadb(primary)) as client, contextlib.closing(_mariadb(replica)) as other:
            client.execute("SHOW MASTER STATUS")
            file, position, *_ = client.fetchone()
            address = f"MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}, MASTER_USER='app', MASTER_PASSWORD='app'"
            other.execute(f"CHANGE MASTER TO {address}, MASTER_LOG_FILE='{file}', MASTER_LOG_POS={position}")
            other.execute("START SLAVE")
            client.execute(create)
            client.execute("INSERT INTO t VALUES (1), (2)")
            wait_until(lambda: bool(other.execute("SHOW TABLES LIKE 't'") and other.execute("SELECT 1 FROM t") == 2))
        assert ids(Table(primary.jdbc, primary.user, **login)) == [1, 2]
        with pytest.raises(Misconfigured, match="is that of a replica"):
            ids(Table(replica.jdbc, replica.user, **login))
        assert ids(Table(replica.jdbc, replica.user, **login, singleWriter="true")) == [1, 2]


def _mariadb(server: MariaDbServer) -> Any:
    import pymysql

    address = {"host": "127.0.0.1", "port": server.port, "database": "test"}
    return pymysql.connect(**address, user=server.user, password=server.password, autocommit=True).cursor()
