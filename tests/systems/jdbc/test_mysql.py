"""MySQL: the suites of its sink, and what it has other than MariaDB, whose own tests ``make soak`` runs on it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, ClassVar

import pytest

from connectors.core import Misconfigured
from connectors.systems.delta.database_table import reader_options
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.dialects import MySql, parse
from connectors.systems.jdbc.incremental.writers import refuse_replica, writers
from connectors.testing.servers import MariaDbServer, MySqlServer
from tests.servers import optional

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
        with pytest.raises(Misconfigured, match="GRANT SELECT ON performance_schema"):
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
