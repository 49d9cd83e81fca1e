"""A database in this process, and connectors to it: its tables come and go, and each counts its rows upwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from connectors.connect import (
    ConfigDef,
    ConnectorTransactionBoundaries,
    ExactlyOnceSupport,
    RecordMetadata,
    RetriableException,
    Schema,
    SchemaBuilder,
    SourceConnector,
    SourceRecord,
    SourceTask,
    Struct,
    group_partitions,
)
from connectors.connect.host import ConnectorSettings, TaskRecords
from connectors.connect.python_host import PythonSourceHost
from connectors.core.source import ReadLimit

ROW = SchemaBuilder.struct().name("row").field("table", Schema.STRING_SCHEMA).field("n", Schema.INT64_SCHEMA).build()


class Database:
    """Tables with rows 1, 2, 3 …; ``broken`` tables raise what stands there when they are read."""

    def __init__(self, *tables: str) -> None:
        self.lock = threading.Lock()
        self.tables: dict[str, int] = dict.fromkeys(tables, 0)
        self.broken: dict[str, list[BaseException]] = {}
        self.tasks_wanted: int | None = None
        self.committed: list[tuple[str, int]] = []
        self.commits = 0
        self.configs: list[int] = []
        self.events: list[str] = []
        self.batch = 10

    def insert(self, rows: int, *tables: str) -> None:
        with self.lock:
            for table in tables or list(self.tables):
                self.tables[table] += rows

    def create(self, *tables: str) -> None:
        with self.lock:
            self.tables.update(dict.fromkeys(tables, 0))

    def drop(self, *tables: str) -> None:
        with self.lock:
            for table in tables:
                del self.tables[table]

    def read(self, table: str, after: int, most: int) -> range:
        """The rows after ``after``. Raises ``LookupError`` for a table that was dropped."""
        with self.lock:
            if errors := self.broken.get(table):
                raise errors.pop(0)
            if table not in self.tables:
                raise LookupError(f"table {table} does not exist")
            return range(after + 1, min(self.tables[table], after + most) + 1)


DATABASES: dict[str, Database] = {}


class TablesConnector(SourceConnector):
    """Watches the tables in a thread of its own, and asks for new tasks when they change."""

    def start(self, props: Mapping[str, str]) -> None:
        self._props = dict(props)
        self._database = DATABASES[props["database"]]
        self._stopping = threading.Event()
        self._known = sorted(self._database.tables), self._database.tasks_wanted
        self._monitor = threading.Thread(target=self._watch, daemon=True)
        self._monitor.start()

    def _watch(self) -> None:
        while not self._stopping.wait(0.01):
            now = sorted(self._database.tables), self._database.tasks_wanted
            if now != self._known:
                self._known = now
                self.context.request_task_reconfiguration()

    def task_class(self) -> type[SourceTask]:
        return TableTask

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        tables = sorted(self._database.tables)
        count = min(self._database.tasks_wanted or max_tasks, max_tasks, len(tables))
        self._database.configs.append(count)
        groups = group_partitions(tables, count) if count else []
        return [{**self._props, "tables": ",".join(group)} for group in groups]

    def stop(self) -> None:
        self._stopping.set()
        self._monitor.join()
        self._database.events.append("connector stopped")

    def config(self) -> ConfigDef:
        return ConfigDef().define("database", "STRING").define("tables", "STRING", "")

    def exactly_once_support(self, props: Mapping[str, str]) -> ExactlyOnceSupport | None:
        return ExactlyOnceSupport.SUPPORTED

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> ConnectorTransactionBoundaries:
        return ConnectorTransactionBoundaries.SUPPORTED


class TableTask(SourceTask):
    """Reads its tables in turn; a table that was dropped ends its part, not the task."""

    def start(self, props: Mapping[str, str]) -> None:
        self._database = DATABASES[props["database"]]
        self._stopping = threading.Event()
        self._tables = [table for table in props["tables"].split(",") if table]
        partitions = [{"table": table} for table in self._tables]
        offsets = self.context.offset_storage_reader().offsets(partitions)
        self._at = {t: o["n"] if o else 0 for t, o in zip(self._tables, offsets, strict=True)}
        self._database.events.append(f"task started with {','.join(self._tables)}")

    def poll(self) -> list[SourceRecord] | None:
        records = []
        for table in list(self._tables):
            try:
                rows = self._database.read(table, self._at[table], self._database.batch)
            except LookupError:  # before the connector has noticed
                self._tables.remove(table)
                continue
            for n in rows:
                value = Struct(ROW).put("table", table).put("n", n)
                records.append(
                    SourceRecord({"table": table}, {"n": n}, f"db.{table}", value, value_schema=ROW, key=str(n))
                )
            self._at[table] = max([self._at[table], *rows])
        if not records:
            self._stopping.wait(0.01)
        return records or None

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        self._database.committed.append((record.value["table"], record.value["n"]))

    def commit(self) -> None:
        self._database.commits += 1
        self._database.events.append("commit")

    def stop(self) -> None:
        self._stopping.set()
        self._database.events.append("task stopped")


class Run:
    """A query over a host without Spark: it polls epochs and commits each before the next, and keeps the offsets."""

    def __init__(self, kind: type, database: Database, **properties: Any) -> None:
        self.name = f"db-{len(DATABASES)}"
        DATABASES[self.name] = database
        plain = {key.replace("_", "."): str(value) for key, value in properties.items()}
        restarts = {name: float(plain.pop(name, value)) for name, value in (("restarts", 3), ("backoff", 0.01))}
        self.properties = {"connector.class": f"{kind.__module__}.{kind.__qualname__}", "database": self.name, **plain}
        self.settings = ConnectorSettings(
            self.properties,
            restarts=int(restarts["restarts"]),
            restart_backoff=restarts["backoff"],
            restart_max_backoff=0.1,
        )
        self.host = PythonSourceHost(self.settings)
        self.offsets: dict[str, Any] = {}
        self.records: list[TaskRecords] = []
        self.epoch = 0

    def start(self) -> Run:
        self.host.start(self.offsets)
        return self

    def restart(self) -> None:
        """Ends the process and starts another one from the offsets."""
        self.host.close()
        self.host = PythonSourceHost(self.settings)
        self.host.start(self.offsets)

    def next(self, seconds: float = 0.5, limit: ReadLimit | None = None) -> list[TaskRecords]:
        """An epoch, committed."""
        self.epoch += 1
        limit = limit or ReadLimit(rows=10_000)
        if self.host.reconfiguration_requested():
            self.host.quiesce()
            polled = self.host.poll(self.epoch, limit, 0.0)
            if not polled:
                self.host.reconfigure(self.offsets)
                polled = self.host.poll(self.epoch, limit, seconds)
        else:
            polled = self.host.poll(self.epoch, limit, seconds)
        for part in polled:
            self.offsets.update(part.offsets)
        self.records += polled
        self.host.committed(self.epoch)
        return polled

    def until(self, rows: int, seconds: float = 20.0) -> None:
        """Reads until there are so many rows."""
        end = time.monotonic() + seconds
        while len(self.rows()) < rows:
            assert time.monotonic() < end, f"{len(self.rows())} of {rows} rows: {self.host.statuses()}"
            self.next()

    def rows(self) -> list[dict[str, Any]]:
        return [row for part in self.records for row in part.rows.to_pylist()]

    def sequences(self) -> dict[str, list[int]]:
        """The numbers of each table, in the order in which they came."""
        numbers: dict[str, list[int]] = {}
        for row in self.rows():
            numbers.setdefault(row["topic"].removeprefix("db."), []).append(int(row["key"].decode().strip('"')))
        return numbers


def running(kind: type, database: Database, **properties: Any) -> Iterator[Run]:
    """A run that is closed at the end."""
    run = Run(kind, database, **properties).start()
    try:
        yield run
    finally:
        run.host.close()


class FlakyTask(TableTask):
    """Raises RetriableException at its first polls."""

    def poll(self) -> list[SourceRecord] | None:
        with self._database.lock:
            errors = self._database.broken.get("poll")
            if errors:
                raise errors.pop(0)
        return super().poll()


class FlakyConnector(TablesConnector):
    def task_class(self) -> type[SourceTask]:
        return FlakyTask


def outages(count: int) -> list[BaseException]:
    return [RetriableException("the database is away") for _ in range(count)]
