"""MySQL: the suites of its sink, and what it has other than MariaDB, whose own tests ``make soak`` runs on it."""

from __future__ import annotations

import contextlib
import datetime
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from connectors.core import ConnectorError, Entry, Misconfigured, Transient
from connectors.systems.delta.database_table import reader_options
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.dialects import Dialect, MySql, Table, parse
from connectors.systems.jdbc.incremental.writers import refuse_replica, writers
from connectors.systems.jdbc.ledger import TableLedger
from connectors.testing import wait_until
from connectors.testing.servers import MariaDbServer, MySqlServer
from tests.servers import optional

from ..batches import write
from ..marks import STAGES, marked
from .contexts import DatabaseContext, MySqlContext, MySqlRouted, MySqlTotals, PreparedMySqlContext
from .test_suites import FewerKills

ONLY_MARIADB = (
    "bad_rows and (dead_letters or upsert or each_table)",  # CHECK came with MySQL 8.0.16
    "nopad", "sequence", "without_transactions", "tables_of_mariadb_may_differ", "number_of_partitions_follows",
    "test_a_task_may_wait_for_its_query", "whose_last_statement_got_lost",
)  # fmt: skip


@pytest.fixture
def database(tmp_path: Path) -> Any:
    with contextlib.closing(MySqlContext(tmp_path / "target")) as database:
        yield database


