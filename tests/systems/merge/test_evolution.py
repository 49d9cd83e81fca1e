"""Tables whose columns come, go and change names as in the database: ``onSchemaChange=evolve``."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from connectors.core import Fatal, Misconfigured, StateError
from connectors.systems.delta.change_target import ChangeTarget
from connectors.systems.delta.evolution import Evolution, evolution_of
from connectors.systems.delta.log_state import LogState
from connectors.systems.delta.merge import ChangeTable
from connectors.testing.servers import PostgresServer
from tests.servers import required
from tests.systems.change_logs import Database

from .targets import Target


def state(names: str = "id a b", **identities: str) -> LogState:
    """A table with these columns, which the database numbers from 1 unless ``identities`` say otherwise."""
    columns = names.split()
    numbers = {name: f"9.{number}" for number, name in enumerate(columns, 1)} | identities
    known = {name: number for name, number in numbers.items() if number}
    return LogState("shop.public.orders", ("id",), columns=dict.fromkeys(columns, "int"), identities=known)


def evolved(before: LogState, catalog: str, *schemas: str, is_strict: bool = True) -> Evolution:
    """``catalog`` has the names by their numbers: ``id m -`` for a column 3 that was dropped."""
    current = {name: f"9.{number}" for number, name in enumerate(catalog.split(), 1) if name != "-"}
    return evolution_of(before, [schema.split() for schema in schemas], lambda: current, is_strict=is_strict)


@pytest.mark.parametrize(
    ("catalog", "schemas", "renames", "drops", "survivors"),
    [
        ("id a m", ["id a m"], {"b": "m"}, [], []),
        ("id a -", ["id a"], {}, ["b"], []),
        ("id m -", ["id a b", "id m"], {"a": "m"}, ["b"], []),
        ("id - b a", ["id b"], {}, ["a"], []),
        ("id a b z", ["id a"], {}, [], ["b"]),
        ("id a b z", ["id a b z", "id a b"], {}, [], ["z"]),
        ("id a b -", ["id a b z", "id a b"], {}, ["z"], []),
        ("id a q", ["id a"], {}, [], ["b"]),
        ("id a q", ["id a q", "id a"], {"b": "q"}, [], ["q"]),
        ("id a q", ["id a q", "id a b"], {"b": "q"}, [], []),
        ("id a m b", ["id a b", "id a m b"], {"b": "m"}, [], []),
        ("id b c", ["id a b", "id b c"], {"b": "c", "a": "b"}, [], []),
    ],
    ids=[
        "a rename", "a drop", "both at once", "a column made anew", "a record that is older than a column", "so in a batch",
        "a column that came and went", "a column that the connector leaves out",
        "a new name that a later record does not have", "a former name behind it", "its former name for a new column",
        "a name that another column had",
    ],
)  # fmt: skip
def test_numbers_tell_what_became_of_a_column(
    catalog: str, schemas: list[str], renames: dict[str, str], drops: list[str], survivors: list[str]
) -> None:
    found = evolved(state(), catalog, *schemas)
    assert (found.renames, list(found.drops), list(found.survivors)) == (renames, drops, survivors)


@pytest.mark.parametrize(
    ("before", "catalog", "schemas"),
    [
        (state(b=""), "id a m", ["id a m"]),
        (state(), "id a b m", ["id a b x", "id a b m"]),
        (state(), "id - q", ["id x y"]),
        (state(), "id y q", ["id x y"]),
        (state(), "id - a", ["id a"]),
        (state(), "id - b a", ["id a b", "id b", "id b a"]),
        (state(), "id - b a", ["id b a", "id b"]),
        (state(), "id - a b z", ["id a b z"]),
        (state(), "id q b z", ["id b z"]),
        (state(), "id a q", ["id a b q", "id a b"]),
        (state(a="", b=""), "id - a", ["id a"]),
        (state(), "id p q", ["id x y"]),
        (state(id="8.1", a="8.2", b="8.3"), "id a z", ["id a z"]),
        (state(), "id a q z", ["id a z"]),
        (state(), "id a b", ["id x b", "id a b"]),
        (state(), "id a b", ["id x b"]),
        (state(), "id a b x", ["id x b"]),
        (state(), "id - b a", ["id x b a"]),
        (state(a="", b=""), "id - a", ["id b"]),
    ],
    ids=["a number that nobody knows", "a column that came and changed its name",
         "a name for a time beside a drop", "an order that the names refute", "the name of a column that was dropped",
         "a column that was made anew in a batch", "and before a record that is older", "names that moved on before a new one",
         "a new column beside a name for a time that the connector leaves out", "a name that another column had for a time",
         "numbers from before a drop", "names for a time", "a table that was made anew",
         "a new column behind the one that is left out", "a name that a column had for a time in the batch", "and at its end",
         "a new column in the place of an older one", "a former name that may be that of another one",
         "a name of the catalog that another column may have"],
)  # fmt: skip
def test_what_nobody_can_know_stops_a_table_or_leaves_it_as_it_is(before: LogState, catalog: str, schemas: list[str]) -> None:
    with pytest.raises(Fatal, match=r"nobody can say whether .* was .* before[\s\S]*try_evolve"):
        evolved(before, catalog, *schemas)
    found = evolved(before, catalog, *schemas, is_strict=False)
    assert (found.renames, found.drops, found.names(schemas[-1].split())) == ({}, (), schemas[-1].split())


def test_the_database_is_asked_only_where_records_and_table_differ() -> None:
    def catalog() -> Mapping[str, str]:
        raise AssertionError

    before = state()
    assert evolution_of(before, [["id", "a", "b"], ["id", "A", "b"]], catalog, is_strict=True).identities == before.identities


def named(evolution: Evolution, schema: str) -> str:
    return " ".join(name or "-" for name in evolution.names(schema.split()))


def test_former_names_lead_to_a_column_until_another_one_has_them() -> None:
    first = evolved(state(), "id a m", "id a m")
    after = first.state(state())
    assert [*after.columns] == ["id", "a", "m"]
    assert first.aliases == {"b": "m"}
    assert named(evolved(after, "id a m", "id a b"), "id a b") == "id a m", "a record from before the rename"
    assert named(evolved(after, "", "id b"), "id b") == "id m", "the table is gone"
    second = evolved(after, "id a n", "id a b", "id a n")
    assert (second.renames, second.aliases) == ({"m": "n"}, {"b": "n", "m": "n"})
    back = evolved(after, "id a b", "id a b")
    assert (back.renames, back.aliases) == ({"m": "b"}, {"m": "b"})
    again = evolved(after, "id a m b", "id a b", "id a m b")
    assert (again.renames, again.drops, again.identities["b"]) == ({}, [], "9.4")
    assert [named(again, schema) for schema in ("id a b", "id a m b")] == ["id a m", "id a m b"]
    late = evolved(again.state(after), "id a m b", "id a b")
    assert named(late, "id a b") == "id a m", "a record from before both"
    other = evolved(after, "id a - b", "id a b")
    assert (other.drops, named(other, "id a b"), named(other, "id a m")) == (["m"], "id a b", "id a -")
    gone = evolved(after, "id a -", "id a b", "id a")
    assert (gone.drops, named(gone, "id a b"), gone.state(after).aliases) == (["m"], "id a -", {})
    assert gone.state(after).orphans == ("b", "m")


def test_a_former_name_beside_a_column_that_the_connector_leaves_out() -> None:
    after = evolved(state(), "id a m x", "id a m").state(state())
    back = evolved(after, "id a b x", "id a b")
    assert (back.renames, back.aliases) == ({"m": "b"}, {"m": "b"})
    with pytest.raises(Fatal, match="nobody can say"):
        evolved(after, "id a - x b", "id a b")
    assert named(evolved(after, "id a m x b", "id a b"), "id a b") == "id a m", "a record from before the rename"


def test_two_former_names_of_a_column_in_one_record_stop_the_table() -> None:
    before = replace(state("id a n", n="9.3"), aliases={"b": "n", "m": "n"})
    with pytest.raises(Fatal, match="nobody can say"):
        evolved(before, "id a n", "id a b m")


def test_names_that_move_on_lead_on() -> None:
    before = state()
    first = evolved(before, "id b c", "id b c")
    after = first.state(before)
    assert (after.columns, after.identities) == (dict.fromkeys(("id", "b", "c"), "int"), {"id": "9.1", "b": "9.2", "c": "9.3"})
    assert [named(first, schema) for schema in ("id a b", "id b c")] == ["id b c", "id b c"]
    third = evolved(after, "id c a", "id c a")
    assert (third.renames, named(third, "id c a")) == ({"c": "a", "b": "c"}, "id c a")
    moved = evolved(before, "id x a", "id x a")
    round_ = evolved(moved.state(before), "id b a x", "id b a x")
    assert (moved.renames, round_.renames) == ({"a": "x", "b": "a"}, {"x": "b"})
    assert named(round_, "id b a x") == "id b a x"


def test_a_new_table_knows_its_numbers_if_no_column_went_before() -> None:
    fresh = LogState("shop.public.orders", ("id",))
    first = evolved(fresh, "id - b", "id a b")
    assert first.identities == {"id": "9.1", "b": "9.3"}
    assert evolved(fresh, "id a q", "id a b").identities == {"id": "9.1", "a": "9.2"}
    assert evolved(fresh, "id - q a", "id a b").identities == {"id": "9.1"}, "the catalog is ahead of the log"
    assert evolved(fresh, "id a", "id a b", "id a").drops == ["b"]
    assert evolved(fresh, "", "id a b", is_strict=False).identities == {}, "the table was dropped"


def test_records_that_come_again_with_columns_that_are_gone_stop_no_table() -> None:
    before = replace(state("id a c", c="9.4"), orphans=("b",))
    again = evolved(before, "id a - c", "id a b")
    assert (again.renames, again.drops, again.survivors) == ({}, [], ["c"])
    assert evolved(before, "id a - c", "id a b", "id a c").drops == ["b"]
    between = replace(state("id b a", b="9.3", a=""), orphans=("x",))
    assert evolved(between, "id - b", "id x b").drops == ["a"]


def test_what_a_crash_left_is_no_change_of_another_column() -> None:
    before = state()
    first = evolved(before, "id a - c", "id a c")
    assert (first.drops, [str(alteration) for alteration in first.alterations(before)]) == (["b"], ["drop.column b int"])
    again = evolved(first.state(before), "id a - c", "id a c")
    assert (again.drops, again.renames) == ([], {})


def test_a_column_that_went_before_makes_place_for_another_one_of_its_name() -> None:
    before = replace(state(), orphans=("m", "z", "n"))
    renamed = evolved(before, "id a m", "id a m")
    assert renamed.steps({"id": 0, "a": 0, "b": 0, "m": 0, "z": 0}) == [["m"], ["b", "m"]]
    assert renamed.types({"id": 0, "b": 1, "m": 2}) == {"id": 0, "m": 1}
    assert evolved(before, "id a b z", "id a b z").steps({"z": 0}) == [["z"]]
    assert evolved(before, "id a b", "id a b z").steps({"z": 0}) == [], "a record from before the column went"


class Orders:
    """The table of a database, with the log that Debezium would write of it."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        address = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
        self.connection = psycopg.connect(address, autocommit=True)
        self.name, self.log = name, Database(topic=f"shop.public.{name}")
        self.options = {"url": f"postgresql://postgres@127.0.0.1:{server.port}/postgres"}
        self.properties = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "database.hostname": "127.0.0.1",
            "database.port": str(server.port), "database.dbname": "postgres", "database.user": "postgres",
        }  # fmt: skip
        self.connection.execute(f'CREATE TABLE "{name}" (id int PRIMARY KEY, name text, amount bigint)')

    def alter(self, action: str) -> None:
        self.connection.execute(f'ALTER TABLE "{self.name}" {action}')

    def rename(self, old: str, new: str) -> None:
        self.alter(f"RENAME {old} TO {new}")
        old, new = old.strip('"'), new.strip('"')
        self.log.fields = {new if name == old else name: kind for name, kind in self.log.fields.items()}
        self.log.rows = {
            key: {new if name == old else name: value for name, value in row.items()} for key, row in self.log.rows.items()
        }

    def drop(self, name: str) -> None:
        self.alter(f"DROP {name}")
        del self.log.fields[name]
        for row in self.log.rows.values():
            row.pop(name, None)

    def add(self, name: str, **schema: Any) -> None:
        self.alter(f"ADD {name} text")
        self.log.fields[name] = {"type": "string", "optional": True, **schema}


