"""A stream of all tables of a database: tables come and go, and their columns change."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from connectors.core.planning import Offset
from connectors.ground.errors import Fatal, Misconfigured, StateError
from connectors.systems.jdbc.connection import Connection
from connectors.systems.jdbc.dialects import Table, dialect_of, parse
from connectors.systems.jdbc.incremental.tables import CatalogTable, catalog_tables, keys_of
from connectors.systems.jdbc.source import JdbcSource
from connectors.testing import SourceContext
from connectors.testing.servers import MariaDbServer, PostgresServer
from connectors.testing.source_suite import SourceQuery
from tests.servers import optional, required


class Database(SourceContext):
    """A database whose tables the test makes, read as one stream."""

    source = JdbcSource
    schema = pa.schema([("table", pa.string()), ("row", pa.string())])

    def options(self) -> dict[str, str]:
        return {**self.address(), "tables": ".*", "discoveryInterval": "0s", "retry.initialBackoff": "10ms"}

    def address(self) -> dict[str, str]:
        raise NotImplementedError

    def connect(self) -> Connection:
        return JdbcSource.of({**self.address(), "tables": "x"}).dialect().connect()  # type: ignore[attr-defined, no-any-return]

    def run(self, *statements: str) -> None:
        with contextlib.closing(self.connect()) as connection:
            for sql in statements:
                connection.execute(sql)

    def write(self, count: int) -> list[dict[str, Any]]:
        raise NotImplementedError


class Sqlite(Database):
    def address(self) -> dict[str, str]:
        return {"url": f"sqlite:///{self.folder}/tables.db"}


class DuckDb(Database):
    def address(self) -> dict[str, str]:
        return {"url": f"duckdb:///{self.folder}/tables.duckdb"}


class Postgres(Database):
    """A database of its own on the shared server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(PostgresServer)
        self.name = f"db_{time.monotonic_ns()}"
        self._elsewhere(f"CREATE DATABASE {self.name}")

    def address(self) -> dict[str, str]:
        return {"url": self.server.jdbc.rsplit("/", 1)[0] + f"/{self.name}", "user": self.server.user}

    def close(self) -> None:
        self._elsewhere(f"DROP DATABASE {self.name} WITH (FORCE)")

    def _elsewhere(self, sql: str) -> None:
        address = {"url": self.server.jdbc, "user": self.server.user}
        with contextlib.closing(JdbcSource.of({**address, "tables": "x"}).dialect().connect()) as connection:  # type: ignore[attr-defined]
            connection.execute(sql)


class MariaDb(Database):
    """A database of its own on the shared server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = optional(MariaDbServer)
        self.name = "test"
        name = f"db_{time.monotonic_ns()}"
        self.run(f"CREATE DATABASE {name}")
        self.name = name

    def address(self) -> dict[str, str]:
        url = self.server.jdbc.rsplit("/", 1)[0] + f"/{self.name}"
        return {"url": url, "user": self.server.user, "password": self.server.password}

    def close(self) -> None:
        self.run(f"DROP DATABASE {self.name}")


@pytest.fixture(params=[Sqlite, DuckDb, Postgres, MariaDb])
def database(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    with contextlib.closing(request.param(tmp_path)) as system:
        yield system


@pytest.fixture
def sqlite(tmp_path: Path) -> Sqlite:
    return Sqlite(tmp_path)


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    with contextlib.closing(Postgres(tmp_path)) as system:
        yield system


def read(reading: SourceQuery, log: list[Offset]) -> dict[str, list[dict[str, Any]]]:
    """What is new, by table."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for row in reading.rest(log):
        tables.setdefault(row["table"], []).append(json.loads(row["row"]))
    return tables


def test_a_new_table_is_read_from_its_beginning(database: Database) -> None:
    database.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1), (2)")
    reading, log = SourceQuery(database), list[Offset]()
    assert read(reading, log) == {"a": [{"id": 1}, {"id": 2}]}
    database.run("CREATE TABLE b (id INTEGER PRIMARY KEY)", "INSERT INTO b VALUES (1)", "INSERT INTO a VALUES (3)")
    assert read(reading, log) == {"a": [{"id": 3}], "b": [{"id": 1}]}


