"""Logs and Debezium: snapshots that begin again, slots that moved, databases that are others, a log that was purged."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.connect.host import TaskRecords
from connectors.connect.java.debezium import SNAPSHOT_HEADER
from connectors.connect.java.source_host import JavaSourceHost
from connectors.core import Fatal, ReadLimit
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


class Copy:
    """What a reader that keeps offsets and groups has of the table, by key."""

    def __init__(self) -> None:
        self.offsets: dict[str, Any] = {}
        self.groups: dict[str, Any] = {}
        self.rows: dict[int, str] = {}
        self.snapshots = 0

    def take(self, records: list[TaskRecords]) -> None:
        for part in records:
            self.offsets.update(part.offsets)
            self.groups.update(part.groups)
        for row in rows_of(records):
            if any(header["key"] == SNAPSHOT_HEADER and header["value"] == b"again" for header in row["headers"] or ()):
                self.snapshots += 1
                self.rows.clear()
            value = json.loads(row["value"])["payload"]
            if value["op"] == "d":
                self.rows.pop(value["before"]["id"], None)
            else:
                self.rows[value["after"]["id"]] = value["after"]["name"]

    def state(self) -> dict[str, Any]:
        return {"offsets": self.offsets, "groups": self.groups}


class Writer(threading.Thread):
    """Inserts, changes and deletes rows without a pause until it is told to end."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(daemon=True)
        self.shop = shop
        self.is_over = threading.Event()

    def run(self) -> None:
        with self.shop.connect() as connection:
            number = 10_000
            while not self.is_over.is_set():
                number += 1
                connection.execute("INSERT INTO orders (id, name) VALUES (%s, 'new')", (number,))
                connection.execute("UPDATE orders SET name = 'changed' WHERE id = %s", (number - 3,))
                connection.execute("DELETE FROM orders WHERE id = %s", (number - 7,))

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.join()


SLOW = {"max.batch.size": "20", "max.queue.size": "40", "snapshot.fetch.size": "20"}


def rows(shop: Shop) -> dict[int, str]:
    return dict(shop.rows("id, name"))


def follow(host: JavaSourceHost, copy: Copy, shop: Shop) -> None:
    """Takes all up to a row that is written now."""
    shop.sql("INSERT INTO orders (id, name) VALUES (-1, 'last')")
    while -1 not in copy.rows:
        copy.take(poll(host, 1))


@pytest.mark.parametrize("death", ["of the JVM", pytest.param("of the host", marks=pytest.mark.soak)])
def test_a_snapshot_that_dies_begins_again_with_a_new_slot_and_loses_nothing(shop: Shop, death: str) -> None:
    shop.sql("INSERT INTO orders (id, name) SELECT n, 'more' FROM generate_series(1000, 5000) n")
    copy, config = Copy(), {**shop.config(), **SLOW}
    with Writer(shop) as writer:
        for _ in range(2):
            with started(config, DEBEZIUM, **copy.state()) as host:
                copy.take(host.poll(1, ReadLimit(rows=50), 60.0))
                if death == "of the JVM":
                    os.kill(host.pid or 0, signal.SIGKILL)
                    copy.take(host.poll(1, ReadLimit(rows=50), 60.0))
        with started(config, DEBEZIUM, **copy.state()) as host:
            copy.take(poll(host, 4500))  # the snapshot
            writer.is_over.set()
            writer.join()
            follow(host, copy, shop)
    assert copy.snapshots == (4 if death == "of the JVM" else 2)
    assert copy.rows == rows(shop)


@pytest.mark.soak
def test_a_commit_that_is_not_yet_visible_when_a_snapshot_begins_again_is_not_lost(tmp_path: Path) -> None:
    """It waits for a replica: its position lies in the log, and no snapshot shows its row."""
    with PostgresServer() as server:
        shop, copy = Shop(server, tmp_path), Copy()
        shop.sql("INSERT INTO orders (id, name) SELECT n, 'more' FROM generate_series(1000, 2000) n")
        with started({**shop.config(), **SLOW}, DEBEZIUM) as host:
            copy.take(host.poll(1, ReadLimit(rows=50), 60.0))
        shop.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        time.sleep(1.0)
        insert = threading.Thread(target=shop.sql, args=("INSERT INTO orders (id, name) VALUES (5000, 'waits')",))
        insert.start()
        time.sleep(1.0)
        release = ("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        threading.Timer(12.0, shop.sql, args=release).start()
        with started(shop.config(), DEBEZIUM, **copy.state()) as host:
            copy.take(poll(host, 1201))
            insert.join()
            follow(host, copy, shop)
        assert copy.rows == rows(shop)


def test_a_slot_that_was_left_by_a_start_that_died_is_made_anew(shop: Shop) -> None:
    with shop.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (shop.name,))
    shop.sql("INSERT INTO orders (id, name) VALUES (500, 'between')")
    before = confirmed(shop)
    with started(shop.config(), DEBEZIUM) as host:
        copy = Copy()
        copy.take(poll(host, 201))
        assert confirmed(shop) > before
        assert (copy.rows, copy.snapshots) == (rows(shop), 0)


