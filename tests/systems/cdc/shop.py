"""Change data capture in tests: a table in PostgreSQL that changes, Debezium, and a Delta table that follows it."""

from __future__ import annotations

import json
import random
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from connectors.testing.driver import SparkQuery
from connectors.testing.servers import PostgresServer
from tests.connect.java_sources import DEBEZIUM

COLUMNS = "id, name, amount, price, at"


@dataclass
class Shop:
    """A table ``orders`` with its own database, and the settings of a connector for it."""

    server: PostgresServer
    folder: Path
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    name: str = field(default_factory=lambda: f"shop_{uuid.uuid4().hex[:10]}")

    def __post_init__(self) -> None:
        with self.connect("postgres") as admin:
            admin.execute(f"CREATE DATABASE {self.name}")
        self.sql(
            "CREATE TABLE orders (id int PRIMARY KEY, name text, amount bigint, price numeric(10,2), at timestamptz)",
            "INSERT INTO orders SELECT n, 'order ' || n, n, n / 4.0, now() FROM generate_series(1, 200) n",
        )

    def connect(self, database: str | None = None) -> psycopg.Connection[Any]:
        address = f"host=127.0.0.1 port={self.server.port} user=postgres dbname={database or self.name}"
        return psycopg.connect(address, autocommit=True, connect_timeout=10)

    def sql(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def change(self, times: int = 30) -> None:
        """Inserts, updates and deletes rows, each in a transaction of its own."""
        with self.connect() as connection:
            for _ in range(times):
                key = self.chance.randrange(1, 400)
                if self.chance.random() < 0.3:
                    connection.execute("DELETE FROM orders WHERE id = %s", (key,))
                else:
                    connection.execute(
                        "INSERT INTO orders (id, name, amount, price, at) VALUES (%s, %s, %s, %s, now()) "
                        "ON CONFLICT (id) DO UPDATE SET name = excluded.name, amount = excluded.amount",
                        (key, f"changed {self.chance.random()}", self.chance.randrange(1 << 40), key / 4),
                    )

    def rows(self, columns: str = COLUMNS) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return list(connection.execute(f"SELECT {columns} FROM orders ORDER BY id").fetchall())

    def config(self, **more: str) -> dict[str, str]:
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "name": self.name,
            "database.hostname": "127.0.0.1",
            "database.port": str(self.server.port),
            "database.user": "postgres",
            "database.password": "sesame",
            "database.dbname": self.name,
            "topic.prefix": "shop",
            "plugin.name": "pgoutput",
            "slot.name": self.name,
            "publication.name": self.name,
            "publication.autocreate.mode": "filtered",
            "table.include.list": "public.orders",
            "poll.interval.ms": "50",
            "tombstones.on.delete": "false",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "retriable.restart.connector.wait.ms": "500",
            **{key.replace("__", "."): value for key, value in more.items()},
        }

    def query(self, folder: Path | None = None, **config: str) -> SparkQuery:
        """The stream of the table's changes into a Delta table."""
        folder = folder or self.folder
        return SparkQuery(
            name="cdc",
            source="connect",
            source_options={
                "config": json.dumps(self.config(**config)),
                "pluginPackages": DEBEZIUM,
                "stateLocation": str(folder / "state"),
                "drainTimeout": "8s",
                "pollInterval": "1s",
            },
            sink="connectors.systems.delta.merge:ChangeTable",
            sink_options={"path": str(folder / "orders")},
            carrier="foreach_batch",
            checkpoint=str(folder / "checkpoint"),
            faults=str(folder / "faults"),
            source_class="connectors.systems.connect:ConnectSource",
        )

    def drop(self) -> None:
        with self.connect("postgres") as admin:
            for _ in range(50):
                try:
                    admin.execute("SELECT pg_drop_replication_slot(%s)", (self.name,))
                    break
                except psycopg.errors.ObjectInUse:
                    time.sleep(0.2)
                except psycopg.errors.UndefinedObject:
                    break


def table_rows(spark: Any, path: Path, columns: str = COLUMNS) -> list[tuple[Any, ...]]:
    """The rows of the Delta table as the database would give them."""
    import datetime

    table = spark.read.format("delta").load(str(path)).selectExpr(*columns.split(", ")).orderBy("id")
    utc = datetime.timezone.utc

    def plain(value: Any) -> Any:
        return value.astimezone(utc) if isinstance(value, datetime.datetime) else value

    return [tuple(plain(value) for value in row) for row in table.collect()]


def child_jvms(connector: str) -> list[int]:
    """The JVMs of the connector with this name."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"-Dconnectors.connector={connector}" in (entry / "cmdline").read_text().split("\0"):
                processes.append(int(entry.name))
        except OSError:
            continue
    return processes


def parent_of(pid: int) -> int:
    """The process that has started ``pid``."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
