"""``connectors.connect.snapshot``: tables of a database are read anew, beside the merge of its log."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from connectors import connect
from connectors.core import Fatal
from connectors.systems.delta.database_table import DatabaseTable
from connectors.systems.delta.snapshot import _TableSnapshot
from connectors.systems.delta.transaction import Merges
from tests.systems.merge.test_compare import Shop
from tests.systems.merge.test_merge_all import Tables, databases

pytestmark = pytest.mark.server
READ, WRITTEN = "read", "written"
"""The moments at which a step's rows are read, and at which nothing is left to do but to write them."""


class Log:
    """A table of the shop, and its changes that the merge has not seen."""

    def __init__(self, spark: Any, shop: Shop, path: Path, **options: Any) -> None:
        self.shop, self.tables = shop, Tables(spark, path, **options)
        (self.orders,) = databases("orders")
        self.records: list[dict[str, Any]] = []
        shop.table("orders", [])
        for number in range(1, 100):
            self.upsert(number, f"name {number}", number * 10)

    def upsert(self, key: int, name: str | None, amount: int) -> None:
        row = "ON CONFLICT (id) DO UPDATE SET name = excluded.name, amount = excluded.amount"
        self.shop.connection.execute(f"INSERT INTO shop.orders VALUES (%s, %s, %s) {row}", (key, name, amount))
        self.records.append(self.orders.upsert(id=key, name=name, amount=amount))

    def delete(self, key: int) -> None:
        self.shop.run(f"DELETE FROM shop.orders WHERE id = {key}")
        self.records.append(self.orders.delete(key))

    def truncate(self) -> None:
        self.shop.run("TRUNCATE shop.orders")
        self.records.append(self.orders.truncate())

    def merge(self, count: int | None = None) -> None:
        """Merges the oldest changes; all of them by default."""
        records, self.records = self.records[:count], self.records[len(self.records) if count is None else count :]
        self.tables.merge(*records)

    def lose(self, *keys: int) -> None:
        """The merge's table has other rows than the log has told."""
        place = f"delta.`{self.tables.path}/orders`"
        self.tables.spark.sql(f"DELETE FROM {place} WHERE id IN ({', '.join(map(str, keys))})")
        self.tables.spark.sql(f"UPDATE {place} SET name = 'other' WHERE id % 10 = 3")
        self.tables.spark.sql(f"INSERT INTO {place} SELECT id + 1000, 'ghost', 0, _position FROM {place} WHERE id IN (1, 2)")

    def snapshot(self, **arguments: Any) -> dict[str, Any]:
        (row,) = connect.snapshot(self.shop.options, f"{self.tables.path}/", **arguments).collect()
        return row.asDict()

    def check(self) -> None:
        """The table has the rows of the database."""
        rows = self.shop.connection.execute("SELECT id, name, amount FROM shop.orders ORDER BY id").fetchall()
        assert self.tables.rows("orders") == [{"id": key, "name": name, "amount": amount} for key, name, amount in rows]


@pytest.fixture
def log(spark: Any, tmp_path: Path) -> Iterator[Log]:
    shop = Shop()
    log = Log(spark, shop, tmp_path / "shop")
    log.merge()
    log.lose(7, 14, 50)
    yield log
    shop.connection.close()


@pytest.fixture(autouse=True)
def ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a few rows are read in ranges, too."""
    monkeypatch.setattr("connectors.systems.jdbc.ranges._partition_count", lambda *_: 3)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Calls a function at the moments of each step."""

    def on(call: Callable[[str], None]) -> None:
        rows_of, merge = DatabaseTable.rows, Merges.merge

        def rows(table: DatabaseTable, **options: Any) -> Any:
            rows = rows_of(table, **options)
            if "predicates" not in options:
                return rows
            whole = rows.sparkSession.createDataFrame(rows.collect(), rows.schema)
            call(READ)
            return whole

        def merged(merges: Merges, *arguments: Any) -> bool:
            if merges in writers:
                call(WRITTEN)
            return merge(merges, *arguments)

        writers: list[Merges] = []
        run = _TableSnapshot.run

        def running(snapshot: _TableSnapshot) -> Any:
            writers.append(snapshot._merges)
            return run(snapshot)

        monkeypatch.setattr(DatabaseTable, "rows", rows)
        monkeypatch.setattr(Merges, "merge", merged)
        monkeypatch.setattr(_TableSnapshot, "run", running)

    return on


