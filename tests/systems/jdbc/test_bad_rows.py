"""Rows that the database refuses: they are found, the rest is written in the same transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Batch, Fatal, Poison
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.dialects import dialect_of, parse
from connectors.systems.jdbc.writers import loadable_rows

from .contexts import DatabaseContext, PostgresContext, SqliteContext
from .test_operations import DATABASES, UPSERT, content, rows, write

BODY = "id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(100) NOT NULL, n INTEGER CHECK (n < 1000)"


@pytest.fixture(params=DATABASES, ids=lambda kind: kind.__name__.removesuffix("Context").lower())
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseContext]:
    class Strict(request.param):  # type: ignore[name-defined, misc]
        body = BODY

    database = Strict(tmp_path / "target")
    with contextlib.closing(database):
        yield database


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[PostgresContext]:
    class Strict(PostgresContext):
        body = BODY

    database = Strict(tmp_path / "target")
    with contextlib.closing(database):
        yield database


def letters(folder: Path) -> list[str]:
    """The records of all dead letters."""
    return sorted(row["record"].decode() for file in folder.glob("*.parquet") for row in pq.read_table(file).to_pylist())


GOOD = [(number, f"row {number}", number) for number in range(300)]
BAD = [(1000, None, 1), (1001, "x", 5000), (7, "again", 7)]
"""Without a name, too large, and with a key that another row of the batch has."""


def mixed() -> list[Any]:
    first = [*GOOD[:100], BAD[0], *GOOD[100:200], BAD[1]]
    return [rows(*first), rows(*GOOD[200:], BAD[2])]


def test_bad_rows_become_dead_letters_and_the_rest_is_written(database: DatabaseContext, tmp_path: Path) -> None:
    write(database, mixed(), errors="deadLetter", deadLetterPath=str(tmp_path / "letters"))
    assert content(database) == GOOD
    assert [record[:11] for record in letters(tmp_path / "letters")] == ['{"id": 1000', '{"id": 1001', '{"id": 7, "']


def test_bad_rows_of_an_upsert_are_found_as_well(database: DatabaseContext) -> None:
    write(database, [rows(*GOOD)], **UPSERT)
    changes = [rows((1, "one", 1), (2, None, 2), (500, "new", 5)), rows((3, "three", 5000), (4, "four", 4))]
    write(database, changes, **UPSERT, errors="skip")
    names = {key: name for key, name, _ in content(database)}
    assert [names.get(key) for key in (1, 2, 3, 4, 500)] == ["one", "row 2", "row 3", "four", "new"]


def test_bad_rows_are_found_behind_an_order_column(database: DatabaseContext) -> None:
    parts = [rows((1, "old", 1), (2, "good", 5)), rows((1, "new", 2), (3, None, 1))]
    write(database, parts, **UPSERT, orderColumn="n", errors="skip")
    assert content(database) == [(1, "new", 2), (2, "good", 5)]


def test_a_bad_row_stops_the_batch_by_default_and_is_shown(database: DatabaseContext) -> None:
    with pytest.raises(Poison, match='"id": 1000, "name": null'):
        write(database, mixed())
    assert content(database) == []


def test_a_replay_adds_no_dead_letter(postgres: PostgresContext, tmp_path: Path) -> None:
    options = {**postgres.options(), "errors": "deadLetter", "deadLetterPath": str(tmp_path / "letters")}
    sink = JdbcSink.of(options)
    batch = Batch(sink.sink_id(), "33333333-query", 0)
    for _ in range(2):
        staged = [stage(sink, batch, part.schema, index, iter([part])) for index, part in enumerate(mixed())]
        Commit(sink).finish(batch, staged)
    assert len(letters(tmp_path / "letters")) == 3
    assert content(postgres) == GOOD


def test_rows_that_a_trigger_or_a_deferred_constraint_refuses_are_bad_rows(postgres: PostgresContext) -> None:
    schema = postgres.table.split(".")[0]
    postgres.run(
        f"CREATE FUNCTION {schema}.stop() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN IF NEW.n = 13 THEN RAISE EXCEPTION 'not on my watch'; END IF; RETURN NEW; END$$"
    )
    postgres.run(f"CREATE TRIGGER stop BEFORE INSERT ON {postgres.table} FOR EACH ROW EXECUTE FUNCTION {schema}.stop()")
    postgres.run(f"CREATE TABLE {schema}.parents (id BIGINT PRIMARY KEY)")
    postgres.run(f"INSERT INTO {schema}.parents SELECT generate_series(0, 13)")
    reference = f"FOREIGN KEY (n) REFERENCES {schema}.parents (id) DEFERRABLE INITIALLY DEFERRED"
    postgres.run(f"ALTER TABLE {postgres.table} ALTER n TYPE BIGINT, ADD {reference}")
    write(postgres, [rows((1, "a", 1), (2, "trigger", 13)), rows((3, "no parent", 99), (4, "b", 4))], errors="skip")
    assert content(postgres) == [(1, "a", 1), (4, "b", 4)]


def test_text_with_a_zero_byte_is_a_bad_row(postgres: PostgresContext) -> None:
    write(postgres, [rows((1, "a\0b", 1), (2, "fine", 2), (3, None, 3))], errors="skip")
    assert content(postgres) == [(2, "fine", 2)]
    with pytest.raises(Poison, match="zero byte"):
        write(postgres, [rows((4, "a\0b", 1))])


def test_a_value_that_does_not_fit_the_column_is_a_bad_row(postgres: PostgresContext) -> None:
    postgres.run(f"ALTER TABLE {postgres.table} ALTER n TYPE SMALLINT, ALTER name TYPE VARCHAR(5), ADD u UUID")
    wide = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int64()), ("u", pa.string())])
    good = "3b241101-e2bb-4255-8caf-4136c566a962"
    values = [(1, "short", 1, good), (2, "too long", 1, good), (3, "x", 1 << 40, good), (4, "x", 4, "no uuid")]
    write(postgres, [rows(*values, schema=wide)], errors="skip")
    assert content(postgres) == [(1, "short", 1)]


def test_an_outage_makes_no_dead_letter(postgres: PostgresContext, tmp_path: Path) -> None:
    folder, impatient = tmp_path / "letters", {"request.timeout": "200ms", "retry.maxRetries": "1", "outageTimeout": "0s"}
    with contextlib.closing(postgres.connect()) as other:
        other.execute("BEGIN")
        other.execute(f"LOCK TABLE {postgres.table}")
        with pytest.raises(Exception, match="lock timeout"):
            write(postgres, mixed(), errors="deadLetter", deadLetterPath=str(folder), **impatient)
        other.execute("ROLLBACK")
    assert letters(folder) == []
    assert content(postgres) == []


@pytest.mark.parametrize("guarantee", [{}, {"guarantee": "idempotent", "commit": "auto"}], ids=["batch", "direct"])
def test_a_repeated_key_is_refused_beside_a_bad_row_as_well(postgres: PostgresContext, guarantee: dict[str, str]) -> None:
    options = {**UPSERT, **guarantee, "errors": "skip"}
    with pytest.raises(Fatal, match="a key comes more than once"):
        write(postgres, [rows((9, None, 1), (1, "a", 1), (2, "x", 1), (1, "b", 1))], **options)
    assert content(postgres) == []
    write(postgres, [rows((None, "a", 1), (2, "x", 1), (None, "b", 1))], **options)
    assert content(postgres) == [(2, "x", 1)]


def test_a_text_that_is_too_long_for_a_domain_or_for_bits_is_a_bad_row(postgres: PostgresContext) -> None:
    schema = postgres.table.split(".")[0]
    postgres.run(f"CREATE DOMAIN {schema}.code AS VARCHAR(3)")
    postgres.run(f"CREATE DOMAIN {schema}.short AS {schema}.code")
    domains = f"ADD code {schema}.code, ADD short {schema}.short"
    postgres.run(f"ALTER TABLE {postgres.table} {domains}, ADD b BIT(3), ADD v VARBIT(3)")
    wide = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in ("name", "code", "short", "b", "v"))])
    good = ("abc", "abc", "101", "1")
    bad = [(*good[:number], "11111", *good[number + 1 :]) for number in range(4)]
    write(postgres, [rows(*((number, "x", *row) for number, row in enumerate([good, *bad])), schema=wide)], errors="skip")
    assert content(postgres, "id, code, short, b::text, v::text") == [(0, *good)]


OFFSETS = pa.array([0, 2, 4], pa.int32()).buffers()[1]
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 2, [None, OFFSETS, pa.py_buffer(b"ok\xff\xfe")])


@pytest.mark.parametrize("guarantee", ["", "at-least-once"])
def test_a_text_that_is_not_utf8_is_a_bad_row(tmp_path: Path, guarantee: str) -> None:
    options = {"guarantee": guarantee} if guarantee else {}
    with contextlib.closing(SqliteContext(tmp_path / "target")) as database:
        batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), NOT_UTF8], names=["id", "name"])
        write(database, [batch], errors="skip", **options)
        assert content(database, "id, name") == [(1, "ok")]
        with pytest.raises(Poison, match=r'not UTF-8.*"id": 2, "name": "\ufffd'):
            write(database, [batch], **options)


class Bin:
    """Takes what a dialect cannot load."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def add(self, row: Any, error: Any) -> None:
        self.rows.append(row)


def test_a_number_that_mariadb_cannot_hold_is_a_bad_row() -> None:
    batch = pa.record_batch({"id": [1, 2, 3, 4], "x": [1.5, float("inf"), None, float("-inf")]})
    mariadb, rejects = dialect_of(parse("jdbc:mariadb://db/shop")), Bin()
    assert loadable_rows(mariadb, batch, rejects).to_pylist() == [{"id": 1, "x": 1.5}, {"id": 3, "x": None}]
    assert [row["id"] for row in rejects.rows] == [2, 4]
    with pytest.raises(Poison, match="NaN or infinite"):
        loadable_rows(mariadb, pa.record_batch({"x": [float("nan")]}), None)
    sqlite = dialect_of(parse("sqlite:///file.db"))
    assert loadable_rows(sqlite, batch, rejects).num_rows == 4
    with pytest.raises(Poison, match="SQLite would make NULL"):
        loadable_rows(sqlite, pa.record_batch({"x": [float("nan")]}), None)
