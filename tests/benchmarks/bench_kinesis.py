"""Kinesis beside boto3: python tests/benchmarks/bench_kinesis.py [records]

Goals: the source reads at 0.8 of a bare loop of ``get_records`` over the same shards, with 1.3 times its CPU a record at most;
the sink puts at 0.9 of bare ``put_records`` with as many requests in flight. The service is a stub that has all its answers
ready, in a process of its own: records of 100 bytes, 10,000 to an answer. Each pair runs by turns.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import orjson
import pyarrow as pa
from figures import figure

from connectors import workbench
from connectors.core import Batch
from connectors.core.writing import stage
from connectors.systems.kinesis import KinesisSink, KinesisSource

ROUNDS, EPOCH, ANSWER, REQUEST, IN_FLIGHT, SHARDS = 3, 50_000, 10_000, 500, 8, 2
BEGAN = time.time() - 3600.0  # within what the stream retains
FIRST = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
ACCOUNT = {"region": "us-east-1", "accessKeyId": "test", "secretAccessKey": "test", "streamName": "s"}
SUMMARY = {"StreamName": "s", "StreamARN": "arn:aws:kinesis:us-east-1:1:stream/s", "RetentionPeriodHours": 24}
HASHES = {"StartingHashKey": "0", "EndingHashKey": "9"}
LISTED = [
    {"ShardId": f"shard-{number}", "HashKeyRange": HASHES, "SequenceNumberRange": {"StartingSequenceNumber": "1"}}
    for number in range(SHARDS)
]
PUT = json.dumps({"FailedRecordCount": 0, "Records": [{"SequenceNumber": str(FIRST), "ShardId": "shard-0"}] * REQUEST}).encode()


@cache
def answer(shard: str, first: int, last: int, count: int) -> bytes:
    data = base64.b64encode(b"x" * 100).decode()
    records = [
        {
            "SequenceNumber": str(FIRST + n),
            "ApproximateArrivalTimestamp": BEGAN + n / 1e3,
            "Data": data,
            "PartitionKey": f"key-{n % 97}",
        }
        for n in range(first, last)
    ]
    behind = 0 if last == count else 60_000
    return json.dumps({"Records": records, "NextShardIterator": f"{shard}:{last}", "MillisBehindLatest": behind}).encode()


def serve(port: Any, count: int) -> None:
    """The stub: ``count`` records in each shard."""

    class Stub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            operation = self.headers["X-Amz-Target"].partition(".")[2]
            body = self.rfile.read(int(self.headers["Content-Length"]))
            reply = PUT if operation == "PutRecords" else self.reply(operation, json.loads(body))
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def reply(self, operation: str, request: dict[str, Any]) -> bytes:
            if operation == "GetRecords":
                shard, _, first = request["ShardIterator"].partition(":")
                return answer(shard, int(first), min(count, int(first) + min(ANSWER, request["Limit"])), count)
            if operation == "GetShardIterator":
                after = request.get("StartingSequenceNumber")
                first = 0 if after is None else int(after) - FIRST + 1
                return json.dumps({"ShardIterator": f"{request['ShardId']}:{first}"}).encode()
            if operation == "ListShards":
                return json.dumps({"Shards": LISTED}).encode()
            return json.dumps({"StreamDescriptionSummary": SUMMARY}).encode()

        def log_message(self, *_: Any) -> None:
            pass

    for shard in LISTED:  # ready before anything is timed
        for first in range(0, count, ANSWER):
            answer(str(shard["ShardId"]), first, first + ANSWER, count)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    port.put(server.server_address[1])
    server.serve_forever()


def client(url: str) -> Any:
    return boto3.client(
        "kinesis", endpoint_url=url, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )


def plain_source(url: str, count: int) -> tuple[float, float]:
    """Records per second, and CPU seconds per record."""
    kinesis, began, cpu = client(url), time.perf_counter(), time.process_time()
    for number in range(SHARDS):
        start = {"StreamName": "s", "ShardId": f"shard-{number}", "ShardIteratorType": "TRIM_HORIZON"}
        iterator, behind = kinesis.get_shard_iterator(**start)["ShardIterator"], 1
        while behind:
            page = kinesis.get_records(ShardIterator=iterator, Limit=ANSWER)
            iterator, behind = page["NextShardIterator"], page["MillisBehindLatest"]
    total = SHARDS * count
    return total / (time.perf_counter() - began), (time.process_time() - cpu) / total


def our_source(spark: Any, url: str) -> float:
    """Records per second of a batch, from its planning to its commit; the first batch starts Python and does not count."""
    with tempfile.TemporaryDirectory() as folder:
        options = {**ACCOUNT, "endpoint": url, "stateLocation": f"{folder}/log", "fetchInterval": "0s", "numPartitions": "1"}
        options |= {"startingPosition": "TRIM_HORIZON", "drainTimeout": "10ms", "maxRowsPerTrigger": str(EPOCH)}
        rows = spark.readStream.format("connectors.kinesis").options(**options).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(Path(folder) / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [batch for batch in query.recentProgress if batch["numInputRows"] == EPOCH][1:]
        return float(EPOCH / statistics.median(batch["durationMs"]["triggerExecution"] / 1000 for batch in batches))


def our_cpu(url: str, count: int) -> float:
    """CPU seconds per record of the reader, to Arrow, without Spark."""
    source = KinesisSource.of({**ACCOUNT, "endpoint": url, "fetchInterval": "0s", "startingPosition": "TRIM_HORIZON"})
    cursor = source.cursor(pa.schema([(name, pa.null()) for name in ("data", "sequenceNumber", "partitionKey", "shardId")]))
    cursor.open()
    begin = time.process_time()
    for number in range(SHARDS):
        page = cursor.read(f"shard-{number}", {"from": "TRIM_HORIZON"}, None, ANSWER)
        while not page.is_last:
            page = cursor.read(f"shard-{number}", page.position, None, ANSWER)
    return (time.process_time() - begin) / (SHARDS * count)


def rows_of(count: int) -> list[pa.RecordBatch]:
    columns = {"city": pa.array(["Zürich"] * ANSWER), "note": pa.array(["x" * 60] * ANSWER)}
    starts = range(0, count, ANSWER)
    return [pa.RecordBatch.from_pydict({"id": pa.array(range(first, first + ANSWER)), **columns}) for first in starts]


def plain_sink(url: str, batches: list[pa.RecordBatch]) -> float:
    """Records per second, with the start of a client, as a task has it, too."""
    began, kinesis = time.perf_counter(), client(url)
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for batch in batches:
            rows = [{"Data": orjson.dumps(row), "PartitionKey": str(row["id"])} for row in batch.to_pylist()]
            parts = [rows[first : first + REQUEST] for first in range(0, len(rows), REQUEST)]
            list(pool.map(lambda part: kinesis.put_records(StreamName="s", Records=part), parts))
    return sum(batch.num_rows for batch in batches) / (time.perf_counter() - began)


def our_sink(url: str, batches: list[pa.RecordBatch]) -> float:
    options = {**ACCOUNT, "endpoint": url, "batch.maxInFlight": str(IN_FLIGHT)}
    sink, began = KinesisSink.of(options), time.perf_counter()
    staged = stage(sink, Batch("s", "q", 0), batches[0].schema, 0, iter(batches))
    return staged.rows / (time.perf_counter() - began)


def main() -> None:
    count = (int(sys.argv[1]) if len(sys.argv) > 1 else 300_000) // SHARDS
    port: Any = multiprocessing.Queue()
    stub = multiprocessing.Process(target=serve, args=(port, count), daemon=True)
    stub.start()
    url = f"http://127.0.0.1:{port.get()}"
    spark = workbench.session(master="local[1]")
    rounds = []
    batches = rows_of(100_000)
    for _ in range(ROUNDS):
        rate, cpu = plain_source(url, count)
        measured = {"plain source": rate, "plain cpu": cpu * 1e6}
        measured |= {"our source": our_source(spark, url), "our cpu": our_cpu(url, count) * 1e6}
        measured |= {"plain sink": plain_sink(url, batches), "our sink": our_sink(url, batches)}
        rounds.append(measured)
    values = {name: [measured[name] for measured in rounds] for name in rounds[0]}
    figure("Kinesis → Spark", "records/s", values["our source"], "boto3", values["plain source"], least=0.8)
    figure("Kinesis → Arrow: CPU of a record", "µs", values["our cpu"], "boto3", values["plain cpu"], least=0.77)
    figure("rows → Kinesis", "records/s", values["our sink"], "boto3", values["plain sink"], least=0.9)


if __name__ == "__main__":
    main()
