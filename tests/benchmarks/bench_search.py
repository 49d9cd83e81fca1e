"""The search sink beside a plain program: python tests/benchmarks/bench_search.py [documents]

Goals: at least 90 % of what the official client's parallel bulk helper reaches with the same documents, threads and sizes of
request; memory that does not grow with the input. Both programs get Arrow batches of 10,000 rows, as a Spark worker does, and
each run is a process of its own, so its memory is that of one worker.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from figures import figure

from connectors.core import Batch
from connectors.core.writing import stage

ROUNDS, CHUNK, THREADS, REQUEST = 3, 10_000, 4, 1000
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("delay", pa.float64()), ("text", pa.string())])


def documents(count: int) -> Iterator[pa.RecordBatch]:
    """About 300 bytes each."""
    for first in range(0, count, CHUNK):
        ids = range(first, min(first + CHUNK, count))
        cells = [list(ids), [f"row {n}" for n in ids], [n * 0.5 for n in ids], [f"{n:0230d}" for n in ids]]
        yield pa.RecordBatch.from_pydict(dict(zip(SCHEMA.names, cells, strict=True)), SCHEMA)


def our_sink(url: str, index: str, count: int) -> None:
    from connectors.systems.elasticsearch import ElasticsearchSink

    same = {"batch.maxInFlight": str(THREADS), "batch.maxRecords": str(REQUEST)}
    sink = ElasticsearchSink.of({"hosts": url, "index": index, "idColumn": "id", **same})
    staged = stage(sink, Batch("s", "q", 0), SCHEMA, 0, documents(count))
    assert staged.rows == count


def plain(url: str, index: str, count: int) -> None:
    from opensearchpy import OpenSearch, helpers

    rows = (row for batch in documents(count) for row in batch.to_pylist())
    actions = ({"_index": index, "_id": row["id"], "_source": row} for row in rows)
    client = OpenSearch(url, timeout=60, maxsize=THREADS)
    sent = helpers.parallel_bulk(client, actions, thread_count=THREADS, chunk_size=REQUEST, max_chunk_bytes=5 << 20)
    assert sum(1 for good, _ in sent if good) == count


def child(which: str, url: str, index: str, count: str) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    {"ours": our_sink, "plain": plain}[which](url, index, int(count))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"rate": int(count) / (time.perf_counter() - began), "cpu": time.process_time() - cpu, "mb": used}))


def measured(which: str, server: Any, count: int) -> dict[str, float]:
    index = f"bench-{which}"
    settings = {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}
    server.ask("PUT", f"/{index}", {"settings": settings})
    command = [sys.executable, __file__, "child", which, server.url, index, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    server.ask("DELETE", f"/{index}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    from connectors.testing.servers import OpenSearchServer

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    results: dict[str, list[dict[str, float]]] = {"ours": [], "plain": []}
    with OpenSearchServer() as server:
        for which in results:
            measured(which, server, count // 10)
        for _ in range(ROUNDS):
            for which, runs in results.items():
                runs.append(measured(which, server, count))
        small = measured("ours", server, count // 10)["mb"]
    what, peer = "rows → OpenSearch", "opensearch-py"
    ours, plain = ({name: [run[name] for run in runs] for name in runs[0]} for runs in results.values())
    figure(what, "documents/s", ours["rate"], peer, plain["rate"], least=0.9)
    figure(f"{what}: CPU of {count:,} documents", "s", ours["cpu"], peer, plain["cpu"])
    figure(f"{what}: memory of a worker", "MB", ours["mb"], peer, plain["mb"])
    figure(f"{what}: growth of memory with ten times the rows", "%", [100 * whole / small - 100 for whole in ours["mb"]])


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1:2] == ["child"] else main()
