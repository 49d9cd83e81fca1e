"""Writing to PostgreSQL: ``connectors.jdbc`` against Spark's own JDBC writer.

``python tests/benchmarks/bench_jdbc.py [--rounds 5] [--rows 1000000]``: all write the same rows of five columns from two tasks
into an empty table. They take turns, so that other work of the machine slows down all of them. For the upserts, the table has
half of the keys. Spark's writer needs the driver org.postgresql:postgresql, which Spark fetches; only this benchmark needs it.

Spark appends at least once, by itself or with ``reWriteBatchedInserts``; all of ours are exactly-once, by the ``commit`` that
their names tell (upserts: ``batch``, the default). "PostgreSQL alone" is without Spark: COPY of the same rows from memory, and
upserts from a table that holds them, each by two connections at once. No sink is faster than that.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from figures import figure
from jdbc_rounds import arguments, in_turns, postgresql_and_spark

COLUMNS = "id BIGINT {key}, customer INTEGER, name TEXT, amount DOUBLE PRECISION, at TIMESTAMPTZ"
SPARK, REWRITTEN = "Spark's own", "Spark's own, rewritten batches"
PREPARED, BATCH = (f"Spark → PostgreSQL, exactly-once, commit={name}" for name in ("prepared", "batch"))
UPSERT = "Spark → PostgreSQL, exactly-once, upserts"
ALONE, UPSERTS_ALONE = "PostgreSQL alone", "PostgreSQL alone, upserts"
STAGED = "connectors_bench_rows"
GOALS = (
    (PREPARED, REWRITTEN, 1.7), (PREPARED, SPARK, 3.0), (BATCH, REWRITTEN, 1.0), (UPSERT, REWRITTEN, 0.45),
    (PREPARED, ALONE, None), (UPSERT, UPSERTS_ALONE, None), (UPSERTS_ALONE, REWRITTEN, None),
)  # fmt: skip
"""By way: what it is measured by, and how many times as fast as that it shall be at least."""
_UPSERT = {"operation": "upsert", "keyColumns": "id"}


def main() -> None:
    options = arguments(__doc__, rounds=5, rows=1_000_000)
    with postgresql_and_spark() as (server, spark):
        rewritten = spark_writer(server, {"batchsize": "10000"}, "?reWriteBatchedInserts=true")
        ways = {SPARK: spark_writer(server, {}), REWRITTEN: rewritten}
        ways |= {PREPARED: connector(server, commit="prepared"), BATCH: connector(server, commit="batch")}
        ways |= {UPSERT: connector(server, commit="batch", **_UPSERT)}
        ways |= alone(server, frame(spark, options.rows).toArrow())

        def timed(name: str, rows: int) -> float:
            table = prepared_table(server, name, rows)
            start = time.perf_counter()
            ways[name](frame(spark, rows), table)
            seconds = time.perf_counter() - start
            check(server, table, rows)
            return rows / seconds

        rates = in_turns(ways, options.rounds, lambda name: timed(name, options.rows))
    for way, base, least in GOALS:
        figure(way, "rows/s", rates[way], base, rates[base], least=least)


def frame(spark: Any, rows: int) -> Any:
    return spark.range(0, rows, 1, 2).selectExpr(
        "id", "CAST(id % 10000 AS INT) AS customer", "concat('customer number ', id) AS name",
        "id * 0.25D AS amount", "timestamp_seconds(1700000000 + id) AS at",
    )  # fmt: skip


def spark_writer(server: Any, options: dict[str, str], parameters: str = "") -> Callable[[Any, str], None]:
    address = {"url": server.jdbc + parameters, "user": server.user, "driver": "org.postgresql.Driver"}
    return lambda rows, table: (
        rows.write.format("jdbc").options(**address, **options, dbtable=table).mode("append").save()
    )


def connector(server: Any, **options: str) -> Callable[[Any, str], None]:
    address = {"url": server.jdbc, "user": server.user}
    return lambda rows, table: (
        rows.write.format("connectors.jdbc").options(**address, **options, dbtable=table).mode("append").save()
    )


def alone(server: Any, rows: Any) -> dict[str, Callable[[Any, str], None]]:
    import adbc_driver_postgresql.dbapi as adbc

    def load(part: Any, table: str) -> None:
        with adbc.connect(server.url.replace("//", f"//{server.user}@")) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest(table, part, mode="append" if table != STAGED else "create_append")
            connection.commit()

    def upsert(half: int, table: str) -> None:
        names = rows.column_names
        changes = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
        select = f"SELECT {', '.join(names)} FROM {STAGED} WHERE id % 2 = {half}"
        with connected(server) as database:
            database.execute(f"INSERT INTO {table} ({', '.join(names)}) {select} ON CONFLICT (id) DO UPDATE SET {changes}")

    def both(way: Callable[[Any, str], None], *parts: Any) -> Callable[[Any, str], None]:
        def write(_: Any, table: str) -> None:
            with ThreadPoolExecutor() as pool:
                list(pool.map(way, parts, (table, table)))

        return write

    load(rows, STAGED)
    middle = rows.num_rows // 2
    return {ALONE: both(load, rows.slice(0, middle), rows.slice(middle)), UPSERTS_ALONE: both(upsert, 0, 1)}


@contextlib.contextmanager
def connected(server: Any) -> Any:
    import psycopg

    address = f"host=127.0.0.1 port={server.port} user={server.user} dbname=postgres"
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


def prepared_table(server: Any, name: str, rows: int) -> str:
    """A new table, the only one; for an upsert with every second key in it."""
    table = f"t{uuid.uuid4().hex}"
    with connected(server) as database:
        tables = database.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for old in [name for (name,) in tables if not name.startswith("connectors_")]:
            database.execute(f"DROP TABLE {old}")
        database.execute(f"CREATE TABLE {table} ({COLUMNS.format(key='PRIMARY KEY' if 'upsert' in name else '')})")
        if "upsert" in name:
            database.execute(f"INSERT INTO {table} SELECT n, 0, 'old', 0, now() FROM generate_series(0, {rows - 1}, 2) AS n")
        database.execute("CHECKPOINT")
    return table


def check(server: Any, table: str, rows: int) -> None:
    with connected(server) as database:
        counts = database.execute(f"SELECT count(*), count(DISTINCT id) FROM {table} WHERE name <> 'old'").fetchone()
    if counts != (rows, rows):
        raise SystemExit(f"{table} holds {counts}, not {rows} rows")


if __name__ == "__main__":
    main()
