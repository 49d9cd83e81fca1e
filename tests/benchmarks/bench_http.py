"""REST APIs beside urllib3: python tests/benchmarks/bench_http.py [records]

Goals, with as many requests in flight: the sink sends a request for each row at 0.9 of a pool of threads with urllib3;
the source reads pages at 0.9 of a loop with urllib3 and orjson that makes an Arrow table of each page, and children at 0.9 of a
pool of threads. The service answers after 10 ms; each pair runs by turns.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pyarrow as pa
import urllib3
from figures import figure

from connectors.core import Batch
from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.core.writing import stage
from connectors.systems.http import HttpSink, HttpSource
from connectors.testing.servers import ApiService

ROUNDS, PAGE, IN_FLIGHT, LATENCY = 3, 1000, 20, 0.01
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("updated_at", pa.string())])
ITEMS = pa.schema([("id", pa.string())])


def api(service: ApiService) -> str:
    items = {"name": "items", "path": "children/orders/{id}/items"}
    paging = {"kind": "offset", "size": PAGE, "total": "total"}
    orders = {"name": "orders", "path": "offset/orders", "records": "items", "paging": paging, "children": [items]}
    return json.dumps({"baseUrl": service.url, "resources": [orders]})


def plain_pages(service: ApiService) -> int:
    client, rows, offset = urllib3.PoolManager(), 0, 0
    while True:
        answer = orjson.loads(client.request("GET", f"{service.url}/offset/orders?offset={offset}&limit={PAGE}").data)
        rows += pa.Table.from_pylist(answer["items"], SCHEMA).num_rows
        offset += PAGE
        if offset >= answer["total"]:
            return rows


def our_rows(service: ApiService, resource: str, schema: pa.Schema) -> int:
    source = HttpSource.of({"config": api(service), "resource": resource, "maxInFlight": str(IN_FLIGHT)})
    return sum(batch.num_rows for part in Planner(source).whole() for batch in read_slice(source, part, schema))


def plain_children(service: ApiService, parents: int) -> int:
    client = urllib3.PoolManager(maxsize=IN_FLIGHT)

    def read(number: int) -> int:
        return len(orjson.loads(client.request("GET", f"{service.url}/children/orders/{number}/items").data))

    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        list(threads.map(read, range(parents)))
    return parents


def plain_requests(service: ApiService, rows: pa.Table) -> int:
    client = urllib3.PoolManager(maxsize=IN_FLIGHT)
    headers = {"Content-Type": "application/json"}

    def send(row: dict[str, Any]) -> None:
        client.request("POST", f"{service.url}/rows/plain", body=orjson.dumps(row), headers=headers)

    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        list(threads.map(send, rows.to_pylist()))
    return rows.num_rows


def our_requests(service: ApiService, rows: pa.Table) -> int:
    sink = HttpSink.of({"url": f"{service.url}/rows/ours", "batch.maxInFlight": str(IN_FLIGHT)})
    return stage(sink, Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches(max_chunksize=1000))).rows


def rate(work: Any, *arguments: Any) -> float:
    began = time.perf_counter()
    done: int = work(*arguments)
    return done / (time.perf_counter() - began)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    parents, sent = count // 50, count // 10
    rates: dict[str, list[float]] = {}
    with ApiService() as service:
        orders = [{"id": number, "name": f"order {number}", "updated_at": f"2026-{number:08}"} for number in range(count)]
        for first in range(0, count, 10_000):
            service.add("orders", orders[first : first + 10_000])
        rows = pa.Table.from_pylist(orders[:sent], SCHEMA)
        for _ in range(ROUNDS):
            service.behave(latency=LATENCY)
            rates.setdefault("pages, urllib3", []).append(rate(plain_pages, service))
            rates.setdefault("pages", []).append(rate(our_rows, service, "orders", SCHEMA))
            rates.setdefault("requests, urllib3", []).append(rate(plain_requests, service, rows))
            rates.setdefault("requests", []).append(rate(our_requests, service, rows))
    with ApiService() as service:
        service.add("orders", orders[:parents])
        service.add("items", [{"id": f"i{number}", "order": str(number)} for number in range(5)])
        service.behave(latency=LATENCY)
        for _ in range(ROUNDS):
            rates.setdefault("children, urllib3", []).append(rate(plain_children, service, parents))
            began = time.perf_counter()
            our_rows(service, "items", ITEMS)
            rates.setdefault("children", []).append(parents / (time.perf_counter() - began))
    for kind, what, unit in (
        ("pages", "HTTP pages → Arrow", "rows/s"),
        ("children", "HTTP children of each record → Arrow", "requests/s"),
        ("requests", "rows → HTTP, a request for each", "rows/s"),
    ):
        figure(what, unit, rates[kind], "urllib3", rates[f"{kind}, urllib3"], least=0.9)


if __name__ == "__main__":
    main()
