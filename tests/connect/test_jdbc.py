"""The JDBC source of the guide: tables come and go, schemas change, a dropped table ends nothing."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.connect import jdbc
from connectors.connect.jdbc import JdbcSourceConnector

from .database import Database, Run


class Tables:
    """A database in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def execute(self, *statements: str) -> None:
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()

    def create(self, *tables: str) -> None:
        self.execute(
            *(
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT, price NUMERIC(10, 2), ok BOOLEAN)"
                for table in tables
            )
        )

    def insert(self, table: str, first: int, last: int) -> None:
        self.execute(*(f"INSERT INTO {table} VALUES ({n}, 'row {n}', {n}.25, 1)" for n in range(first, last + 1)))


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    database = Tables(tmp_path / "shop.db")
    database.create("orders", "customers")
    return database


@pytest.fixture
def run(tables: Tables) -> Iterator[Run]:
    settings = {
        "connection_url": f"sqlite:///{tables.path}",
        "tasks_max": 3,
        "poll_interval_ms": 10,
        "table_poll_interval_ms": 20,
    }
    connector_run = Run(JdbcSourceConnector, Database(), topic_prefix="db.", **settings)
    del connector_run.properties["database"]
    yield connector_run
    connector_run.host.close()


def ids(run: Run) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for row in run.rows():
        numbers.setdefault(row["topic"], []).append(int(row["sourceOffset"].split(":")[1].rstrip("}")))
    return numbers


def eventually(run: Run, condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, (run.host.statuses(), ids(run))
        run.next(seconds=0.05)


def test_con_10_and_con_14_a_database_whose_tables_come_and_go(tables: Tables, run: Run) -> None:
    tables.insert("orders", 1, 50)
    tables.insert("customers", 1, 5)
    run.start()
    run.until(55)
    tables.create("payments", "refunds")
    tables.insert("payments", 1, 7)
    run.until(62)
    assert len(run.host.statuses()) == 3
    tables.execute("DROP TABLE customers")
    tables.insert("orders", 51, 60)
    run.until(72)
    eventually(run, lambda: run.host.generation() == 3)
    assert ids(run) == {
        "db.orders": list(range(1, 61)),
        "db.customers": list(range(1, 6)),
        "db.payments": list(range(1, 8)),
    }
    row = run.rows()[0]
    assert row["value"].startswith(b'{"id":1,"name":"row 1","price":')


def test_con_11_a_table_that_is_dropped_before_the_connector_notices(
    tables: Tables, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JdbcSourceConnector, "_watch", lambda connector: None)
    run.properties["tasks.max"] = "1"
    tables.insert("orders", 1, 3)
    run.start()
    run.until(3)
    tables.execute("DROP TABLE customers")
    tables.insert("orders", 4, 6)
    run.until(6)
    assert [(status.state, status.restarts) for status in run.host.statuses()] == [("RUNNING", 0)]


def test_con_16_the_schema_of_a_table_is_computed_again_only_when_its_columns_change(
    tables: Tables, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[Any] = []
    original = jdbc._field_schema

    def counted(api: Any, kind: Any, values: Any) -> Any:
        computed.append(kind)
        return original(api, kind, values)

    monkeypatch.setattr(jdbc, "_field_schema", counted)
    tables.execute("DROP TABLE customers")
    tables.insert("orders", 1, 10)
    run.start()
    run.until(10)
    tables.insert("orders", 11, 20)
    run.until(20)
    assert len(computed) == 4
    tables.execute("ALTER TABLE orders ADD COLUMN note TEXT", "INSERT INTO orders VALUES (21, 'x', 1, 0, 'new')")
    run.until(21)
    assert len(computed) == 9
    assert run.rows()[-1]["value"].endswith(b'"ok":false,"note":"new"}')


def test_a_number_without_a_scale_is_text_with_all_its_digits(tables: Tables, run: Run) -> None:
    tables.execute(
        "DROP TABLE customers",
        "DROP TABLE orders",
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, price NUMERIC)",
        "INSERT INTO orders VALUES (1, 1.5), (2, NULL), (3, 7)",
    )
    run.start()
    run.until(3)
    assert [row["value"] for row in run.rows()] == [
        b'{"id":1,"price":"1.5"}',
        b'{"id":2,"price":null}',
        b'{"id":3,"price":"7"}',
    ]


def test_an_outage_of_the_database_is_waited_for(tables: Tables, run: Run) -> None:
    tables.insert("orders", 1, 3)
    run.start()
    run.until(3)
    lock = sqlite3.connect(tables.path, isolation_level=None)
    with contextlib.closing(lock):
        lock.execute("BEGIN EXCLUSIVE")
        run.next(seconds=0.2)
        lock.execute("ROLLBACK")
    tables.insert("orders", 4, 5)
    run.until(5)
    assert ids(run)["db.orders"] == [1, 2, 3, 4, 5]
