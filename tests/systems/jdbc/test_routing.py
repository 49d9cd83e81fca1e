"""Columns in ``dbtable``: each row is in the table that it names, and all tables have a batch at once."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Fatal, Misconfigured, Poison
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.committer import JdbcCommitter

from .contexts import DuckDbRouted, MariaDbRouted, PostgresRouted, Routed, SqliteRouted
from .test_bad_rows import letters
from .test_operations import UPSERT, rows, write

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("region", pa.string())])


@pytest.fixture(
    params=[PostgresRouted, SqliteRouted, DuckDbRouted, MariaDbRouted],
    ids=lambda kind: kind.__name__.removesuffix("Routed").lower(),
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Routed]:
    with contextlib.closing(request.param(tmp_path / "target")) as database:
        yield database


def put(database: Routed, *values: tuple[Any, ...], **options: str) -> None:
    """Writes a batch of two tasks."""
    middle = len(values) // 2
    write(database, [rows(*part, schema=SCHEMA) for part in (values[:middle], values[middle:]) if part], **options)


def quoted(database: Routed, table: str) -> str:
    schema, _, name = table.rpartition(".")
    mark = "`" if isinstance(database, MariaDbRouted) else '"'
    return f"{schema}.{mark}{name}{mark}" if schema else f"{mark}{name}{mark}"


def test_each_row_goes_to_the_table_that_it_names(database: Routed) -> None:
    put(database, (1, "a", "eu"), (2, "b", "us"), (3, "c", "eu"), (4, "d", "ch"))
    put(database, (5, "e", "us"))
    assert sorted((row["id"], row["region"]) for row in database.rows()) == [
        (1, "eu"), (2, "us"), (3, "eu"), (4, "ch"), (5, "us")
    ]  # fmt: skip
    assert [table[-2:] for table in database.tables()] == ["ch", "eu", "us"]


def test_an_upsert_replaces_the_row_of_its_own_table(database: Routed) -> None:
    put(database, (1, "a", "eu"), (1, "b", "us"), **UPSERT)
    put(database, (1, "A", "eu"), (2, "c", "us"), **UPSERT)
    assert sorted((row["region"], row["id"], row["name"]) for row in database.rows()) == [
        ("eu", 1, "A"), ("us", 1, "b"), ("us", 2, "c")
    ]  # fmt: skip


def test_tables_that_lack_the_column_get_their_rows_without_it(database: Routed) -> None:
    for region in ("eu", "us"):
        database.run(f"CREATE TABLE {database.table}_{region} (id BIGINT, name VARCHAR(20))")
    put(database, (1, "a", "eu"), (2, "b", "us"), createTable="false")
    assert [database.query(f"SELECT * FROM {table}") for table in database.tables()] == [[(1, "a")], [(2, "b")]]


def test_a_batch_with_a_table_that_there_is_not_is_in_none(database: Routed) -> None:
    database.run(f"CREATE TABLE {database.table}_eu (id BIGINT, name VARCHAR(20), region VARCHAR(20))")
    with pytest.raises(Misconfigured, match=r"no table .*_us .*createTable=true"):
        put(database, (1, "a", "eu"), (2, "b", "us"), createTable="false")
    assert database.rows() == []


def test_a_row_that_a_table_refuses_keeps_the_batch_out_of_all(database: Routed) -> None:
    database.run(f"CREATE TABLE {database.table}_us (id BIGINT PRIMARY KEY, name VARCHAR(20), region VARCHAR(20))")
    with pytest.raises(Poison):
        put(database, (1, "a", "eu"), (2, "b", "us"), (2, "c", "us"))
    assert database.rows() == []


def test_bad_rows_of_each_table_are_dead_letters(database: Routed, tmp_path: Path) -> None:
    for region in ("eu", "us"):
        body = "id BIGINT PRIMARY KEY, name VARCHAR(9) CHECK (length(name) < 4), region VARCHAR(9)"
        database.run(f"CREATE TABLE {database.table}_{region} ({body})")
    good = [(number, "a", region) for number, region in enumerate(["eu", "us"] * 20)]
    bad = [(100, "long", "eu"), (101, "long", "us"), (102, "b", None), (103, "c", ""), (104, "d", "x" * 60)]
    put(database, *good[:20], *bad, *good[20:], errors="deadLetter", deadLetterPath=str(tmp_path / "letters"))
    assert sorted(row["id"] for row in database.rows()) == list(range(40))
    assert sorted(json.loads(letter)["id"] for letter in letters(tmp_path / "letters")) == list(range(100, 105))


@pytest.mark.parametrize(
    ("region", "reason"),
    [(None, "has no region"), ("", "has no region"), ("x" * 60, "more than 63 bytes")],
    ids=["null", "empty", "long"],
)
def test_a_row_that_names_no_table_stops_the_batch(tmp_path: Path, region: str | None, reason: str) -> None:
    with contextlib.closing(SqliteRouted(tmp_path / "target")) as database:
        with pytest.raises(Poison, match=reason):
            put(database, (1, "a", "eu"), (2, "b", region))
        assert database.rows() == []


def test_names_that_a_database_takes_for_equal_have_each_row_once(database: Routed) -> None:
    template = quoted(database, f"{database.table}_{{region}}")
    put(database, (1, "a", "eu"), (2, "b", "EU"), (3, "c", "Eu"), (4, "d", "e u"), dbtable=template)
    found = [row for table in database.tables() for row in database.query(f"SELECT id FROM {quoted(database, table)}")]
    assert sorted(found) == [(1,), (2,), (3,), (4,)]
    for table in database.tables():
        database.run(f"DROP TABLE {quoted(database, table)}")


@pytest.mark.parametrize("kind", [SqliteRouted, DuckDbRouted])
def test_the_last_row_of_a_key_is_found_among_names_of_one_table(tmp_path: Path, kind: type[Routed]) -> None:
    """``EU`` and ``eu`` are one table in these databases."""
    ordered = SCHEMA.append(pa.field("n", pa.int64()))
    values = rows((1, "new", "EU", 9), (1, "old", "eu", 1), schema=ordered)
    with contextlib.closing(kind(tmp_path / "target")) as database:
        with pytest.raises(Fatal, match="orderColumn"):
            write(database, [values], **UPSERT)
        write(database, [values], **UPSERT, orderColumn="n")
        assert [row["name"] for row in database.rows()] == ["new"]


def test_letters_that_no_database_takes_for_equal_name_tables_of_their_own(database: Routed) -> None:
    template = quoted(database, f"{database.table}_{{region}}")
    for number, region in enumerate(("é", "É", "é", "e\u0301")):
        put(database, (number, "a", region), dbtable=template)
    found = [database.query(f"SELECT id FROM {quoted(database, table)}") for table in database.tables()]
    assert sorted(map(sorted, found)) == [[(0,), (2,)], [(1,)], [(3,)]]
    for table in database.tables():
        database.run(f"DROP TABLE {quoted(database, table)}")


def test_rows_whose_table_the_database_cannot_have_are_dead_letters(database: Routed, tmp_path: Path) -> None:
    regions = ["a\0b"] if isinstance(database, (SqliteRouted, PostgresRouted)) else []
    if isinstance(database, MariaDbRouted):
        regions = ["a\0b", "eu ", "eu\t", "\N{GRINNING FACE}"]
    bad = [(100 + number, "b", region) for number, region in enumerate(regions)]
    put(database, (1, "a", "eu"), *bad, (2, "c", "us"), errors="deadLetter", deadLetterPath=str(tmp_path / "letters"))
    assert sorted(row["id"] for row in database.rows()) == [1, 2]
    found = letters(tmp_path / "letters") if bad else []
    assert sorted(json.loads(letter)["id"] for letter in found) == [number for number, *_ in bad]


def test_names_of_the_librarys_own_tables_are_bad_in_each_case(tmp_path: Path) -> None:
    with contextlib.closing(SqliteRouted(tmp_path / "target")) as database, pytest.raises(Poison, match="own tables"):
        put(database, (1, "a", "Connectors_ledger"), dbtable="{region}")


def test_a_row_with_a_time_that_python_lacks_is_a_bad_row_too(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("region", pa.string())])
    days = pa.array([0, 4_000_000], pa.int32()).cast(pa.date32())
    values = pa.RecordBatch.from_arrays([pa.array([1, 2]), days, pa.array(["eu", None])], schema=schema)
    with contextlib.closing(SqliteRouted(tmp_path / "target")) as database:
        write(database, [values], errors="skip")
        assert [database.query(f"SELECT id FROM {table}") for table in database.tables()] == [[(1,)]]


def test_the_search_for_bad_rows_does_not_try_each_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    trial = JdbcCommitter._trial
    monkeypatch.setattr(
        JdbcCommitter, "_trial", lambda self, *given: tried.append(len(given[2])) or trial(self, *given)
    )
    with contextlib.closing(DuckDbRouted(tmp_path / "target")) as database:
        for number in range(30):
            database.run(f"CREATE TABLE {database.table}_{number} (id BIGINT CHECK (id < 99), region TEXT, name TEXT)")
        good = [(number, "a", str(number)) for number in range(30)]
        put(database, *good, (100, "b", "9"), (101, "b", "29"), errors="skip")
        assert sorted(row["id"] for row in database.rows()) == list(range(30))
    assert len(tried) < 2 * (5 + 6)


def test_an_unquoted_name_is_that_of_the_table_which_the_server_makes_of_it(tmp_path: Path) -> None:
    with contextlib.closing(PostgresRouted(tmp_path / "target")) as database:
        database.run(f"CREATE TABLE {database.table}_ÖX (id BIGINT, name TEXT, region TEXT)")
        put(database, (1, "a", "ÖX"), (2, "b", "Öx"))
        assert [table[-2:] for table in database.tables()] == ["Öx"]
        assert [row["id"] for row in database.rows()] == [1, 2]


def test_more_tables_than_the_bound_are_refused(tmp_path: Path) -> None:
    with contextlib.closing(SqliteRouted(tmp_path / "target")) as database:
        with pytest.raises(Fatal, match="names 3 tables in a batch, and maxTables is 2"):
            put(database, (1, "a", "eu"), (2, "b", "us"), (3, "c", "ch"), maxTables="2")
        assert database.rows() == []


def test_a_name_may_have_several_columns_of_plain_types(tmp_path: Path) -> None:
    kinds = {"d": pa.date32(), "flag": pa.bool_(), "n": pa.int16()}
    schema = pa.schema(kinds.items())
    values = rows((datetime.date(2024, 5, 6), True, 7), schema=schema)
    with contextlib.closing(SqliteRouted(tmp_path / "target")) as database:
        write(database, [values], dbtable=f"{database.table}_{{d}}{{{{{{flag}}{{n}}")
        assert database.tables() == [f"{database.table}_2024-05-06{{true7"]
        database.run(f'DROP TABLE "{database.tables()[0]}"')


@pytest.mark.parametrize(
    "options",
    [
        {"guarantee": "at-least-once"}, {"onNewQuery": "replace"}, {"statement": "DELETE FROM t WHERE id = {id}"},
        {"dbtable": "{region}.t"}, {"dbtable": "t_{region"},
    ],
    ids=str,
)  # fmt: skip
def test_what_columns_in_the_name_exclude_is_refused_at_once(options: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match=r"columns in|which has columns|have columns in"):
        JdbcSink.of({"url": "jdbc:sqlite:/tmp/x.db", "dbtable": "t_{region}", **options})


def test_a_name_with_a_brace_is_the_same_in_each_place() -> None:
    sink: Any = JdbcSink.of({"url": "jdbc:sqlite:/tmp/x.db", "dbtable": "t_{{region}}"})
    assert sink.target().endswith("/t_{region}")
    assert [dataset.name for dataset in sink.datasets()] == ["/tmp/x.db/t_{region}"]


def test_a_column_whose_text_settings_may_alter_is_refused() -> None:
    sink: Any = JdbcSink.of({"url": "jdbc:sqlite:/tmp/x.db", "dbtable": "t_{region}"})
    with pytest.raises(Misconfigured, match="must be of text"):
        sink.check_target(pa.schema([("id", pa.int64()), ("region", pa.float64())]))


def test_an_overwrite_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(SqliteRouted(tmp_path / "target")) as database:
        with pytest.raises(Misconfigured, match="an overwrite replaces the rows of one"):
            write(database, [rows((1, "a", "eu"), schema=SCHEMA)], replace=True)
        assert database.rows() == []