_numbers = itertools.count()


@pytest.fixture
def orders() -> Iterator[Orders]:
    orders = Orders(required(PostgresServer), f"it's {next(_numbers)}")
    yield orders
    orders.connection.execute(f'DROP TABLE "{orders.name}"')
    orders.connection.close()


def followed(spark: Any, path: Path, orders: Orders, policy: str = "evolve", **options: Any) -> Target:
    return Target(spark, path / "orders", **{"onSchemaChange": policy, "database": orders.options, **options})


def assert_equal(target: Target, orders: Orders) -> None:
    """The rows and the columns of the table are those of the database."""
    names = list(orders.log.fields)
    assert target.rows() == [{name: row.get(name) for name in names} for _, row in sorted(orders.log.rows.items())]
    columns = target.spark.read.format("delta").load(str(target.path)).columns
    assert {*columns} == {*names, "_position"}


pytestmark = pytest.mark.server


def test_columns_come_and_go_and_change_names_as_in_the_database(spark: Any, tmp_path: Path, orders: Orders) -> None:
    target, log = followed(spark, tmp_path, orders), orders.log
    target.merge(*(log.upsert(id=key, name="a", amount=key) for key in (1, 2, 3)))
    late = log.upsert(id=1, name="b", amount=1)
    orders.rename("name", '"Name"')
    target.merge(log.upsert(id=3, Name="a", amount=3))
    orders.rename('"Name"', "title")
    target.merge(late, log.upsert(id=2, title="c", amount=2))
    assert_equal(target, orders)
    orders.add("note")
    orders.drop("amount")
    target.restart()
    target.merge(log.upsert(id=3, title="d", note="n"), log.delete(2))
    assert_equal(target, orders)
    orders.add("amount")
    target.merge(log.upsert(id=4, title="e", note=None, amount="much"))
    assert_equal(target, orders)


