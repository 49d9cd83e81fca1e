"""A table of PostgreSQL that changes beside the merge of its log, and is read anew meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from connectors import connect
from connectors.systems.delta.database_table import DatabaseTable
from connectors.systems.delta.snapshot import _TableSnapshot
from connectors.systems.delta.transaction import Merges
from tests.systems.merge.test_compare import Shop
from tests.systems.merge.test_merge_all import Tables, databases

READ, WRITTEN = "read", "written"
"""The moments at which a step's rows are read, and at which nothing is left to do but to write them."""


class Log:
    """A table of the shop, and its changes that the merge has not seen."""

    def __init__(
        self, spark: Any, path: Path, keys: Iterable[Any] = range(1, 100), kind: str = "bigint", **options: Any
    ) -> None:
        self.shop, self.tables = Shop(), Tables(spark, path, **options)
        (self.orders,) = databases("orders")
        if kind != "bigint":
            self.orders.fields["id"] = {"type": "string", "optional": False}
        self.records: list[dict[str, Any]] = []
        self.shop.run(f"CREATE TABLE shop.orders (id {kind} PRIMARY KEY, name text, amount bigint)")
        for number, key in enumerate(keys):
            self.upsert(key, f"name {number}", number * 10)

    def upsert(self, key: Any, name: str | None, amount: int) -> None:
        row = "ON CONFLICT (id) DO UPDATE SET name = excluded.name, amount = excluded.amount"
        self.shop.connection.execute(f"INSERT INTO shop.orders VALUES (%s, %s, %s) {row}", (key, name, amount))
        self.records.append(self.orders.upsert(id=key, name=name, amount=amount))

    def delete(self, key: Any) -> None:
        self.shop.connection.execute("DELETE FROM shop.orders WHERE id = %s", (key,))
        self.records.append(self.orders.delete(key))

    def truncate(self) -> None:
        self.shop.run("TRUNCATE shop.orders")
        self.records.append(self.orders.truncate())

    def merge(self, count: int | None = None) -> None:
        """Merges the oldest changes; all of them by default."""
        records, self.records = self.records[:count], self.records[len(self.records) if count is None else count :]
        self.tables.merge(*records)

    def lose(self, *keys: int) -> None:
        """The merge's table has other rows than the log has told."""
        place = f"delta.`{self.tables.path}/orders`"
        self.tables.spark.sql(f"DELETE FROM {place} WHERE id IN ({', '.join(map(str, keys))})")
        self.tables.spark.sql(f"UPDATE {place} SET name = 'other' WHERE id % 10 = 3")
        self.tables.spark.sql(f"INSERT INTO {place} SELECT id + 1000, 'ghost', 0, _position FROM {place} WHERE id IN (1, 2)")

    def snapshot(self, **arguments: Any) -> dict[str, Any]:
        (row,) = connect.snapshot(self.shop.options, f"{self.tables.path}/", **arguments).collect()
        return row.asDict()

    def check(self) -> None:
        """The table has the rows of the database."""
        rows = self.shop.connection.execute("SELECT id, name, amount FROM shop.orders").fetchall()
        expected = [{"id": key, "name": name, "amount": amount} for key, name, amount in sorted(rows)]
        assert self.tables.rows("orders") == expected


def on_moments(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Calls a function at the moments of each step."""

    def on(call: Callable[[str], None]) -> None:
        rows_of, merge = DatabaseTable.rows, Merges.merge

        def rows(table: DatabaseTable, **options: Any) -> Any:
            rows = rows_of(table, **options)
            if "predicates" not in options:
                return rows
            whole = rows.sparkSession.createDataFrame(rows.collect(), rows.schema)
            call(READ)
            return whole

        def merged(merges: Merges, *arguments: Any) -> bool:
            if merges in writers:
                call(WRITTEN)
            return merge(merges, *arguments)

        writers: list[Merges] = []
        run = _TableSnapshot.run

        def running(snapshot: _TableSnapshot) -> Any:
            writers.append(snapshot._merges)
            return run(snapshot)

        monkeypatch.setattr(DatabaseTable, "rows", rows)
        monkeypatch.setattr(Merges, "merge", merged)
        monkeypatch.setattr(_TableSnapshot, "run", running)

    return on