def test_a_table_that_was_dropped_ends_in_the_task_before_discovery_notices(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "CREATE TABLE b (id INTEGER PRIMARY KEY)")
    database.run("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
    reading, log = SourceQuery(database), list[Offset]()
    end = reading.planner.latest({"v": 1, "phase": "initial"})
    log.append(end)
    database.run("DROP TABLE a")
    with caplog.at_level(logging.WARNING, "connectors.jdbc"):
        assert [row["table"] for row in reading.batch(log, 0)] == ["b"]
    assert "a is gone" in caplog.text
    assert read(reading, log) == {}
    database.run("INSERT INTO b VALUES (2)")
    assert read(SourceQuery(database), log) == {"b": [{"id": 2}]}


def test_a_table_that_is_dropped_after_the_start_and_was_never_read_is_left_out(database: Database) -> None:
    database.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    reading, log = SourceQuery(database), list[Offset]()
    read(reading, log)
    database.run("CREATE TABLE b (id INTEGER PRIMARY KEY)", "INSERT INTO b VALUES (1)", "INSERT INTO a VALUES (2)")
    ending = SourceQuery(database)
    ending.planner.freeze()
    database.run("DROP TABLE b")
    assert read(ending, log) == {"a": [{"id": 2}]}


def test_a_table_that_is_made_anew_is_read_from_its_beginning(postgres: Postgres) -> None:
    postgres.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (7)")
    reading, log = SourceQuery(postgres), list[Offset]()
    read(reading, log)
    postgres.run("DROP TABLE a", "CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    assert read(reading, log) == {"a": [{"id": 1}]}
    postgres.run("ALTER TABLE a RENAME TO b")
    assert read(reading, log) == {"b": [{"id": 1}]}
    postgres.run("ALTER TABLE b RENAME TO a", "INSERT INTO a VALUES (2)")
    assert read(reading, log) == {"a": [{"id": 2}]}


def test_a_table_that_loses_its_key_ends_the_query_and_goes_on_with_it(sqlite: Sqlite) -> None:
    sqlite.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "CREATE TABLE b (id INTEGER PRIMARY KEY)")
    sqlite.run("INSERT INTO a VALUES (1), (2)", "INSERT INTO b VALUES (1)")
    log = list[Offset]()
    read(SourceQuery(sqlite, incrementingColumn="id"), log)
    sqlite.run("ALTER TABLE a RENAME COLUMN id TO number", "INSERT INTO a VALUES (3)", "INSERT INTO b VALUES (2)")
    with pytest.raises(Misconfigured, match=r'incrementingColumn +names "id", but the columns of a are number'):
        read(SourceQuery(sqlite, incrementingColumn="id"), log)
    assert read(SourceQuery(sqlite, incrementingColumn="id", tables="b"), log) == {"b": [{"id": 2}]}
    sqlite.run("ALTER TABLE a RENAME COLUMN number TO id")
    assert read(SourceQuery(sqlite, incrementingColumn="id"), log) == {"a": [{"id": 3}]}


def test_a_stream_of_one_table_ends_when_the_table_loses_its_key(sqlite: Sqlite) -> None:
    sqlite.run("CREATE TABLE a (id INTEGER, number INTEGER)")
    log = list[Offset]()
    assert one_table(sqlite, dbtable="a").rest(log) == []
    sqlite.run("ALTER TABLE a RENAME COLUMN id TO other", "INSERT INTO a VALUES (1, 1)")
    with pytest.raises(Misconfigured, match=r'incrementingColumn +names "id", but the columns of a are other, number'):
        one_table(sqlite, dbtable="a").rest(log)


def test_a_batch_of_a_table_that_was_made_anew_before_it_is_read_has_no_rows(postgres: Postgres) -> None:
    one = PostgresTable(postgres)
    postgres.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1), (2)")
    reading, log = SourceQuery(one), list[Offset]()
    assert reading.rest(log) == [{"id": 1}, {"id": 2}]
    postgres.run("INSERT INTO a VALUES (3)")
    number = reading.plan(log)
    assert number is not None
    postgres.run("DROP TABLE a", "CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (2), (3)")
    again = SourceQuery(one)
    assert [again.batch(log, number), again.rest(log)] == [[], [{"id": 2}, {"id": 3}]]


def test_after_an_outage_ids_that_are_read_as_text_go_on_in_their_order(postgres: Postgres) -> None:
    postgres.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a SELECT generate_series(1, 12)")
    source, schema = SourceQuery(PostgresTable(postgres, fetchsize="2")).source, pa.schema([("id", pa.string())])
    (split,) = source.enumerator().splits({"tables": {}}, {"tables": {"a": {"by": ["id"], "id": 12}}}, 1)
    with contextlib.closing(source.reader(schema)) as reader:
        rows = [row["id"] for batch in islice(reader.read(split), 2) for row in batch.to_pylist()]
        rows += [row["id"] for batch in reader.resume(split, len(rows)) for row in batch.to_pylist()]
    assert rows == [str(number) for number in range(1, 13)]


