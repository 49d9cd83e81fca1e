"""The log that PostgreSQL keeps for a slot while a query runs: its size, its end, and that a quiet table lets it go."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.connect.host import TaskRecords
from connectors.connect.java import source_host
from connectors.connect.java.source_host import JavaSourceHost
from connectors.core import Fatal, ReadLimit
from connectors.testing.servers import PostgresServer
from tests.connect.java_sources import DEBEZIUM, poll, rows_of, started
from tests.servers import required
from tests.systems.cdc.shop import Shop

pytestmark = pytest.mark.server
SEGMENT = 16 << 20
BUSY = "INSERT INTO busy SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n"
"""A transaction of more than 20 MB in a table that nobody captures."""
SNAPSHOT = {"snapshot_rows", "snapshot_total"}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_host, "_FIRST_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(source_host, "_LOOK_SECONDS", 0.5)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    database = busy_shop(required(PostgresServer), tmp_path)
    yield database
    database.drop()


def busy_shop(server: PostgresServer, folder: Path) -> Shop:
    shop = Shop(server, folder)
    shop.sql("CREATE TABLE busy (n int, filler text)", "ANALYZE orders")
    return shop


class Reader:
    """Takes what a host gives, and commits it as Spark does."""

    def __init__(self) -> None:
        self.offsets: dict[str, Any] = {}
        self.groups: dict[str, Any] = {}
        self.epoch = self.empty = 0
        self.keys: list[int] = []

    def take(self, host: JavaSourceHost, records: list[TaskRecords]) -> None:
        for part in records:
            self.offsets.update(part.offsets)
            self.groups.update(part.groups)
            self.empty += not part.rows.num_rows
        changes = [json.loads(row["value"])["payload"] for row in rows_of(records) if "heartbeat" not in row["topic"]]
        self.keys += [change["after"]["id"] for change in changes]
        host.committed(self.epoch)

    def follow(self, host: JavaSourceHost, condition: Any, seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until
            self.epoch += 1
            self.take(host, host.poll(self.epoch, ReadLimit(), 0.5))

    def follow_for(self, host: JavaSourceHost, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.follow(host, lambda: time.monotonic() > until)

    def state(self) -> dict[str, Any]:
        return {"offsets": self.offsets, "groups": self.groups}


def slot(shop: Shop) -> tuple[int, int]:
    """How far the slot is: what the server keeps for it, and what it was told is read."""
    with shop.connect() as connection:
        query = "SELECT restart_lsn - '0/0', confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
        row = connection.execute(query, (shop.name,)).fetchone()
    assert row
    return int(row[0]), int(row[1])


def end(shop: Shop) -> int:
    with shop.connect() as connection:
        row = connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
    assert row
    return int(row[0])


def beating(shop: Shop, **more: str) -> dict[str, str]:
    """The settings of a source that may write messages. No heartbeat comes in the time of a test."""
    return shop.config(**{"heartbeat__interval__ms": "600000", **more})


def bounds(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """What was logged of the bound of the log."""
    records = [record for record in caplog.records if "(max_slot_wal_keep_size" in record.getMessage()]
    return [(record.levelno, record.getMessage()) for record in records]


def test_the_slot_of_a_quiet_table_moves_while_another_is_busy_also_after_a_start(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader()
    for life in range(2):
        with started(beating(shop), DEBEZIUM, **reader.state()) as host:
            reader.follow(host, lambda: len(reader.keys) >= 200)
            written, times, reader.empty = end(shop), 0, 0
            while min(slot(shop)) <= written:
                assert times < 60
                shop.sql(BUSY)
                times += 1
                reader.follow_for(host, 1)
            reader.follow(host, lambda: abs(host.facts().get("slot_lag_bytes", 0) + slot(shop)[0] - end(shop)) < SEGMENT // 16)
            assert host.facts()["wal_status"] == "reserved"
            assert SNAPSHOT & host.facts().keys() == (set() if life else SNAPSHOT)
            shop.sql(f"INSERT INTO orders (id) VALUES ({201 + life})")  # the next start goes on behind a change of a table
            reader.follow(host, lambda: len(reader.keys) > 200 + life)  # noqa: B023
        assert 1 <= reader.empty <= times + 2, "the slot moves by epochs, and no look is one"
    assert reader.keys == list(range(1, 203))
    text = rf"keeps all of its log for the slot {shop.name}/{shop.name} \(max_slot_wal_keep_size=-1\).*may fill"
    told = bounds(caplog)
    assert [level for level, line in told if re.search(text, line)] == [logging.WARNING] * 2 == [level for level, _ in told]


def test_a_transaction_that_is_open_while_the_slot_moves_comes_whole_and_once(shop: Shop) -> None:
    """Its first row lies before the position from which a start goes on, its commit behind that."""
    reader = Reader()
    with shop.connect() as connection:
        with started(beating(shop), DEBEZIUM) as host:
            reader.follow(host, lambda: len(reader.keys) >= 200)
            connection.execute("BEGIN")
            connection.execute("INSERT INTO orders (id) VALUES (901)")
            written = end(shop)
            shop.sql(BUSY)
            reader.follow(host, lambda: slot(shop)[1] > written + SEGMENT)
        with started(beating(shop), DEBEZIUM, **reader.state()) as host:
            connection.execute("INSERT INTO orders (id) VALUES (902)")
            connection.execute("COMMIT")
            reader.follow(host, lambda: len(reader.keys) >= 202)
    with started(beating(shop), DEBEZIUM, **reader.state()) as host:
        shop.sql("INSERT INTO orders (id) VALUES (903)")
        reader.follow(host, lambda: len(reader.keys) >= 203)
    assert reader.keys == [*range(1, 201), 901, 902, 903]


@pytest.mark.soak
def test_a_snapshot_is_told_and_no_epoch_comes_while_the_database_or_the_query_rests(shop: Shop) -> None:
    reader = Reader()
    with started(beating(shop), DEBEZIUM) as host:
        reader.follow(host, lambda: host.facts().get("snapshot_rows") == host.facts().get("snapshot_total") == 200)
        reader.follow(host, lambda: not host.facts()["snapshot_runs"])
        reader.empty, before = 0, end(shop)
        reader.follow_for(host, 4)
        assert reader.empty == 0
        assert end(shop) - before < SEGMENT // 16, "PostgreSQL itself writes a little"
        assert host.idle_seconds() > 3
        shop.sql(BUSY)
        assert len([part for _ in range(8) for part in host.poll(1000, ReadLimit(), 0.5)]) == 1, "nothing is committed"


def test_without_heartbeats_the_slot_stands_still_and_its_growth_is_told(shop: Shop) -> None:
    """Also: where a table has no statistics, nobody knows how many rows a snapshot has."""
    shop.sql("CREATE TABLE other (id int PRIMARY KEY) WITH (autovacuum_enabled = false)", "INSERT INTO other VALUES (901)")
    reader, tables = Reader(), "public.orders,public.other"
    with started(shop.config(table__include__list=tables), DEBEZIUM) as host:
        reader.follow(host, lambda: host.facts().get("snapshot_rows") == 201 and "slot_lag_bytes" in host.facts())
        assert "snapshot_total" not in host.facts()
        before, stood = host.facts()["slot_lag_bytes"], slot(shop)
        for times in (1, 2):
            shop.sql(BUSY)
            reader.follow(host, lambda: host.facts()["slot_lag_bytes"] - before > times * SEGMENT)  # noqa: B023 - called at once
        assert slot(shop) == stood


class Snapshots:
    """Asks Debezium for snapshots by a file."""

    def __init__(self, shop: Shop) -> None:
        self.file = shop.folder / "signals"
        self.file.write_text("")
        self.config = {
            "signal__enabled__channels": "file",
            "signal__file": str(self.file),
            "signal__poll__interval__ms": "200",
            "incremental__snapshot__chunk__size": "50",
        }

    def ask(self, kind: str) -> None:
        data = {"data-collections": ["public.orders"], "type": kind}
        self.file.write_text(json.dumps({"id": kind, "type": "execute-snapshot", "data": data}) + "\n")


def test_the_slot_moves_behind_a_blocking_snapshot_too(shop: Shop) -> None:
    """The first message behind it is the place from which the task starts again, and no record."""
    reader, snapshots = Reader(), Snapshots(shop)
    with started(beating(shop, **snapshots.config), DEBEZIUM) as host:
        reader.follow(host, lambda: len(reader.keys) >= 200)
        snapshots.ask("BLOCKING")
        reader.follow(host, lambda: len(reader.keys) >= 400)
        written, until = end(shop), time.monotonic() + 60
        while slot(shop)[1] <= written:
            assert time.monotonic() < until
            shop.sql(BUSY)
            reader.follow_for(host, 1)
        shop.sql("INSERT INTO orders (id) VALUES (201)")
        reader.follow(host, lambda: 201 in reader.keys)
    assert reader.keys == [*range(1, 201), *range(1, 202)]


def test_a_read_only_connector_writes_no_message_which_would_end_its_incremental_snapshot(shop: Shop) -> None:
    reader, snapshots = Reader(), Snapshots(shop)
    with started(beating(shop, read__only="true", **snapshots.config), DEBEZIUM) as host:
        reader.follow(host, lambda: len(reader.keys) >= 200)
        shop.sql("INSERT INTO orders (id) VALUES (201)", BUSY)
        reader.follow(host, lambda: 201 in reader.keys and host.facts().get("slot_lag_bytes", 0) > SEGMENT)
        reader.follow_for(host, 2)
        snapshots.ask("INCREMENTAL")
        reader.follow(host, lambda: len(reader.keys) >= 402)
        assert [status.restarts for status in host.statuses()] == [0]
    assert reader.keys == [*range(1, 202)] * 2


REFUSAL = """
CREATE FUNCTION pg_logical_emit_message(boolean, text, text) RETURNS pg_lsn LANGUAGE plpgsql AS $$ BEGIN
    IF EXISTS (SELECT FROM public.refusals) THEN RAISE 'not now' USING ERRCODE = (SELECT state FROM public.refusals); END IF;
    RETURN pg_catalog.pg_logical_emit_message($1, $2, $3);
