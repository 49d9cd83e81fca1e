"""A table of PostgreSQL as it is → Delta: ``python tests/benchmarks/bench_snapshot.py [--rows 500000]``.

``connect.snapshot`` takes turns with the initial snapshot of Debezium, which ``connect.merge`` writes. Goals: twice as fast;
and a table that is read anew, though all of its rows are there, as fast. The same rows are read into ``noop``, too: four times
as fast as by Debezium.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from figures import figure

from connectors import connect, workbench
from connectors.testing.servers import PostgresServer

DEBEZIUM = "io.debezium:debezium-connector-postgres:3.6.1.Final"
COLUMNS = "id bigint PRIMARY KEY, name text, amount bigint, price numeric(10,2), at timestamptz, note text"
ROWS = "n, 'name ' || n, n * 7, n / 4.0, now(), md5(n::text) || md5((n + 1)::text)"


class Table:
    """A table of a database, and the ways to read it."""

    def __init__(self, spark: Any, server: PostgresServer, folder: Path, rows: int) -> None:
        self.spark, self.server, self.folder, self.rows, self.number = spark, server, folder, rows, 0
        insert = f"INSERT INTO orders SELECT {ROWS} FROM generate_series(1, {rows}) n"
        self.sql(f"CREATE TABLE orders ({COLUMNS})", insert, "ANALYZE orders", "CREATE PUBLICATION snap FOR TABLE orders")
        self.sql("SELECT pg_create_logical_replication_slot('snap', 'pgoutput')")

    def sql(self, *statements: str) -> None:
        with psycopg.connect(f"host=127.0.0.1 port={self.server.port} user=postgres", autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def properties(self, name: str) -> dict[str, str]:
        address = {"hostname": "127.0.0.1", "port": str(self.server.port), "user": "postgres", "password": "x"}
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "name": name,
            "database.dbname": "postgres", **{f"database.{name}": value for name, value in address.items()},
            "topic.prefix": "bench", "plugin.name": "pgoutput", "slot.name": name, "publication.name": "snap",
            "publication.autocreate.mode": "disabled", "table.include.list": "public.orders",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        }  # fmt: skip

    def by_debezium(self, write: Callable[[Any, int], None] | None) -> float:
        """The rows a second of an initial snapshot into ``noop``, or by ``write``, from the first batch on."""
        self.number += 1
        name, folder = f"debezium_{self.number}", self.folder / f"debezium_{self.number}"
        rows = self.spark.readStream.format("connectors.connect").options(
            config=json.dumps(self.properties(name)), pluginPackages=DEBEZIUM, stateLocation=str(folder / "state"),
            drainTimeout="3s",
        )  # fmt: skip
        writer = rows.load().writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        writer = writer.foreachBatch(write) if write else writer.format("noop")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
        assert sum(batch["numInputRows"] for batch in batches) == self.rows
        self.sql(f"SELECT pg_drop_replication_slot('{name}')")
        return self.rows / sum(batch["durationMs"]["triggerExecution"] / 1000 for batch in batches)

    def by_reader(self) -> float:
        options = {"url": self.server.jdbc, "user": "postgres", "dbtable": "orders"}
        begin = time.perf_counter()
        self.spark.read.format("connectors.jdbc").options(**options).load().write.format("noop").mode("overwrite").save()
        return self.rows / (time.perf_counter() - begin)

    def by_snapshot(self, target: str, **arguments: Any) -> float:
        begin = time.perf_counter()
        connect.snapshot(self.properties("snap"), target, **arguments)
        return self.rows / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    spark = workbench.session({"spark.sql.streaming.numRecentProgressUpdates": "1000"}, master="local[2]")
    with tempfile.TemporaryDirectory() as name, PostgresServer() as server:
        table = Table(spark, server, Path(name), options.rows)
        rounds = []
        for number in range(options.rounds + 1):
            merged, target = f"{name}/merged_{number}", f"{name}/tables_{number}/"
            rounds.append(
                (
                    table.by_debezium(None), table.by_reader(), table.by_debezium(connect.merge(merged)),
                    table.by_snapshot(target, new={"orders": "public.orders"}),
                    table.by_snapshot(target, new={"orders": "public.orders"}),
                )
            )  # fmt: skip
        debezium, reader, merge, first, again = zip(*rounds[1:], strict=True)
        figure("a table of PostgreSQL → noop, by connectors.jdbc", "rows/s", reader, "Debezium's snapshot", debezium, least=4)
        figure("a table of PostgreSQL → Delta, by connect.snapshot", "rows/s", first, "Debezium's snapshot", merge, least=2)
        figure("a table that is there, by connect.snapshot", "rows/s", again, "Debezium's snapshot", merge, least=1)
    spark.stop()


if __name__ == "__main__":
    main()