@pytest.mark.parametrize(
    ("database", "kind"),
    [
        (Postgres, "numeric"), (Postgres, "bigint"), (Sqlite, ""), (Sqlite, "INTEGER"), (DuckDb, "HUGEINT"),
        (MariaDb, "BIGINT UNSIGNED"),
    ],
)  # fmt: skip
def test_after_an_outage_ids_go_on_whatever_their_type(tmp_path: Path, database: type[Database], kind: str) -> None:
    with contextlib.closing(database(tmp_path)) as system:
        values = ", ".join(f"({number}.00, {number})" for number in range(2**53, 2**53 + 9))
        system.run(f"CREATE TABLE a (id {kind}, n BIGINT)", f"INSERT INTO a VALUES {values}")
        own = {"dbtable": "a", "incremental": "incrementing", "incrementingColumn": "id", "fetchsize": "2"}
        source, at = JdbcSource.of({**system.address(), **own}, streaming=True), {"a": {"by": ["id"], "id": 2**53 + 9}}
        (split,) = source.enumerator().splits({"tables": {}}, {"tables": at}, 1)
        with contextlib.closing(source.reader(pa.schema([("n", pa.int64())]))) as reader:
            rows = [row["n"] for batch in islice(reader.read(split), 2) for row in batch.to_pylist()]
            rows += [row["n"] for batch in reader.resume(split, len(rows)) for row in batch.to_pylist()]
        assert rows == [*range(2**53, 2**53 + 9)]


def test_tables_of_mariadb_may_differ_in_case_and_have_versions(tmp_path: Path) -> None:
    with contextlib.closing(MariaDb(tmp_path)) as database:
        database.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "CREATE TABLE `A` (number INTEGER PRIMARY KEY)")
        database.run("CREATE TABLE b (id INTEGER PRIMARY KEY) WITH SYSTEM VERSIONING")
        database.run("INSERT INTO a VALUES (1)", "INSERT INTO `A` VALUES (2)", "INSERT INTO b VALUES (3)")
        expected = {"A": [{"number": 2}], "a": [{"id": 1}], "b": [{"id": 3}]}
        assert read(SourceQuery(database), list[Offset]()) == expected


def test_a_new_column_appears_and_is_reported(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    database.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    reading, log = SourceQuery(database), list[Offset]()
    read(reading, log)
    database.run("ALTER TABLE a ADD COLUMN note VARCHAR(10)", "INSERT INTO a VALUES (2, 'new')")
    with caplog.at_level(logging.WARNING, "connectors.jdbc"):
        assert read(SourceQuery(database), log) == {"a": [{"id": 2, "note": "new"}]}
    assert "new: note" in caplog.text


def test_a_column_of_another_type_stops_the_query_unless_it_may_be_cast(postgres: Postgres) -> None:
    postgres.run("CREATE TABLE a (id INTEGER PRIMARY KEY, n varchar(5))", "INSERT INTO a VALUES (1, '5')")
    reading, log = SourceQuery(postgres), list[Offset]()
    read(reading, log)
    postgres.run("ALTER TABLE a ALTER n TYPE varchar(9)", "INSERT INTO a VALUES (2, '6')")
    assert read(SourceQuery(postgres), log) == {"a": [{"id": 2, "n": "6"}]}
    postgres.run("ALTER TABLE a ALTER n TYPE integer USING n::integer", "INSERT INTO a VALUES (3, 7)")
    with pytest.raises(Fatal, match=r"columns of a have another type now: n\n.*onTypeChange=cast"):
        read(SourceQuery(postgres), log)
    assert read(SourceQuery(postgres, onTypeChange="cast"), log) == {"a": [{"id": 3, "n": 7}]}


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ("orders,items", {"orders", "items"}),
        ('["orders"]', {"orders"}),
        (str(["orders"]), {"orders"}),
        ("o.*", {"orders", "old"}),
        (".*", {"orders", "items", "old"}),
        ("order", set()),
    ],
)
def test_tables_are_chosen_by_a_list_or_by_an_expression_for_the_whole_name(
    sqlite: Sqlite, tables: str, expected: set[str]
) -> None:
    for name in ("orders", "items", "old", "connectors_ledger", f"cst_{'0' * 8}_{'0' * 12}_{'0' * 8}_{'0' * 24}"):
        sqlite.run(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY)", f"INSERT INTO {name} VALUES (1)")
    assert set(read(SourceQuery(sqlite, tables=tables), [])) == expected


