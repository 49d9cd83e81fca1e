"""Change data capture through Spark: Debezium, the epoch log and the merge, killed at every point where a run can break."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectors import connect
from connectors.systems.delta.transaction import beside_others
from connectors.testing.driver import SparkQuery, start_driver
from connectors.testing.faults import Action, FailureInjector, Point
from connectors.testing.servers import PostgresServer
from tests.delta_log import settings
from tests.servers import required
from tests.systems.cdc.shop import Shop, child_jvms, parent_of, table_rows

pytestmark = pytest.mark.server
_SECONDS = 900.0


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    database = Shop(required(PostgresServer), tmp_path)
    yield database
    database.drop()


@pytest.mark.soak
def test_the_delta_table_follows_the_table_of_the_database(spark: Any, shop: Shop) -> None:
    """A snapshot, then changes and an ALTER TABLE, in two runs of a query; no JVM outlives a run."""
    query = shop.query()
    shop.sql("DELETE FROM orders WHERE id > 20")
    query.run(spark)
    assert table_rows(spark, shop.folder / "orders") == shop.rows()
    shop.change(15)
    shop.sql("ALTER TABLE orders ADD COLUMN extra int DEFAULT 7", "UPDATE orders SET extra = 8 WHERE id < 4")
    query.run(spark)
    columns = "id, name, amount, price, at, extra"
    assert table_rows(spark, shop.folder / "orders", columns) == shop.rows(columns)
    assert _gone(shop.name)


@pytest.mark.soak
@pytest.mark.parametrize("environment", ["local", "connect"])
def test_a_table_that_is_read_anew_beside_its_changes_has_the_rows_of_the_database(
    environments: Any, shop: Shop, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write at once, so the one or the other is done again."""
    spark = environments.use(environment).spark
    monkeypatch.setattr("connectors.systems.jdbc.ranges._partition_count", lambda *_: 6)
    query, table = shop.query(), f"delta.`{shop.folder / 'orders'}`"
    query.run(spark)
    over = threading.Event()

    def alter(statement: str) -> None:
        beside_others(lambda: spark.sql(statement))

    def follow() -> None:
        while not over.is_set():
            shop.change(20)
            query.run(spark)

    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(follow)
        for number in range(2):
            alter(f"DELETE FROM {table} WHERE id % 5 = {number}")
            alter(f"UPDATE {table} SET amount = -1 WHERE id % 7 = {number}")
            connect.snapshot(shop.config(), str(shop.folder / "orders"), parallel=2)
        over.set()
        following.result()
    query.run(spark)
    assert table_rows(spark, shop.folder / "orders") == shop.rows()


@pytest.mark.soak
@pytest.mark.parametrize("environment", ["local", "cluster", "connect"])
def test_a_table_that_is_new_in_the_database_is_followed_from_its_first_row(
    environments: Any, shop: Shop, environment: str
) -> None:
    spark = environments.use(environment).spark
    shop.sql("CREATE PUBLICATION all_tables FOR TABLES IN SCHEMA public", "DELETE FROM orders WHERE id > 20")
    published = {"publication__name": "all_tables", "publication__autocreate__mode": "disabled"}
    query = shop.query(**published, table__include__list="public.*")
    tables = {"path": str(shop.folder / "tables"), "deletes": "soft"}
    query = replace(query, sink="connectors.systems.delta.merge_all:ChangeTables", sink_options=tables)
    query.run(spark)
    shop.sql(
        "CREATE TABLE users (id int PRIMARY KEY, name text)",
        "INSERT INTO users SELECT n, 'user ' || n FROM generate_series(1, 30) n",
        "DELETE FROM users WHERE id = 7",
    )
    shop.change(15)
    query.run(spark)
    shop.sql("UPDATE users SET name = 'changed' WHERE id < 5")
    query.run(spark)
    with shop.connect() as database:
        users = database.execute("SELECT id, name FROM users ORDER BY id").fetchall()
    rows = spark.read.format("delta").load(f"{tables['path']}/users")
    assert [tuple(row) for row in rows.where("deleted_at IS NULL").select("id", "name").orderBy("id").collect()] == users
    assert [tuple(row) for row in rows.where("deleted_at IS NOT NULL").select("id", "name").collect()] in ([], [(7, "user 7")])
    there = spark.read.format("delta").load(f"{tables['path']}/orders").where("deleted_at IS NULL").select("id", "name")
    assert [tuple(row) for row in there.orderBy("id").collect()] == shop.rows("id, name")


@pytest.mark.soak
@pytest.mark.parametrize("environment", ["cluster", "connect"])
def test_the_other_environments(environments: Any, shop: Shop, environment: str) -> None:
    """On Spark Connect the server's side owns the JVM."""
    spark = environments.use(environment).spark
    query = shop.query()
    query.run(spark)
    shop.change(20)
    query.run(spark)
    assert table_rows(spark, shop.folder / "orders") == shop.rows()
    assert _gone(shop.name)


