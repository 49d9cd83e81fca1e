"""What is written, on each database: inserts, upserts, updates, deletes, types, tables that are created and widened."""

from __future__ import annotations

import contextlib
import datetime
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal, Misconfigured, Poison
from connectors.core.commit import Commit
from connectors.core.ledger import once_query
from connectors.core.writing import stage
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.target import Target

from .contexts import DatabaseContext, DuckDbContext, MariaDbContext, PostgresContext, SqliteContext

KEYED = "id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(100), n INTEGER"
DATABASES = (PostgresContext, SqliteContext, DuckDbContext, MariaDbContext)


@pytest.fixture(params=DATABASES, ids=lambda kind: kind.__name__.removesuffix("Context").lower())
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseContext]:
    class Keyed(request.param):  # type: ignore[name-defined, misc]
        body = KEYED

    database = Keyed(tmp_path / "target")
    with contextlib.closing(database):
        yield database


ROWS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int32())])


def write(database: DatabaseContext, parts: Sequence[Any], replace: bool = False, **options: str) -> JdbcSink:
    """Writes one batch of a few tasks, each with one record batch."""
    sink = JdbcSink.of({**database.options(), **options})
    batch = Batch(sink.sink_id(), once_query(), 0, replace)
    staged = [stage(sink, batch, part.schema, index, iter([part])) for index, part in enumerate(parts)]
    Commit(sink).finish(batch, staged)
    return sink


def rows(*values: tuple[Any, ...], schema: pa.Schema = ROWS) -> Any:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema)


def content(database: DatabaseContext, columns: str = "id, name, n") -> list[tuple[Any, ...]]:
    return sorted(database.query(f"SELECT {columns} FROM {database.table}"))


UPSERT = {"operation": "upsert", "keyColumns": "id"}


def test_an_upsert_inserts_new_keys_and_changes_old_ones(database: DatabaseContext) -> None:
    write(database, [rows((1, "a", 1), (2, "b", 2))], **UPSERT)
    write(database, [rows((2, "B", 3)), rows((3, "c", 4))], **UPSERT)
    assert content(database) == [(1, "a", 1), (2, "B", 3), (3, "c", 4)]


TIMES = pa.timestamp("us", tz="+02:00")
NOON = datetime.datetime(2024, 10, 4, 12, 0, tzinfo=datetime.timezone.utc)
SAME_KEYS: dict[str, tuple[pa.DataType, str, Any, Any]] = {
    "time in another zone": (TIMES, "TIMESTAMPTZ TIMESTAMPTZ - -", NOON.astimezone(datetime.timezone.min), NOON),
    "both zeros": (pa.float64(), "FLOAT8 DOUBLE REAL DOUBLE", 0.0, -0.0),
    "real": (pa.float32(), "REAL REAL - -", 0.1, 0.1),
    "not a number": (pa.float64(), "FLOAT8 DOUBLE - -", float("nan"), float("nan")),
    "binary": (pa.binary(), "BYTEA BLOB BLOB VARBINARY(8)", b"\0\xff", b"\0\xff"),
    "text that is a number": (pa.string(), "BIGINT BIGINT BIGINT BIGINT", "42", "42"),
}
"""Type of the key, type of its column in PostgreSQL, DuckDB, SQLite and MariaDB, and two values that are one key."""


@pytest.mark.parametrize("case", SAME_KEYS)
def test_an_upsert_finds_its_row_however_the_key_is_written(database: DatabaseContext, case: str) -> None:
    """The row is updated, not doubled, and a deletion finds it. (PostgreSQL compares NaN as equal, as Spark does.)"""
    kind, columns, first, second = SAME_KEYS[case]
    kinds = (PostgresContext, DuckDbContext, SqliteContext, MariaDbContext)
    column = next(column for kind, column in zip(kinds, columns.split(), strict=True) if isinstance(database, kind))
    if column == "-":
        pytest.skip("the database has no such key")
    database.run(f"DROP TABLE {database.table}")
    database.run(f"CREATE TABLE {database.table} (id {column} NOT NULL PRIMARY KEY, n INTEGER)")
    keyed = pa.schema([("id", kind), ("n", pa.int32()), ("gone", pa.bool_())])
    for key, number, gone in ((first, 1, False), (second, 2, False)):
        write(database, [rows((key, number, gone), schema=keyed)], **UPSERT, deleteColumn="gone")
    assert database.query(f"SELECT n FROM {database.table}") == [(2,)]
    write(database, [rows((second, 3, True), schema=keyed)], **UPSERT, deleteColumn="gone")
    assert database.query(f"SELECT n FROM {database.table}") == []


