"""Debezium through the epoch log, with a new process of the connector for each epoch: no row is lost, and none comes twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.connect.host import SOURCE_COLUMNS
from connectors.core.epochs import EpochLog
from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.ground.errors import Fatal
from connectors.storage.local import LocalStorage
from connectors.systems.connect import ConnectSource
from connectors.testing.servers import MariaDbServer, PostgresServer
from connectors_tools.offsets import SourceOffset
from tests.connect.java_sources import DEBEZIUM, DEBEZIUM_MARIADB, mariadb_properties
from tests.servers import optional, required
from tests.systems.cdc.shop import Shop

pytestmark = pytest.mark.server


class Runs:
    """A query that knows what its manifests say and nothing else: each epoch has a source, a host and a JVM of its own."""

    def __init__(self, folder: Path, config: dict[str, str], package: str = DEBEZIUM, **options: str) -> None:
        times = {"pollInterval": "1s"}
        self.options = {
            "config": json.dumps(config),
            "pluginPackages": package,
            "stateLocation": str(folder / "state"),
            **times,
            **options,
        }
        self.offset = INITIAL
        self.rows: list[dict[str, Any]] = []
        self.epochs = 0

    def life(self, rows: int, seconds: float = 60.0) -> list[dict[str, Any]]:
        """A process of the connector that records epochs until it has given so many events, or the time is over."""
        source = ConnectSource.of(self.options, streaming=True)
        planner = Planner(source)
        got: list[dict[str, Any]] = []
        until = time.monotonic() + seconds
        try:
            while sum(map(is_event, got)) < rows and time.monotonic() < until:
                end = planner.latest(self.offset)
                parts = planner.slices(self.offset, end) if end != self.offset else ()
                batches = (batch for part in parts for batch in read_slice(source, part, SOURCE_COLUMNS))
                got += [row for batch in batches for row in batch.to_pylist()]
                self.epochs += end != self.offset
                self.offset = end
            planner.committed(self.offset)
        finally:
            planner.close()
        self.rows += got
        return [row for row in got if is_event(row)]

    def events(self) -> list[tuple[str, Any]]:
        """Operation and key of each event, with tombstones as ``t``."""
        return [event(row) for row in self.rows if is_event(row)]


def is_event(row: dict[str, Any]) -> bool:
    return "heartbeat" not in row["topic"]


def event(row: dict[str, Any]) -> tuple[str, Any]:
    if row["value"] is None:
        return "t", json.loads(row["key"])["id"]
    value = json.loads(row["value"])["payload"]
    return value["op"], (value["after"] or value["before"])["id"]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    database = Shop(required(PostgresServer), tmp_path)
    yield database
    database.drop()


SMALL = {"max.batch.size": "50", "heartbeat.interval.ms": "30"}


def postgres(shop: Shop, tmp_path: Path, limit: int, **more: str) -> Runs:
    return Runs(tmp_path, {**SMALL, **shop.config(), **more}, maxRowsPerTrigger=str(limit))


@pytest.mark.soak
def test_a_slot_of_another_name_is_another_readers_also_while_a_snapshot_is_unfinished(shop: Shop, tmp_path: Path) -> None:
    """A snapshot that begins again drops the query's own slot, and no other."""
    runs = postgres(shop, tmp_path, 50)
    runs.life(50)
    foreign = f"{shop.name}_foreign"
    with shop.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (foreign,))
    other = postgres(shop, tmp_path, 50, **{"slot.name": foreign})
    other.offset = runs.offset
    with pytest.raises(Fatal, match=f"the replication slot {foreign} exists, and this query has not made it"):
        other.life(1)
    with shop.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (foreign,))  # fails if it is another one in use
    assert len(other.life(200)) >= 150