END $$"""
"""The database refuses messages with the state in a table."""


@pytest.mark.soak
@pytest.mark.parametrize("state", ["57014", "42501"])
def test_a_message_that_the_database_refuses_is_told_and_tried_again_unless_it_is_forbidden(
    shop: Shop, state: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shop.sql(f"ALTER DATABASE {shop.name} SET search_path = public, pg_catalog")
    shop.sql("CREATE TABLE refusals (state text)", f"INSERT INTO refusals VALUES ('{state}')", REFUSAL)
    reader = Reader()
    with started(beating(shop), DEBEZIUM) as host:
        reader.follow(host, lambda: len(reader.keys) >= 200)
        told, written = "", end(shop)
        shop.sql(BUSY)
        while "stands still while its tables do not change: ERROR: not now" not in told:
            reader.follow(host, lambda: "slot_lag_bytes" in host.facts())
            told += capfd.readouterr().err
        shop.sql("TRUNCATE refusals")
        for _ in range(4):
            shop.sql(BUSY)
            reader.follow_for(host, 1)
        assert (slot(shop)[1] > written) is (state == "57014")
        assert "slot_lag_bytes" in host.facts()


@pytest.mark.soak
def test_heartbeats_that_a_user_asks_for_come_as_rows_and_the_slot_moves_too(shop: Shop) -> None:
    with started(shop.config(heartbeat__interval__ms="200"), DEBEZIUM) as host:
        records = poll(host, 205)
        written, until = end(shop), time.monotonic() + 30
        shop.sql(BUSY)
        while slot(shop)[1] < written + SEGMENT:
            host.committed(1)
            records += host.poll(1, ReadLimit(), 0.5)
            assert time.monotonic() < until
    assert {row["topic"] for row in rows_of(records)} == {"shop.public.orders", "__debezium-heartbeat.shop"}


@contextlib.contextmanager
def silent(server: PostgresServer) -> Iterator[None]:
    """The server accepts no connection and refuses none; those that are open go on."""
    os.kill(server.children[0].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.children[0].pid, signal.SIGCONT)


def test_a_database_that_does_not_answer_and_a_jvm_that_dies_make_the_facts_unknown_and_delay_no_row(tmp_path: Path) -> None:
    with PostgresServer() as server:
        shop, reader = busy_shop(server, tmp_path), Reader()
        with started(beating(shop), DEBEZIUM) as host, shop.connect() as connection:
            reader.follow(host, lambda: len(reader.keys) >= 200)
            connection.execute("INSERT INTO orders (id) VALUES (899)")
            reader.follow(host, lambda: 899 in reader.keys and "slot_lag_bytes" in host.facts())
            with silent(server):
                reader.follow(host, lambda: "slot_lag_bytes" not in host.facts())
                for number in range(900, 905):
                    connection.execute("INSERT INTO orders (id) VALUES (%s)", (number,))
                    begin = time.monotonic()
                    reader.follow(host, lambda: number in reader.keys)  # noqa: B023 - called at once
                    host.facts()
                    assert time.monotonic() - begin < 2.5
            reader.follow(host, lambda: "slot_lag_bytes" in host.facts())
            os.kill(host.pid or 0, signal.SIGKILL)
            shop.sql(BUSY)
            reader.follow(host, lambda: host.facts().get("slot_lag_bytes", 0) > SEGMENT)
            assert reader.keys == [*range(1, 201), *range(899, 905)]


def test_a_slot_that_is_lost_while_the_query_runs_is_told_with_the_ways_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "connectors.connect")
    with PostgresServer(max_slot_wal_keep_size="16MB", min_wal_size="32MB", max_wal_size="64MB") as server:
        shop = busy_shop(server, tmp_path)
        with started(shop.config(), DEBEZIUM) as host:
            reader = Reader()
            reader.follow(host, lambda: "slot_lag_bytes" in host.facts())
            for _ in range(5):
                shop.sql(BUSY, "CHECKPOINT")
            with pytest.raises(Fatal, match=r"has lost its log .*max_slot_wal_keep_size; the recorded position is 0/") as lost:
                reader.follow(host, lambda: False)
        assert "begin with a new snapshot" in str(lost.value)
    ((level, line),) = bounds(caplog)
    assert level == logging.INFO
    assert re.search("keeps up to 16MB of its log for the slot .*a new snapshot is needed", line)
