"""The job that copies a database, also killed while it copies: in the end every row is there once, as it is now."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.delta_log import delta

from .quickstart import run

DAYS, ORDERS = 2, 40


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_copy_equals_the_database_row_by_row(tmp_path: Path, killed: bool) -> None:
    parameters = {"workdir": str(tmp_path), "days": str(DAYS), "orders": str(ORDERS)}
    root = tmp_path / f"days_{DAYS}_orders_{ORDERS}"
    if killed:
        some_tables_are_written = (root / "copy" / "orders").glob
        code, output = run("jdbc_source", parameters, lambda: any(some_tables_are_written("_delta_log/*1.json")))
        assert code == -9, output
    code, output = run("jdbc_source", parameters)
    assert code == 0, output

    with closing(sqlite3.connect(root / "shop.db")) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        assert names == ["customers", "orders", "reviews"]
        for name in names:
            assert copied(root / "copy" / name) == there(database, name)
    assert len(copied(root / "copy" / "vouchers")) == 20


def copied(table: Path) -> list[dict[str, Any]]:
    """The rows of the copy, with times as the database writes them."""
    rows = sorted(delta(table).to_pylist(), key=lambda row: row["id"])
    for row in rows:
        row["updated_at"] = row["updated_at"].strftime("%Y-%m-%d %H:%M:%S.%f")
    return rows


def there(database: sqlite3.Connection, name: str) -> list[dict[str, Any]]:
    cursor = database.execute(f"SELECT * FROM {name} ORDER BY id")
    return [dict(zip([one[0] for one in cursor.description], row, strict=True)) for row in cursor]
