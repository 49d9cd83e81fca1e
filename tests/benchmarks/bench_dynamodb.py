"""DynamoDB beside boto3: python tests/benchmarks/bench_dynamodb.py [rows]

Goal: the sink writes at 0.9 of a pool of threads with boto3 that makes the same requests of 25 items, as many at a time, and
sends again what is not processed. The service is moto, a process of its own; the pair runs by turns. What
``guarantee=exactly-once`` costs is a figure without a goal, from four tasks and Amazon's local DynamoDB, since moto copies a
whole table for each transaction.
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from figures import figure

from connectors.core import Batch
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.dynamodb import DynamoDbSink
from connectors.testing.servers import DynamoDbServer, MotoServer, Unavailable

ROUNDS, REQUEST, IN_FLIGHT, TASKS = 3, 25, 8, 4
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


def our_sink(server: MotoServer, rows: pa.Table) -> float:
    options = {**ACCOUNT, "endpoint": server.url, "table": "ours", "keyColumns": "id", "batch.maxInFlight": str(IN_FLIGHT)}
    sink = DynamoDbSink.of(options)
    began = time.perf_counter()
    staged = stage(sink, Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches(max_chunksize=1000)))
    return staged.rows / (time.perf_counter() - began)


def whole_batch(server: DynamoDbServer, rows: pa.Table, number: int, **options: str) -> float:
    """Rows per second of a batch from its first row to its commit, in tasks that run side by side."""
    account = {**ACCOUNT, "endpoint": server.url, "table": "ours", "keyColumns": "id"}
    sink = DynamoDbSink.of({**account, "batch.maxInFlight": str(IN_FLIGHT), **options})
    began, share = time.perf_counter(), rows.num_rows // TASKS
    batch = Batch(sink.sink_id(), "once-bench", number)

    def task(number: int) -> Any:
        part = rows.slice(number * share, share)
        return stage(sink, batch, rows.schema, number, iter(part.to_batches(max_chunksize=1000)))

    with ThreadPoolExecutor(TASKS) as threads:
        Commit(sink).finish(batch, list(threads.map(task, range(TASKS))))
    return TASKS * share / (time.perf_counter() - began)


def cost_of_exactly_once(rows: pa.Table) -> None:
    rates: dict[str, list[float]] = {"idempotent": [], "exactly-once": []}
    with DynamoDbServer() as server, tempfile.TemporaryDirectory() as folder:
        create(server.client(), "ours")
        for number in range(ROUNDS + 1):  # the first round compiles the server
            for name, values in rates.items():
                more = {"guarantee": name, "stagingLocation": folder} if name == "exactly-once" else {}
                values.append(whole_batch(server, rows, number, **more))
    idempotent, once = (values[1:] for values in rates.values())
    figure("rows → DynamoDB, exactly-once", "rows/s", once, "guarantee=idempotent", idempotent)


def create(client: Any, table: str) -> None:
    client.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
        BillingMode="PAY_PER_REQUEST",
    )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    columns = {"id": list(range(count)), "name": [f"order {number}" for number in range(count)]}
    rows = pa.table({**columns, "price": [number / 7 for number in range(count)]})
    rates: dict[str, list[float]] = {"plain": [], "ours": []}
    with MotoServer() as server:
        client = server.client("dynamodb")
        for table in ("plain", "ours"):
            create(client, table)
        for _ in range(ROUNDS):
            rates["plain"].append(plain(client, rows))
            rates["ours"].append(our_sink(server, rows))
    figure("rows → DynamoDB", "rows/s", rates["ours"], "boto3", rates["plain"], least=0.9)
    try:
        cost_of_exactly_once(rows)
    except Unavailable as missing:
        print(f"exactly-once: not measured without {missing}")


if __name__ == "__main__":
    main()
