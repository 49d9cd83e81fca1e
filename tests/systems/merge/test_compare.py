"""``connectors.connect.compare``: what a merge keeps, against the database that its log is of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from connectors import connect, quality
from connectors.core import Misconfigured
from connectors.ground import machine
from connectors.systems.delta.compare import _digests
from connectors.testing.servers import PostgresServer
from tests.servers import required
from tests.systems.merge.test_merge_all import Tables, databases

ROWS = [(number, f"name {number}", number * 10) for number in range(1, 40)]


class Shop:
    """A schema of PostgreSQL with the tables that a log is of."""

    def __init__(self) -> None:
        server = required(PostgresServer)
        self.options = {"url": server.jdbc, "user": server.user}
        self.connection = psycopg.connect(server.url, user=server.user, autocommit=True)
        self.run("DROP SCHEMA IF EXISTS shop CASCADE", "CREATE SCHEMA shop")

    def table(self, name: str, rows: list[tuple[int, str | None, int]]) -> None:
        self.run(f'CREATE TABLE shop."{name}" (id bigint PRIMARY KEY, name text, amount bigint)')
        self.connection.cursor().executemany(f'INSERT INTO shop."{name}" VALUES (%s, %s, %s)', rows)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement)


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    yield shop
    shop.connection.close()


@pytest.fixture
def tables(spark: Any, tmp_path: Path, shop: Shop) -> Tables:
    """Two tables that are equal to those of the database."""
    tables = Tables(spark, tmp_path / "shop")
    orders, users = databases("orders", "Users")
    changes = [table.upsert(id=number, name=name, amount=amount) for table in (orders, users) for number, name, amount in ROWS]
    tables.merge(*changes)
    shop.table("orders", list(ROWS))
    shop.table("Users", list(ROWS))
    return tables


def compared(shop: Shop, merged: Tables, **arguments: Any) -> dict[str, dict[str, Any]]:
    rows = connect.compare(shop.options, f"{merged.path}/", **arguments).collect()
    return {row.table: row.asDict() for row in rows}


@pytest.mark.server
def test_equal_tables_have_no_difference(shop: Shop, tables: Tables) -> None:
    both = compared(shop, tables)
    assert sorted(both) == ["Users", "orders"]
    for row in both.values():
        assert (row["rows"], row["target_rows"]) == (39, 39)
        assert [row[kind] for kind in ("missing", "extra", "different", "unsettled")] == [0] * 4
        assert (row["examples"], row["left_out"]) == ([], [])
    assert both["Users"]["source"] == "shop.Users"


@pytest.mark.server
def test_rows_that_are_missing_extra_or_different_are_told_by_their_keys(
    spark: Any, shop: Shop, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run(
        "INSERT INTO shop.orders VALUES (100, 'new', 1), (101, NULL, 1)",
        "DELETE FROM shop.orders WHERE id = 7",
        "UPDATE shop.orders SET amount = amount + 1 WHERE id = 8",
        "UPDATE shop.orders SET name = NULL WHERE id = 9",
    )
    spark.sql(f"INSERT INTO delta.`{tables.path}/orders` SELECT * FROM delta.`{tables.path}/orders` WHERE id = 6")
    monkeypatch.setattr("connectors.systems.delta.compare._MOST_LOOKED_AT", 5)
    monkeypatch.setattr(machine, "sleep", lambda _: pytest.fail("so many rows are not on their way"))
    both = compared(shop, tables, wait="1 hour")
    found = both["orders"]
    assert (found["rows"], found["target_rows"]) == (40, 40)
    assert [found[kind] for kind in ("missing", "extra", "different")] == [2, 2, 2]
    assert found["examples"] == ['{"id":100}', '{"id":101}', '{"id":6}', '{"id":7}', '{"id":8}']
    assert both["Users"]["different"] == 0
    only = compared(shop, tables, tables=["Users"])
    assert list(only) == ["Users"]
    gate = quality.Checks([quality.expression("missing + extra + different = 0", name="equal to the database")])
    with pytest.raises(quality.QualityFailed, match="equal to the database"):
        gate.validate(connect.compare(shop.options, f"{tables.path}/"), name="shop").enforce()


@pytest.mark.soak
@pytest.mark.server
def test_a_change_that_is_on_its_way_is_no_difference_if_it_arrives_in_time(
    shop: Shop, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, _ = databases("orders", "Users")
    orders.lsn, orders.rows[3] = 1000, {"id": 3, "name": "name 3", "amount": 30}
    shop.run("UPDATE shop.orders SET amount = 1 WHERE id IN (1, 2)", "DELETE FROM shop.orders WHERE id = 3")
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            late = orders.record("u", {"id": 1, "name": "name 1", "amount": 1}, 1500)
            tables.merge(late, orders.delete(3))
        shop.run(f"UPDATE shop.orders SET amount = {100 + len(looks)} WHERE id = 4")  # all the time

    monkeypatch.setattr("connectors.systems.delta.compare._LOOK_SECONDS", 0.2)
    monkeypatch.setattr(machine, "sleep", sleep)
    shop.run("UPDATE shop.orders SET amount = 100 WHERE id = 4")
    found = compared(shop, tables, tables=["orders"], wait="20s")["orders"]
    assert len(looks) >= 2
    assert [found[kind] for kind in ("missing", "extra", "different", "unsettled")] == [0, 0, 1, 1]
    assert found["examples"] == ['{"id":2}']


@pytest.mark.soak
@pytest.mark.server
def test_columns_of_one_side_are_told_and_rows_that_stay_deleted_do_not_count(spark: Any, tmp_path: Path, shop: Shop) -> None:
    tables = Tables(spark, tmp_path / "soft", deletes="soft")
    (orders,) = databases("orders")
    tables.merge(*(orders.upsert(id=number, name=name, amount=amount) for number, name, amount in ROWS))
    tables.merge(orders.delete(5))
    shop.table("orders", [row for row in ROWS if row[0] != 5])
    shop.run("ALTER TABLE shop.orders ADD COLUMN note text", "ALTER TABLE shop.orders DROP COLUMN name")
    found = compared(shop, tables)["orders"]
    assert (found["rows"], found["target_rows"]) == (38, 38)
    assert [found[kind] for kind in ("missing", "extra", "different")] == [0, 0, 0]
    assert found["left_out"] == ["name", "note"]


@pytest.mark.soak
@pytest.mark.server
def test_what_cannot_be_compared_is_an_error_that_says_why(spark: Any, tmp_path: Path, shop: Shop, tables: Tables) -> None:
    with pytest.raises(Misconfigured, match=r"tables +has items, which is not in .*; it has Users, orders"):
        compared(shop, tables, tables=["items"])
    with pytest.raises(Misconfigured, match=r'wait +must be a duration such as "5 minutes"; got "soon"'):
        compared(shop, tables, wait="soon")
    with pytest.raises(Misconfigured, match=r"target +must be a table or a schema that a merge has written"):
        connect.compare(shop.options, str(tmp_path / "nothing"))
    spark.range(3).write.format("delta").save(str(tmp_path / "plain"))
    with pytest.raises(Misconfigured, match=r"has plain, which no merge has written"):
        connect.compare(shop.options, str(tmp_path / "plain"))
    shop.run("ALTER TABLE shop.orders RENAME COLUMN id TO number")
    with pytest.raises(Misconfigured, match=r"database +has no column id in shop\.orders, which identifies the rows of orders"):
        compared(shop, tables)


@pytest.mark.soak
@pytest.mark.server
def test_a_key_that_the_database_has_twice_and_the_target_once_is_missing(shop: Shop, tables: Tables) -> None:
    shop.run(
        "ALTER TABLE shop.orders DROP CONSTRAINT orders_pkey",
        "INSERT INTO shop.orders VALUES (6, 'name 6', 60), (7, 'another', 1)",
    )
    found = compared(shop, tables, tables=["orders"])["orders"]
    assert (found["rows"], found["target_rows"]) == (41, 39)
    assert [found[kind] for kind in ("missing", "extra", "different")] == [2, 0, 0]
    assert found["examples"] == ['{"id":6}', '{"id":7}']


@pytest.mark.soak
@pytest.mark.server
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_value_that_a_cast_would_alter_is_a_difference(spark: Any, shop: Shop, tables: Tables, ansi: str) -> None:
    place = f"delta.`{tables.path}/orders`"
    spark.sql(f"UPDATE {place} SET amount = NULL WHERE id = 7")
    spark.sql(f"ALTER TABLE {place} ADD COLUMNS (times ARRAY<TIMESTAMP>, hour BIGINT, host STRING, zoned STRING, span BIGINT)")
    spark.sql(f"UPDATE {place} SET hour = 36000000000, host = '10.0.0.1', zoned = '08:00:00Z', span = 1")
    spark.sql(f"UPDATE {place} SET times = array(timestamp'2026-01-01 00:00:00.123456Z') WHERE id IN (9, 10)")
    shop.run(
        "ALTER TABLE shop.orders ALTER COLUMN amount TYPE numeric(30,2)",
        "UPDATE shop.orders SET amount = 1e25 WHERE id = 7",
        "UPDATE shop.orders SET amount = amount + 0.25 WHERE id = 8",
        "ALTER TABLE shop.orders ADD COLUMN times timestamptz[], ADD COLUMN hour time DEFAULT '10:00'",
        "ALTER TABLE shop.orders ADD COLUMN host inet DEFAULT '10.0.0.1'",
        "ALTER TABLE shop.orders ADD COLUMN zoned timetz DEFAULT '10:00+02', ADD COLUMN span interval DEFAULT '1 us'",
        "UPDATE shop.orders SET times = ARRAY['2026-01-01 00:00:00.123456Z'::timestamptz] WHERE id = 9",
        "UPDATE shop.orders SET times = ARRAY['2026-01-01 00:00:00.123457Z'::timestamptz] WHERE id = 10",
    )
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        found = compared(shop, tables, tables=["orders"])["orders"]
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert found["examples"] == ['{"id":10}', '{"id":7}', '{"id":8}']
    assert [found[kind] for kind in ("missing", "extra", "different")] == [0, 0, 3]
    assert found["left_out"] == ["span", "zoned"]


@pytest.mark.spark
def test_keys_that_differ_by_a_microsecond_are_two(spark: Any) -> None:
    rows = spark.sql("SELECT timestamp'2026-01-01 00:00:00.123456Z' at UNION ALL SELECT timestamp'2026-01-01 00:00:00.123457Z'")
    assert _digests(rows, ["at"]).select("key").distinct().count() == 2


@pytest.mark.soak
@pytest.mark.server
def test_a_table_that_the_database_does_not_have_any_more_is_named_before_any_is_added_up(
    shop: Shop, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("DROP TABLE shop.orders")
    with monkeypatch.context() as patch:
        patch.delattr("connectors.systems.delta.compare._Sides.add_up")
        with pytest.raises(Misconfigured, match=r"cannot give shop\.orders, the source of orders; name other tables by tables"):
            compared(shop, tables)
    assert list(compared(shop, tables, tables=["Users"])) == ["Users"]