@pytest.mark.soak
def test_a_record_from_before_a_rename_that_comes_later_has_its_value_under_the_new_name(
    spark: Any, tmp_path: Path, orders: Orders
) -> None:
    target, log = followed(spark, tmp_path, orders, database=orders.properties), orders.log
    target.merge(log.upsert(id=1, name="a", amount=1), log.upsert(id=2, name="a", amount=2))
    late = log.upsert(id=1, name="b", amount=1)
    orders.rename("name", "title")
    target.merge(log.upsert(id=2, title="c", amount=2))
    target.merge(late)
    assert_equal(target, orders)


@pytest.mark.soak
@pytest.mark.parametrize("is_done", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(r" SET TBLPROPERTIES .*evolution'", marks=pytest.mark.soak),
        pytest.param("DROP COLUMN", marks=pytest.mark.soak),
        "RENAME COLUMN",
        pytest.param(r"UNSET TBLPROPERTIES .*evolution'", marks=pytest.mark.soak),
    ],
)
def test_a_table_that_was_to_evolve_when_its_driver_died_goes_on(
    spark: Any, tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch, statement: str, is_done: bool
) -> None:
    target, log = followed(spark, tmp_path, orders), orders.log
    target.merge(log.upsert(id=1, name="a", amount=1))
    orders.rename("name", "title")
    orders.drop("amount")
    change, sql = log.upsert(id=1, title="b"), type(spark).sql

    def dying(self: Any, text: str, *arguments: Any, **more: Any) -> Any:
        if not re.search(statement, text):
            return sql(self, text, *arguments, **more)
        if is_done:
            sql(self, text, *arguments, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(spark), "sql", dying)
        with pytest.raises(KeyboardInterrupt):
            target.merge(change)
    target.restart()
    target.merge(change, number=target.number)
    assert_equal(target, orders)


