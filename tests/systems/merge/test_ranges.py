"""``connectors.connect.snapshot``: tables of a database are read anew, beside the merge of its log."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from connectors import connect
from connectors.core import Fatal, Misconfigured
from connectors.core.batch import Batch
from connectors.systems.delta.database_table import DatabaseTable
from connectors.systems.delta.snapshot import _TableSnapshot
from connectors.systems.delta.transaction import Merges
from connectors.testing.servers import MariaDbServer
from tests.servers import optional
from tests.systems.change_logs import COLUMNS, Database
from tests.systems.merge.test_compare import Shop
from tests.systems.merge.test_merge_all import Tables, databases

pytestmark = pytest.mark.server
READ, WRITTEN = "read", "written"
"""The moments at which a step's rows are read, and at which nothing is left to do but to write them."""


class Log:
    """A table of the shop, and its changes that the merge has not seen."""

    def __init__(
        self, spark: Any, path: Path, keys: Iterable[Any] = range(1, 100), kind: str = "bigint", **options: Any
    ) -> None:
        self.shop, self.tables = Shop(), Tables(spark, path, **options)
        (self.orders,) = databases("orders")
        if kind != "bigint":
            self.orders.fields["id"] = {"type": "string", "optional": False}
        self.records: list[dict[str, Any]] = []
        self.shop.run(f"CREATE TABLE shop.orders (id {kind} PRIMARY KEY, name text, amount bigint)")
        for number, key in enumerate(keys):
            self.upsert(key, f"name {number}", number * 10)

    def upsert(self, key: Any, name: str | None, amount: int) -> None:
        row = "ON CONFLICT (id) DO UPDATE SET name = excluded.name, amount = excluded.amount"
        self.shop.connection.execute(f"INSERT INTO shop.orders VALUES (%s, %s, %s) {row}", (key, name, amount))
        self.records.append(self.orders.upsert(id=key, name=name, amount=amount))

    def delete(self, key: Any) -> None:
        self.shop.connection.execute("DELETE FROM shop.orders WHERE id = %s", (key,))
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
        rows = self.shop.connection.execute("SELECT id, name, amount FROM shop.orders").fetchall()
        expected = [{"id": key, "name": name, "amount": amount} for key, name, amount in sorted(rows)]
        assert self.tables.rows("orders") == expected


@pytest.fixture
def log(spark: Any, tmp_path: Path) -> Iterator[Log]:
    log = Log(spark, tmp_path / "shop")
    log.merge()
    log.lose(7, 14, 50)
    yield log
    log.shop.connection.close()


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
    keys, gone = iter(range(20, 99)), set[int]()
    log.upsert(next(keys), "before", 1)
    log.merge()

    def change(moment: str) -> None:
        changed, deleted, moved = next(keys), next(keys), next(keys)
        if changed < 26:  # the first step is written before the merge has deleted anything
            return
        if moment == READ:
            assert not gone & {row["id"] for row in log.tables.rows("orders")}, "not even for a while"
            gone.update((deleted, moved))
        log.upsert(changed, f"new, as rows were {moment}", 1)
        log.delete(deleted)
        log.delete(moved)
        log.upsert(moved + 1000, "moved", 2)
        log.merge()

    meanwhile(change)
    log.snapshot(parallel=1)
    log.check()
    assert next(keys) == 21 + 3 * (3 * 2 + 1), "at all moments, also as deletions are looked at once more"


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


@pytest.mark.soak
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


@pytest.mark.soak
def test_rows_that_are_deleted_stay_with_soft_deletes(spark: Any, tmp_path: Path, meanwhile: Any) -> None:
    log = Log(spark, tmp_path / "shop", deletes="soft")
    log.merge()
    log.lose(7, 14)
    log.delete(30)
    log.merge()
    log.upsert(30, "back", 1)
    meanwhile(lambda moment: log.delete(60) or log.merge() if moment == WRITTEN and 60 in log.orders.rows else None)
    log.snapshot(parallel=1)
    rows = {row["id"]: row for row in log.tables.rows("orders")}
    assert {key for key, row in rows.items() if row["deleted_at"] is not None} == {60, 1001, 1002}
    assert (rows[30]["name"], rows[7]["name"]) == ("back", "name 6")
    log.merge()
    assert {row["id"] for row in log.tables.rows("orders") if row["deleted_at"] is not None} == {60, 1001, 1002}


