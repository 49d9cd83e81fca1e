"""Cassandra beside its bare driver: python tests/benchmarks/bench_cassandra.py [rows]

Goals: two processes that read a table into Arrow, at 0.9 of the driver's own NumPy handler by the same ranges in two processes
(it fails with NumPy 2, so it runs in a Python of its own); the same read by Spark into ``noop``, at 1.0 of DataStax' connector
on Spark 3.5, in a Python of its own; two processes that write single rows, at 0.9 of the driver with as many requests
under way. Figures without a goal: the driver by this library's own handler, which cuts pages into columns of bytes and decodes
none; the driver by its default handler, which makes a tuple of each row; rows of one partition, which the sink writes together.
Contestants take turns.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from figures import figure

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.pythons import python_with

from connectors import workbench
from connectors.core import Batch
from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.core.writing import stage
from connectors.jvm.maven import class_path
from connectors.systems.cassandra import CassandraSink, CassandraSource
from connectors.systems.cassandra.connection import CassandraClient
from connectors.systems.cassandra.ring import RINGS, TokenRange, cut
from connectors.testing.servers import CassandraServer

ROUNDS, PROCESSES, SPLITS, FETCH, IN_FLIGHT, CHUNK = 3, 2, 16, 5000, 128, 10_000
FORK = multiprocessing.get_context("fork")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("seq", pa.int32()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("flag", pa.bool_()),
    ]
)
COLUMNS = "id bigint, seq int, name text, price double, at timestamp, flag boolean, primary key (id, seq)"
STATEMENT = "SELECT id, seq, name, price, at, flag FROM bench.rows WHERE token(id) > ? AND token(id) <= ?"
Work = Callable[[Mapping[str, str], int, int], int]


DATASTAX = "com.datastax.spark:spark-cassandra-connector_2.12:3.5.1"
PEER_ROUNDS = 4
PEERS = Path(__file__).with_name("cassandra_peers.py")


def rows_of(first: int, count: int, rows_each: int) -> list[pa.RecordBatch]:
    batches = []
    for start in range(first, first + count, CHUNK):
        numbers = range(start, min(start + CHUNK, first + count))
        columns = {
            "id": [number // rows_each for number in numbers],
            "seq": [number % rows_each for number in numbers],
            "name": [f"customer {number}" for number in numbers],
            "price": [number / 7 for number in numbers],
            "at": [1_767_225_600_000_000 + number * 1000 for number in numbers],
            "flag": [number % 2 == 0 for number in numbers],
        }
        batches.append(pa.RecordBatch.from_pydict(columns, SCHEMA))
    return batches


def own_ranges(number: int) -> list[TokenRange]:
    return list(cut(RINGS["Murmur3Partitioner"], SPLITS))[number::PROCESSES]


def plain_pages(options: Mapping[str, str], number: int, count: int) -> int:
    """The same ranges and the same handler, without anything around."""
    client = CassandraClient(CassandraSource.of({**options, "table": "rows"}).values)
    statement, rows = client.prepare(STATEMENT), 0
    statement.fetch_size = FETCH
    for part in own_ranges(number):
        state = None
        while True:
            page = client.page(client.session.execute_async(statement, (part.start, part.end), paging_state=state))
            rows += len(page.cells()[0]) if page.count else 0
            state = page.state
            if state is None:
                break
    client.close()
    return rows


def plain_tuples(options: Mapping[str, str], number: int, count: int) -> int:
    """The same ranges by the driver as it comes."""
    session = plain_session(options)
    statement, rows = session.prepare(STATEMENT), 0
    statement.fetch_size = FETCH
    for part in own_ranges(number):
        for _ in session.execute(statement, (part.start, part.end)):
            rows += 1
    session.cluster.shutdown()
    return rows


def our_pages(options: Mapping[str, str], number: int, count: int) -> int:
    source = CassandraSource.of({**options, "table": "rows", "fetchSize": str(FETCH), "numPartitions": str(SPLITS)})
    parts = list(Planner(source).whole())[number::PROCESSES]
    return sum(batch.num_rows for part in parts for batch in read_slice(source, part, SCHEMA))


def plain_rows(options: Mapping[str, str], number: int, count: int) -> int:
    from cassandra.concurrent import execute_concurrent_with_args

    session = plain_session(options)
    insert = session.prepare("INSERT INTO bench.plain (id, seq, name, price, at, flag) VALUES (?, ?, ?, ?, ?, ?)")
    rows = [tuple(row.values()) for batch in rows_of(number * count, count, 1) for row in batch.to_pylist()]
    began = time.perf_counter()
    execute_concurrent_with_args(session, insert, rows, concurrency=IN_FLIGHT)
    seconds = time.perf_counter() - began
    session.cluster.shutdown()
    return round(seconds * 1e6)


def our_rows(options: Mapping[str, str], number: int, count: int, rows_each: int = 1) -> int:
    batches = rows_of(number * count, count, rows_each)
    limits = {"batch.maxRecords": "64", "batch.maxInFlight": str(IN_FLIGHT // 64)}
    sink = CassandraSink.of({**options, "table": f"ours_{rows_each}", "consistency": "LOCAL_ONE", **limits})
    began = time.perf_counter()
    stage(sink, Batch("s", "q", 0), SCHEMA, 0, iter(batches))
    return round((time.perf_counter() - began) * 1e6)


def our_partitions(options: Mapping[str, str], number: int, count: int) -> int:
    return our_rows(options, number, count, 20)


def plain_session(options: Mapping[str, str]) -> Any:
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import RoundRobinPolicy, TokenAwarePolicy

    profile = ExecutionProfile(TokenAwarePolicy(RoundRobinPolicy()), request_timeout=60.0)
    host, port = address(options)
    login = PlainTextAuthProvider(options["user"], options["password"])
    profiles = {EXEC_PROFILE_DEFAULT: profile}
    return Cluster([host], port, protocol_version=4, auth_provider=login, execution_profiles=profiles).connect()


def numpy_seconds(options: Mapping[str, str], count: int) -> list[float]:
    """What the driver takes by its own NumPy handler, in a Python with NumPy 1."""
    python = python_with("cassandra-numpy", "cassandra-driver", "numpy<2")
    ranges = [(part.start, part.end) for part in cut(RINGS["Murmur3Partitioner"], SPLITS)]
    settings = {"statement": STATEMENT, "fetchSize": FETCH, "ranges": ranges}
    return peer("numpy", python, options, count, settings)


def datastax_seconds(options: Mapping[str, str], count: int) -> list[float]:
    """What DataStax' connector takes, on Spark 3.5."""
    python = python_with("cassandra-datastax", "pyspark==3.5.*")
    host, port = address(options)
    conf = {
        "spark.jars": ",".join(class_path("datastax", [DATASTAX])),
        "spark.cassandra.connection.host": host,
        "spark.cassandra.connection.port": str(port),
        "spark.cassandra.connection.localDC": options["localDatacenter"],
        "spark.cassandra.auth.username": options["user"],
        "spark.cassandra.auth.password": options["password"],
        "spark.cassandra.input.fetch.sizeInRows": str(FETCH),
    }
    return peer("datastax", python, options, count, {"conf": conf})


