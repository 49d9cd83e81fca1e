"""Writing to PostgreSQL: ``connectors.jdbc`` against Spark's own JDBC writer.

``python tests/benchmarks/bench_jdbc.py [--rounds 5] [--rows 1000000]`` prints rows per second in each round, and then the
medians of the ratios, each beside its goal. All write the same rows of five columns from two tasks into an empty table. They
take turns, so that other work of the machine slows down all of them. For the upserts, the table has half of the keys. Spark's
writer needs the driver org.postgresql:postgresql, which Spark fetches; only this benchmark needs it.

Spark appends at least once; all of ours are exactly-once, by the ``commit`` that their names tell (``upsert``: ``batch``, the
default). ``the database alone`` is what PostgreSQL needs without Spark: COPY of the same rows from memory, and upserts from a
table that holds them, each by two connections at once. No sink is faster than that.
"""

from __future__ import annotations

import contextlib
import resource
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jdbc_rounds import Goal, arguments, in_turns, postgresql_and_spark, report

COLUMNS = "id BIGINT {key}, customer INTEGER, name TEXT, amount DOUBLE PRECISION, at TIMESTAMPTZ"
SPARK, REWRITTEN = "spark, default", "spark, rewritten"
ALONE, UPSERTS_ALONE = "the database alone", "upsert, the database alone"
STAGED = "connectors_bench_rows"
GOALS = (
    Goal("prepared", REWRITTEN, 1.7), Goal("prepared", SPARK, 3.0), Goal("batch", REWRITTEN, 1.0),
    Goal("upsert", REWRITTEN, 0.45), Goal("prepared", ALONE, 0.0), Goal("upsert", UPSERTS_ALONE, 0.0),
    Goal(UPSERTS_ALONE, REWRITTEN, 0.0),
)  # fmt: skip
_UPSERT = {"operation": "upsert", "keyColumns": "id"}


def main() -> None:
    options = arguments(__doc__, rounds=5, rows=1_000_000)
    with postgresql_and_spark() as (server, spark):
        rewritten = spark_writer(server, {"batchsize": "10000"}, "?reWriteBatchedInserts=true")
        ways = {SPARK: spark_writer(server, {}), REWRITTEN: rewritten}
        ways |= {name: connector(server, commit=name) for name in ("prepared", "batch")}
        ways |= {"upsert": connector(server, commit="batch", **_UPSERT)}
        ways |= alone(server, frame(spark, options.rows).toArrow())

        def timed(name: str, rows: int) -> float:
            table = prepared_table(server, name, rows)
            start = time.perf_counter()
            ways[name](frame(spark, rows), table)
            seconds = time.perf_counter() - start
            check(server, table, rows)
            return rows / seconds

        rates = in_turns(ways, options.rounds, lambda name: timed(name, options.rows))
    report(rates, GOALS)
    print(f"largest process: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:,.0f} MB or less")


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
        database.execute(f"CREATE TABLE {table} ({COLUMNS.format(key='PRIMARY KEY' if name.startswith('upsert') else '')})")
        if name.startswith("upsert"):
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