def test_an_upsert_changes_only_update_columns(database: DatabaseContext) -> None:
    write(database, [rows((1, "a", 1))], **UPSERT)
    write(database, [rows((1, "b", 2), (2, "c", 3))], **UPSERT, updateColumns="n")
    assert content(database) == [(1, "a", 2), (2, "c", 3)]


def test_of_rows_with_one_key_the_last_by_order_column_wins_across_tasks(database: DatabaseContext) -> None:
    parts = [rows((1, "new", 5), (1, "null", None), (2, "x", 1)), rows((1, "old", 2))]
    write(database, parts, **UPSERT, orderColumn="n")
    assert content(database) == [(1, "new", 5), (2, "x", 1)]


def test_repeated_keys_without_an_order_are_refused(database: DatabaseContext) -> None:
    with pytest.raises(Fatal, match="orderColumn"):
        write(database, [rows((1, "a", 1)), rows((1, "b", 2))], **UPSERT)
    assert content(database) == []


def test_delete_column_deletes_and_is_not_written(database: DatabaseContext) -> None:
    write(database, [rows((1, "a", 1), (2, "b", 2), (3, "c", 3))])
    gone = ROWS.append(pa.field("gone", pa.bool_()))
    changes = rows((1, "a", 1, True), (2, "B", 2, None), (9, "x", 1, True), (4, "d", 4, False), schema=gone)
    write(database, [changes], **UPSERT, deleteColumn="gone")
    assert content(database) == [(2, "B", 2), (3, "c", 3), (4, "d", 4)]


def test_an_order_column_that_the_target_lacks_is_not_written(database: DatabaseContext) -> None:
    ordered = ROWS.append(pa.field("version", pa.int64()))
    write(database, [rows((1, "a", 1, 1), (1, "b", 1, 2), schema=ordered)], **UPSERT, orderColumn="version")
    assert content(database) == [(1, "b", 1)]


def test_an_update_changes_what_is_there_and_adds_nothing(database: DatabaseContext) -> None:
    write(database, [rows((1, "a", 1), (2, "b", 2))])
    write(database, [rows((2, "B", 20), (3, "c", 30))], operation="update", keyColumns="id")
    assert content(database) == [(1, "a", 1), (2, "B", 20)]


def test_an_overwrite_replaces_the_rows_and_keeps_the_table(database: DatabaseContext) -> None:
    write(database, [rows((1, "a", 1))])
    write(database, [rows((2, "b", 2))], replace=True)
    assert content(database) == [(2, "b", 2)]
    with pytest.raises(Misconfigured, match=r"other +is no column"):
        write(database, [pa.record_batch({"id": [1], "other": ["x"]})], replace=True)
    assert content(database) == [(2, "b", 2)]


def test_a_required_column_that_is_missing_is_told(database: DatabaseContext) -> None:
    with pytest.raises(Misconfigured, match=r"id +is required"):
        write(database, [pa.record_batch({"name": ["x"]})])