@pytest.mark.soak
@pytest.mark.parametrize("count", [1_000, 3_000, 20_000])
def test_a_copy_that_is_cut_by_restarts_comes_whole_and_once(shop: Shop, tmp_path: Path, count: int) -> None:
    """PostgreSQL writes up to 185 rows of a COPY under one position."""
    runs = postgres(shop, tmp_path, count // 5)
    runs.life(200)
    with shop.connect() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (id, name) VALUES (1000, 'before')")
        with cursor.copy("COPY orders (id, name) FROM STDIN") as copy:
            for number in range(count):
                copy.write_row((10_000 + number, "x" * 20))
        cursor.execute("INSERT INTO orders (id, name) VALUES (1001, 'behind')")
    while ("c", 1001) not in runs.events():
        assert runs.life(1)
    assert any("heartbeat" in row["topic"] for row in runs.rows)
    copied = [key for operation, key in runs.events() if operation == "c"]
    assert copied == [1000, *range(10_000, 10_000 + count), 1001]
    assert runs.epochs >= 5


@pytest.mark.soak
def test_a_move_into_a_transaction_gives_the_whole_of_it_again_also_over_a_restart(shop: Shop, tmp_path: Path) -> None:
    runs = postgres(shop, tmp_path, 100)
    runs.life(200)
    statement = "COPY orders (id, name) FROM STDIN"
    with shop.connect() as connection, connection.cursor() as cursor, cursor.copy(statement) as copy:
        for number in range(400):
            copy.write_row((10_000 + number, "x" * 20))
    assert runs.life(1)
    place = runs.offset["at"]["offsets"]
    assert runs.life(100)
    moved = SourceOffset("0", runs.offset).move(place, EpochLog(LocalStorage(tmp_path / "state"), "connect"))
    runs.offset = moved.value
    again = [*runs.life(1), *runs.life(250, 120)]
    assert [event(row)[1] for row in again] == list(range(10_000, 10_000 + len(again)))


@pytest.mark.soak
def test_changed_keys_that_are_cut_by_restarts_come_whole_and_once(shop: Shop, tmp_path: Path) -> None:
    """Each is a delete, a tombstone and a create of one position: a poll of one record cuts between them."""
    one = {"max.batch.size": "1", "max.queue.size": "2", "tombstones.on.delete": "true"}
    runs = postgres(shop, tmp_path, 1, **one)
    shop.sql("DELETE FROM orders WHERE id > 1")
    runs.life(1)
    shop.sql("UPDATE orders SET id = 5 WHERE id = 1", "UPDATE orders SET id = 6 WHERE id = 5")
    while ("c", 6) not in runs.events():
        assert runs.life(1)
    assert runs.events()[1:] == [("d", 1), ("t", 1), ("c", 5), ("d", 5), ("t", 5), ("c", 6)]


@pytest.mark.soak
def test_a_blocking_snapshot_does_not_lend_its_columns_to_the_log_before_it(shop: Shop, tmp_path: Path) -> None:
    """The log behind the signal is older than a change of the table, which Debezium knows since the snapshot of another one."""
    shop.sql("DELETE FROM orders WHERE id > 4", "ALTER TABLE orders DROP COLUMN price, DROP COLUMN at")
    shop.sql("CREATE TABLE items (id int PRIMARY KEY)", "CREATE TABLE signals (id text PRIMARY KEY, type text, data text)")
    signals = {"signal.data.collection": "public.signals", "signal.enabled.channels": "source"}
    runs = postgres(shop, tmp_path, 1_000, **signals, **{"table.include.list": "public.orders,public.items"})
    runs.life(4)
    signal = json.dumps({"type": "blocking", "data-collections": ["public.items"]})
    sent = f"INSERT INTO signals VALUES (gen_random_uuid(), 'execute-snapshot', '{signal}')"
    shop.sql("INSERT INTO items VALUES (50)", "UPDATE orders SET amount = 10 WHERE id = 1", sent)
    shop.sql("UPDATE orders SET amount = 20 WHERE id = 2", "UPDATE orders SET amount = 30 WHERE id = 3")
    shop.sql("ALTER TABLE orders ADD COLUMN extra bigint NOT NULL DEFAULT 7")
    shop.sql("ALTER TABLE orders ALTER COLUMN extra DROP DEFAULT", "UPDATE orders SET amount = 40 WHERE id = 4")
    runs.life(7)
    changes = [json.loads(row["value"])["payload"] for row in runs.rows if row["topic"] == "shop.public.orders"]
    assert [change["after"] for change in changes if change["op"] == "u"] == [
        {"id": 1, "name": "order 1", "amount": 10},
        {"id": 2, "name": "order 2", "amount": 20},
        {"id": 3, "name": "order 3", "amount": 30},
        {"id": 4, "name": "order 4", "amount": 40, "extra": 7},
    ]
    assert [key for operation, key in runs.events() if operation == "r"] == [1, 2, 3, 4, 50]
    shop.sql(f"{sent}; UPDATE orders SET amount = 50 WHERE id = 1")
    with pytest.raises(Fatal, match=r"(?s)a blocking snapshot is asked for in a transaction.*signal.enabled.channels=jmx"):
        runs.life(1_000, seconds=600.0)  # the first try at the transaction and the snapshot between give some


@pytest.mark.soak
def test_the_first_transaction_of_a_log_without_a_snapshot_is_cut_by_restarts(shop: Shop, tmp_path: Path) -> None:
    runs = postgres(shop, tmp_path, 60, **{"snapshot.mode": "no_data", "heartbeat.interval.ms": "0"})
    runs.life(1, seconds=8.0)  # makes the slot
    shop.sql("CREATE TABLE other (id int)", "INSERT INTO other VALUES (1)")
    with (
        shop.connect() as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY orders (id) FROM STDIN") as copy,
    ):
        for number in range(1000, 1180):
            copy.write_row((number,))
    for _ in range(3):
        assert runs.life(1)
    runs.life(180 - len(runs.rows))
    assert runs.events() == [("c", number) for number in range(1000, 1180)]
    assert runs.epochs > 2


@pytest.mark.soak
def test_the_binary_log_of_mariadb_is_cut_by_restarts(tmp_path: Path) -> None:
    """Rows of one event, and a changed key, cut anywhere."""
    import pymysql

    server = optional(MariaDbServer)
    with pymysql.connect(host="127.0.0.1", port=server.port, user="app", password="app", autocommit=True) as admin:
        cursor = admin.cursor()
        for statement in (
            "DROP DATABASE IF EXISTS cut",
            "CREATE DATABASE cut",
            "CREATE TABLE cut.orders (id int PRIMARY KEY, name varchar(40))",
            "INSERT INTO cut.orders VALUES (1, 'a')",
        ):
            cursor.execute(statement)
        config = mariadb_properties(server.port, "cut", 5401, tmp_path / "history.dat")
        small = {"max.batch.size": "2", "max.queue.size": "4", "poll.interval.ms": "50"}
        runs = Runs(tmp_path, {**config, **small}, DEBEZIUM_MARIADB, maxRowsPerTrigger="2")
        runs.life(1)
        cursor.execute(f"INSERT INTO cut.orders VALUES {', '.join(f'({number}, 0)' for number in range(10, 17))}")
        cursor.execute("UPDATE cut.orders SET id = 2 WHERE id = 1")
        cursor.execute("INSERT INTO cut.orders VALUES (99, 'last')")
    inserted = [("c", number) for number in range(10, 17)]
    while runs.events()[-1] != ("c", 99):
        assert runs.life(1)
    assert runs.events() == [("r", 1), *inserted, ("d", 1), ("t", 1), ("c", 2), ("c", 99)]
    assert runs.epochs > 4
