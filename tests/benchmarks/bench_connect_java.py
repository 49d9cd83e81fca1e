"""Java connectors through Spark: python tests/benchmarks/bench_connect_java.py [changes] [lines]

Goals, in one run and by turns: Debezium through Spark (into ``noop``) at 0.8 of Debezium alone in the same kind of child JVM,
where its records are dropped as they are polled; connect-file at 0.2 of ``connectors.file_stream``; a JVM takes at most 10 s
to start, and 250 MB. A round of changes is one transaction of inserts.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from figures import figure

from connectors import workbench
from connectors.connect.host import ConnectorSettings
from connectors.connect.java.source_host import JavaSourceHost
from connectors.testing.servers import PostgresServer

ROUNDS = 3
DEBEZIUM, FILES = "io.debezium:debezium-connector-postgres:3.6.1.Final", "org.apache.kafka:connect-file:4.3.1"


def memory(pid: int) -> int:
    """The resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) // 1024


class Changes:
    """A table, and how fast a connector delivers what is inserted into it."""

    def __init__(self, server: PostgresServer, count: int, table: str) -> None:
        self.server, self.count, self.last, self.table = server, count, 0, table
        self.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, name text, price numeric(10,2), at timestamptz)")

    def sql(self, statement: str) -> None:
        with psycopg.connect(f"host=127.0.0.1 port={self.server.port} user=postgres", autocommit=True) as connection:
            connection.execute(statement)

    def has_slot(self) -> bool:
        """True once the connector streams."""
        with psycopg.connect(f"host=127.0.0.1 port={self.server.port} user=postgres") as connection:
            query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
            return connection.execute(query, (self.table,)).fetchone() == (True,)

    def insert(self) -> None:
        first, self.last = self.last + 1, self.last + self.count
        rows = f"SELECT n, 'name ' || n, n / 4.0, now() FROM generate_series({first}, {self.last}) n"
        self.sql(f"INSERT INTO {self.table} {rows}")

    def config(self) -> dict[str, str]:
        address = {"hostname": "127.0.0.1", "port": str(self.server.port), "user": "postgres", "password": "x"}
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "name": self.table,
            "database.dbname": "postgres",
            **{f"database.{name}": value for name, value in address.items()},
            "topic.prefix": "bench",
            "plugin.name": "pgoutput",
            "slot.name": self.table,
            "publication.name": self.table,
            "publication.autocreate.mode": "filtered",
            "table.include.list": f"public.{self.table}",
            "snapshot.mode": "no_data",
            "poll.interval.ms": "50",
        }


class Alone:
    """Debezium in a child JVM: records are polled and dropped."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        began = time.perf_counter()
        self.host = JavaSourceHost(ConnectorSettings(changes.config(), plugin_packages=(DEBEZIUM,)))
        self.host.start({})
        self.seconds = time.perf_counter() - began
        while not changes.has_slot():
            time.sleep(0.1)
        self.round()

    def round(self) -> float:
        engine: Any = self.host._engine
        began, seen = time.perf_counter(), 0
        self.changes.insert()
        while seen < self.changes.count:
            if (polled := engine.queue.take(5_000, 2_000)) is not None:
                seen += polled.size()
                engine.jvm.release(polled)
        return self.changes.count / (time.perf_counter() - began)


class Through:
    """Debezium through Spark, into ``noop``."""

    def __init__(self, spark: Any, changes: Changes, folder: Path) -> None:
        self.changes = changes
        rows = spark.readStream.format("connectors.connect").options(
            config=json.dumps(changes.config()), pluginPackages=DEBEZIUM, stateLocation=str(folder / "state")
        )
        writer = rows.load().writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
        self.query = writer.trigger(processingTime="1 second").start()
        self.rows: dict[int, int] = {}
        while not changes.has_slot():
            time.sleep(0.1)
        self.round()

    def round(self) -> float:
        began = time.perf_counter()
        self.changes.insert()
        while sum(self.rows.values()) < self.changes.last and self.query.isActive:
            if batch := self.query.lastProgress:
                self.rows[batch["batchId"]] = batch["numInputRows"]
            time.sleep(0.1)
        assert len(self.rows) > max(self.rows), "a batch began and ended between two looks"
        return self.changes.count / (time.perf_counter() - began)


def file_round(spark: Any, source: str, options: dict[str, str], lines: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        state = {"stateLocation": f"{folder}/state", "drainTimeout": "500ms"} if source == "connect" else {}
        rows = spark.readStream.format(f"connectors.{source}").options(**options, **state).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
        assert sum(batch["numInputRows"] for batch in batches) == lines
        return lines / sum(batch["durationMs"]["triggerExecution"] / 1000 for batch in batches)


def main(changes: int, lines: int) -> None:
    spark = workbench.session({"spark.sql.streaming.numRecentProgressUpdates": "100"})
    with tempfile.TemporaryDirectory() as name, PostgresServer() as server:
        folder = Path(name)
        alone = Alone(Changes(server, changes, "alone"))
        through = Through(spark, Changes(server, changes, "through"), folder)
        rounds = [(alone.round(), through.round()) for _ in range(ROUNDS)]
        plain, ours = zip(*rounds, strict=True)
        figure("changes of PostgreSQL → Spark by Debezium", "rows/s", ours, "Debezium alone", plain, least=0.8)
        figure("start of a JVM with Debezium", "s", [alone.seconds], most=10)
        figure("memory of a JVM with Debezium", "MB", [memory(alone.host.pid or 0)], most=250)
        through.query.stop()
        alone.host.close()

        path = folder / "lines.txt"
        path.write_text("".join(f"line number {number} of a file\n" for number in range(lines)))
        config = {"name": "lines", "file": str(path), "topic": "lines", "batch.size": "10000"}
        config["connector.class"] = "org.apache.kafka.connect.file.FileStreamSourceConnector"
        config["value.converter"] = "org.apache.kafka.connect.storage.StringConverter"
        java = {"config": json.dumps(config), "pluginPackages": FILES}
        native, ours = [], []
        for _ in range(ROUNDS):
            native.append(file_round(spark, "file_stream", {"path": str(path)}, lines))
            ours.append(file_round(spark, "connect", java, lines))
        figure("lines of a file → Spark by connect-file", "rows/s", ours, "connectors.file_stream", native, least=0.2)
    spark.stop()


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    main(*(arguments + [1_000_000, 3_000_000][len(arguments) :]))