@pytest.mark.soak
@pytest.mark.parametrize("environment", ["local", "cluster", "connect"])
def test_a_table_has_the_columns_of_the_database(environments: Any, shop: Shop, environment: str) -> None:
    spark = environments.use(environment).spark
    query = shop.query()
    database = json.dumps({**shop.config(), "database.password": "sesame"})
    query = replace(query, sink_options={**query.sink_options, "onSchemaChange": "evolve", "database": database})
    query.run(spark)
    shop.sql("ALTER TABLE orders RENAME name TO title", "ALTER TABLE orders DROP at")
    shop.sql("UPDATE orders SET title = 'x' WHERE id < 4")
    query.run(spark)
    columns = "id, title, amount, price"
    assert table_rows(spark, shop.folder / "orders", columns) == shop.rows(columns)
    assert spark.read.format("delta").load(str(shop.folder / "orders")).columns == [*columns.split(", "), "_position"]


Kill = Callable[[Shop, "subprocess.Popen[bytes]"], None]


def _jvm(shop: Shop, driver: subprocess.Popen[bytes]) -> None:
    os.kill(_connector(shop, driver), signal.SIGKILL)


def _planner(shop: Shop, driver: subprocess.Popen[bytes]) -> None:
    os.kill(parent_of(_connector(shop, driver)), signal.SIGKILL)


def _driver(shop: Shop, driver: subprocess.Popen[bytes]) -> None:
    jvm = _connector(shop, driver)
    for pid in {*FailureInjector(shop.folder / "faults").victims(), driver.pid}:
        os.kill(pid, signal.SIGKILL)
    assert jvm


def _database(shop: Shop, driver: subprocess.Popen[bytes]) -> None:
    _connector(shop, driver)
    shop.server.kill()
    time.sleep(1.0)
    shop.server.relaunch()


KILLS: dict[str, Kill] = {"JVM": _jvm, "planner": _planner, "driver": _driver, "database": _database}
POINTS = {
    "before the manifest": (Point.EPOCH_RECEIVED, Action.KILL, "local[2,4]"),
    "after the manifest": (Point.EPOCH_RECORDED, Action.KILL, "local[2,4]"),
    "after the merge, before Spark's commit": (Point.BATCH_DONE, Action.KILL, "local[2,4]"),
    "an executor in the middle of an epoch": (Point.READ_ROW, Action.KILL_EXECUTOR, "cluster"),
}


@pytest.mark.soak
@pytest.mark.parametrize("first", ["moments", "points"])
def test_no_kill_loses_or_doubles_a_change_or_leaves_a_jvm_behind(tmp_path: Path, first: str) -> None:
    with PostgresServer() as server:
        shop = Shop(server, tmp_path)
        query = shop.query()
        report = [_round_at_a_moment(shop, query, name) for name in KILLS] if first == "moments" else []
        report += [_round_at_a_point(shop, query, name) for name in POINTS] if first == "points" else []
        FailureInjector(query.faults).disarm()
        FailureInjector(query.faults).clear_victims()
        shop.change()
        assert _run(shop, query, "local[2,4]") == 0, _log(shop)
        import pyarrow.compute as pc

        from tests.delta_log import delta

        table = delta(tmp_path / "orders").sort_by("id")
        rows = list(zip(*(table[name].to_pylist() for name in ("id", "name", "amount", "price")), strict=True))
        assert rows == shop.rows("id, name, amount, price"), "\n".join(report)
        assert pc.count_distinct(table["id"]).as_py() == table.num_rows
        assert _gone(shop.name)


def _round_at_a_moment(shop: Shop, query: SparkQuery, name: str) -> str:
    shop.change()
    driver = start_driver(shop.folder / "driver", "local[2,4]", [query], **settings())
    try:
        KILLS[name](shop, driver)
        code = driver.wait(_SECONDS)
    finally:
        driver.kill()
    assert _gone(shop.name), f"a JVM outlives the kill of the {name}"
    return f"{name}: {code}"


def _round_at_a_point(shop: Shop, query: SparkQuery, name: str) -> str:
    point, action, master = POINTS[name]
    injector = FailureInjector(query.faults)
    injector.arm(point, action)
    shop.change()
    code = _run(shop, query, master)
    assert injector.struck(), f"{name} was not reached: {_log(shop)}"
    assert _gone(shop.name), f"a JVM outlives a kill {name}"
    injector.disarm()
    return f"{name}: {code}"


def _run(shop: Shop, query: SparkQuery, master: str) -> int:
    return start_driver(shop.folder / "driver", master, [query], **settings()).wait(_SECONDS)


def _connector(shop: Shop, driver: subprocess.Popen[bytes]) -> int:
    """The JVM of the connector, once the query has recorded an epoch with it."""
    until = time.monotonic() + _SECONDS
    before = len(list((shop.folder / "state").glob("epochs/*/plan.json")))
    while time.monotonic() < until and driver.poll() is None:
        recorded = len(list((shop.folder / "state").glob("epochs/*/plan.json")))
        if recorded != before and (processes := child_jvms(shop.name)):
            return processes[0]
        time.sleep(0.02)
    raise AssertionError(f"no connector runs: {_log(shop)}")


def _gone(name: str, seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while child_jvms(name) and time.monotonic() < until:
        time.sleep(0.1)
    return not child_jvms(name)


def _log(shop: Shop) -> str:
    return (shop.folder / "driver" / "log").read_text()[-6000:]
