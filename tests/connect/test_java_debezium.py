"""Debezium in its child JVM: PostgreSQL's log and MariaDB's, streamed, resumed and acknowledged."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.connect.host import TaskRecords
from connectors.connect.java.debezium import with_defaults
from connectors.connect.java.source_host import JavaSourceHost
from connectors.systems.delta.change_defaults import columns_of
from connectors.testing.servers import MariaDbServer, PostgresServer
from tests.connect.java_sources import DEBEZIUM, DEBEZIUM_MARIADB, mariadb_properties, poll, rows_of, settings, started
from tests.servers import optional, required
from tests.systems.cdc.shop import Shop

pytestmark = pytest.mark.server


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    database = Shop(required(PostgresServer), tmp_path)
    yield database
    database.drop()


def payloads(records: list[TaskRecords]) -> list[Any]:
    values = [row["value"] for row in rows_of(records)]
    return [json.loads(value)["payload"] for value in values if value is not None]


def operations(records: list[TaskRecords]) -> list[tuple[str, int]]:
    return [(value["op"], (value["after"] or value["before"])["id"]) for value in payloads(records)]


def confirmed(shop: Shop) -> int:
    """The position that the database has been told to forget up to."""
    with shop.connect() as connection:
        row = connection.execute(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", (shop.name,)
        ).fetchone()
    return int(row[0]) if row else 0


def test_snapshot_changes_acknowledgement_and_a_killed_jvm(shop: Shop) -> None:
    """One run of Debezium through all of it: each start of a JVM costs seconds."""
    with started(shop.config(), DEBEZIUM) as host:
        snapshot = poll(host, 200)
        assert sorted(operations(snapshot)) == [("r", number) for number in range(1, 201)]
        host.committed(1)
        shop.sql("INSERT INTO orders (id, name) VALUES (900, 'new')", "DELETE FROM orders WHERE id = 3")
        changes = poll(host, 2, epoch=2)
        assert operations(changes) == [("c", 900), ("d", 3)]
        before = confirmed(shop)
        host.committed(2)
        reached = changes[-1].offsets
        assert before < payloads(changes)[-1]["source"]["lsn"]
        dead = host.pid
        assert dead is not None
        os.kill(dead, signal.SIGKILL)
        shop.sql("UPDATE orders SET name = 'after' WHERE id = 900")
        again = poll(host, 1, epoch=3)
        assert operations(again) == [("u", 900)]
        assert again[0].counts["restarts"] == 1
        host.committed(3)
        _until(lambda: confirmed(shop) > before)
    shop.sql("DELETE FROM orders WHERE id = 900")
    offsets = {**reached, **again[-1].offsets}
    with started(shop.config(), DEBEZIUM, offsets=offsets) as host:
        assert operations(poll(host, 1)) == [("d", 900)]


@pytest.mark.soak
def test_the_database_keeps_what_is_polled_and_not_committed(shop: Shop) -> None:
    """Debezium acknowledges what the runtime says is committed: a run that dies later must find all behind that."""
    with started(shop.config(), DEBEZIUM) as host:
        offsets = poll(host, 200)[-1].offsets
        for number in range(910, 915):
            shop.sql(f"INSERT INTO orders (id, name) VALUES ({number}, 'new')")
            _until(lambda number=number: _collected_rows(host) == number - 909)
            host.committed(1)  # Debezium acts on it with its next polls
        time.sleep(1.0)
    with started(shop.config(), DEBEZIUM, offsets=offsets) as host:
        assert operations(poll(host, 5)) == [("c", number) for number in range(910, 915)]


def _collected_rows(host: JavaSourceHost) -> int:
    assert host._engine is not None
    return sum(collected.rows.rows.num_rows for collected in host._engine._collected)


def _until(condition: Any, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.soak
def test_a_database_that_crashes_and_comes_back_is_followed_on(tmp_path: Path) -> None:
    with PostgresServer() as server:
        shop = Shop(server, tmp_path)
        with started(shop.config(), DEBEZIUM, restarts=50) as host:
            poll(host, 200)
            host.committed(1)
            server.kill()
            time.sleep(1.0)
            server.relaunch()
            shop.sql("INSERT INTO orders (id, name) VALUES (901, 'after the crash')")
            assert ("c", 901) in operations(poll(host, 1, epoch=2, seconds=120))


@pytest.mark.soak
def test_debeziums_own_messages_tell_every_wrong_setting_and_no_secret(shop: Shop) -> None:
    secret = "wrong-Pass-9"
    wrong = {"database.hostname": "", "slot.name": "Not Valid", "plugin.name": "x", "database.password": secret}
    wrong = {**shop.config(), **wrong}
    problems = JavaSourceHost(settings(wrong, DEBEZIUM)).validate()
    assert {"database.hostname", "slot.name", "plugin.name"} <= {problem.option for problem in problems}
    assert secret not in str(problems)


POSTGRES_SILENT = [
    ("timestamptz", "now()"),
    ("timestamp", "now()"),
    ("timestamp(3)", "now()"),
    ("date", "current_date"),
    ("uuid", "gen_random_uuid()"),
    ("date", "'infinity'"),
    ("date", "'-infinity'"),
    ("timestamp", "'infinity'"),
    ("money", "1.5"),
    ("timetz", "'10:11:12+02'"),
    ("tsvector", "'a'"),
    ("numeric", "1.5"),
    ("bytea", "'ab'"),
    ("int[]", "'{1,2}'"),
]
POSTGRES_DEFAULTS = [
    *POSTGRES_SILENT,
    ("numeric(9,2)", "1.5"),
    ("numeric(9,2)", "NULL"),
    ("bit(3)", "B'101'"),
    ("bit(3)", "NULL"),
    ("time", "'10:11:12.5'"),
    ("date", "'9999-12-31'"),
    ("timestamp", "'2021-03-04 05:06:07.123456'"),
    ("interval", "'1 day 2 hours'"),
    ("jsonb", """'{"a": [1, null]}'"""),
    ("text", "''"),
]


@pytest.mark.soak
def test_the_defaults_of_postgresql(spark: Any, shop: Shop) -> None:
    with started(shop.config(), DEBEZIUM) as host:
        poll(host, 200)
        for number, (kind, default) in enumerate(POSTGRES_DEFAULTS):
            shop.sql(f"ALTER TABLE orders ADD COLUMN c{number} {kind} DEFAULT {default}")
        shop.sql("UPDATE orders SET name = 'd' WHERE id = 1")
        (row,) = rows_of(poll(host, 1, epoch=2))
    check_defaults(json.loads(row["value"]), POSTGRES_DEFAULTS, POSTGRES_SILENT, is_postgres=True)


def check_defaults(value: Any, added: list[tuple[str, str]], unknown: list[tuple[str, str]], *, is_postgres: bool) -> None:
    """What older rows get in the columns ``added`` is what an older row has, or is asked for: just of ``unknown`` ones."""
    fields = next(part for part in value["schema"]["fields"] if part["field"] == "after")["fields"][-len(added) :]
    for field, column, kind in zip(fields, columns_of(fields, is_postgres=is_postgres), added, strict=True):
        assert column.needs_fill or column.default == value["payload"]["after"][field["field"]], kind
        assert column.needs_fill is (kind in unknown), kind


MARIADB_UNCLEAR = [
    ("varchar(9)", "'it''s'"),
    ("varchar(9)", r"'C:\\'"),
    ("varchar(9)", "'a' 'b'"),
    ("varchar(9)", "N'abc'"),
    ("varchar(9)", "TRUE"),
    ("enum('it''s', 'b')", "'it''s'"),
    ("enum('A', 'B')", "'a'"),
    ("set('a', 'b')", "'b,a'"),
    ("char(5)", "'ab '"),
    ("varbinary(9)", r"'a\0b'"),
    ("binary(4)", "'ab'"),
    ("blob", "'ab'"),
    ("datetime", "current_timestamp"),
    ("datetime(6)", "current_timestamp(6)"),
]
MARIADB_DEFAULTS = [
    *MARIADB_UNCLEAR,
    ("varchar(9)", """'a "b"'"""),
    ("varchar(9)", '"a\'b"'),
    ("varchar(9)", "_utf8mb4'abc'"),
    ("text", "''"),
    ("decimal(5,2)", "'1.50'"),
    ("set('a', 'b')", "'a,b'"),
    ("bit(8)", "b'101'"),
    ("bool", "true"),
    ("time(3)", "'10:11:12.5'"),
    ("timestamp NULL", "'2021-03-04 05:06:07'"),
    ("double", "1e3"),
    ("json", """'{"a": [1, null]}'"""),
]


@pytest.mark.soak
def test_the_binary_log_of_mariadb(spark: Any, tmp_path: Path) -> None:
    import pymysql

    server = optional(MariaDbServer)
    with pymysql.connect(host="127.0.0.1", port=server.port, user="app", password="app", autocommit=True) as admin:
        cursor = admin.cursor()
        for statement in (
            "DROP DATABASE IF EXISTS cdc",
            "CREATE DATABASE cdc",
            "CREATE TABLE cdc.orders (id int PRIMARY KEY, name varchar(40))",
            "INSERT INTO cdc.orders VALUES (1, 'a'), (2, 'b')",
        ):
            cursor.execute(statement)
        config = {
            **mariadb_properties(server.port, "cdc", 5400, tmp_path / "history.dat"),
            "tombstones.on.delete": "false",
        }
        with started(config, DEBEZIUM_MARIADB) as host:
            assert sorted(operations(poll(host, 2))) == [("r", 1), ("r", 2)]
            _until(lambda: host.facts() == {"snapshot_rows": 2, "snapshot_runs": False})
            cursor.execute("UPDATE cdc.orders SET name = 'c' WHERE id = 1")
            cursor.execute("DELETE FROM cdc.orders WHERE id = 2")
            assert operations(poll(host, 2, epoch=2)) == [("u", 1), ("d", 2)]
            for number, (kind, default) in enumerate(MARIADB_DEFAULTS):
                cursor.execute(f"ALTER TABLE cdc.orders ADD COLUMN c{number} {kind} DEFAULT {default}")
            cursor.execute("UPDATE cdc.orders SET name = 'd' WHERE id = 1")
            (row,) = rows_of(poll(host, 1, epoch=3))
            check_defaults(json.loads(row["value"]), MARIADB_DEFAULTS, MARIADB_UNCLEAR, is_postgres=False)


def test_truncations_and_nulls_come_as_they_are(shop: Shop) -> None:
    """By Debezium's own defaults a truncation is left out, and a null is the column's default."""
    shop.sql(
        "DELETE FROM orders WHERE id > 1",
        "ALTER TABLE orders ALTER COLUMN name SET DEFAULT 'placed'",
        "UPDATE orders SET name = NULL",
    )
    with started(shop.config(), DEBEZIUM) as host:
        (row,) = payloads(poll(host, 1))
        assert row["after"]["name"] is None
        shop.sql("TRUNCATE orders")
        assert [value["op"] for value in payloads(poll(host, 1))] == ["t"]


def test_what_a_user_sets_wins_over_defaults_that_lose_nothing() -> None:
    flattening = {"transforms": "flat, other", "transforms.flat.type": "io.debezium.transforms.ExtractNewRecordState"}
    config = {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "key.converter": "StringConverter",
        **flattening,
    }
    assert with_defaults(config) == {
        **config,
        "skipped.operations": "none",
        "value.converter.replace.null.with.default": "false",
        "transforms.flat.replace.null.with.default": "false",
    }
    assert with_defaults({**config, "skipped.operations": "t"})["skipped.operations"] == "t"
    other = {"connector.class": "org.example.Connector"}
    assert with_defaults(other) == other


@pytest.mark.soak
def test_debezium_that_starts_itself_again_inside_a_transaction_gives_each_row_once(shop: Shop) -> None:
    """Its connection is ended while it gives the rows of a COPY; what it has polled then comes again."""
    config = shop.config(max__batch__size="50", max__queue__size="100", retriable__restart__connector__wait__ms="100")
    with started(config, DEBEZIUM) as host:
        poll(host, 200)
        with (
            shop.connect() as connection,
            connection.cursor() as cursor,
            cursor.copy("COPY orders (id) FROM STDIN") as copy,
        ):
            for number in range(10_000, 30_000):
                copy.write_row((number,))
        keys: list[int] = []
        for round_number in range(1, 1000):
            keys += [key for _, key in operations(poll(host, 1))]
            if len(keys) >= 20_000:
                break
            if round_number % 5 == 0:
                shop.sql(
                    f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{shop.name}'"
                )
        assert keys == list(range(10_000, 30_000))
        assert round_number > 5
