"""Change logs that are made up: a table of a database that changes, and the records that Debezium would write of it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any, Final

from connectors.systems.delta.change_batch import with_defaults
from connectors.systems.delta.change_log import Changes, changes_of, records_of, summaries_of

COLUMNS: Final = "topic string, key string, value string, headers array<struct<key: string, value: binary>>"
AGAIN: Final = [("__connectors.snapshot", b"again")]
"""The headers of the first record behind the start of a snapshot that was interrupted."""
PLAIN: Final = "id INT, name STRING, amount BIGINT"
"""The columns of a row, for values without schemas."""
_FIELDS: Final = {
    "id": {"type": "int32", "optional": False},
    "name": {"type": "string", "optional": True},
    "amount": {"type": "int64", "optional": True},
}


def field_schemas(fields: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"field": name, **schema} for name, schema in fields.items()]


def changes(
    spark: Any, *records: dict[str, Any], plain: str | None = None, fills: dict[str, Any] | None = None, **known: str
) -> Changes:
    """The changes of ``records``, for a table with the columns ``known``."""
    from pyspark.sql.types import DataType

    rows = [(record["topic"], record["key"], record["value"], record.get("headers")) for record in records]
    frame = records_of(spark.createDataFrame(rows, COLUMNS))
    types = {name: DataType.fromDDL(kind) for name, kind in known.items()}
    schema: Any = DataType.fromDDL(plain) if plain else None
    (summary,) = summaries_of(frame)[0].values()
    return with_defaults(changes_of(frame, summary.schemas, schema, types, fills), types, None)


@dataclass
class Database:
    """A table by its primary key, and its log. With ``schemas``, values carry them as Connect's JSON does."""

    schemas: bool = True
    topic: str = "shop.public.orders"
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=lambda: dict(_FIELDS))
    lsn: int = 100

    def upsert(self, **row: Any) -> dict[str, Any]:
        """Inserts or updates a row; returns the record."""
        self.lsn += 10
        op = "u" if row["id"] in self.rows else "c"
        self.rows[row["id"]] = row
        return self.record(op, row, self.lsn)

    def delete(self, key: int) -> dict[str, Any]:
        self.lsn += 10
        del self.rows[key]
        return self.record("d", {"id": key}, self.lsn)

    def snapshot(self, only: int | None = None) -> list[dict[str, Any]]:
        """The rows as a snapshot sees them, or as many of them as come before it is interrupted."""
        self.lsn += 10
        rows = list(self.rows.values())[:only]
        last = len(rows) - 1 if only is None else -1
        return [self.record("r", row, self.lsn, "last" if at == last else "true") for at, row in enumerate(rows)]

    def incremental(self, *keys: int) -> list[dict[str, Any]]:
        """Rows that an incremental snapshot reads: no position of the log comes with them."""
        return [self.record("r", self.rows[key], None, "incremental") for key in keys]

    def truncate(self) -> dict[str, Any]:
        self.lsn += 10
        self.rows.clear()
        return self.record("t", None, self.lsn)

    def record(
        self, op: str, row: dict[str, Any] | None, lsn: int | None, snapshot: str = "false", commit: int | None = None
    ) -> dict[str, Any]:
        """A record of Debezium; ``commit`` is the end of the transaction before it."""
        before, after = (row, None) if op == "d" else (None, row)
        if snapshot == "false" and lsn is not None and commit is None:
            commit = lsn - 5  # each change is a transaction
        sequence = json.dumps([None if place is None else str(place) for place in (commit, lsn)])
        at = 1000 * (self.lsn if lsn is None else lsn)
        source = {"version": "3.6.1.Final", "sequence": sequence, "lsn": lsn, "snapshot": snapshot, "ts_ms": at}
        payload: dict[str, Any] = {"before": before, "after": after, "op": op, "source": source}
        value = {"schema": self._schema(), "payload": payload} if self.schemas else payload
        key = None if row is None else json.dumps({"id": row["id"]})
        return {"topic": self.topic, "key": key, "value": json.dumps(value)}

    def tombstone(self, key: int) -> dict[str, Any]:
        return {"topic": self.topic, "key": json.dumps({"id": key}), "value": None}

    def _schema(self) -> dict[str, Any]:
        row = {"type": "struct", "fields": field_schemas(self.fields), "optional": True}
        source = {"type": "struct", "field": "source", "fields": [
            {"field": "version", "type": "string"}, {"field": "sequence", "type": "string", "optional": True},
            {"field": "lsn", "type": "int64", "optional": True},
            {"field": "snapshot", "type": "string"}, {"field": "ts_ms", "type": "int64"},
        ]}  # fmt: skip
        fields = [{**row, "field": "before"}, {**row, "field": "after"}, source, {"field": "op", "type": "string"}]
        return {"type": "struct", "name": "shop.public.orders.Envelope", "fields": fields}

    def random_change(self, chance: random.Random, keys: int = 12) -> dict[str, Any]:
        """An insert, an update or a deletion."""
        key = chance.randrange(keys)
        if key in self.rows and chance.random() < 0.35:
            return self.delete(key)
        row = {"id": key, "name": f"name {self.lsn}", "amount": chance.randrange(1 << 40)}
        if "extra" in self.fields:
            row["extra"] = self.lsn
        return self.upsert(**row)