def test_names_with_quotes_spaces_and_capitals_are_quoted(database: DatabaseContext) -> None:
    quote = "`" if isinstance(database, MariaDbContext) else '"'
    name = f"{database.table} Odd; DROP".rpartition(".")[2]
    path = f"{database.table.split('.')[0]}." if "." in database.table else ""
    column = "a%b 'x' : ?"
    batch = pa.record_batch({"Key Column": pa.array([1, 2]), column: pa.array(["x", "%s"])})
    keyed = {**UPSERT, "keyColumns": "Key Column"}
    for _ in range(2):
        write(database, [batch], dbtable=f"{path}{quote}{name}{quote}", createTable="true", **keyed)
    copied = database.query(f"SELECT * FROM {path}{quote}{name}{quote}")
    assert sorted(copied) == [(1, "x"), (2, "%s")]
    database.run(f"DROP TABLE {path}{quote}{name}{quote}")


ALL_TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "flag": (pa.bool_(), True, 1),
    "tiny": (pa.int8(), -7, -7),
    "small": (pa.int16(), 300, 300),
    "whole": (pa.int32(), 1 << 30, 1 << 30),
    "large": (pa.int64(), 1 << 62, 1 << 62),
    "single": (pa.float32(), 1.5, 1.5),
    "double": (pa.float64(), 0.1, 0.1),
    "exact": (pa.decimal128(38, 10), Decimal("12345678901234567890.0123456789"), "12345678901234567890.0123456789"),
    "words": (pa.string(), "Grüße ❤", "Grüße ❤"),
    "raw": (pa.binary(), b"\x00\xff", b"\x00\xff"),
    "day": (pa.date32(), datetime.date(1582, 10, 15), "1582-10-15"),
    "moment": (
        pa.timestamp("us", "UTC"),
        datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, datetime.timezone.utc),
        "2024-02-29 23:59:59.999999",
    ),
    "wall": (pa.timestamp("us"), datetime.datetime(1999, 12, 31, 1, 2, 3), "1999-12-31 01:02:03"),
    "many": (pa.list_(pa.int64()), [1, None, 3], [1, None, 3]),
    "inside": (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), {"a": 1, "b": ["x"]}, {"a": 1, "b": ["x"]}),
    "pairs": (pa.map_(pa.string(), pa.int64()), [("k", 1)], {"k": 1}),
}
"""Type, value, and how the value is compared."""


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    if isinstance(value, str) and value[:1] in "[{":
        return json.loads(value)
    if isinstance(value, str) and value.endswith(".000000"):
        return value.removesuffix(".000000")
    return str(value) if isinstance(value, (Decimal, datetime.date)) else value


def test_every_type_comes_back_from_a_table_that_was_made(database: DatabaseContext) -> None:
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _, _) in ALL_TYPES.items())])
    values = {"id": 1, **{name: value for name, (_, value, _) in ALL_TYPES.items()}}
    batch = pa.RecordBatch.from_pylist([values, {"id": 2}], schema)
    table = f"{database.table}_types"
    write(database, [batch], dbtable=table, createTable="true", **UPSERT)
    columns = JdbcSink.of(database.options()).dialect().names(schema.names)
    full, empty = sorted(database.query(f"SELECT {columns} FROM {table}"), key=lambda row: row[0])
    assert [_plain(value) for value in full[1:]] == [expected for _, _, expected in ALL_TYPES.values()]
    assert set(empty[1:]) == {None}
    database.run(f"DROP TABLE {table}")