@marked(STAGES, pytest.mark.soak)
class TestMySql(FewerKills):
    class context(MySqlContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


@pytest.mark.soak
class TestMySqlByForeachBatch(FewerKills):
    class context(MySqlContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


@pytest.mark.soak
class TestPreparedMySql(FewerKills):
    context = PreparedMySqlContext


@pytest.mark.soak
class TestTablesThatColumnsNameInMySql(FewerKills):
    class context(MySqlRouted):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("foreach_batch",)


@pytest.mark.soak
class TestStatementOfOnesOwnOnMySql(FewerKills):
    class context(MySqlTotals):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


@pytest.mark.soak
def test_what_holds_on_mariadb_holds_on_mysql(tmp_path: Path) -> None:
    optional(MySqlServer)
    chosen = f"(maria or Maria) and not on_spark and not ({' or '.join(f'({name})' for name in ONLY_MARIADB)})"
    command = [sys.executable, "-m", "pytest", "-p", "tests.systems.jdbc.mysql_in_place", "-n0", "-q", "-k", chosen]
    places = [f"--ignore={__file__}", f"--basetemp={tmp_path / 'tests'}", str(Path(__file__).parent)]
    ran = subprocess.run([*command, *places], text=True, stdout=-1)
    assert ran.returncode == 0, ran.stdout[-5000:]


@pytest.mark.parametrize(
    ("server", "scheme", "other"), [(MySqlServer, "mysql", "mariadb"), (MariaDbServer, "mariadb", "mysql")]
)
def test_a_server_of_the_other_kind_is_told_with_its_url(server: type[Any], scheme: str, other: str) -> None:
    running = optional(server)
    options = {"url": running.jdbc.replace(scheme, other), "user": running.user, "password": running.password}
    with pytest.raises(Misconfigured, match=rf"a server of version .*\. Begin the URL with jdbc:{scheme}://"):
        JdbcSink.of({**options, "dbtable": "any"}).dialect().connect()


@pytest.mark.parametrize(
    ("given", "mode"),
    [("REQUIRED", "trust"), ("VERIFY_CA", "verify-ca"), ("VERIFY_IDENTITY", "verify-full"), ("verify-full", "verify-full")],
)
def test_the_words_of_its_own_driver_say_how_tls_is_checked(given: str, mode: str) -> None:
    dialect: Any = MySql(parse(f"jdbc:mysql://host/db?sslMode={given}"), 1.0)
    assert dialect._ssl_mode(None) == mode
    assert MySql(parse("jdbc:mysql://host/db?sslMode=PREFERRED"), 1.0)._tls() is None
    with pytest.raises(ValueError, match="sslmode=perhaps, which must be one of DISABLED"):
        parse("jdbc:mysql://host/db?sslMode=perhaps")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_the_connector_of_a_log_tells_how_its_tables_are_read(kind: str) -> None:
    properties = {"connector.class": f"io.debezium.connector.{kind}.Connector", "database.hostname": "db"}
    assert reader_options(properties)["url"] == f"{kind}://db/"


def test_a_lock_has_at_most_64_letters_and_each_sink_its_own() -> None:
    dialect = MySql(parse("jdbc:mysql://host/db"), 1.0)
    locks = [dialect._lock(name) for name in ("connectors-a", "connectors-" + "a" * 60, "connectors-" + "a" * 61)]
    assert locks[0].startswith("connectors-a-")
    assert len({*locks}) == 3
    assert max(map(len, locks)) == 64


def test_privileges_that_a_user_lacks_are_named(database: DatabaseContext) -> None:
    user, server = f"u{uuid.uuid4().hex[:8]}", optional(MySqlServer)
    database.run(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'secret'")
    database.run(f"GRANT ALL ON {database.table.split('.')[0]}.* TO {user}@'127.0.0.1'")
    database.run(f"GRANT ALL ON test.* TO {user}@'127.0.0.1'")
    options = {"url": server.jdbc, "user": user, "password": "secret", "dbtable": database.table}
    sink: Any = JdbcSink.of({**options, "commit": "prepared"})
    with contextlib.closing(sink.dialect().connect()) as connection:
        assert connection.dialect.most_prepared(connection) == 0
        assert "XA_RECOVER_ADMIN" in connection.dialect.prepared_needs
        with pytest.raises(Misconfigured, match="GRANT PROCESS"):
            writers(connection, None)
        with pytest.raises(Misconfigured, match=r"GRANT PROCESS .* SELECT ON performance_schema"):
            refuse_replica(connection, [], "wait")
    database.run(f"DROP USER {user}@'127.0.0.1'")


def test_a_user_of_its_usual_kind_logs_in(database: DatabaseContext) -> None:
    user, server = f"u{uuid.uuid4().hex[:8]}", optional(MySqlServer)
    database.run(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED WITH caching_sha2_password BY 'secret'")
    database.run(f"GRANT ALL ON test.* TO {user}@'127.0.0.1'")
    options = {"url": server.jdbc, "user": user, "password": "secret", "dbtable": "any"}
    with contextlib.closing(JdbcSink.of(options).dialect().connect()) as connection:
        assert connection.rows("SELECT 1") == [(1,)]
    database.run(f"DROP USER {user}@'127.0.0.1'")


def test_a_transaction_that_has_only_read_is_known_when_it_has_written(database: DatabaseContext) -> None:
    with contextlib.closing(database.connect()) as other, contextlib.closing(database.connect()) as reader:
        other.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        watched = writers(reader, None)
        other.execute(f"INSERT INTO {database.table} VALUES (1, 'row')")
        assert writers(reader, None).remaining(watched.names) == watched.names != frozenset()
        other.commit()
        assert writers(reader, None).remaining(watched.names) == frozenset()


@pytest.fixture
def session(database: DatabaseContext) -> Any:
    with contextlib.closing(database.connect()) as session:
        yield session


def test_the_client_of_a_log_is_no_writer(database: DatabaseContext, session: Any) -> None:
    with contextlib.closing(JdbcSink.of(database.options()).dialect().open()) as replica:
        with replica.cursor() as cursor:
            cursor.execute("SET @master_binlog_checksum = 'CRC32'")
        before = writers(session, None).names
        replica._execute_command(0x1E, struct.pack("<HIIQIQ", 0, 999, 0, 4, 8, 0))  # as replicas with GTIDs ask for it
        is_served = "SELECT 1 FROM information_schema.processlist WHERE command = 'Binlog Dump GTID'"
        while not session.rows(is_served):
            pass
        assert writers(session, None).names == before


def test_a_newer_row_stays_newer_when_its_time_loses_a_fraction(database: DatabaseContext) -> None:
    database.run(f"ALTER TABLE {database.table} ADD PRIMARY KEY (id), ADD at DATETIME")
    upsert = {"operation": "upsert", "keyColumns": "id", "orderColumn": "at", "guarantee": "at-least-once"}
    for number, tenths in enumerate([6, 9]):
        at = pa.array([datetime.datetime(2024, 1, 1, 10, 0, 0, tenths * 100_000)], pa.timestamp("us", "UTC"))
        row = pa.record_batch({"id": [1], "name": [f"0.{tenths}"], "at": at})
        write(JdbcSink.of({**database.options(), **upsert}), row, number=number)
    assert database.query(f"SELECT name, CAST(at AS CHAR) FROM {database.table}") == [("0.9", "2024-01-01 10:00:00")]


@pytest.mark.parametrize(
    ("statement", "stored"),
    [
        ("INSERT INTO {table} VALUES (1, '100%')", "100%"),
        ("INSERT INTO {table} VALUES (1, {{f}} * 1e0)", "0.12345699965953827"),
    ],
    ids=["without columns", "a number of 32 bits"],
)
def test_a_statement_has_its_own_text_and_exact_values(database: DatabaseContext, statement: str, stored: str) -> None:
    options = {**database.options(), "statement": statement.format(table=database.table)}
    write(JdbcSink.of(options), pa.record_batch({"f": pa.array([0.123456999], pa.float32())}))
    assert [row["name"] for row in database.rows()] == [stored]


def test_keys_of_a_table_in_latin_1_are_compared_almost_as_there(database: DatabaseContext) -> None:
    text = "VARCHAR(100) CHARACTER SET latin1 COLLATE latin1_swedish_ci NOT NULL"
    database.run(f"ALTER TABLE {database.table} MODIFY name {text}, ADD PRIMARY KEY (name)")
    sink = JdbcSink.of({**database.options(), "operation": "upsert", "keyColumns": "name", "orderColumn": "id"})
    write(sink, pa.record_batch({"id": [1, 2, 3], "name": ["Bar", "B\u00e4r", "BAR"]}))
    write(sink, pa.record_batch({"id": [4], "name": ["b\u00e4R"]}), number=1)
    assert sorted(database.rows(), key=lambda row: row["id"]) == [{"id": 3, "name": "BAR"}, {"id": 4, "name": "B\u00e4r"}]


def test_a_row_that_is_larger_than_the_server_takes_is_no_outage(database: DatabaseContext, session: Any) -> None:
    [(most,)] = session.rows("SELECT @@max_allowed_packet")
    sink = JdbcSink.of(database.options())
    database.run(f"ALTER TABLE {database.table} MODIFY name LONGTEXT")
    with pytest.raises(ConnectorError, match=r"refuses a statement: .*max_allowed_packet of the server is"):
        write(sink, pa.record_batch({"id": [1], "name": ["x" * most]}))
    write(sink, pa.record_batch({"id": [2], "name": ["y" * (most // 2)]}))
    assert database.query(f"SELECT id FROM {database.table}") == [(2,)]


def test_a_session_that_falls_silent_in_a_transaction_ends(
    database: DatabaseContext, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dialect, "idle_seconds", 1.0)
    with contextlib.closing(database.connect()) as silent, contextlib.suppress(Transient), silent.transaction():
        silent.execute(f"INSERT INTO {database.table} VALUES (1, 'row')")
        [(number,)] = silent.rows("SELECT CONNECTION_ID()")
        wait_until(lambda: not session.rows(f"SELECT 1 FROM information_schema.processlist WHERE id = {number}"), 30.0)
    assert database.rows() == []


def test_text_that_is_no_document_is_a_bad_row(database: DatabaseContext) -> None:
    database.run(f"ALTER TABLE {database.table} MODIFY name JSON")
    rows = pa.record_batch({"id": [1, 2], "name": ['{"a": 1}', "no document"]})
    write(JdbcSink.of({**database.options(), "errors": "skip"}), rows)
    assert database.query(f"SELECT id, CAST(name AS CHAR) FROM {database.table}") == [(1, '{"a": 1}')]


def test_a_statement_that_the_server_refuses_is_told_at_the_start(database: DatabaseContext) -> None:
    sink = JdbcSink.of({**database.options(), "statement": "INSERT INTO nowhere_at_all (id) VALUES ({id})"})
    with pytest.raises(Misconfigured, match=r"statement +cannot be run: .*nowhere_at_all"):
        sink.check_target(pa.schema([("id", pa.int64())]))


def test_sinks_whose_names_differ_in_a_blank_are_two(database: DatabaseContext, session: Any) -> None:
    table = Table("connectors_ledger", database.table.partition(".")[0])
    for name in ("load", "load ", "Load"):
        ledger = TableLedger(session.dialect, table, name)
        ledger.make(session)
        assert ledger.last(session, "query") is None, name
        ledger.record(session, Entry("query", 1))