@pytest.mark.soak
def test_a_column_that_gives_its_name_to_another_one_keeps_its_values(spark: Any, tmp_path: Path, orders: Orders) -> None:
    target, log = followed(spark, tmp_path, orders), orders.log
    target.merge(*(log.upsert(id=key, name="a", amount=key) for key in (1, 2, 3)))
    before = log.upsert(id=3, name="b", amount=3)
    orders.rename("name", "title")
    orders.add("name")
    target.merge(before, log.upsert(id=1, title="c", amount=1, name="new"))
    assert_equal(target, orders)
    late = log.upsert(id=2, title="d", amount=2, name="n")
    orders.alter('RENAME title TO "Title"')
    log.fields = {name.replace("title", "Title"): kind for name, kind in log.fields.items()}
    target.merge(before, late, log.upsert(id=3, Title="b", amount=3, name=None))
    assert [row["title"] for row in target.rows()] == ["c", "d", "b"]


@pytest.mark.soak
def test_a_batch_that_waits_for_a_fill_behind_a_drop_goes_on(spark: Any, tmp_path: Path, orders: Orders) -> None:
    target, log = followed(spark, tmp_path, orders), orders.log
    target.merge(*(log.upsert(id=key, name="a", amount=key) for key in (1, 2)))
    orders.drop("amount")
    orders.add("note", optional=False)
    change = log.upsert(id=1, name="b", note="n")
    with pytest.raises(Misconfigured, match="fill"):
        target.merge(change)
    target.options["fill"] = {"note": "x"}
    target.restart()
    target.merge(change, number=target.number)
    log.rows[2]["note"] = "x"
    assert_equal(target, orders)