def test_tables_without_a_key_are_all_named_at_the_start(sqlite: Sqlite) -> None:
    sqlite.run("CREATE TABLE a (name TEXT)", "CREATE TABLE b (x INTEGER, y INTEGER, PRIMARY KEY (x, y))")
    problems = r"2 problems(.|\n)*a has no primary key(.|\n)*b has no primary key.*Name the tables to be read by tables"
    with pytest.raises(Misconfigured, match=problems):
        read(SourceQuery(sqlite), [])


def test_names_and_values_are_never_taken_for_sql(database: Database) -> None:
    name = 'a"; DROP TABLE b; --%s ?'
    with contextlib.closing(database.connect()) as connection:
        quoted, key = connection.dialect.quote(name), connection.dialect.quote('i"d %s')
    database.run("CREATE TABLE b (id INTEGER PRIMARY KEY)")
    database.run(f"CREATE TABLE {quoted} ({key} INTEGER PRIMARY KEY)", f"INSERT INTO {quoted} VALUES (1)")
    reading, log = SourceQuery(database), list[Offset]()
    assert read(reading, log) == {name: [{'i"d %s': 1}]}
    database.run(f"INSERT INTO {quoted} VALUES (2)")
    assert read(reading, log) == {name: [{'i"d %s': 2}]}


def test_the_schema_and_the_primary_key_of_each_row_travel_with_it(sqlite: Sqlite) -> None:
    sqlite.run("CREATE TABLE a (id INTEGER PRIMARY KEY, price DECIMAL(9, 2))", "INSERT INTO a VALUES (1, '2.50')")
    columns = [("schema", pa.string()), ("key", pa.list_(pa.string()))]
    sqlite.schema = pa.schema([*Database.schema, *columns])  # type: ignore[misc]
    ((row),) = SourceQuery(sqlite, includeSchema="true").rest([])
    assert row["schema"] == "`id` bigint, `price` decimal(9,2)"
    assert row["key"] == ["id"]
    assert row["row"] == '{"id":1,"price":2.50}'


def test_columns_that_a_primary_key_only_carries_and_keys_that_hold_for_some_rows_are_no_keys(tmp_path: Path) -> None:
    with contextlib.closing(Postgres(tmp_path)) as postgres:
        postgres.run(
            "CREATE TABLE lines (note TEXT, place INT, number INT, PRIMARY KEY (number, place) INCLUDE (note))",
            "CREATE TABLE parts (id INT NOT NULL) PARTITION BY LIST (id)",
            "CREATE TABLE part PARTITION OF parts FOR VALUES IN (1)",
            "ALTER TABLE ONLY parts ADD PRIMARY KEY (id)",  # its partition has none
        )
        with contextlib.closing(postgres.connect()) as connection:
            keys = {name: table.primary for name, table in catalog_tables(connection).items()}
    assert keys == {"lines": ("place", "number"), "parts": ()}


def test_a_thousand_tables_are_found_in_seconds(tmp_path: Path) -> None:
    sqlite = Sqlite(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "tables.db")) as raw:
        raw.execute("BEGIN")
        for n in range(1000):
            raw.execute(f"CREATE TABLE t{n} (id INTEGER PRIMARY KEY, name TEXT, changed DATETIME)")
        raw.commit()
    enumerator = SourceQuery(sqlite).source.enumerator()
    began = time.monotonic()
    with contextlib.closing(enumerator):
        assert len(enumerator.head().tables) == 1000
    assert time.monotonic() - began < 10


class SqliteTable(SourceContext):
    """A query over one table, by the options ``more``."""

    source = JdbcSource
    schema = pa.schema([("id", pa.int64())])
    more: ClassVar[dict[str, str]] = {}

    def options(self) -> dict[str, str]:
        address = {"url": f"sqlite:///{self.folder}/tables.db", "retry.initialBackoff": "10ms"}
        return {**address, "incremental": "incrementing", "incrementingColumn": "id", **self.more}

    def write(self, count: int) -> list[dict[str, Any]]:
        raise NotImplementedError


class PostgresTable(SourceContext):
    """The table ``a`` of a database, by its ids."""

    source = JdbcSource
    schema = pa.schema([("id", pa.int64())])

    def __init__(self, database: Postgres, **more: str) -> None:
        super().__init__(database.folder)
        self.own = {**database.address(), "dbtable": "a", "incremental": "incrementing", **more}

    def options(self) -> dict[str, str]:
        return {**self.own, "discoveryInterval": "0s", "retry.initialBackoff": "10ms"}

    def write(self, count: int) -> list[dict[str, Any]]:
        raise NotImplementedError


