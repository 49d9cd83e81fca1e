"""DynamoDB beside boto3: python tests/benchmarks/bench_dynamodb.py [rows]

Goal: the sink writes at 0.9 of a pool of threads with boto3 that makes the same requests of 25 items, as many at a time, and
sends again what is not processed. The service is moto, a process of its own; the pair runs by turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from connectors.core import Batch
from connectors.core.writing import stage
from connectors.systems.dynamodb import DynamoDbSink
from connectors.testing.servers import MotoServer

ROUNDS, REQUEST, IN_FLIGHT = 3, 25, 8
ACCOUNT = {"region": "us-east-1", "accessKeyId": "test", "secretAccessKey": "test"}


def plain(client: Any, rows: pa.Table) -> float:
    began = time.perf_counter()

    def send(part: list[dict[str, Any]]) -> None:
        items = [{"id": {"N": str(row["id"])}, "name": {"S": row["name"]}, "price": {"N": repr(row["price"])}} for row in part]
        requests: dict[str, Any] = {"plain": [{"PutRequest": {"Item": item}} for item in items]}
        while requests:
            requests = client.batch_write_item(RequestItems=requests)["UnprocessedItems"]

    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        content = rows.to_pylist()
        list(threads.map(send, [content[first : first + REQUEST] for first in range(0, len(content), REQUEST)]))
    return rows.num_rows / (time.perf_counter() - began)


def ours(server: MotoServer, rows: pa.Table) -> float:
    options = {**ACCOUNT, "endpoint": server.url, "table": "ours", "keyColumns": "id", "batch.maxInFlight": str(IN_FLIGHT)}
    sink = DynamoDbSink.of(options)
    began = time.perf_counter()
    staged = stage(sink, Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches(max_chunksize=1000)))
    return staged.rows / (time.perf_counter() - began)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    columns = {"id": list(range(count)), "name": [f"order {number}" for number in range(count)]}
    rows = pa.table({**columns, "price": [number / 7 for number in range(count)]})
    rates: dict[str, list[float]] = {"plain": [], "ours": []}
    with MotoServer() as server:
        client = server.client("dynamodb")
        for table in ("plain", "ours"):
            client.create_table(
                TableName=table,
                KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
                BillingMode="PAY_PER_REQUEST",
            )
        for _ in range(ROUNDS):
            rates["plain"].append(plain(client, rows))
            rates["ours"].append(ours(server, rows))
    best = {name: statistics.median(values) for name, values in rates.items()}
    ratio = best["ours"] / best["plain"]
    print(f"sink {best['ours']:7,.0f} rows/s, boto3 {best['plain']:7,.0f} rows/s: {ratio:.2f} (goal >= 0.9)")


if __name__ == "__main__":
    main()