@pytest.mark.parametrize("mode", ["initial", "no_data"])
def test_the_first_start_refuses_a_slot_that_it_would_make_anew(shop: Shop, mode: str) -> None:
    with shop.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (shop.name,))
    host = JavaSourceHost(settings(shop.config(snapshot__mode=mode), DEBEZIUM))
    with contextlib.closing(host), contextlib.ExitStack() as stack:
        if mode == "initial":
            text = f"the replication slot {shop.name} exists, and this query has not made it(.|\n)*pg_drop_replication_slot"
            stack.enter_context(pytest.raises(Fatal, match=text))
        host.check_first_start()


def test_a_slot_without_a_snapshot_is_kept(shop: Shop) -> None:
    with shop.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (shop.name,))
        connection.execute(f"CREATE PUBLICATION {shop.name} FOR TABLE orders")
    with shop.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (shop.name,))
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (shop.name,))
    shop.sql("INSERT INTO orders (id, name) VALUES (500, 'before the start')")
    with started(shop.config(snapshot__mode="no_data"), DEBEZIUM) as host:
        copy = Copy()
        copy.take(poll(host, 1))
        assert copy.rows == {500: "before the start"}


def confirmed(shop: Shop) -> int:
    with shop.connect() as connection:
        query = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
        row = connection.execute(query, (shop.name,)).fetchone()
    return int(row[0]) if row else 0


@pytest.fixture
def copy(shop: Shop) -> Copy:
    """A reader that has the snapshot and a change, and has gone."""
    reader = Copy()
    with started(shop.config(), DEBEZIUM) as host:
        reader.take(poll(host, 200))
        shop.sql("INSERT INTO orders (id, name) VALUES (500, 'change')", "UPDATE orders SET name = 'x' WHERE id = 500")
        reader.take(poll(host, 2))
    return reader


ADVANCE = "SELECT pg_replication_slot_advance('{0}', pg_current_wal_lsn())"
DROP = "SELECT pg_drop_replication_slot('{0}')"
CREATE = "SELECT pg_create_logical_replication_slot('{0}', 'pgoutput')"


@pytest.mark.parametrize(
    ("statements", "text"),
    [
        ([ADVANCE], r"the replication slot shop_\w+ is at 0/[0-9A-F]+, and the recorded position is 0/[0-9A-F]+"),
        ([DROP], r"does not exist any more; the recorded position is 0/"),
        ([DROP, CREATE], r"is at 0/[0-9A-F]+, and the recorded position"),
    ],
)
def test_a_slot_that_has_gone_ahead_is_told_with_both_positions(
    shop: Shop, copy: Copy, statements: list[str], text: str
) -> None:
    shop.sql("UPDATE orders SET name = 'lost' WHERE id = 3", *(statement.format(shop.name) for statement in statements))
    with pytest.raises(Fatal, match=text) as lost, started(shop.config(), DEBEZIUM, **copy.state()):
        pass
    assert "begin with a new snapshot" in str(lost.value)


@pytest.mark.soak
def test_a_slot_that_goes_ahead_under_a_reader_that_dies_is_told_by_its_next_start(shop: Shop, copy: Copy) -> None:
    with started(shop.config(), DEBEZIUM, **copy.state()) as host:
        shop.sql("INSERT INTO orders (id, name) VALUES (501, 'seen')")
        copy.take(poll(host, 1))
        os.kill(host.pid or 0, signal.SIGKILL)
        shop.sql("INSERT INTO orders (id, name) VALUES (502, 'lost')")
        shop.drop()
        with pytest.raises(Fatal, match="does not exist any more"):
            poll(host, 1)


@pytest.mark.soak
def test_when_needed_takes_a_snapshot_instead(shop: Shop, copy: Copy) -> None:
    shop.sql("DELETE FROM orders WHERE id = 3", ADVANCE.format(shop.name))
    with started(shop.config(snapshot__mode="when_needed"), DEBEZIUM, **copy.state()) as host:
        copy.take(poll(host, 200))
        assert (copy.snapshots, copy.rows) == (1, rows(shop))
        shop.sql("INSERT INTO orders (id, name) VALUES (502, 'behind')")
        copy.take(poll(host, 1))
        assert copy.rows == rows(shop)