def address(options: Mapping[str, str]) -> tuple[str, int]:
    host, port = options["contactPoints"].rpartition(":")[::2]
    return host, int(port)


def peer(name: str, python: Path, options: Mapping[str, str], count: int, settings: dict[str, Any]) -> list[float]:
    """The seconds of each round but the first two, which warm up."""
    host, port = address(options)
    settings |= {"host": host, "port": port, "user": options["user"], "password": options["password"]}
    spec = json.dumps({**settings, "rows": count, "rounds": PEER_ROUNDS})
    environment = {"PATH": os.environ["PATH"], "PYSPARK_PYTHON": str(python)}
    done = subprocess.run([str(python), str(PEERS), name], input=spec, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return [float(line) for line in done.stdout.split()][2:]


def together(work: Work, options: Mapping[str, str], count: int) -> tuple[float, list[int]]:
    """The seconds that two processes take side by side, and what each returns."""
    with FORK.Pool(PROCESSES) as pool:
        pool.map(len, [""] * PROCESSES)
        began = time.perf_counter()
        results = pool.starmap(work, [(options, number, count) for number in range(PROCESSES)])
        return time.perf_counter() - began, results


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    written = max(PROCESSES, count // 20)
    rates: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        rates.setdefault(name, []).append(rate)

    with CassandraServer(heap="1g") as server:
        options = {**server.options, "keyspace": server.keyspace("bench")}
        for table in ("rows", "plain", "ours_1", "ours_20"):
            server.client.execute(f"create table bench.{table} ({COLUMNS})")
        sink = CassandraSink.of({**options, "table": "rows", "batch.maxRecords": "500"})
        batches = (batch for first in range(0, count, CHUNK) for batch in rows_of(first, min(CHUNK, count - first), 20))
        stage(sink, Batch("s", "q", 0), SCHEMA, 0, batches)
        server.nodetool("flush", "bench")
        reads: dict[str, Work] = {"plain": plain_pages, "ours": our_pages, "tuples": plain_tuples}
        writes: dict[str, Work] = {"plain rows": plain_rows, "our rows": our_rows, "our partitions": our_partitions}
        for number in range(ROUNDS + 1):  # the first one warms the server up
            for name, work in reads.items():
                seconds, results = together(work, options, count)
                assert sum(results) == count, (name, results)
                if number:
                    note(name, count / seconds)
            if number:
                note("numpy", count / statistics.median(numpy_seconds(options, count)))
            for name, work in writes.items():
                _, times = together(work, options, written // PROCESSES)
                if number:
                    note(name, written / (max(times) / 1e6))
        spark = workbench.session(master="local[2]")
        table = {**options, "table": "rows", "numPartitions": str(SPLITS), "fetchSize": str(FETCH)}
        frame = spark.read.format("connectors.cassandra").options(**table).load()
        for _ in range(ROUNDS):
            for seconds in datastax_seconds(options, count):
                note("datastax", count / seconds)
            for turn in range(PEER_ROUNDS):
                began = time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                if turn > 1:  # as many warm up as those of the peer
                    note("spark", count / (time.perf_counter() - began))
        spark.stop()
    for what, our_key, peer_name, plain_key, least in (
        ("Cassandra → Arrow, two processes", "ours", "the driver by NumPy", "numpy", 0.9),
        ("Cassandra → Spark", "spark", "DataStax' connector on Spark 3.5", "datastax", 1),
        ("Cassandra → Arrow, two processes", "ours", "the driver by bytes", "plain", None),
        ("Cassandra → Arrow, two processes", "ours", "the driver by tuples", "tuples", None),
        ("rows → Cassandra, single rows", "our rows", "execute_concurrent", "plain rows", 0.9),
        ("rows → Cassandra, 20 of a partition", "our partitions", "execute_concurrent", "plain rows", None),
    ):
        figure(what, "rows/s", rates[our_key], peer_name, rates[plain_key], least=least)


if __name__ == "__main__":
    main()
