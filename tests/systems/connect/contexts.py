"""Connectors of Connect's model, as the suites see them: the file pair, tables of SQLite, and a sink that keeps offsets."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.connect import (
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceConnector,
    SourceRecord,
    SourceTask,
    TopicPartition,
    group_partitions,
)
from connectors.connect.host import SOURCE_COLUMNS
from connectors.core import Guarantee
from connectors.systems.connect import ConnectSink, ConnectSource
from connectors.testing import SinkContext, SourceContext
from tests.connect import file_connectors

STRING = "org.apache.kafka.connect.storage.StringConverter"
TIMES = {"pollInterval": "100ms", "drainTimeout": "300ms"}
SCHEMA = SOURCE_COLUMNS.remove(SOURCE_COLUMNS.get_field_index("timestamp"))  # when a record was read


class LinesContext(SourceContext):
    """A file that grows."""

    source = ConnectSource
    schema = SCHEMA
    undated = "a line does not say when it was written"
    classes = (file_connectors.FileStreamSourceConnector,)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "lines.txt"
        self.count = 0

    def options(self) -> dict[str, str]:
        config = {
            "connector.class": file_connectors.SOURCE,
            "file": str(self.file),
            "topic": "lines",
            "batch.size": "5",
            "value.converter": STRING,
        }
        return {"config": json.dumps(config), "stateLocation": str(self.folder / "log"), **TIMES}

    def write(self, count: int) -> list[dict[str, Any]]:
        rows = []
        with self.file.open("a") as file:
            for number in range(self.count, self.count + count):
                file.write(f"line {number}\n")
                rows.append(self._row(f"line {number}", file.tell()))
        self.count += count
        return rows

    def _row(self, line: str, position: int) -> dict[str, Any]:
        partition = json.dumps({"filename": str(self.file)}, separators=(",", ":"))
        return row("lines", None, line.encode(), partition, f'{{"position":{position}}}')


def row(topic: str, key: bytes | None, value: bytes, partition: str, offset: str) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": None,
        "key": key,
        "value": value,
        "headers": None,
        "sourcePartition": partition,
        "sourceOffset": offset,
    }


@contextlib.contextmanager
def open_shop(path: Path | str, tables: Iterable[str]) -> Iterator[sqlite3.Connection]:
    """A database with ``tables``."""
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        for table in tables:
            database.execute(f"CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY, name TEXT)")
        yield database


class SqliteSourceConnector(SourceConnector):
    """Reads tables of a database; each task has a group of them."""

    def start(self, props: Mapping[str, str]) -> None:
        self._props = dict(props)

    def task_class(self) -> type[SourceTask]:
        return SqliteSourceTask

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        groups = group_partitions(self._props["tables"].split(","), max_tasks)
        return [{**self._props, "tables": ",".join(group)} for group in groups]

    def stop(self) -> None:
        """There is nothing to end."""


class SqliteSourceTask(SourceTask):
    """Reads two rows of each table in a poll, in the order of their ids."""

    def start(self, props: Mapping[str, str]) -> None:
        self._path, self._stopping = props["path"], threading.Event()
        tables = props["tables"].split(",")
        offsets = self.context.offset_storage_reader().offsets([{"table": table} for table in tables])
        self._at = {table: offset["id"] if offset else 0 for table, offset in zip(tables, offsets, strict=True)}

    def poll(self) -> list[SourceRecord] | None:
        records = []
        with open_shop(self._path, self._at) as database:
            for table, at in self._at.items():
                query = f"SELECT id, name FROM {table} WHERE id > ? ORDER BY id LIMIT 2"
                for id, name in database.execute(query, (at,)).fetchall():
                    value = {"id": id, "name": name}
                    records.append(SourceRecord({"table": table}, {"id": id}, f"shop.{table}", value))
                    self._at[table] = id
        if not records:
            self._stopping.wait(0.02)
        return records or None

    def stop(self) -> None:
        self._stopping.set()


class TablesContext(SourceContext):
    """A database of three tables, by a connector with two tasks."""

    source = ConnectSource
    schema = SCHEMA
    undated = "a row does not say when it was written"
    classes = (SqliteSourceConnector,)
    tables: ClassVar[Sequence[str]] = ("customers", "orders", "payments")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "shop.db"
        self.count = 0

    def options(self) -> dict[str, str]:
        config = {
            "connector.class": f"{SqliteSourceConnector.__module__}.SqliteSourceConnector",
            "path": str(self.path),
            "tables": ",".join(self.tables),
            "tasks.max": "2",
        }
        return {"config": json.dumps(config), "stateLocation": str(self.folder / "log"), **TIMES}

    def write(self, count: int) -> list[dict[str, Any]]:
        rows = []
        with open_shop(self.path, self.tables) as database:
            for number in range(self.count, self.count + count):
                table, id = self.tables[number % 3], number // 3 + 1
                database.execute(f"INSERT INTO {table} VALUES ({id}, 'row {id}')")
                value = json.dumps({"id": id, "name": f"row {id}"}, separators=(",", ":")).encode()
                rows.append(row(f"shop.{table}", None, value, f'{{"table":"{table}"}}', f'{{"id":{id}}}'))
            database.commit()
        self.count += count
        return rows

    def partition(self, row: Mapping[str, Any]) -> str | None:
        return str(row["topic"])


class FileSinkContext(SinkContext):
    """The file sink of Connect's guide."""

    sink = ConnectSink
    classes = (file_connectors.FileStreamSinkConnector,)
    guarantee = Guarantee.AT_LEAST_ONCE
    select = ("concat('row ', value) AS value",)
    schema = pa.schema([("value", pa.string())])

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "out.txt"

    def options(self) -> dict[str, str]:
        config = {
            "connector.class": file_connectors.SINK,
            "file": str(self.file),
            "topics": "rows",
            "value.converter": STRING,
        }
        return {"config": json.dumps(config)}

    def rows(self) -> list[dict[str, Any]]:
        return [{"value": line} for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def row(self, number: int) -> dict[str, Any]:
        return {"value": f"row {number}"}


class SqliteSinkConnector(SinkConnector):
    """Writes values to a table, and the offset of each partition beside them in the same transaction.

    It writes nothing where another task has changed an offset. A value that ends with 3 is refused.
    """

    keeps_offsets = True

    def start(self, props: Mapping[str, str]) -> None:
        self._props = dict(props)

    def task_class(self) -> type[SinkTask]:
        return SqliteSinkTask

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [self._props] * max_tasks

    def stop(self) -> None:
        """There is nothing to end."""


class SqliteSinkTask(SinkTask):
    def start(self, props: Mapping[str, str]) -> None:
        self._database = sqlite3.connect(props["path"], timeout=60, isolation_level=None)
        self._database.execute("CREATE TABLE IF NOT EXISTS written (value TEXT)")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS offsets (topic TEXT, part INT, next INT, PRIMARY KEY (topic, part))"
        )
        self._records: list[SinkRecord] = []
        self._known: dict[TopicPartition, int] = {}

    def open(self, partitions: Sequence[TopicPartition]) -> None:
        offsets = self._offsets(partitions)
        self._known.update(offsets)
        self.context.offset(offsets)

    def _offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        query = "SELECT next FROM offsets WHERE topic = ? AND part = ?"
        rows = {place: self._database.execute(query, place).fetchone() for place in partitions}
        return {place: row[0] for place, row in rows.items() if row}

    def put(self, records: Sequence[SinkRecord]) -> None:
        self._records += records

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        reporter = self.context.errant_record_reporter()
        assert reporter is not None
        for record in self._records:
            if record.value.endswith("3"):
                reporter.report(record, ValueError("it ends with 3"))
        values = [(record.value,) for record in self._records if not record.value.endswith("3")]
        self._database.execute("BEGIN IMMEDIATE")
        if self._offsets(offsets) != {place: self._known[place] for place in offsets if place in self._known}:
            self._database.execute("ROLLBACK")
            raise RuntimeError("another task has gone on from here")
        self._database.executemany("INSERT INTO written VALUES (?)", values)
        rows = [(*place, offset) for place, offset in offsets.items()]
        self._database.executemany("INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)", rows)
        self._database.execute("COMMIT")
        self._known.update(offsets)
        self._records = []

    def stop(self) -> None:
        self._database.close()


