"""Redis beside redis-py: python tests/benchmarks/bench_redis.py [entries]

Goals: the source reads at 0.8 of a loop of XREADGROUP and XACK by redis-py, with one task and into ``noop``, entries of four
fields and about 100 bytes; the sink writes hashes at 0.8 of redis-py's pipelines of HSET, both from two processes: all rows to
one hash, to a thousand of them, and a hash for each row. Each pair runs by turns, on a server of its own. What
``guarantee=exactly-once`` costs is a figure without a goal.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import redis
from figures import figure

from connectors import workbench
from connectors.core import Batch
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.redis import RedisSink
from connectors.testing.servers import RedisServer

ROUNDS, EPOCH, CHUNK, REQUEST, PROCESSES = 3, 50_000, 10_000, 1000, 2
KEYS = {"one hash": "all", "a thousand hashes": "{bucket}", "a hash for each row": "{id}"}
FORK = multiprocessing.get_context("fork")
FIELDS = {"order": 4711, "city": "Zürich", "state": "on its way", "note": "x" * 60}


def fill(client: Any, stream: str, count: int) -> None:
    for first in range(0, count, CHUNK):
        pipeline = client.pipeline(transaction=False)
        for _ in range(first, min(first + CHUNK, count)):
            pipeline.xadd(stream, FIELDS)
        pipeline.execute()


def plain_source(client: Any, stream: str, count: int) -> float:
    client.xgroup_create(stream, "plain", "0")
    began, read = time.perf_counter(), 0
    while read < count:
        entries = client.xreadgroup("plain", "c", {stream: ">"}, count=CHUNK)[0][1]
        client.xack(stream, "plain", *(id for id, _ in entries))
        read += len(entries)
    return count / (time.perf_counter() - began)


def our_source(spark: Any, url: str, stream: str) -> float:
    """Entries per second of a batch, from its planning to its commit; the first batch starts Python and does not count."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"url": url, "stream": stream, "group": "ours", "stateLocation": f"{folder}/log", "drainTimeout": "10ms"}
        rows = spark.readStream.format("connectors.redis").options(**options, maxRowsPerTrigger=EPOCH).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(Path(folder) / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [batch for batch in query.recentProgress if batch["numInputRows"] == EPOCH][1:]
        return float(EPOCH / statistics.median(batch["durationMs"]["triggerExecution"] / 1000 for batch in batches))


def rows_of(first: int, count: int) -> list[pa.RecordBatch]:
    columns = {name: pa.array([value] * CHUNK) for name, value in FIELDS.items()}
    columns["bucket"] = pa.array([number % 1000 for number in range(CHUNK)])
    starts = range(first, first + count, CHUNK)
    return [pa.RecordBatch.from_pydict({"id": pa.array(range(start, start + CHUNK)), **columns}) for start in starts]


def plain_sink(url: str, key: str, batches: list[pa.RecordBatch]) -> None:
    client = redis.Redis.from_url(url, protocol=2)
    for batch in batches:
        rows = batch.to_pylist()
        for first in range(0, len(rows), REQUEST):
            pipeline = client.pipeline(transaction=False)
            for row in rows[first : first + REQUEST]:
                pipeline.hset(f"plain:{key.format(**row)}", row["id"], orjson.dumps(row))
            pipeline.execute()


def our_sink(url: str, key: str, batches: list[pa.RecordBatch]) -> None:
    sink = RedisSink.of({"url": url, "key": f"ours:{key}", "field": "{id}", "expire": "0", "batch.maxRecords": str(REQUEST)})
    stage(sink, Batch("s", "q", 0), batches[0].schema, 0, iter(batches))


def our_script(url: str, key: str, batches: list[pa.RecordBatch]) -> None:
    options = {"url": url, "key": f"ours:{key}", "field": "{id}", "expire": "0", "guarantee": "exactly-once"}
    sink = RedisSink.of({**options, "sinkId": uuid.uuid4().hex, "batch.maxRecords": str(REQUEST)})
    batch = Batch(sink.sink_id(), "q", 0)
    Commit(sink).finish(batch, [stage(sink, batch, batches[0].schema, 0, iter(batches))])


def rate_of(write: Any, url: str, key: str, count: int) -> float:
    """Rows per second that two processes write, from their common start to the end of the later one."""
    start = FORK.Barrier(PROCESSES + 1)

    def run(first: int) -> None:
        batches = rows_of(first, count // PROCESSES)
        start.wait()
        write(url, key, batches)

    processes = [FORK.Process(target=run, args=(number * count,)) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    start.wait()
    began = time.perf_counter()
    for process in processes:
        process.join()
    return count // PROCESSES * PROCESSES / (time.perf_counter() - began)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 250_000
    spark = workbench.session(master="local[1]")
    rates: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        rates.setdefault(name, []).append(rate)

    with RedisServer() as server:
        client = redis.Redis.from_url(server.url, protocol=2)
        for number in range(ROUNDS):
            stream = f"stream-{number}"
            fill(client, stream, count)
            note("plain source", plain_source(client, stream, count))
            note("our source", our_source(spark, server.url, stream))
            client.flushall()
            for name, key in KEYS.items():
                for kind, write in (("plain", plain_sink), ("our", our_sink), ("script", our_script)):
                    note(f"{kind} {name}", rate_of(write, server.url, key, count))
                    client.flushall()
    figure("Redis stream → Spark", "rows/s", rates["our source"], "redis-py", rates["plain source"], least=0.8)
    for kind in KEYS:
        ours, script = rates[f"our {kind}"], rates[f"script {kind}"]
        figure(f"rows → Redis, {kind}", "rows/s", ours, "redis-py", rates[f"plain {kind}"], least=0.8)
        figure(f"rows → Redis, {kind}, exactly-once", "rows/s", script, "guarantee=idempotent", ours)


if __name__ == "__main__":
    main()