@pytest.mark.soak
def test_a_later_snapshot_of_a_part_of_the_rows_is_no_beginning(shop: Shop) -> None:
    config = shop.config(snapshot__mode="always", snapshot__select__statement__overrides="public.orders")
    copy, part = Copy(), "SELECT * FROM orders WHERE id % 2 = 0"
    with started(shop.config(), DEBEZIUM) as host:
        copy.take(poll(host, 200))
    partial = {**config, "snapshot.select.statement.overrides.public.orders": part}
    with started(partial, DEBEZIUM, **copy.state()) as host:
        copy.take(poll(host, 100))
    assert (copy.snapshots, copy.rows) == (0, rows(shop))


@pytest.mark.soak
def test_a_later_snapshot_keeps_the_slot_while_an_incremental_one_is_under_way(shop: Shop, copy: Copy) -> None:
    ((partition, offset),) = copy.offsets.items()
    copy.offsets[partition] = {**offset, "snapshot": "INCREMENTAL", "snapshot_completed": False}
    before = confirmed(shop)
    with started(shop.config(snapshot__mode="always"), DEBEZIUM, **copy.state()) as host:
        copy.take(poll(host, 201))
        assert (copy.rows, confirmed(shop)) == (rows(shop), before)


@pytest.mark.soak
def test_another_database_and_one_that_was_set_back_are_told(shop: Shop, copy: Copy) -> None:
    ((partition, group),) = copy.groups.items()
    other = {partition: {**group, "system": "7"}}
    with (
        pytest.raises(Fatal, match=r"another one.*identifier is \d+, and was 7"),
        started(shop.config(), DEBEZIUM, offsets=copy.offsets, groups=other),
    ):
        pass
    unfinished = {partition: {**copy.offsets[partition], "snapshot": "INITIAL", "snapshot_completed": False}}
    before = confirmed(shop)
    with (
        pytest.raises(Fatal, match=r"another one.*identifier is \d+, and was 7"),
        started(shop.config(), DEBEZIUM, offsets=unfinished, groups=other),
    ):
        pass
    assert confirmed(shop) == before, "the slot of that name there is another reader's"
    ahead = {partition: {**copy.offsets[partition], "lsn": 1 << 50}}
    with (
        pytest.raises(Fatal, match="set back to an earlier state"),
        started(shop.config(), DEBEZIUM, offsets=ahead, groups=copy.groups),
    ):
        pass


def purge(cursor: Any) -> None:
    """Deletes all files of the binary log but the newest; one that is still sent to somebody is kept for a moment."""
    cursor.execute("SHOW GLOBAL VARIABLES LIKE 'slave_connections_needed_for_purge'")
    if cursor.fetchone():
        cursor.execute("SET GLOBAL slave_connections_needed_for_purge = 0")
    cursor.execute("SHOW MASTER STATUS")
    newest = cursor.fetchone()[0]
    until = time.monotonic() + 60
    while cursor.execute("SHOW BINARY LOGS") > 1:
        assert time.monotonic() < until
        cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
        time.sleep(0.2)


@pytest.mark.soak
def test_a_binary_log_that_was_purged_is_an_error(tmp_path: Path) -> None:
    import pymysql

    server, copy = optional(MariaDbServer), Copy()
    with pymysql.connect(host="127.0.0.1", port=server.port, user="app", password="app", autocommit=True) as admin:
        cursor = admin.cursor()
        for statement in (
            "DROP DATABASE IF EXISTS purged",
            "CREATE DATABASE purged",
            "CREATE TABLE purged.orders (id int PRIMARY KEY, name varchar(40))",
            "INSERT INTO purged.orders VALUES (1, 'a')",
        ):
            cursor.execute(statement)
        config = mariadb_properties(server.port, "purged", 5403, tmp_path / "history.dat")
        with started(config, DEBEZIUM_MARIADB) as host:
            copy.take(poll(host, 1))
            cursor.execute("INSERT INTO purged.orders VALUES (2, 'b')")
            copy.take(poll(host, 1))
        cursor.execute("INSERT INTO purged.orders VALUES (3, 'lost')")
        cursor.execute("FLUSH BINARY LOGS")
        purge(cursor)
        cursor.execute("INSERT INTO purged.orders VALUES (4, 'behind')")
    text = "required binlog files have been purged"
    with pytest.raises(Fatal, match=text), started(config, DEBEZIUM_MARIADB, restarts=1, **copy.state()) as host:
        poll(host, 1)
