"""``connectors.connect.snapshot``: which tables, keys and values of a database are read, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors import connect
from connectors.core import Misconfigured
from connectors.systems.delta.merge_all import merged_tables
from connectors.systems.delta.snapshot import _primary_key
from connectors.testing.servers import MariaDbServer
from tests.servers import optional
from tests.systems.change_logs import Database
from tests.systems.merge.shop_log import Log
from tests.systems.merge.test_merge_all import Tables

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("ranges")]


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


@pytest.mark.soak
def test_a_table_that_no_change_has_made_yet_begins_with_the_rows_of_the_database(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, slot = log.shop.connection.info, "connectors_ranges"
    properties = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "topic.prefix": "prefix",
        "database.hostname": info.host, "database.port": info.port, "database.user": info.user,
        "database.dbname": info.dbname, "slot.name": slot, "publication.name": slot,
    }  # fmt: skip
    log.tables = Tables(log.tables.spark, tmp_path / "new")

    def snapshot() -> Any:
        return connect.snapshot(properties, f"{log.tables.path}/", new={"orders": "shop.orders"}).collect()

    def merged(*arguments: Any) -> Any:
        """The first change of the table comes in the middle of the call."""
        monkeypatch.setattr("connectors.systems.delta.snapshot._primary_key", _primary_key)
        log.records = [log.orders.upsert(id=1, name="name 0", amount=0)]
        log.merge()
        return _primary_key(*arguments)

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
        log.tables, log.orders.fields["id"] = Tables(log.tables.spark, tmp_path / "both"), {"type": "int64", "optional": False}
        monkeypatch.setattr("connectors.systems.delta.snapshot._primary_key", merged)
        snapshot()
        log.check()
        (table,) = merged_tables(log.tables.spark, f"{log.tables.path}/")
        state = table.state(log.tables.spark)
        assert state is not None
        assert sorted(state.columns) == ["amount", "id", "name"], "what the merge knows of its log stays"
        log.shop.run("CREATE TABLE shop.prices (id int PRIMARY KEY, net int, gross int GENERATED ALWAYS AS (net * 2) STORED)")
        log.shop.run("INSERT INTO shop.prices VALUES (1, 10)", f"ALTER PUBLICATION {slot} ADD TABLE shop.prices")
        hidden = {**properties, "column.exclude.list": "shop.prices.net"}
        with pytest.raises(Misconfigured, match=r"database +has column.exclude.list, and only the log knows which columns"):
            connect.snapshot(hidden, f"{log.tables.path}/", new={"prices": "shop.prices"})
        assert not (log.tables.path / "prices").exists()
        connect.snapshot(properties, f"{log.tables.path}/", new={"prices": "shop.prices"})
        assert log.tables.rows("prices") == [{"id": 1, "net": 10}], "the log will not have what the database computes"
        log.shop.run("CREATE TABLE shop.files (id int PRIMARY KEY, data bytea)")
        log.shop.run(f"ALTER PUBLICATION {slot} ADD TABLE shop.files")
        texts = {**properties, "binary.handling.mode": "base64"}
        with pytest.raises(Misconfigured, match=r"database +has binary.handling.mode=base64, and only the log knows which"):
            connect.snapshot(texts, f"{log.tables.path}/", new={"files": "shop.files"})
        assert not (log.tables.path / "files").exists()
        connect.snapshot({**texts, "binary.handling.mode": "bytes"}, f"{log.tables.path}/", new={"files": "shop.files"})
        log.shop.run("CREATE TABLE shop.times (id int PRIMARY KEY, hour time)")
        log.shop.run(f"ALTER PUBLICATION {slot} ADD TABLE shop.times")
        with pytest.raises(Misconfigured, match=r"has times with the column hour, and only the log knows .* \(time with"):
            connect.snapshot(properties, f"{log.tables.path}/", new={"times": "shop.times"})
    finally:
        log.shop.run(f"DROP PUBLICATION IF EXISTS {slot}")
        log.shop.run(f"SELECT pg_drop_replication_slot('{slot}') FROM pg_replication_slots WHERE slot_name = '{slot}'")


@pytest.mark.soak
def test_what_cannot_be_read_so_is_refused_and_nothing_is_written(log: Log, tmp_path: Path) -> None:
    def refused(pattern: str, database: dict[str, Any] | None = None, **arguments: Any) -> None:
        with pytest.raises(Misconfigured, match=pattern):
            connect.snapshot(database or log.shop.options, f"{log.tables.path}/", **arguments)

    before = log.tables.rows("orders")
    refused(r"tables +has users, which is not in", tables=["users"])
    refused(r"parallel +must be a whole number of at least 1; got 0", parallel=0)
    refused(r"range_size +must be .*; got \"much\"", range_size="much")
    refused(r"position_column +must name the column of positions of orders", position_column="place")
    refused(r"database +has transforms, so the log has other values", {**log.shop.options, "transforms": "mask"})
    refused(r"new +names tables of PostgreSQL as schema.table, and database has the properties", new={"items": "shop.items"})
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
        cursor.execute("ALTER TABLE ranges.orders ADD is_paid tinyint(1) DEFAULT 2")
        orders.fields["is_paid"] = {"type": "int16", "optional": True, "default": 2}
        tables.merge(orders.upsert(id="b", name="", amount=1, is_paid=2))
        with pytest.raises(Misconfigured, match="has orders with the column is_paid, and only the log knows the form"):
            connect.snapshot(options, f"{tables.path}/", tables=["orders"])
        cursor.execute("CREATE TABLE ranges.words (id enum('z', 'm', 'a', 'b', 'y') PRIMARY KEY, name text, amount bigint)")
        cursor.execute("INSERT INTO ranges.words VALUES ('z', '', 1), ('m', '', 1), ('a', '', 1), ('b', '', 1), ('y', '', 1)")
        words = Database(topic="prefix.ranges.words")
        words.fields["id"] = {"type": "string", "optional": False}
        tables.merge(words.upsert(id="z", name="", amount=1))
        connect.snapshot(options, f"{tables.path}/", tables=["words"])
        assert [row["id"] for row in tables.rows("words")] == ["a", "b", "m", "y", "z"], "each word is in one range"


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
    log.shop.options |= {"timeZone": "Europe/Berlin"}
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
    """As by ``binary.handling.mode=base64``, ``time.precision.mode=isostring`` or ``decimal.handling.mode=string``."""
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
    for kind in ("numeric DEFAULT 1.50", "interval DEFAULT '1 day'", "time DEFAULT '10:30'", "money DEFAULT 1.5"):
        log.shop.run("ALTER TABLE shop.orders DROP data", f"ALTER TABLE shop.orders ADD data {kind}")
        with pytest.raises(Misconfigured, match="has orders with the column data, and only the log knows the form"):
            log.snapshot()
    assert log.tables.rows("orders")[0]["data"] == "aGVsbG8="


@pytest.mark.soak
def test_a_column_whose_name_another_one_has_taken_is_not_read_before_the_log_tells(spark: Any, tmp_path: Path) -> None:
    """With ``evolve`` it has its new name then: values of the other column would be in it."""
    log = Log(spark, tmp_path / "shop", range(1, 5))
    log.tables.restart(on_schema_change="evolve", database=log.shop.options)
    log.merge()
    log.shop.run("ALTER TABLE shop.orders RENAME name TO title", "ALTER TABLE shop.orders ADD name text DEFAULT 'n'")
    with pytest.raises(Misconfigured, match=r"database +has the column name under the name title in shop.orders, and the log"):
        log.snapshot()
    fields = log.orders.fields
    log.orders.fields = {"id": fields["id"], "title": fields["name"], "amount": fields["amount"], "name": fields["name"]}
    log.shop.run("INSERT INTO shop.orders VALUES (9, 'title', 1, 'name')")
    log.tables.merge(log.orders.upsert(id=9, title="title", amount=1, name="name"))
    log.snapshot()
    rows = log.shop.connection.execute("SELECT id, title, amount, name FROM shop.orders ORDER BY id").fetchall()
    assert [tuple(row[name] for name in log.orders.fields) for row in log.tables.rows("orders")] == rows


@pytest.mark.soak
def test_a_column_of_the_source_is_no_column_of_positions(spark: Any, tmp_path: Path) -> None:
    log = Log(spark, tmp_path / "shop", [1], positionColumn="place")
    log.shop.run("ALTER TABLE shop.orders ADD _position text DEFAULT 'here'")
    log.orders.fields["_position"] = {"type": "string", "optional": True}
    log.records = [log.orders.upsert(id=1, name="name 0", amount=0, _position="here")]
    log.merge()
    with pytest.raises(Misconfigured, match=r"must name the column of positions of orders, .* this is a column of its source"):
        log.snapshot()
    log.snapshot(position_column="place")
