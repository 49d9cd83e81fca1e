"""What tests of histories share: the versions of rows, and what has really happened in a database."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.systems.change_logs import Database
from tests.systems.merge.targets import Target

UNTOUCHED = "__debezium_unavailable_value"
Version = tuple[Any, ...]
"""Key, name, amount, the seconds from which and to which it holds; is it current; is it an end."""


def history(spark: Any, path: Path, *more: str) -> list[Version]:
    rows = spark.read.format("delta").load(f"{path}_history")
    columns = ["id", "name", "amount", *more, "unix_seconds(valid_from)", "unix_seconds(valid_to)", "is_current", "is_deleted"]
    return sorted(map(tuple, rows.selectExpr(*columns).collect()), key=repr)


class Log:
    """What has really happened in a database, and when."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.changes: list[tuple[int, int, dict[str, Any] | None]] = []

    def note(self, record: dict[str, Any]) -> dict[str, Any]:
        """Notes the change that ``record`` tells of, the newest one of the database."""
        key = json.loads(record["key"])["id"]
        row = self.database.rows.get(key)
        self.changes.append((self.database.lsn, key, dict(row) if row else None))
        return record

    def read(self, records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Notes what a snapshot has read of rows that the log does not tell of."""
        records = list(records)
        for record in records:
            key = json.loads(record["key"])["id"]
            self.changes.append((self.database.lsn, key, dict(self.database.rows[key])))
        return records

    def versions(self) -> list[Version]:
        versions: list[Version] = []
        for key in {key for _, key, _ in self.changes}:
            own = [(at, row) for at, changed, row in self.changes if changed == key]
            for number, (at, row) in enumerate(own):
                follows = own[number + 1][0] if number + 1 < len(own) else None
                if row is None:
                    versions.append((key, None, None, at, at, False, True))
                else:
                    versions.append((key, row["name"], row["amount"], at, follows, follows is None, False))
        return sorted(versions, key=repr)


def current(versions: list[Version]) -> list[dict[str, Any]]:
    rows = [{"id": row[0], "name": row[1], "amount": row[2]} for row in versions if row[-2]]
    return sorted(rows, key=lambda row: row["id"])


def assert_current(spark: Any, target: Target) -> None:
    """The rows that hold are those of the table, column by column."""
    table, held = spark.read.format("delta").load(str(target.path)), spark.read.format("delta").load(f"{target.path}_history")
    if "deleted_at" in table.columns:
        table = table.where("deleted_at IS NULL").drop("deleted_at")
    names = [f"`{name.replace('`', '``')}`" for name in table.columns if name != "_position"]
    rows = (sorted(map(repr, frame.select(*names).collect())) for frame in (table, held.where("is_current")))
    assert next(rows) == next(rows)
