"""Reading from PostgreSQL: ``connectors.jdbc`` against Spark's own JDBC reader.

``python tests/benchmarks/bench_jdbc_read.py [--rounds 3] [--rows 5000000] [--partitions 4]``: all read the same table of five
columns in the same number of partitions, into Spark's ``noop``, in turns, so that what else the machine does falls on all of
them; every round counts what came. Spark gets the exact bounds of the key and tries several fetch sizes, the best of which
counts; ours finds its ranges itself, within the time that is measured, and shares one snapshot. "PostgreSQL → Arrow" is ours in
one process without Spark, against which goes the best of Spark's with a single partition. A Spark job over a Python source
costs about a second, so few rows say little. Spark's reader needs the driver org.postgresql:postgresql, which Spark fetches.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from figures import figure
from jdbc_rounds import arguments, in_turns, postgresql_and_spark

FETCH_SIZES = (1000, 10_000, 100_000)
COLUMNS = "id BIGINT PRIMARY KEY, customer INTEGER, name TEXT, amount DOUBLE PRECISION, at TIMESTAMPTZ"
ROW = "n, n % 10000, 'customer number ' || n, n * 0.25, to_timestamp(1700000000 + n)"
OURS, SAME_BOUNDS, SINGLE = (f"PostgreSQL → Spark, {how}" for how in ("its own ranges", "Spark's bounds", "1 partition"))
ARROW = "PostgreSQL → Arrow, without Spark"
TIMES = 2.0
"""The goal: into Arrow, and in a Spark job."""


def main() -> None:
    options = arguments(__doc__, rounds=3, rows=5_000_000, partitions=4)
    with postgresql_and_spark() as (server, spark):
        fill(server, options.rows)
        all_ways = ways(spark, server, options.rows, options.partitions)

        def timed(name: str) -> float:
            start = time.perf_counter()
            count = all_ways[name]()
            seconds = time.perf_counter() - start
            if count != options.rows:
                raise SystemExit(f"{name} has read {count} rows, not {options.rows}")
            return options.rows / seconds

        rates = in_turns(all_ways, options.rounds, timed)
    for single, names in ((True, (SINGLE, ARROW)), (False, (OURS, SAME_BOUNDS))):
        spark_names = [name for name in rates if name.startswith("Spark's") and ("1 partition" in name) == single]
        best = max(spark_names, key=lambda name: median(rates[name]))
        for name in names:
            figure(name, "rows/s", rates[name], best, rates[best], least=TIMES)


def ways(spark: Any, server: Any, rows: int, partitions: int) -> dict[str, Callable[[], int]]:
    bounds = {"partitionColumn": "id", "lowerBound": 1, "upperBound": rows + 1, "numPartitions": partitions}
    reads: dict[str, Callable[[], int]] = {}
    for size in FETCH_SIZES:
        for way, given in (("Spark's own", bounds), ("Spark's own, 1 partition", {})):
            options = {**given, "fetchsize": size}
            reads[f"{way}, fetchsize {size:,}"] = lambda options=options: read_with_spark(spark, server, options)
    reads[OURS] = lambda: read_with_connectors(spark, server, {"partitionColumn": "id", "numPartitions": partitions})
    reads[SAME_BOUNDS] = lambda: read_with_connectors(spark, server, bounds)
    reads[SINGLE] = lambda: read_with_connectors(spark, server, {})
    reads[ARROW] = lambda: into_arrow(server)
    return reads


def read_with_spark(spark: Any, server: Any, options: dict[str, Any]) -> int:
    address = {"url": server.jdbc, "user": server.user, "driver": "org.postgresql.Driver", "dbtable": "numbers"}
    return to_noop(spark.read.format("jdbc").options(**address, **options).load())


def read_with_connectors(spark: Any, server: Any, options: dict[str, Any]) -> int:
    address = {"url": server.jdbc, "user": server.user, "dbtable": "numbers"}
    return to_noop(spark.read.format("connectors.jdbc").options(**address, **options).load())


def to_noop(frame: Any) -> int:
    """Writes all columns to nowhere and says how many rows there were."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation = Observation()
    frame.observe(observation, F.count("*").alias("rows")).write.format("noop").mode("overwrite").save()
    return int(observation.get["rows"])


def into_arrow(server: Any) -> int:
    from connectors.core.planning import Planner
    from connectors.core.reading import read_slice
    from connectors.systems.jdbc import JdbcSource
    from connectors.systems.jdbc.rows import columns_schema
    from connectors.systems.jdbc.selection import read_selection

    source = JdbcSource.of({"url": server.jdbc, "user": server.user, "dbtable": "numbers"})
    with contextlib.closing(source.dialect().connect_to_read()) as connection:
        schema = columns_schema(read_selection(source.values, connection), ntz=False)
    return sum(batch.num_rows for part in Planner(source).whole() for batch in read_slice(source, part, schema))


def fill(server: Any, rows: int) -> None:
    import psycopg

    with psycopg.connect(f"host=127.0.0.1 port={server.port} user={server.user} dbname=postgres", autocommit=True) as database:
        database.execute(f"CREATE TABLE numbers ({COLUMNS})")
        database.execute(f"INSERT INTO numbers SELECT {ROW} FROM generate_series(1, {rows}) AS n")
        database.execute("VACUUM ANALYZE numbers")


if __name__ == "__main__":
    main()
