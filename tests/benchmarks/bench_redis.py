"""Redis beside redis-py: python tests/benchmarks/bench_redis.py [entries]

Goals: the source reads at 0.8 of a loop of XREADGROUP and XACK by redis-py, with one task and into ``noop``, entries of four
fields and about 100 bytes; the sink writes hashes at 0.8 of redis-py's pipelines of the same commands. Each pair runs by turns,
on a server of its own; both sinks are one process.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import redis

from connectors import workbench
from connectors.core import Batch
from connectors.core.writing import stage
from connectors.systems.redis import RedisSink
from connectors.testing.servers import RedisServer

ROUNDS, EPOCH, CHUNK, REQUEST = 3, 50_000, 10_000, 1000
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


def rows_of(count: int) -> list[pa.RecordBatch]:
    columns = {name: pa.array([value] * CHUNK) for name, value in FIELDS.items()}
    starts = range(0, count, CHUNK)
    return [pa.RecordBatch.from_pydict({"id": pa.array(range(first, first + CHUNK)), **columns}) for first in starts]


def plain_sink(client: Any, batches: list[pa.RecordBatch]) -> float:
    began = time.perf_counter()
    for batch in batches:
        rows = batch.to_pylist()
        for first in range(0, len(rows), REQUEST):
            pipeline = client.pipeline(transaction=False)
            for row in rows[first : first + REQUEST]:
                pipeline.hset("plain", row["id"], orjson.dumps(row))
            pipeline.execute()
    return sum(batch.num_rows for batch in batches) / (time.perf_counter() - began)


def our_sink(url: str, batches: list[pa.RecordBatch]) -> float:
    sink = RedisSink.of({"url": url, "key": "ours", "field": "{id}", "expire": "0", "batch.maxRecords": str(REQUEST)})
    began = time.perf_counter()
    staged = stage(sink, Batch("s", "q", 0), batches[0].schema, 0, iter(batches))
    return staged.rows / (time.perf_counter() - began)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 250_000
    spark = workbench.session(master="local[1]")
    rates: dict[str, list[float]] = {"plain source": [], "our source": [], "plain sink": [], "our sink": []}
    with RedisServer() as server:
        client = redis.Redis.from_url(server.url, protocol=2)
        for number in range(ROUNDS):
            stream = f"stream-{number}"
            fill(client, stream, count)
            rates["plain source"].append(plain_source(client, stream, count))
            rates["our source"].append(our_source(spark, server.url, stream))
            client.delete(stream)
            batches = rows_of(count)
            rates["plain sink"].append(plain_sink(client, batches))
            rates["our sink"].append(our_sink(server.url, batches))
            client.delete("plain", "ours")
    best = {name: statistics.median(values) for name, values in rates.items()}
    for kind in ("source", "sink"):
        ours, plain = best[f"our {kind}"], best[f"plain {kind}"]
        print(f"{kind:7} {ours:9,.0f} rows/s, redis-py {plain:9,.0f} rows/s: {ours / plain:.2f} (goal >= 0.8)")


if __name__ == "__main__":
    main()
