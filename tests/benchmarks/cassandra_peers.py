"""Readers that need other packages than the project's: ``python cassandra_peers.py PEER``, its settings as JSON on stdin.

``numpy``     the driver with its own NumPy handler, in two processes, by ranges of tokens; needs NumPy 1;
``datastax``  DataStax' connector on Spark 3.5, into ``noop``.

Prints the seconds of each round. No module of the library: the Python that runs it does not have it.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from typing import Any

PROCESSES = 2


def numpy_pages(settings: dict[str, Any], number: int) -> int:
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import Cluster
    from cassandra.protocol import NumpyProtocolHandler
    from cassandra.query import tuple_factory

    login = PlainTextAuthProvider(settings["user"], settings["password"])
    session = Cluster([settings["host"]], settings["port"], protocol_version=4, auth_provider=login).connect()
    session.row_factory, session.client_protocol_handler = tuple_factory, NumpyProtocolHandler
    statement = session.prepare(settings["statement"])
    statement.fetch_size = settings["fetchSize"]
    rows = 0
    for start, end in settings["ranges"][number::PROCESSES]:
        result = session.execute(statement, (start, end))
        while True:
            rows += len(next(iter(result.current_rows[0].values()))) if result.current_rows else 0
            if not result.has_more_pages:
                break
            result.fetch_next_page()
    session.cluster.shutdown()
    return rows


def by_numpy(settings: dict[str, Any]) -> None:
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        for _ in range(settings["rounds"]):
            began = time.perf_counter()
            rows = sum(pool.starmap(numpy_pages, [(settings, number) for number in range(PROCESSES)]))
            assert rows == settings["rows"], rows
            print(time.perf_counter() - began, flush=True)


def by_datastax(settings: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for key, value in settings["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    table = spark.read.format("org.apache.spark.sql.cassandra").options(keyspace="bench", table="rows").load()
    assert table.count() == settings["rows"]
    for _ in range(settings["rounds"]):
        began = time.perf_counter()
        table.write.format("noop").mode("overwrite").save()
        print(time.perf_counter() - began, flush=True)
    spark.stop()


if __name__ == "__main__":
    {"numpy": by_numpy, "datastax": by_datastax}[sys.argv[1]](json.load(sys.stdin))