@pytest.mark.soak
@pytest.mark.parametrize("moment", [READ, WRITTEN])
def test_a_truncation_beside_it_leaves_what_came_later(spark: Any, tmp_path: Path, meanwhile: Any, moment: str) -> None:
    log = Log(spark, tmp_path / "shop", truncate="delete")
    log.merge()
    done = []

    def truncate(at: str) -> None:
        if at == moment and not done:
            done.append(at)
            log.truncate()
            log.upsert(5, "later", 1)
            log.merge()
            log.upsert(6, "on its way", 1)

    meanwhile(truncate)
    log.snapshot(parallel=1)
    log.merge()
    log.check()


ODD_KEYS = ["a'b", "a\\b", "ä", "Ä", "A", "a", "z%", 'q"q', "ß", "_", "", " ", "日本", *(f"key {n}" for n in range(20))]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("text", ODD_KEYS),
        ('text COLLATE "C"', ODD_KEYS),
        ("uuid", [f"9f0c1f52-9cb3-4d1e-8f64-{number:012d}" for number in range(30)]),
    ],
)
def test_keys_are_in_the_order_of_the_database(spark: Any, tmp_path: Path, kind: str, keys: list[str]) -> None:
    log = Log(spark, tmp_path / "shop", keys, kind)
    log.merge()
    assert log.snapshot(parallel=1) == {"table": "orders", "source": "shop.orders", "ranges": 3, "removed": 0}
    log.upsert(keys[0], "later", 0)
    log.delete(keys[1])
    assert log.snapshot(parallel=1)["removed"] == 1
    rows = {str(key): name for key, name in log.shop.connection.execute("SELECT id, name FROM shop.orders").fetchall()}
    assert {row["id"]: row["name"] for row in log.tables.rows("orders")} == rows