def test_the_table_has_the_rows_of_the_database_afterwards(log: Log) -> None:
    assert log.snapshot(parallel=2) == {"table": "orders", "source": "shop.orders", "ranges": 3, "removed": 2}
    log.check()
    log.shop.run("DELETE FROM shop.orders WHERE id = 10", "UPDATE shop.orders SET name = NULL WHERE id = 11")
    assert log.snapshot()["removed"] == 1, "another one, with no change of the log between"
    log.check()
    log.upsert(1, "later", 1)
    log.delete(2)
    log.upsert(7, "later", 1)
    log.tables.restart()
    log.merge()
    assert {row["id"]: row["name"] for row in log.tables.rows("orders")}[7] == "later"


def test_what_the_merge_writes_beside_it_stays(log: Log, meanwhile: Any) -> None:
    """Each range is read before the changes that come with the log while it is written."""
    keys = iter(range(20, 99))

    def change(moment: str) -> None:
        changed, deleted, moved = next(keys), next(keys), next(keys)
        log.upsert(changed, f"new, as rows were {moment}", 1)
        log.delete(deleted)
        log.delete(moved)
        log.upsert(moved + 1000, "moved", 2)
        log.merge()

    meanwhile(change)
    log.snapshot(parallel=1)
    log.check()
    assert next(keys) == 20 + 3 * (3 * 2 + 1), "at all moments, also as deletions are looked at once more"


def test_an_interrupted_snapshot_goes_on_behind_its_last_step(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    write, steps = _TableSnapshot._write, list[Any]()

    def dying(snapshot: Any, plan: Any, step: Any, mark: Any) -> bool:
        if len(steps) == 2:
            raise OSError("no power")
        steps.append(step)
        return write(snapshot, plan, step, mark)

    with monkeypatch.context() as patch:
        patch.setattr(_TableSnapshot, "_write", dying)
        with pytest.raises(OSError, match="no power"):
            log.snapshot(parallel=1)
    log.upsert(7, "later", 1)
    log.delete(51)
    log.upsert(98, "later", 1)
    log.tables.restart()
    log.merge(2)
    monkeypatch.setattr(_TableSnapshot, "_write", lambda *arguments: steps.append(arguments[2]) or write(*arguments))
    log.snapshot(parallel=1)
    assert len(steps) == 3
    assert len({step.conditions[0] for step in steps}) == 3
    log.merge()
    log.check()


def test_a_snapshot_that_died_behind_its_last_step_removes_what_is_gone(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_TableSnapshot, "_end", lambda *_: exec("raise OSError('no power')"))
        with pytest.raises(OSError, match="no power"):
            log.snapshot()
    monkeypatch.setattr(_TableSnapshot, "_write", lambda *_: pytest.fail("all steps are written"))
    assert log.snapshot()["removed"] == 2
    log.check()


def test_a_transaction_that_the_log_has_told_and_the_database_does_not_show_yet_is_waited_for(log: Log) -> None:
    """As behind synchronous replication: the log has a commit, while readers do not see it."""
    address = log.shop.connection.info
    with psycopg.connect(host=address.host, port=address.port, user=address.user, dbname=address.dbname) as other:
        other.execute("UPDATE shop.orders SET name = 'committed' WHERE id = 60")
        log.records.append(log.orders.upsert(id=60, name="committed", amount=600))
        log.merge()
        with pytest.raises(Fatal, match=r"transactions that have written are open for more than 1 seconds: session \d+ of"):
            log.snapshot(wait="1s")
        timer = threading.Timer(2.0, other.commit)
        timer.start()
        log.snapshot()
        timer.join()
    log.check()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 30))])
def test_whatever_comes_when_the_table_is_equal_in_the_end(log: Log, meanwhile: Any, seed: int) -> None:
    chance = random.Random(seed)

    def change(moment: str) -> None:
        for _ in range(chance.randrange(6)):
            key = chance.randrange(1, 110)
            if key in log.orders.rows and chance.random() < 0.5:
                log.delete(key)
            else:
                log.upsert(key, f"{moment} {log.orders.lsn}", chance.randrange(1000))
        if log.records and chance.random() < 0.6:
            log.merge(chance.randrange(1, len(log.records) + 1))
        if chance.random() < 0.15:
            log.tables.restart()
        if chance.random() < 0.15:
            raise OSError("no power")

    meanwhile(change)
    for _ in range(20):
        try:
            log.snapshot(parallel=chance.choice([1, 2]))
            break
        except OSError:
            continue
    log.merge()
    log.check()
