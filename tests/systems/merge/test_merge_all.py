"""``connectors.connect.merge_all``: the change log of a database becomes its tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from connectors import connect
from connectors.core import CommitRefused, Fatal, Misconfigured
from connectors.core.batch import Batch
from connectors.systems.delta.merge import ChangeTableCommitter
from connectors.systems.delta.tables import TablesCommitter
from tests.delta_log import delta
from tests.systems.change_logs import AGAIN, COLUMNS, Database
from tests.systems.merge.targets import expected


class Tables:
    """A folder of tables that batches of records are merged into."""

    def __init__(self, spark: Any, path: Path, **options: Any) -> None:
        self.spark, self.path, self.options = spark, path, options
        self.number = -1
        self.restart()

    def restart(self, **options: Any) -> None:
        """A new run of the query."""
        self.options |= options
        self.function: Any = connect.merge_all(f"{self.path}/", **self.options)

    def merge(self, *records: dict[str, Any], number: int | None = None) -> None:
        self.number = self.number + 1 if number is None else number
        rows = [(record["topic"], record["key"], record["value"], record.get("headers")) for record in records]
        frame = self.spark.createDataFrame(rows, COLUMNS).coalesce(1)
        self.function.write(frame, Batch(self.function.sink.sink_id(), "q", self.number))

    def rows(self, table: str) -> list[dict[str, Any]]:
        rows = self.spark.read.format("delta").load(str(self.path / table)).drop("_position")
        return sorted((row.asDict() for row in rows.collect()), key=lambda row: row["id"])

    def names(self) -> set[str]:
        return {path.name for path in self.path.iterdir()}


@pytest.fixture
def tables(spark: Any, tmp_path: Path) -> Tables:
    return Tables(spark, tmp_path / "shop")


def databases(*names: str) -> list[Database]:
    return [Database(topic=f"prefix.shop.{name}") for name in names]


def test_each_table_of_the_database_is_one_here_also_one_that_comes_later(tables: Tables) -> None:
    orders, users, items = databases("orders", "users", "items")
    tables.merge(orders.upsert(id=1, name="a", amount=1), users.upsert(id=1, name="Anna", amount=0))
    late = orders.record("u", {"id": 1, "name": "late", "amount": 0}, 50)
    tables.merge(orders.upsert(id=2, name="b", amount=2), orders.delete(1), late)
    tables.restart()
    tables.merge(items.upsert(id=7, name="new", amount=1), users.upsert(id=2, name="Bo", amount=0))
    tables.merge()
    for name, database in (("orders", orders), ("users", users), ("items", items)):
        assert tables.rows(name) == expected(database)
    record = delta(tables.path / "_batches").sort_by([("batch", "ascending"), ("table", "ascending")]).to_pylist()
    assert [(row["table"], row["changes"], row["batch"]) for row in record] == [
        ("orders", 1, 0), ("users", 1, 0), ("orders", 3, 1), ("items", 1, 2), ("users", 1, 2),
    ]  # fmt: skip
    with pytest.raises(CommitRefused, match="older checkpoint"):
        tables.merge(number=0)


@pytest.mark.parametrize("dies", ["orders", *(pytest.param(name, marks=pytest.mark.soak) for name in ("users", "_batches"))])
def test_a_batch_that_died_between_its_tables_is_finished(tables: Tables, monkeypatch: pytest.MonkeyPatch, dies: str) -> None:
    """One table has the batch already, and the ledger does not."""
    both = databases("orders", "users")
    tables.merge(*(database.upsert(id=1, name="a", amount=1) for database in both))
    batch = [database.upsert(id=number, name=dies, amount=number) for database in both for number in (1, 2)]
    batch += [database.delete(2) for database in both]
    merge, record = ChangeTableCommitter._merge, TablesCommitter._record

    def dying(table: ChangeTableCommitter, *arguments: Any) -> None:
        if table.target.place.location.endswith(dies):
            raise OSError("no power")
        merge(table, *arguments)

    def dying_record(committer: TablesCommitter, *arguments: Any) -> None:
        if dies == "_batches":
            raise OSError("no power")
        record(committer, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ChangeTableCommitter, "_merge", dying)
        patch.setattr(TablesCommitter, "_record", dying_record)
        with pytest.raises((Fatal, OSError), match="no power"):
            tables.merge(*batch)
    tables.restart()
    tables.merge(*batch, number=tables.number)
    for name, database in zip(("orders", "users"), both, strict=True):
        assert tables.rows(name) == expected(database)
    versions = [len(list((tables.path / name / "_delta_log").glob("*.json"))) for name in ("orders", "users")]
    tables.restart()
    tables.merge(*batch, number=tables.number)
    assert versions == [len(list((tables.path / name / "_delta_log").glob("*.json"))) for name in ("orders", "users")]


@pytest.mark.soak
def test_a_row_that_was_deleted_between_two_attempts_at_the_snapshot_is_gone_also_if_its_table_has_no_row_any_more(
    tables: Tables,
) -> None:
    orders, users, empty = all_tables = databases("orders", "users", "empty")
    for database in all_tables:
        for key in range(3):
            database.upsert(id=key, name="a", amount=key)
    tables.merge(*orders.snapshot(), *empty.snapshot(), *users.snapshot(only=2))
    orders.delete(1)
    for key in range(3):
        empty.delete(key)
    again = orders.snapshot()
    again[0]["headers"] = AGAIN
    tables.restart()
    tables.merge(*again)
    tables.merge(*users.snapshot())
    assert len(tables.rows("empty")) == 3, "nobody knows yet"
    tables.restart()
    tables.merge(users.upsert(id=7, name="streamed", amount=7))
    for name, database in zip(("orders", "users", "empty"), all_tables, strict=True):
        assert tables.rows(name) == expected(database)


@pytest.mark.soak
def test_deleted_rows_stay_if_asked_for_and_say_when(tables: Tables) -> None:
    (orders,) = databases("orders")
    tables.restart(deletes="soft", truncate="delete")
    tables.merge(*(orders.upsert(id=key, name="a", amount=key) for key in range(3)))
    late = orders.record("u", {"id": 0, "name": "late", "amount": 0}, orders.lsn + 5)
    tables.merge(orders.delete(0), orders.delete(1))
    tables.restart()
    tables.merge(late, orders.upsert(id=1, name="back", amount=9))
    rows = {row["id"]: row for row in tables.rows("orders")}
    assert {key: row["deleted_at"] is not None for key, row in rows.items()} == {0: True, 1: False, 2: False}
    assert [rows[key]["name"] for key in range(3)] == ["a", "back", "a"]
    tables.merge(orders.truncate(), orders.upsert(id=5, name="new", amount=5))
    rows = {row["id"]: row for row in tables.rows("orders")}
    assert [key for key, row in rows.items() if row["deleted_at"] is None] == [5]
    assert len(rows) == 4
    tables.restart(deletes="hard")
    with pytest.raises(Misconfigured, match=r"deletes +must be soft, with deletedColumn=deleted_at"):
        tables.merge(orders.upsert(id=0, name="back", amount=0))


@pytest.mark.soak
def test_the_time_of_a_deletion_is_never_in_a_column_of_the_source(tables: Tables) -> None:
    (orders,) = databases("orders")
    orders.fields["deleted_at"] = {"type": "string", "optional": True}
    tables.merge(orders.upsert(id=1, name="a", amount=1, deleted_at="by the shop"))
    del orders.fields["deleted_at"]
    batch = [orders.delete(1)]
    tables.restart(deletes="soft")
    with pytest.raises(Misconfigured, match=r"deletedColumn +names a column that prefix.shop.orders has, or has had"):
        tables.merge(*batch, number=1)
    tables.restart(deletedColumn="removed_at")
    tables.merge(*batch, number=1)
    (row,) = tables.rows("orders")
    assert row["deleted_at"] == "by the shop"
    assert row["removed_at"] is not None


@pytest.mark.soak
def test_rows_of_an_interrupted_snapshot_stay_too_if_asked_for(tables: Tables) -> None:
    orders, users = databases("orders", "users")
    tables.restart(deletes="soft")
    for key in range(3):
        orders.upsert(id=key, name="a", amount=key)
    tables.merge(*orders.snapshot(only=2))
    orders.delete(0)
    again = orders.snapshot()
    again[0]["headers"] = AGAIN
    tables.merge(*again)
    tables.merge(users.upsert(id=1, name="streamed", amount=1))
    assert {row["id"]: row["deleted_at"] is not None for row in tables.rows("orders")} == {0: True, 1: False, 2: False}


@pytest.mark.soak
def test_routes_name_tables_and_others_are_left_out(tables: Tables) -> None:
    topics = ("p.shop_eu.orders", "p.shop_us.orders", "p.shop_us.users", "p.shop_us.secrets", "p.hr.salaries")
    sources = [Database(topic=topic) for topic in topics]
    tables.restart(routes={r"shop_(.*)\.orders": r"orders_\1"}, include=[r"shop_.*"], exclude=[r".*\.secrets"])
    tables.merge(*(source.upsert(id=1, name=source.topic, amount=1) for source in sources))
    assert tables.names() == {"_batches", "_changes", "orders_eu", "orders_us", "users"}
    assert [row["name"] for row in tables.rows("orders_us")] == ["p.shop_us.orders"]


@pytest.mark.parametrize(
    ("options", "topics", "message"),
    [
        ({}, ("p.a.orders", "p.b.Orders"), r'one table Orders of a\.orders and b\.Orders; .*b\\\\.Orders": "b_Orders"'),
        ({}, ("p.a.orders", "p.a.orders_deleted"), "deleted keys of orders in orders_deleted"),
        ({"history": True}, ("p.a.orders", "p.a.orders_History"), "history of orders in orders_History"),
        ({}, ("p.a.dbo.orders", "p.b.dbo.orders"), r"of the topics p\.a\.dbo\.orders and p\.b\.dbo\.orders, and no route"),
    ],
)
def test_two_tables_that_would_be_one_are_refused(
    tables: Tables, options: dict[str, Any], topics: tuple[str, ...], message: str
) -> None:
    tables.restart(**options)
    with pytest.raises(Misconfigured, match=message):
        tables.merge(*(Database(topic=topic).upsert(id=1, name="a", amount=1) for topic in topics))
    assert not (tables.path / "orders").exists()


@pytest.mark.soak
def test_two_queries_with_sink_ids_of_their_own_may_share_a_folder(tables: Tables) -> None:
    """The log of the one does not end the snapshot of the other."""
    orders, items = Database(topic="p.a.orders"), Database(topic="q.b.items")
    for key in range(3):
        orders.upsert(id=key, name="a", amount=key)
    tables.restart(sinkId="one", include=[r"a\..*"])
    tables.merge(*orders.snapshot(only=2))
    other = Tables(tables.spark, tables.path, sinkId="two")
    other.merge(items.upsert(id=1, name="b", amount=1))
    orders.delete(1)
    again = orders.snapshot()
    again[0]["headers"] = AGAIN
    tables.restart()
    tables.merge(*again)
    tables.merge(orders.upsert(id=7, name="streamed", amount=7))
    assert tables.rows("orders") == expected(orders)
    with pytest.raises(Fatal, match=r"makes items of p\.a\.items, and it is a table of q\.b\.items"):
        tables.merge(Database(topic="p.a.items").upsert(id=2, name="a", amount=1), number=3)
    with pytest.raises(Misconfigured, match="deleted keys of items in items_deleted"):
        tables.merge(Database(topic="p.a.items_deleted").upsert(id=2, name="a", amount=1), number=3)
    assert other.rows("items") == expected(items)


@pytest.mark.soak
def test_a_new_table_is_the_one_that_takes_another_name(tables: Tables) -> None:
    """That of a table which has rows would stop the query."""
    old, new = Database(topic="p.b.orders"), Database(topic="p.a.orders")
    tables.merge(old.upsert(id=1, name="a", amount=1))
    tables.restart()
    with pytest.raises(Misconfigured, match=r'name one of them otherwise: {"a\\\\.orders": "a_orders"}'):
        tables.merge(new.upsert(id=1, name="b", amount=1), number=1)
    tables.restart(routes={r"a\.orders": "a_orders"})
    tables.merge(new.upsert(id=1, name="b", amount=1), number=1)
    assert tables.rows("a_orders") == expected(new)


@pytest.mark.soak
def test_a_table_stays_where_it_is(tables: Tables) -> None:
    """Its rows until now would be missing in another place."""
    (orders,) = databases("orders")
    tables.merge(orders.upsert(id=1, name="a", amount=1))
    for options in ({"routes": {".*": "other"}}, {"exclude": [".*"], "routes": {}}):
        tables.restart(**options)
        with pytest.raises(Fatal, match="has been merged into orders, and is now"):
            tables.merge(orders.upsert(id=2, name="b", amount=1), number=1)


def test_a_table_that_is_gone_is_not_begun_anew_without_its_rows(tables: Tables) -> None:
    orders, users = databases("orders", "users")
    tables.merge(orders.upsert(id=1, name="a", amount=1), users.upsert(id=1, name="a", amount=1))
    shutil.rmtree(tables.path / "orders")
    tables.restart()
    batch = [orders.upsert(id=2, name="b", amount=1), users.upsert(id=2, name="b", amount=1)]
    with pytest.raises(CommitRefused, match=r"(?s)the table orders is gone from .* restore the table"):
        tables.merge(*batch)
    assert not (tables.path / "orders").exists()
    assert len(tables.rows("users")) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routes": {"(": "a"}}, r'routes +has the pattern "\("'),
        ({"routes": {"a": ""}}, "routes +must name a table for each pattern"),
        ({"keyColumns": {"a": "id"}}, "keyColumns +must be given by table"),
        ({"on_schema_change": "follow"}, "onSchemaChange +must be one of"),
        ({"on_schema_change": "evolve"}, "database +must reach the PostgreSQL of the tables"),
        ({"deletes": "never"}, "deletes +must be one of"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        connect.merge_all("main.shop", **options)


@pytest.mark.soak
def test_values_without_schemas_and_tables_without_keys_are_refused_with_a_way_out(tables: Tables) -> None:
    plain, keyless = Database(schemas=False, topic="p.shop.plain"), Database(topic="p.shop.keyless")
    with pytest.raises(Misconfigured, match=r"of p\.shop\.plain carry no schema: set value\.converter"):
        tables.merge(plain.upsert(id=1, name="a", amount=1), number=0)
    record = {**keyless.upsert(id=1, name="a", amount=1), "key": None}
    tables.restart()
    with pytest.raises(Misconfigured, match=r"name the columns that identify a row\. The table is keyless"):
        tables.merge(record, number=0)
    tables.restart(keyColumns={"keyless": ["id"]})
    tables.merge(record, {**keyless.upsert(id=1, name="b", amount=1), "key": None}, number=0)
    assert tables.rows("keyless") == expected(keyless)


@pytest.mark.soak
def test_tables_are_compacted_as_often_as_asked_for(tables: Tables) -> None:
    orders, users = databases("orders", "users")
    tables.restart(optimize_every=4)
    tables.merge(users.upsert(id=1, name="a", amount=1))
    for number in range(7):
        tables.merge(orders.upsert(id=number, name="a", amount=number))
    operations = [row.operation for row in tables.spark.sql(f"DESCRIBE HISTORY delta.`{tables.path}/orders`").collect()]
    assert operations.count("OPTIMIZE") == 2
    assert tables.rows("orders") == expected(orders)


@pytest.mark.soak
def test_each_table_has_its_history_also_beside_one_that_is_called_so(tables: Tables) -> None:
    orders, users, own = databases("orders", "users", "users_history")
    tables.merge(own.upsert(id=1, name="a", amount=1), users.upsert(id=1, name="a", amount=1))
    tables.restart(history=True)
    with pytest.raises(Misconfigured, match="history of users in users_history"):
        tables.merge(orders.upsert(id=1, name="b", amount=1))
    tables.restart(history=False)
    tables.merge(orders.upsert(id=2, name="b", amount=1), number=1)
    assert tables.names() == {"_batches", "_changes", "orders", "users", "users_history"}
    other = Tables(tables.spark, tables.path.with_name("other"), history=True, optimize_every=1)
    other.merge(orders.upsert(id=1, name="b", amount=1), users.upsert(id=1, name="b", amount=1))
    other.merge(orders.upsert(id=1, name="c", amount=1))
    versions = other.spark.read.format("delta").load(str(other.path / "orders_history"))
    assert sorted((row.name, row.is_current) for row in versions.collect()) == [("b", False), ("c", True)]
    for number in (7, 8):
        other.merge(orders.upsert(id=number, name="d", amount=1))
    log = other.spark.sql(f"DESCRIBE HISTORY delta.`{other.path}/orders_history`").collect()
    assert "OPTIMIZE" in [row.operation for row in log]


@pytest.mark.soak
def test_the_tables_may_be_of_a_schema(spark: Any, tmp_path: Path) -> None:
    spark.sql(f"CREATE SCHEMA merge_all LOCATION '{tmp_path}'")
    try:
        orders, users = databases("orders", "users")
        for number in range(2):
            function: Any = connect.merge_all("merge_all")
            records = [orders.upsert(id=number, name="a", amount=number), users.upsert(id=1, name=str(number), amount=1)]
            rows = [(record["topic"], record["key"], record["value"], None) for record in records]
            function.write(spark.createDataFrame(rows, COLUMNS), Batch(function.sink.sink_id(), "q", number))
        for name, database in (("orders", orders), ("users", users)):
            rows = [row.asDict() for row in spark.table(f"merge_all.{name}").drop("_position").orderBy("id").collect()]
            assert rows == expected(database)
    finally:
        spark.sql("DROP SCHEMA merge_all CASCADE")