def test_a_table_that_no_change_has_made_yet_begins_with_the_rows_of_the_database(log: Log, tmp_path: Path) -> None:
    info, slot = log.shop.connection.info, "connectors_ranges"
    properties = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "topic.prefix": "prefix",
        "database.hostname": info.host, "database.port": info.port, "database.user": info.user,
        "database.dbname": info.dbname, "slot.name": slot, "publication.name": slot,
    }  # fmt: skip
    log.tables = Tables(log.tables.spark, tmp_path / "new")

    def snapshot() -> Any:
        return connect.snapshot(properties, f"{log.tables.path}/", new={"orders": "shop.orders"}).collect()

    try:
        with pytest.raises(Misconfigured, match=f"there is no slot {slot}"):
            snapshot()
        log.shop.run(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')", f"CREATE PUBLICATION {slot}")
        with pytest.raises(Misconfigured, match=f"the publication {slot} does not have shop.orders"):
            snapshot()
        log.shop.run(f"ALTER PUBLICATION {slot} ADD TABLE shop.orders")
        log.upsert(40, "before", 1)
        assert [tuple(row) for row in snapshot()] == [("orders", "shop.orders", 3, 0)]
        log.check()
        log.upsert(41, "behind", 1)
        log.delete(42)
        log.merge()
        log.check()
        assert [tuple(row) for row in snapshot()] == [("orders", "shop.orders", 3, 0)]
        log.check()
        log.shop.run("CREATE TABLE shop.prices (id int PRIMARY KEY, net int, gross int GENERATED ALWAYS AS (net * 2) STORED)")
        log.shop.run("INSERT INTO shop.prices VALUES (1, 10)", f"ALTER PUBLICATION {slot} ADD TABLE shop.prices")
        hidden = {**properties, "column.exclude.list": "shop.prices.net"}
        with pytest.raises(Misconfigured, match=r"database +has column.exclude.list, and only the log knows which columns"):
            connect.snapshot(hidden, f"{log.tables.path}/", new={"prices": "shop.prices"})
        assert not (log.tables.path / "prices").exists()
        connect.snapshot(properties, f"{log.tables.path}/", new={"prices": "shop.prices"})
        assert log.tables.rows("prices") == [{"id": 1, "net": 10}], "the log will not have what the database computes"
        log.shop.run("CREATE TABLE shop.times (id int PRIMARY KEY, hour time)")
        log.shop.run(f"ALTER PUBLICATION {slot} ADD TABLE shop.times")
        with pytest.raises(Misconfigured, match=r"has times with the column hour, and only the log knows .* \(time with"):
            connect.snapshot(properties, f"{log.tables.path}/", new={"times": "shop.times"})
    finally:
        log.shop.run(f"DROP PUBLICATION IF EXISTS {slot}")
        log.shop.run(f"SELECT pg_drop_replication_slot('{slot}') FROM pg_replication_slots WHERE slot_name = '{slot}'")


def test_what_cannot_be_read_so_is_refused_and_nothing_is_written(log: Log, tmp_path: Path) -> None:
    def refused(pattern: str, database: dict[str, Any] | None = None, **arguments: Any) -> None:
        with pytest.raises(Misconfigured, match=pattern):
            connect.snapshot(database or log.shop.options, f"{log.tables.path}/", **arguments)

    before = log.tables.rows("orders")
    refused(r"tables +has users, which is not in", tables=["users"])
    refused(r"range_size +must be .*; got \"much\"", range_size="much")
    refused(r"position_column +must name the column of positions of orders", position_column="place")
    refused(r"database +has transforms, so the log has other values", {**log.shop.options, "transforms": "mask"})
    refused(r"new +names tables as schema.table, and database has the properties", new={"items": "shop.items"})
    log.shop.run("ALTER TABLE shop.orders RENAME COLUMN name TO title")
    refused(r"database +has no column name in shop.orders any more, and the log still has")
    log.shop.run("ALTER TABLE shop.orders RENAME COLUMN title TO name", "ALTER TABLE shop.orders DROP CONSTRAINT orders_pkey")
    refused(r"target +has orders, whose key is \(id\), and the primary key of shop.orders is \(\)")
    log.shop.run("ALTER TABLE shop.orders ADD PRIMARY KEY (id)")
    log.shop.run("ALTER TABLE shop.orders ALTER amount TYPE interval USING NULL")
    refused(r"target +has orders with the column amount, and only the log knows .* \(interval\)")
    assert log.tables.rows("orders") == before


@pytest.mark.soak
def test_a_table_of_mariadb_is_read_behind_its_binary_log(spark: Any, tmp_path: Path) -> None:
    import pymysql

    server = optional(MariaDbServer)
    with pymysql.connect(host="127.0.0.1", port=server.port, user="app", password="app", autocommit=True) as admin:
        cursor = admin.cursor()
        cursor.execute("DROP DATABASE IF EXISTS ranges")
        cursor.execute("CREATE DATABASE ranges")
        cursor.execute("CREATE TABLE ranges.orders (id varchar(40) PRIMARY KEY, name text, amount bigint)")
        cursor.executemany("INSERT INTO ranges.orders VALUES (%s, 'name', 1)", [(f"a\\'{number}",) for number in range(50)])
        tables, orders = Tables(spark, tmp_path / "shop"), Database(topic="prefix.ranges.orders")
        orders.fields["id"] = {"type": "string", "optional": False}
        tables.merge(*(orders.upsert(id=f"a\\'{number}", name="other", amount=1) for number in range(20, 60)))
        options = {"url": f"jdbc:mariadb://127.0.0.1:{server.port}/ranges", "user": "app", "password": "app"}
        (row,) = connect.snapshot(options, f"{tables.path}/", parallel=1).collect()
        assert tuple(row) == ("orders", "ranges.orders", 3, 10)
        assert tables.rows("orders") == sorted(
            ({"id": f"a\\'{number}", "name": "name", "amount": 1} for number in range(50)),
            key=lambda row: str(row["id"]),
        )
        cursor.execute("CREATE TABLE ranges.words (id enum('z', 'm', 'a', 'b', 'y') PRIMARY KEY, name text, amount bigint)")
        cursor.execute("INSERT INTO ranges.words VALUES ('z', '', 1), ('m', '', 1), ('a', '', 1), ('b', '', 1), ('y', '', 1)")
        words = Database(topic="prefix.ranges.words")
        words.fields["id"] = {"type": "string", "optional": False}
        tables.merge(words.upsert(id="z", name="", amount=1))
        connect.snapshot(options, f"{tables.path}/", tables=["words"])
        assert [row["id"] for row in tables.rows("words")] == ["a", "b", "m", "y", "z"], "each word is in one range"


@pytest.mark.soak
def test_a_key_whose_deletion_is_newer_than_all_rows_is_read_as_any_other(log: Log) -> None:
    """Somebody has taken rows out of the table since, so the deletion is behind the rows that are left."""
    log.delete(5)
    log.merge()
    log.upsert(5, "again", 1)
    log.merge()
    log.tables.spark.sql(f"DELETE FROM delta.`{log.tables.path}/orders` WHERE id < 10")
    log.snapshot()
    log.check()


@pytest.mark.soak
def test_of_two_calls_at_once_one_stops_and_takes_no_row_of_the_other(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have waited for the transactions of the beginning, and each has a plan."""
    end, steps, others = _TableSnapshot._end, _TableSnapshot._steps, list[Any]()

    def planning(snapshot: Any) -> Any:
        if not others:
            others.append(_TableSnapshot(snapshot.spark, log.shop.options, snapshot.table, snapshot.settings))
            others.append(others[0]._begin())
        return steps(snapshot)

    def ending(snapshot: Any, plan: Any) -> int:
        other, other_plan = others
        with pytest.raises(Fatal, match="another call reads orders anew"):
            other._write(other_plan, other_plan.steps[0], None)
        removed = end(snapshot, plan)
        with pytest.raises(Fatal, match="another call reads orders anew, or has ended this snapshot"):
            end(other, other_plan)
        return removed

    monkeypatch.setattr(_TableSnapshot, "_steps", planning)
    monkeypatch.setattr(_TableSnapshot, "_end", ending)
    assert log.snapshot()["removed"] == 2
    log.check()


@pytest.mark.soak
def test_a_column_that_comes_while_rows_are_read_is_read_with_them(log: Log, meanwhile: Any) -> None:
    """Else rows that the table lacks would be without the default that the merge has filled in."""
    done = []

    def alter(moment: str) -> None:
        if moment == READ and not done:
            done.append(moment)
            log.shop.run("ALTER TABLE shop.orders ADD extra bigint DEFAULT 7")
            log.shop.run("UPDATE shop.orders SET amount = 1 WHERE id = 60")
            log.orders.fields["extra"] = {"type": "int64", "optional": True, "default": 7}
            log.records.append(log.orders.upsert(id=60, name="name 59", amount=1, extra=7))
            log.merge()

    meanwhile(alter)
    with pytest.raises(Fatal, match="the columns of orders have been altered while its rows were read"):
        log.snapshot()
    log.snapshot()
    rows = log.tables.rows("orders")
    assert (len(rows), {row["extra"] for row in rows}) == (99, {7})


@pytest.mark.soak
def test_a_history_that_begins_beside_it_stops_it(log: Log, meanwhile: Any) -> None:
    def begin(moment: str) -> None:
        log.tables.restart(history=True)
        log.upsert(60, "in the history", 1)
        log.merge()

    meanwhile(begin)
    with pytest.raises(Misconfigured, match="has orders, whose history would lack the snapshot"):
        log.snapshot()
    history = log.tables.spark.read.format("delta").load(f"{log.tables.path}/orders_history").where("is_current")
    rows = [row.asDict() for row in history.select("id", "name", "amount").orderBy("id").collect()]
    assert rows == log.tables.rows("orders")


@pytest.mark.soak
def test_rows_that_were_written_by_hand_have_no_place_and_are_before_the_snapshot(log: Log) -> None:
    place = f"delta.`{log.tables.path}/orders`"
    log.tables.spark.sql(f"INSERT INTO {place} (id, name, amount) VALUES (5000, 'ghost', 1)")
    log.tables.spark.sql(f"UPDATE {place} SET _position = NULL, name = 'other' WHERE id = 20")
    assert log.snapshot()["removed"] == 3
    log.check()


@pytest.mark.soak
def test_behind_another_query_it_begins_anew(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that begins with a slot of its own has a gap in front of it, which an older plan does not know of."""
    with monkeypatch.context() as patch:
        patch.setattr(_TableSnapshot, "_write", lambda *_: exec("raise OSError('no power')"))
        with pytest.raises(OSError, match="no power"):
            log.snapshot()
    log.upsert(40, "seen", 1)
    log.merge()
    log.shop.run("UPDATE shop.orders SET name = 'untold' WHERE id = 40", "DELETE FROM shop.orders WHERE id = 41")
    log.upsert(42, "told", 1)
    records, log.records = log.records, []
    log.tables.restart(onNewQuery="continue")
    rows = [(record["topic"], record["key"], record["value"], None) for record in records]
    frame = log.tables.spark.createDataFrame(rows, COLUMNS)
    log.tables.function.write(frame, Batch(log.tables.function.sink.sink_id(), "another", 0))
    log.snapshot()
    log.check()


@pytest.mark.soak
def test_options_of_the_reader_do_not_alter_what_is_read(spark: Any, tmp_path: Path) -> None:
    log = Log(spark, tmp_path / "shop", range(1, 4))
    log.shop.run(
        "ALTER TABLE shop.orders ADD at timestamp DEFAULT '2026-01-01 12:00:00'", "DROP ROLE IF EXISTS ranges_reader",
        "CREATE ROLE ranges_reader", "GRANT USAGE ON SCHEMA shop TO ranges_reader",
    )  # fmt: skip
    log.orders.fields["at"] = {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "optional": True}
    log.records = [log.orders.upsert(**row, at=1767268800000000) for row in list(log.orders.rows.values())]
    log.merge()
    before = log.tables.rows("orders")
    log.shop.options |= {"timeZone": "Europe/Berlin", "preferTimestampNTZ": "true"}
    log.snapshot()
    assert log.tables.rows("orders") == before
    log.shop.options["sessionInitStatement"] = "SET ROLE ranges_reader"
    try:
        with pytest.raises(Exception, match="permission denied for table orders"):
            log.snapshot()
    finally:
        log.shop.run("DROP OWNED BY ranges_reader", "DROP ROLE ranges_reader")


@pytest.mark.soak
def test_values_whose_text_only_the_log_knows_are_refused(spark: Any, tmp_path: Path) -> None:
    """As by ``binary.handling.mode=base64`` or ``time.precision.mode=isostring``."""
    log = Log(spark, tmp_path / "shop", [1])
    log.shop.run("ALTER TABLE shop.orders ADD data bytea DEFAULT 'hello'")
    log.orders.fields["data"] = {"type": "string", "optional": True}
    log.records = [log.orders.upsert(id=1, name="name 0", amount=0, data="aGVsbG8=")]
    log.merge()
    with pytest.raises(Misconfigured, match="has orders with the column data, and only the log knows the form"):
        log.snapshot()
    log.shop.run("ALTER TABLE shop.orders DROP data", "ALTER TABLE shop.orders ADD data timestamptz DEFAULT now()")
    with pytest.raises(Misconfigured, match="has orders with the column data, and only the log knows the form"):
        log.snapshot()
    assert log.tables.rows("orders")[0]["data"] == "aGVsbG8="


def test_a_column_of_the_source_is_no_column_of_positions(spark: Any, tmp_path: Path) -> None:
    log = Log(spark, tmp_path / "shop", [1], positionColumn="place")
    log.shop.run("ALTER TABLE shop.orders ADD _position text DEFAULT 'here'")
    log.orders.fields["_position"] = {"type": "string", "optional": True}
    log.records = [log.orders.upsert(id=1, name="name 0", amount=0, _position="here")]
    log.merge()
    with pytest.raises(Misconfigured, match=r"must name the column of positions of orders, .* this is a column of its source"):
        log.snapshot()
    log.snapshot(position_column="place")
