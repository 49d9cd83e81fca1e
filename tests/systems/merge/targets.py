"""What tests of merges share: a Delta table that batches of records are merged into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from connectors import connect
from connectors.core.batch import Batch
from tests.systems.change_logs import COLUMNS, Database


class Target:
    """A Delta table that batches of records are merged into."""

    def __init__(self, spark: Any, path: Path, **options: Any) -> None:
        self.spark, self.path, self.options = spark, path, options
        self.number = -1
        self.restart()

    def restart(self) -> None:
        """A new run of the query."""
        self.function: Any = connect.merge(str(self.path), **self.options)

    def merge(self, *records: dict[str, Any], number: int | None = None, query: str = "q") -> None:
        self.number = self.number + 1 if number is None else number
        self.function.write(self.frame(*records), Batch(self.function.sink.sink_id(), query, self.number))

    def frame(self, *records: dict[str, Any]) -> Any:
        rows = [(record["topic"], record["key"], record["value"], record.get("headers")) for record in records]
        return self.spark.createDataFrame(rows, COLUMNS).coalesce(1)

    def rows(self) -> list[dict[str, Any]]:
        table = self.spark.read.format("delta").load(str(self.path)).drop("_position")
        return sorted((row.asDict() for row in table.collect()), key=lambda row: row["id"])


def expected(database: Database) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in database.fields} for _, row in sorted(database.rows.items())]


def binlog_change(name: str, op: str = "u", key: int = 1, snapshot: str = "false", **source: Any) -> dict[str, Any]:
    """A record of MySQL or MariaDB; their events have the field ``sequence``, too, which is null."""
    place = {"sequence": None, "snapshot": snapshot, "server_id": 1, "gtid": None, "row": 0, **source}
    payload = {"op": op, "before": None, "after": {"id": key, "name": name}, "source": place}
    return {"topic": "t", "key": json.dumps({"id": key}), "value": json.dumps(payload)}
