"""``on_schema_change`` of merges: what a table does when its source has other columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors import connect
from connectors.core import Fatal, Misconfigured
from connectors.systems.delta.merge import ChangeTableCommitter
from tests.delta_log import delta
from tests.systems.merge.test_merge_all import Tables, databases


@pytest.fixture
def tables(spark: Any, tmp_path: Path) -> Tables:
    return Tables(spark, tmp_path / "shop")


def alterations(tables: Tables) -> list[tuple[Any, ...]]:
    rows = delta(tables.path / "_changes").sort_by([("batch", "ascending"), ("table", "ascending")]).to_pylist()
    return [tuple(row[name] for name in ("table", "kind", "column", "before", "after")) for row in rows]


@pytest.mark.parametrize("policy", ["lenient", pytest.param("ignore", marks=pytest.mark.soak)])
def test_a_table_follows_its_source_as_the_policy_says_and_each_change_is_told_once(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    (orders,) = databases("orders")
    tables.restart(on_schema_change=policy)
    tables.merge(orders.upsert(id=1, name="a", amount=1))
    orders.fields["extra"] = {"type": "int32", "optional": True}
    batch = [orders.upsert(id=2, name="b", amount=2, extra=3)]

    def dying(*_: Any) -> None:
        raise OSError("no power")

    with monkeypatch.context() as patch:  # the change is told, and the rows are not merged
        patch.setattr(ChangeTableCommitter, "_merge", dying)
        with pytest.raises(Fatal, match="no power"):
            tables.merge(*batch)
    tables.restart()
    tables.merge(*batch, number=tables.number)
    del orders.fields["extra"], orders.fields["amount"]
    tables.merge(orders.upsert(id=3, name="c"), orders.upsert(id=1, name="d"))
    tables.merge(orders.upsert(id=4, name="e"))
    assert alterations(tables) == [
        ("orders", "create.table", None, None, None),
        ("orders", "add.column", "extra", None, "int"),
        ("orders", "drop.column", "amount", "bigint", None),
        ("orders", "drop.column", "extra", "int", None),
    ]
    rows = [tuple(row.values()) for row in tables.rows("orders")]
    kept = [(1, "d", 1), (2, "b", 2), (3, "c", None), (4, "e", None)]
    assert rows == (kept if policy == "ignore" else [(*row, 3 if row[0] == 2 else None) for row in kept])


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["add.column", "alter.column.type"])
def test_kinds_of_changes_have_policies_of_their_own(tables: Tables, kind: str) -> None:
    (orders,) = databases("orders")
    orders.fields["amount"] = {"type": "int32", "optional": True}
    tables.restart(on_schema_change={"*": "lenient", kind: "ignore", "drop.column": "exception"})
    tables.merge(orders.upsert(id=1, name="a", amount=1))
    orders.fields["amount"] = {"type": "int64", "optional": True}
    orders.fields["extra"] = {"type": "int32", "optional": True}
    tables.merge(orders.upsert(id=2, name="b", amount=2, extra=3))
    types = dict(tables.spark.read.format("delta").load(str(tables.path / "orders")).dtypes)
    assert (types["amount"], types.get("extra")) == (("bigint", None) if kind == "add.column" else ("int", "int"))
    policies = delta(tables.path / "_changes").sort_by([("kind", "ascending")]).select(["kind", "policy"]).to_pylist()
    expected_policies = {"add.column": "lenient", "alter.column.type": "lenient", "create.table": "lenient", kind: "ignore"}
    assert {row["kind"]: row["policy"] for row in policies} == expected_policies
    del orders.fields["amount"]
    with pytest.raises(Fatal, match=r"the table behind prefix.shop.orders has changed: drop.column amount"):
        tables.merge(orders.upsert(id=3, name="c", extra=1))


@pytest.mark.parametrize(
    ("policy", "pattern"),
    [
        ({"add.table": "ignore"}, r"must be policies of add.column, alter.column.type, drop.column, rename.column and \*"),
        ({"add.column": "evolve"}, r"must be one whose add.column is lenient or ignore or exception beside lenient"),
        ({"*": "try_evolve", "drop.column": "ignore"}, r"must be one whose drop.column is exception beside try_evolve"),
        ({"drop.column": "never"}, r"must be one of evolve, try_evolve, lenient, ignore, exception"),
        ("{", r"must be a JSON object"),
    ],
)
def test_a_policy_that_there_is_not_is_refused(policy: Any, pattern: str) -> None:
    with pytest.raises(Misconfigured, match=pattern):
        connect.merge_all("main.shop", on_schema_change=policy)


@pytest.mark.soak
def test_a_value_that_does_not_fit_a_table_which_stays_as_it_is_stops_the_query(tables: Tables) -> None:
    (orders,) = databases("orders")
    orders.fields["amount"] = {"type": "int32", "optional": True}
    tables.restart(on_schema_change="ignore")
    tables.merge(orders.upsert(id=1, name="a", amount=1))
    orders.fields["amount"] = {"type": "int64", "optional": True}
    tables.merge(orders.upsert(id=2, name="b", amount=2))
    with pytest.raises(Exception, match="does not fit the column's type int"):
        tables.merge(orders.upsert(id=3, name="b", amount=1 << 40))
    assert [row["amount"] for row in tables.rows("orders")] == [1, 2]


@pytest.mark.soak
def test_rows_that_came_while_their_column_was_left_out_do_not_get_its_default(tables: Tables) -> None:
    (orders,) = databases("orders")
    tables.restart(on_schema_change="ignore")
    tables.merge(orders.upsert(id=1, name="a", amount=1))
    orders.fields["extra"] = {"type": "int32", "optional": True, "default": 5}
    tables.merge(orders.upsert(id=2, name="b", amount=2, extra=7))
    tables.restart(on_schema_change="lenient")
    batch = [orders.upsert(id=3, name="c", amount=3, extra=9)]
    with pytest.raises(Misconfigured, match="without the column extra, which the rows had in the log"):
        tables.merge(*batch, number=2)
    tables.restart(fill={"orders": {"extra": None}})
    tables.merge(*batch, number=2)
    assert [row["extra"] for row in tables.rows("orders")] == [None, None, 9]


@pytest.mark.soak
def test_a_query_that_shall_stop_at_a_change_of_columns_stops_before_its_rows(tables: Tables) -> None:
    (orders,) = databases("orders")
    tables.restart(on_schema_change="exception")
    tables.merge(orders.upsert(id=1, name="a", amount=1))
    orders.fields["extra"] = {"type": "int32", "optional": True}
    batch = [orders.upsert(id=2, name="b", amount=2, extra=3)]
    for _ in range(2):
        with pytest.raises(Fatal, match=r"has changed: add\.column extra int"):
            tables.merge(*batch, number=1)
        tables.restart()
    tables.restart(on_schema_change="lenient")
    tables.merge(*batch, number=1)
    assert [row["extra"] for row in tables.rows("orders")] == [None, 3]


@pytest.mark.soak
def test_a_column_that_came_and_went_within_a_batch_is_a_change_too(tables: Tables) -> None:
    (orders,) = databases("orders")
    tables.restart(on_schema_change="exception")
    tables.merge(orders.upsert(id=1, name="a", amount=1))
    orders.fields["extra"] = {"type": "int32", "optional": True}
    batch = [orders.upsert(id=2, name="b", amount=2, extra=3)]
    del orders.fields["extra"]
    batch.append(orders.upsert(id=3, name="c", amount=3))
    with pytest.raises(Fatal, match=r"has changed: add\.column extra int"):
        tables.merge(*batch, number=1)
    tables.restart(on_schema_change="lenient")
    tables.merge(*batch, number=1)
    assert alterations(tables)[1:] == [("orders", "add.column", "extra", None, "int")]
    assert [row["extra"] for row in tables.rows("orders")] == [None, 3, None]


@pytest.mark.soak
def test_a_new_table_asks_for_what_the_log_does_not_tell_also_if_it_shall_stay_as_it_is(tables: Tables) -> None:
    (orders,) = databases("orders")
    tables.restart(on_schema_change="ignore")
    batch = [orders.upsert(id=1, name="a", amount=1)]
    orders.fields["extra"] = {"type": "int32", "optional": False}
    with pytest.raises(Misconfigured, match="rows have that are older than the new column extra"):
        tables.merge(*batch, orders.upsert(id=2, name="b", amount=2, extra=3))


@pytest.mark.soak
def test_records_that_come_again_from_before_a_change_of_columns_are_no_change_back(tables: Tables) -> None:
    """As behind a Connect worker that starts again. Told as a change, it would be one more when the newer records follow."""
    (orders,) = databases("orders")
    orders.fields |= {"amount": {"type": "int32", "optional": True}, "gone": {"type": "int32", "optional": True}}
    records = [orders.upsert(id=1, name="a", amount=1, gone=1)]
    orders.fields["amount"] = {"type": "int64", "optional": True}
    records.append(orders.upsert(id=2, name="b", amount=2, gone=2))
    del orders.fields["gone"]
    records.append(orders.upsert(id=3, name="c", amount=3))
    for record in records:
        tables.merge(record)
    told = alterations(tables)
    assert told == [
        ("orders", "create.table", None, None, None),
        ("orders", "alter.column.type", "amount", "int", "bigint"),
        ("orders", "drop.column", "gone", "int", None),
    ]
    tables.restart(on_schema_change="exception")
    tables.merge(records[0])
    tables.merge(records[1], records[2])
    assert alterations(tables) == told
    orders.fields["gone"] = {"type": "int32", "optional": True}
    with pytest.raises(Fatal, match=r"has changed: add\.column gone int"):
        tables.merge(orders.upsert(id=4, name="d", amount=4, gone=4))


@pytest.mark.soak
def test_a_column_that_went_and_came_again_within_a_batch_was_dropped(tables: Tables) -> None:
    """Other rows keep values that the database does not have any more: only a new snapshot tells."""
    (orders,) = databases("orders")
    tables.restart(on_schema_change={"*": "lenient", "drop.column": "exception"})
    tables.merge(orders.upsert(id=1, name="a", amount=1))
    amount = orders.fields.pop("amount")
    batch = [orders.upsert(id=2, name="b")]
    orders.fields["amount"] = amount
    batch.append(orders.upsert(id=3, name="c", amount=3))
    with pytest.raises(Fatal, match=r"has changed: drop\.column amount bigint"):
        tables.merge(*batch, number=1)
    tables.restart(on_schema_change="lenient")
    tables.merge(*batch, number=1)
    tables.merge(*batch)
    assert alterations(tables)[1:] == [
        ("orders", "drop.column", "amount", "bigint", None),
        ("orders", "add.column", "amount", None, "bigint"),
    ]
