"""What a query's table says of a replication slot and a snapshot, and runs that end over a quiet table beside a busy one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors import metrics
from connectors.connect.host import SOURCE_COLUMNS
from connectors.connect.java import source_host
from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.systems.connect import ConnectSource
from connectors.testing.sampling import wait_until
from connectors.testing.servers import PostgresServer
from tests.connect.java_sources import DEBEZIUM
from tests.servers import required
from tests.systems.cdc.shop import Shop
from tests.systems.connect.test_run_ends import repeated

pytestmark = pytest.mark.server
BUSY = "INSERT INTO busy SELECT n, repeat('x', 1000) FROM generate_series(1, 4000) n"


class Query:
    """A query and its checkpoint."""

    def __init__(self, folder: Path, config: dict[str, str]) -> None:
        self.options = {"config": json.dumps(config), "pluginPackages": DEBEZIUM, "stateLocation": str(folder / "state")}
        self.offset, self.rows, self.batches = INITIAL, 0, 0

    def run(self, ends: Callable[[], bool] | None = None, **options: str) -> float:
        """A run until there is nothing left, or until it ``ends``. Returns its seconds."""
        source = ConnectSource.of({**self.options, **options}, streaming=True)
        planner, begin = Planner(source), time.monotonic()
        try:
            if ends is None:
                planner.freeze()
            while ends is None or not ends():
                end = planner.latest(self.offset)
                if end == self.offset and ends is None:
                    break
                for part in planner.slices(self.offset, end) if end != self.offset else ():
                    for batch in read_slice(source, part, SOURCE_COLUMNS):
                        self.rows += sum("heartbeat" not in topic for topic in batch["topic"].to_pylist())
                self.batches += end != self.offset
                self.offset = end
                assert time.monotonic() - begin < 60
        finally:
            planner.close()
        return time.monotonic() - begin

    def line(self) -> dict[str, Any]:
        """The line of its table."""
        ((_, line),) = metrics.table({"id": "never-run", "sources": [{"endOffset": json.dumps(self.offset)}]}).iterrows()
        return dict(line)


@pytest.mark.soak
def test_the_table_of_a_query_tells_of_slot_and_snapshot_and_a_run_over_a_quiet_table_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_host, "_FIRST_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(source_host, "_LOOK_SECONDS", 0.1)
    shop = Shop(required(PostgresServer), tmp_path)
    try:
        shop.sql("CREATE TABLE busy (n int, filler text)", "ANALYZE orders")
        query = Query(tmp_path, shop.config(heartbeat__interval__ms="600000"))
        with shop.connect() as connection, repeated(lambda: connection.execute(BUSY) and None, 0.05):
            query.run(lambda: query.rows == 200 and query.line()["wal_status"] == "reserved")
            line = query.line()
            assert line["slot_lag_bytes"] > 0
            assert (line["snapshot_rows"], line["snapshot_total"]) == (200, 200)
            before = query.batches
            assert query.run(drainTimeout="20s") < 20, "the log's end at its start is read, though no row came"
            assert query.batches > before
        assert (query.rows, str(query.line()["snapshot_rows"])) == (200, "<NA>")
    finally:
        shop.drop()


@pytest.mark.spark
def test_a_running_query_tells_that_the_log_grows_and_moves_its_slot(spark: Any, tmp_path: Path) -> None:
    shop = Shop(required(PostgresServer), tmp_path)
    connectors.register(spark, ConnectSource)
    config = shop.config(heartbeat__interval__ms="600000")
    options = {"config": json.dumps(config), "pluginPackages": DEBEZIUM, "stateLocation": str(tmp_path / "state")}
    changes = spark.readStream.format("connectors.connect").options(**options, pollInterval="200ms").load()
    writer = changes.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    try:
        shop.sql("CREATE TABLE busy (n int, filler text)")
        with metrics.watch(spark, rules=[metrics.SlotGrows(batches=1, floor="16MB")], on_alert=print, show=False) as watch:
            query = writer.trigger(processingTime="200 milliseconds").start()
            keys = iter(range(1000, 2000))
            wait_until(lambda: shop.sql(f"INSERT INTO orders (id) VALUES ({next(keys)})") or slot_lag(query) is not None, 60.0)
            with shop.connect() as connection:
                written = position(connection, "SELECT pg_current_wal_lsn() - '0/0'")
                for _ in range(6):
                    connection.execute(BUSY)
                confirmed = f"SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{shop.name}'"
                wait_until(lambda: position(connection, confirmed) > written + (16 << 20), 60.0)
            assert slot_lag(query) > 16 << 20
            query.stop()
        assert [alert.rule for alert in watch.alerts] == ["slot_grows"]
    finally:
        shop.drop()


def slot_lag(query: Any) -> Any:
    """The log of the query's slot; ``None`` if it is not known."""
    known = metrics.table(query)["slot_lag_bytes"].dropna()
    return known.iloc[0] if len(known) else None


def position(connection: Any, sql: str) -> int:
    return int(connection.execute(sql).fetchone()[0])
