"""Rows that the database refuses: they are found, the rest is written in the same transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Batch, Poison
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.jdbc import JdbcSink

from .contexts import DatabaseContext, PostgresContext
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