def one_table(sqlite: Sqlite, **more: str) -> SourceQuery:
    return SourceQuery(type("One", (SqliteTable,), {"more": more})(sqlite.folder))


def test_each_session_of_a_stream_begins_with_the_users_statement(sqlite: Sqlite) -> None:
    sqlite.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    reading = one_table(sqlite, query="SELECT * FROM mine", sessionInitStatement="CREATE TEMP VIEW mine AS SELECT * FROM a")
    assert reading.rest([]) == [{"id": 1}]
    with pytest.raises(Misconfigured, match=r"sessionInitStatement +is 'no statement', and .*syntax error"):
        one_table(sqlite, dbtable="a", sessionInitStatement="no statement").rest([])


def test_another_spelling_of_the_table_does_not_read_it_again(sqlite: Sqlite) -> None:
    sqlite.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    log = list[Offset]()
    assert one_table(sqlite, dbtable="a").rest(log) == [{"id": 1}]
    with pytest.raises(StateError, match=r"has read a, and by dbtable .* main\.a\n.*write the name as before"):
        one_table(sqlite, dbtable="main.a").rest(log)
    assert one_table(sqlite, dbtable="a").rest(log) == []


@pytest.mark.parametrize("ids", ["INTEGER", "NUMERIC"])
def test_ids_with_fractions_below_the_largest_are_read_whatever_the_parallelism(sqlite: Sqlite, ids: str) -> None:
    sqlite.run(f"CREATE TABLE a (id {ids}, n INTEGER)", "INSERT INTO a VALUES (1, 1), (2, 2), (2.5, 3), (3, 4), (4, 5)")
    table = type("Ids", (SqliteTable,), {"more": {"dbtable": "a"}, "schema": pa.schema([("n", pa.int64())])})
    log = list[Offset]()
    assert [row["n"] for row in SourceQuery(table(sqlite.folder), numPartitions="4").rest(log)] == [1, 2, 3, 4, 5]
    sqlite.run("INSERT INTO a VALUES (4.5, 6), (6, 7)")
    assert [row["n"] for row in SourceQuery(table(sqlite.folder)).rest(log)] == [6, 7]


@pytest.mark.parametrize("ids", ["REAL", "DECIMAL(10, 2)", "TEXT", ""])
def test_ids_that_are_no_whole_numbers_are_refused(sqlite: Sqlite, ids: str) -> None:
    sqlite.run(f"CREATE TABLE a (id {ids})", "INSERT INTO a VALUES ('1.5')")
    with pytest.raises(Misconfigured, match=r'incrementingColumn +names "id" of a, whose .* no whole number'):
        one_table(sqlite, dbtable="a").rest([])


@pytest.mark.parametrize(
    ("kind", "is_whole"),
    [
        ("numeric", True), ("numeric(20)", True), ("numeric(20, 0)", True), ("decimal(20,0) unsigned", True), ("bigint", True),
        ("numeric(20,2)", False), ("DECIMAL(18,3)", False), ("double precision", False),
    ],
)  # fmt: skip
def test_numbers_with_a_scale_are_no_ids(kind: str, is_whole: bool) -> None:
    values = JdbcSource.of(
        {"url": "jdbc:postgresql://db/shop", "dbtable": "a", "incremental": "incrementing", "incrementingColumn": "id"}
    ).values
    table = CatalogTable(Table("a"), (("id", kind),))
    with contextlib.nullcontext() if is_whole else pytest.raises(Misconfigured, match="no whole number"):
        keys_of(values, table, dialect_of(parse("jdbc:postgresql://db/shop")))


def test_names_of_tables_that_are_not_there_are_reported_and_those_with_a_schema_refused(
    sqlite: Sqlite, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite.run("CREATE TABLE a (id INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with caplog.at_level(logging.WARNING, "connectors.jdbc"):
        assert read(SourceQuery(sqlite, tables="a,b"), list[Offset]()) == {"a": [{"id": 1}]}
    assert "b: the option tables gives this name" in caplog.text
    for names in ("main.a,a", "main.a"):
        with pytest.raises(Misconfigured, match=r'names "main\.a", and the default schema has no such table'):
            read(SourceQuery(sqlite, tables=names), list[Offset]())