@pytest.mark.soak
def test_columns_that_lenient_has_kept_make_place_for_others_of_their_names(
    spark: Any, tmp_path: Path, orders: Orders
) -> None:
    target, log = followed(spark, tmp_path, orders, "lenient"), orders.log
    target.merge(*(log.upsert(id=key, name="a", amount=key) for key in (1, 2)))
    orders.rename("name", "title")
    orders.drop("amount")
    target.merge(*(log.upsert(id=key, title="b") for key in (1, 2)))
    target.options["onSchemaChange"] = "evolve"
    target.restart()
    target.merge(log.upsert(id=1, title="c"))
    orders.rename("title", "name")
    orders.add("amount")
    target.merge(log.upsert(id=1, name="d", amount="much"))
    assert_equal(target, orders)


@pytest.mark.soak
def test_a_column_that_delta_does_not_drop_stays_with_lenient(spark: Any, tmp_path: Path, orders: Orders) -> None:
    columns = "id int, name string, amount bigint, _position string"
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/orders` ({columns}) USING delta PARTITIONED BY (amount)")
    target, log = followed(spark, tmp_path, orders), orders.log
    target.merge(log.upsert(id=1, name="a", amount=1))
    orders.drop("amount")
    change = log.upsert(id=1, name="b")
    with pytest.raises(Exception, match="Dropping partition columns"):
        target.merge(change)
    target.options["onSchemaChange"] = "lenient"
    target.restart()
    target.merge(change, number=target.number)
    assert target.rows() == [{"id": 1, "name": "b", "amount": 1}]


@pytest.mark.soak
@pytest.mark.parametrize("is_done", [False, True])
def test_columns_that_take_each_others_names_survive_a_crash_at_each_statement(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    sql, left = type(spark).sql, 0

    def dying(self: Any, text: str, *arguments: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left or is_done:
            sql(self, text, *arguments, **more)
        if not left:
            raise KeyboardInterrupt

    for number in range(1, 9):
        options = {"path": str(tmp_path / str(number)), "onSchemaChange": "evolve", "database": {"url": "postgresql:"}}
        sink: Any = ChangeTable.of(options)
        target, left = ChangeTarget(sink.values), number
        spark.sql(f"CREATE TABLE {target.sql} (id int, a int, b int, x int) USING delta")
        spark.sql(f"INSERT INTO {target.sql} VALUES (1, 2, 3, 4)")
        with monkeypatch.context() as patched:
            patched.setattr(type(spark), "sql", dying)
            with pytest.raises(KeyboardInterrupt):
                target.evolve(spark, state(), [["x"], ["a", "x"], ["b", "a"]])
        again = ChangeTarget(sink.values)
        again.complete(spark, again.properties(spark))
        (row,) = spark.table(target.sql).collect()
        nothing = number == 1 and not is_done
        assert row.asDict() == ({"id": 1, "a": 2, "b": 3, "x": 4} if nothing else {"id": 1, "x": 2, "a": 3})


@pytest.mark.soak
def test_try_evolve_keeps_a_column_of_which_nobody_knows_what_became(spark: Any, tmp_path: Path, orders: Orders) -> None:
    target, log = followed(spark, tmp_path, orders, "try_evolve"), orders.log
    orders.add("x")
    first = [log.upsert(id=1, name="a", amount=1), log.upsert(id=2, name="a", amount=2)]
    target.merge(*first)
    orders.drop("x")
    orders.add("y")
    before = log.upsert(id=1, name="a", amount=1, y="n")
    orders.rename("y", "z")
    target.merge(before, log.upsert(id=2, name="a", amount=2, z="m"))
    assert [(row["y"], row["z"]) for row in target.rows()] == [("n", None), (None, "m")]
    orders.rename("name", "title")
    target.merge(log.upsert(id=1, title="b", amount=1, z=None))
    assert "name" not in target.rows()[0], "what is certain is done"


def test_a_key_that_changes_its_name_stops_the_query(spark: Any, tmp_path: Path, orders: Orders) -> None:
    target, log = followed(spark, tmp_path, orders), orders.log
    target.merge(log.upsert(id=1, name="a", amount=1))
    orders.alter("RENAME id TO number")
    log.fields = {"number": log.fields["id"], "name": log.fields["name"], "amount": log.fields["amount"]}
    record = log.record("u", {"id": 1, "number": 1, "name": "b", "amount": 1}, 500)
    with pytest.raises(StateError, match=r"the key of .* is \(number\) now, and was \(id\)"):
        target.merge({**record, "key": json.dumps({"number": 1})})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"database": {}}, r"database +must reach the PostgreSQL of the tables"),
        ({"database": {"url": "mysql://me:sesame@db/shop"}}, r"database +.* got the url mysql://\*\*\*@db/shop"),
        ({"history": True}, r"onSchemaChange +must not be evolve with history=true"),
        ({"schema": "id INT"}, r"schema +must not be given with onSchemaChange=evolve"),
    ],
)
def test_options_that_contradict_are_errors(spark: Any, tmp_path: Path, options: dict[str, Any], text: str) -> None:
    database = {"url": "postgresql://localhost/shop"}
    with pytest.raises(Misconfigured, match=text):
        Target(spark, tmp_path / "orders", **{"onSchemaChange": "evolve", "database": database, **options})


def test_a_database_without_the_table_is_an_error(spark: Any, tmp_path: Path, orders: Orders) -> None:
    target = followed(spark, tmp_path, orders)
    log = Database(topic="shop.public.others")
    with pytest.raises(Misconfigured, match=r"database +has no table public\.others, the source of"):
        target.merge(log.upsert(id=1, name="a", amount=1))
