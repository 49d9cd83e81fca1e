"""Writing to PostgreSQL: ``connectors.jdbc`` against Spark's own JDBC writer.

``python tests/benchmarks/bench_jdbc.py [--rounds 5] [--rows 1000000]`` prints rows per second in each round and the medians of
the ratios to Spark's append. All write the same rows of five columns from two tasks into a table that is empty before, in
turns, so that what else the machine does falls on all of them. For the upsert, half of the keys are there already. Spark's
writer needs the driver org.postgresql:postgresql, which Spark fetches; only this benchmark does.

Spark appends at least once; all of ours are exactly-once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

LIBRARY = Path(__file__).parents[2] / "lib"
DRIVER = "org.postgresql:postgresql:42.7.4"
COLUMNS = "id BIGINT {key}, customer INTEGER, name TEXT, amount DOUBLE PRECISION, at TIMESTAMPTZ"
SPARK, REWRITTEN = "spark, default", "spark, rewritten"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    wanted = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(LIBRARY))
    from connectors.testing.child import session
    from connectors.testing.servers import PostgresServer

    spark = session("local[2,4]", {"spark.jars.packages": DRIVER, "spark.driver.memory": "2g"})
    rates: dict[str, list[float]] = {}
    with PostgresServer() as server:
        ways = {SPARK: sparks(server, {}), REWRITTEN: sparks(server, {"batchsize": "10000"}, "?reWriteBatchedInserts=true")}
        ways |= {"prepared": ours(server, commit="prepared"), "batch": ours(server, commit="batch")}
        ways |= {"upsert": ours(server, operation="upsert", keyColumns="id")}
        for turn in range(wanted.rounds + 1):
            for name, write in ways.items():
                table = prepared_table(server, name, wanted.rows)
                begun = time.perf_counter()
                write(frame(spark, wanted.rows), table)
                took = time.perf_counter() - begun
                check(server, table, wanted.rows)
                if turn:  # the first one warms up
                    rates.setdefault(name, []).append(wanted.rows / took)
    spark.stop()
    report(rates)


def report(rates: dict[str, list[float]]) -> None:
    for name, found in rates.items():
        print(f"{name:<18}" + "".join(f"{rate:10,.0f}" for rate in found) + f"   median {median(found):,.0f} rows/s")
    for base in (REWRITTEN, SPARK):
        for name in ("prepared", "batch", "upsert"):
            ratios = [ours / theirs for ours, theirs in zip(rates[name], rates[base], strict=True)]
            print(f"{name:<10} / {base:<18}" + "".join(f"{one:7.2f}" for one in ratios) + f"   median {median(ratios):.2f}")
    print(f"largest Python worker: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:,.0f} MB or less")


def frame(spark: Any, rows: int) -> Any:
    return spark.range(0, rows, 1, 2).selectExpr(
        "id", "CAST(id % 10000 AS INT) AS customer", "concat('customer number ', id) AS name",
        "id * 0.25D AS amount", "timestamp_seconds(1700000000 + id) AS at",
    )  # fmt: skip


def sparks(server: Any, options: dict[str, str], parameters: str = "") -> Callable[[Any, str], None]:
    address = {"url": server.jdbc + parameters, "user": server.user, "driver": "org.postgresql.Driver"}
    return lambda rows, table: (
        rows.write.format("jdbc").options(**address, **options, dbtable=table).mode("append").save()
    )


def ours(server: Any, **options: str) -> Callable[[Any, str], None]:
    address = {"url": server.jdbc, "user": server.user}
    return lambda rows, table: (
        rows.write.format("connectors.jdbc").options(**address, **options, dbtable=table).mode("append").save()
    )


@contextlib.contextmanager
def connected(server: Any) -> Any:
    import psycopg

    with psycopg.connect(f"host=127.0.0.1 port={server.port} user={server.user} dbname=postgres", autocommit=True) as made:
        yield made


def prepared_table(server: Any, name: str, rows: int) -> str:
    """A new table, the only one; for an upsert with every second key in it."""
    table = f"t{uuid.uuid4().hex}"
    with connected(server) as database:
        tables = database.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (old,) in [one for one in tables if one[0] != "connectors_ledger"]:
            database.execute(f"DROP TABLE {old}")
        database.execute(f"CREATE TABLE {table} ({COLUMNS.format(key='PRIMARY KEY' if name == 'upsert' else '')})")
        if name == "upsert":
            database.execute(f"INSERT INTO {table} SELECT n, 0, 'old', 0, now() FROM generate_series(0, {rows - 1}, 2) AS n")
        database.execute("CHECKPOINT")
    return table


def check(server: Any, table: str, rows: int) -> None:
    with connected(server) as database:
        found = database.execute(f"SELECT count(*), count(DISTINCT id) FROM {table} WHERE name <> 'old'").fetchone()
    if found != (rows, rows):
        raise SystemExit(f"{table} holds {found}, not {rows} rows")


if __name__ == "__main__":
    main()