class OffsetSinkContext(SinkContext):
    """A database that keeps offsets, by ``foreach_batch``: exactly-once. What it refuses is a dead letter."""

    sink = ConnectSink
    carriers = ("foreach_batch",)
    offsets_in_target = True
    classes = (SqliteSinkConnector,)
    select = ("cast(value % 3 AS int) AS partition", "value AS offset", "concat('row ', value) AS value")
    schema = pa.schema([("value", pa.string())])

    def options(self) -> dict[str, str]:
        config = {
            "connector.class": f"{SqliteSinkConnector.__module__}.SqliteSinkConnector",
            "path": str(self.folder / "written.db"),
            "topics": "rows",
            "tasks.max": "4",
            "value.converter": STRING,
            "errors.tolerance": "all",
        }
        return {"config": json.dumps(config), "deadLetterPath": str(self.folder / "letters")}

    def rows(self) -> list[dict[str, Any]]:
        with contextlib.closing(sqlite3.connect(self.folder / "written.db", timeout=60)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS written (value TEXT)")
            written = [value for (value,) in database.execute("SELECT value FROM written")]
        return [{"value": value} for value in [*written, *self._letters()]]

    def _letters(self) -> list[str]:
        files = sorted((self.folder / "letters").glob("*.parquet"))
        letters = [value.decode() for file in files for value in pq.read_table(file)["record"].to_pylist()]
        assert all(value.endswith("3") for value in letters)
        return letters

    def row(self, number: int) -> dict[str, Any]:
        return {"value": f"row {number}"}
