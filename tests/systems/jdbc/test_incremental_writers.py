"""Rows of transactions that commit late and out of order are read once, and nothing waits for them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from .contexts import PostgresContext, SqliteContext
from .incremental_contexts import BY_BOTH, BY_TIME, StreamContext
from .incremental_writers import SCHEMA, Killed, OneWriter, Schedule

BODY = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, version bigint, changed timestamptz NOT NULL"


class Growing(StreamContext):
    """A table whose ids and times come from the database."""

    database = type("Database", (PostgresContext,), {"body": BODY})
    schema = SCHEMA

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = self.database(folder.with_name("target"))


class GrowingByTime(Growing):
    mode = BY_TIME


class GrowingByBoth(Growing):
    mode = BY_BOTH


class InSqlite(Growing):
    database = type("Database", (SqliteContext,), {"body": "id INTEGER PRIMARY KEY, version INTEGER, changed DATETIME"})


class InSqliteByTime(InSqlite):
    mode = BY_TIME


class InSqliteByBoth(InSqlite):
    mode = BY_BOTH


@pytest.mark.parametrize("context", [InSqlite, InSqliteByTime, InSqliteByBoth])
@pytest.mark.parametrize("seed", range(6))
def test_every_row_of_one_writer_is_read_once(tmp_path: Path, context: type[InSqlite], seed: int) -> None:
    with contextlib.closing(context(tmp_path / "system")) as system:
        OneWriter(system, seed, updates=context is not InSqlite, writers=1).run(60)


CASES: dict[str, tuple[type[Growing], bool]] = {
    "ids": (Growing, False),
    "ids of rows that change": (Growing, True),
    "times": (GrowingByTime, True),
    "times and ids": (GrowingByBoth, True),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(6))
def test_every_row_is_read_once_whatever_the_order_of_commits(tmp_path: Path, case: str, seed: int) -> None:
    run(tmp_path, case, seed, 45)


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(6, 56))
def test_every_row_is_read_once_in_two_hundred_long_schedules(tmp_path: Path, case: str, seed: int) -> None:
    run(tmp_path, case, seed, 80)


@pytest.mark.parametrize("case", ["ids", "times and ids"])
@pytest.mark.parametrize("seed", range(2))
def test_a_query_that_is_killed_again_and_again_copies_the_table_row_by_row(tmp_path: Path, case: str, seed: int) -> None:
    killed(tmp_path, case, seed, 45)


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_query_that_is_killed_at_length_copies_the_table_row_by_row(tmp_path: Path, case: str, seed: int) -> None:
    killed(tmp_path, case, seed, 100)


def killed(folder: Path, case: str, seed: int, steps: int) -> None:
    context, updates = CASES[case]
    with contextlib.closing(context(folder / "system")) as system:
        schedule = Killed(system, seed, updates)
        schedule.run(steps)
        assert schedule.kills


def run(folder: Path, case: str, seed: int, steps: int) -> None:
    context, updates = CASES[case]
    with contextlib.closing(context(folder / "system")) as system:
        Schedule(system, seed, updates).run(steps)