def test_two_queries_that_make_the_table_at_once_both_write(
    database: DatabaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that there is none, and no ledger either."""
    table, create, both = f"{database.table}_made", Target._create, threading.Barrier(2)

    def create_at_once(self: Target, *what: Any) -> Any:
        both.wait(60)
        return create(self, *what)

    monkeypatch.setattr(Target, "_create", create_at_once)
    with ThreadPoolExecutor(2) as pool:
        parts = [rows((number, "x", number)) for number in range(2)]
        options = {"dbtable": table, "createTable": "true", "request.timeout": "60s"}
        list(pool.map(lambda part: write(database, [part], sinkId=str(part["id"][0]), **options), parts))
    assert sorted(database.query(f"SELECT id, name, n FROM {table}")) == [(0, "x", 0), (1, "x", 1)]
    database.run(f"DROP TABLE {table}")


ARRAYS: dict[str, tuple[type[DatabaseContext], str, pa.DataType, Any, Any]] = {
    "binary": (PostgresContext, "BYTEA[]", pa.list_(pa.binary()), [b"\0\xff", None], [b"\0\xff", None]),
    "times": (PostgresContext, "TIMESTAMP[]", pa.list_(TIMES), [NOON], [NOON.replace(tzinfo=None)]),
    "as long as can be": (PostgresContext, "VARCHAR(3)[]", pa.list_(pa.string()), ["abc"], ["abc"]),
    "json": (PostgresContext, "JSONB[]", pa.list_(pa.list_(pa.int64())), [[1], [2]], [[1], [2]]),
    "too long": (PostgresContext, "VARCHAR(3)[]", pa.list_(pa.string()), ["abcd"], Poison),
    "too long in one text": (PostgresContext, "VARCHAR(3)[]", pa.string(), "{abcd}", Poison),
    "nested": (PostgresContext, "TEXT[]", pa.list_(pa.list_(pa.string())), [["a"]], Fatal),
    "lines": (DuckDbContext, "VARCHAR[]", pa.list_(pa.string()), ['a\n"b"', "é", None], ['a\n"b"', "é", None]),
    "lines in lists": (DuckDbContext, "VARCHAR[][]", pa.list_(pa.list_(pa.string())), [["a\nb"], None], [["a\nb"], None]),
    "lines in structs": (DuckDbContext, "STRUCT(s VARCHAR)", pa.struct([("s", pa.string())]), {"s": "a\nb"}, {"s": "a\nb"}),
    "gap in a struct": (DuckDbContext, "STRUCT(s INT, t INT)", pa.struct([("s", pa.int32())]), {"s": 1}, {"s": 1, "t": None}),
    "maps": (DuckDbContext, "MAP(VARCHAR, INT)", pa.map_(pa.string(), pa.int32()), [("a\nb", 1)], {"a\nb": 1}),
    "times of a list": (DuckDbContext, "TIMESTAMP[]", pa.list_(TIMES), [NOON, None], [NOON.replace(tzinfo=None), None]),
    "bytes": (DuckDbContext, "BLOB[]", pa.list_(pa.binary()), [b"\0\xff", None], [b"\0\xff", None]),
}
"""A database, the type of its column, and a value that the column has in the end or that is refused."""


@pytest.mark.parametrize("case", ARRAYS)
def test_what_goes_into_an_array_or_struct_of_the_database_is_that_value_or_an_error(case: str, tmp_path: Path) -> None:
    kind, column, arrow, value, expected = ARRAYS[case]
    part = pa.record_batch({"id": [1], "v": pa.array([value], arrow)})
    with contextlib.closing(type("Arrays", (kind,), {"body": f"id BIGINT, v {column}"})(tmp_path / "target")) as database:
        if isinstance(expected, type):
            with pytest.raises(expected):
                write(database, [part])
            assert database.query(f"SELECT v FROM {database.table}") == []
        else:
            write(database, [part])
            assert database.query(f"SELECT v FROM {database.table}") == [(expected,)]


def test_a_type_that_no_database_has_is_told_before_anything_is_written(database: DatabaseContext) -> None:
    with pytest.raises(Misconfigured, match=r"pause +has the type duration"):
        write(database, [pa.record_batch({"id": [1], "pause": pa.array([1], pa.duration("us"))})])


def test_a_new_optional_column_is_added_and_a_required_one_is_refused(database: DatabaseContext) -> None:
    more = ROWS.append(pa.field("extra", pa.float64()))
    with pytest.raises(Misconfigured, match="evolveSchema"):
        write(database, [rows((1, "a", 1, 0.5), schema=more)])
    write(database, [rows((1, "a", 1, 0.5), schema=more)], evolveSchema="true")
    assert content(database, "id, extra") == [(1, 0.5)]
    required = ROWS.append(pa.field("must", pa.int64(), nullable=False))
    with pytest.raises(Misconfigured, match=r"must +is new and required"):
        write(database, [rows((2, "a", 1, 1), schema=required)], evolveSchema="true")


def test_two_writers_that_widen_the_table_at_once_both_succeed(database: DatabaseContext) -> None:
    more = ROWS.append(pa.field("extra", pa.float64()))
    gate = threading.Barrier(2)

    def run(number: int) -> None:
        gate.wait(30)
        write(database, [rows((number, "a", 1, 0.5), schema=more)], evolveSchema="true", sinkId=f"writer {number}")

    with ThreadPoolExecutor(2) as writers:
        list(writers.map(run, (1, 2), timeout=60))
    assert content(database, "id, extra") == [(1, 0.5), (2, 0.5)]


def test_keys_that_are_not_unique_in_the_table_are_refused(database: DatabaseContext) -> None:
    with pytest.raises(Misconfigured, match=r"keyColumns +must be a primary key or unique in .*\(name\) is not"):
        write(database, [rows((1, "a", 1))], operation="upsert", keyColumns="name")


EMAIL = "id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(100) UNIQUE, n INTEGER"


@pytest.fixture(params=DATABASES, ids=lambda kind: kind.__name__.removesuffix("Context").lower())
def with_names(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseContext]:
    """A table with a second unique column."""
    with contextlib.closing(type("Unique", (request.param,), {"body": EMAIL})(tmp_path / "target")) as table:
        yield table


@pytest.mark.parametrize("direct", [{}, {"guarantee": "idempotent", "commit": "auto"}], ids=["exactly-once", "idempotent"])
def test_a_new_key_with_a_value_that_another_row_has_in_a_unique_column_is_a_bad_row(
    with_names: DatabaseContext, direct: dict[str, str]
) -> None:
    write_as = {**UPSERT, **direct}
    write_one(with_names, rows((1, "a@b", 1), (2, "c@d", 2)), **write_as)
    with pytest.raises(Poison, match="a@b"):
        write_one(with_names, rows((3, "a@b", 3)), **write_as)
    assert content(with_names) == [(1, "a@b", 1), (2, "c@d", 2)]
    if JdbcSink.of(with_names.options()).dialect().savepoints or not direct:
        write_one(with_names, rows((3, "a@b", 3), (2, "e@f", 4), (4, "new", 5)), **write_as, errors="skip")
        assert content(with_names) == [(1, "a@b", 1), (2, "e@f", 4), (4, "new", 5)]


def write_one(database: DatabaseContext, part: Any, **options: str) -> None:
    """One task, which commits by itself where the sink has no committer."""
    sink = JdbcSink.of({**database.options(), **options})
    batch = Batch(sink.sink_id(), once_query(), 0)
    committable = stage(sink, batch, part.schema, 0, iter([part]))
    if sink.committer() is not None:
        Commit(sink).finish(batch, [committable])


COLLATIONS = ("utf8mb4_bin", "utf8mb4_nopad_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "latin1_bin")


@pytest.mark.parametrize("collation", COLLATIONS)
def test_keys_of_mariadb_are_compared_as_the_target_compares_them(tmp_path: Path, collation: str) -> None:
    kind = f"VARCHAR(20) CHARACTER SET {collation.split('_')[0]} COLLATE {collation}"
    body = f"id {kind} NOT NULL PRIMARY KEY, name VARCHAR(100), n INTEGER"
    schema = pa.schema([("id", pa.string()), ("name", pa.string()), ("n", pa.int32())])
    with contextlib.closing(type("Text", (MariaDbContext,), {"body": body})(tmp_path / "target")) as database:
        both = rows(("A", "upper", 1), ("a", "lower", 2), schema=schema)
        write(database, [both], **UPSERT, orderColumn="n")
        if collation.endswith("_ci"):
            assert [row[1:] for row in content(database)] == [("lower", 2)]
            with pytest.raises(Fatal, match="orderColumn"):
                write(database, [both], **UPSERT)
            return
        assert content(database) == [("A", "upper", 1), ("a", "lower", 2)]
        write(database, [rows(("A", "UPPER", 3), ("b", "new", 4), schema=schema)], **UPSERT)
        write(database, [rows(("a", "LOWER", 5), schema=schema)], operation="update", keyColumns="id")
        assert content(database) == [("A", "UPPER", 3), ("a", "LOWER", 5), ("b", "new", 4)]
        gone = schema.append(pa.field("gone", pa.bool_()))
        write(database, [rows(("A", None, None, True), schema=gone)], **UPSERT, deleteColumn="gone")
        assert [row[0] for row in content(database)] == ["a", "b"]


def test_a_missing_table_is_told_at_the_start(database: DatabaseContext) -> None:
    sink = JdbcSink.of({**database.options(), "dbtable": f"{database.table}_not"})
    with pytest.raises(Misconfigured, match="createTable=true"):
        Commit(sink).begin(Batch(sink.sink_id(), "q", 0))


DECIMALS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.decimal128(10, 2))])


def keyed_in_sqlite(folder: Path, order: str) -> SqliteContext:
    class Ordered(SqliteContext):
        body = f"id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(100), n {order}"

    return Ordered(folder / "target")


@pytest.mark.parametrize("kind", ["DECIMAL(10, 2)", "TEXT"])
def test_decimals_of_sqlite_have_the_order_of_numbers(tmp_path: Path, kind: str) -> None:
    with contextlib.closing(keyed_in_sqlite(tmp_path, kind)) as database:
        new, old = (1, "new", Decimal("10.00")), (1, "old", Decimal("9.00"))
        write(database, [rows(new, old, schema=DECIMALS)], **UPSERT, orderColumn="n")
        assert content(database, "name") == [("new",)]


def test_direct_writes_into_sqlite_compare_decimals_as_numbers_or_refuse_to(tmp_path: Path) -> None:
    direct = {**UPSERT, "orderColumn": "n", "guarantee": "idempotent"}
    with contextlib.closing(keyed_in_sqlite(tmp_path, "DECIMAL(10, 2)")) as database:
        for name, order in (("old", "9.00"), ("new", "10.00"), ("older", "-8")):
            write(database, [rows((1, name, Decimal(order)), schema=DECIMALS)], **direct)
        assert content(database, "name") == [("new",)]
        with pytest.raises(Misconfigured, match=r'orderColumn +names "n", a decimal, which made has as text \(TEXT\)'):
            write(database, [rows(schema=DECIMALS)], **{**direct, "createTable": "true", "dbtable": "made"})
        wide = pa.schema([*list(DECIMALS)[:2], ("n", pa.decimal128(20, 2))])
        with pytest.raises(Misconfigured, match=r"orderColumn .*up to 15 digits.* Cast it to decimal\(15"):
            write(database, [rows((1, "x", Decimal(1)), schema=wide)], **UPSERT, orderColumn="n")


def test_an_update_without_columns_to_change_only_deletes(tmp_path: Path) -> None:
    keys = pa.schema([("id", pa.int64()), ("gone", pa.bool_())])
    with contextlib.closing(keyed_in_sqlite(tmp_path, "INTEGER")) as database:
        write(database, [rows((1, "a", 1), (2, "b", 2))])
        write(database, [rows((1, True), (2, False), schema=keys)], operation="update", keyColumns="id", deleteColumn="gone")
        assert content(database) == [(2, "b", 2)]


def test_a_table_of_the_users_with_the_name_of_a_stage_is_left_alone(tmp_path: Path) -> None:
    with contextlib.closing(keyed_in_sqlite(tmp_path, "INTEGER")) as database:
        database.run("CREATE TABLE connectors_staged (id INTEGER)")
        write(database, [rows((1, "a", 1))])
        write(database, [rows((1, "b", 1))], **UPSERT)
        assert content(database) == [(1, "b", 1)]
        assert database.query("SELECT count(*) FROM connectors_staged") == [(0,)]
