"""What reading bytes costs, as ratios taken in one run: python tests/benchmarks/bench_formats.py

Goals: 1 M records of JSON of 200 bytes through ``connectors.file_stream`` with a schema are read at least as fast as by
Spark's text source and ``from_json``; one core reads at least 500,000 Avro records a second in the frame of a registry.
"""

from __future__ import annotations

import io
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

from connectors import workbench
from connectors.formats import AvroFormat, FormatSettings, JsonFormat
from connectors.testing.servers import SchemaRegistry

RECORDS, ROUNDS = 1_000_000, 3
SCHEMA = "id long, user string, amount double, at timestamp, country string, active boolean, note string"
KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("user", pa.string()),
        ("amount", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("country", pa.string()),
        ("active", pa.bool_()),
        ("note", pa.string()),
    ]
)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": ["null", "string"]},
        {"name": "amount", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "country", "type": "string"},
        {"name": "active", "type": "boolean"},
        {"name": "note", "type": ["null", "string"]},
    ],
}


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "user": f"user-{number % 10_000}",
        "amount": number * 1.25,
        "at": f"2024-02-{number % 28 + 1:02}T12:00:{number % 60:02}Z",
        "country": "DE",
        "active": number % 3 == 0,
        "note": "a remark of some length, as they are " + "x" * 30,
    }


def main() -> None:
    compare_avro()
    json_alone()
    compare_json(workbench.session())


def compare_json(spark: Any) -> None:
    folder = Path(tempfile.mkdtemp())
    lines = "\n".join(json.dumps(row(number)) for number in range(RECORDS)) + "\n"
    (folder / "orders.json").write_text(lines)
    parsed = spark.read.text(str(folder)).select(F.from_json("value", SCHEMA).alias("value"))
    options = {"path": f"{folder}/*.json", "value.format": "json", "schema": SCHEMA}
    our_frame = spark.read.format("connectors.file_stream").options(**options).load().select("value")

    def read(frame: Any) -> float:
        return timed(lambda: frame.write.format("noop").mode("overwrite").save())

    pairs = [(read(our_frame), read(parsed)) for _ in range(ROUNDS + 1)][1:]
    shutil.rmtree(folder)
    ratio = statistics.median(spark_seconds / seconds for seconds, spark_seconds in pairs)
    rate = RECORDS / statistics.median(seconds for seconds, _ in pairs)
    text = f"{ratio:.2f} x ({rate:,.0f} records/s)"
    report(
        f"{RECORDS:,} JSON records of {len(lines) // RECORDS} bytes, against from_json", text, ">= 1.00 x", ratio >= 1
    )


def json_alone() -> None:
    column = pa.array([json.dumps(row(number)).encode() for number in range(50_000)], pa.binary())
    json_format = JsonFormat(KIND)
    rate = best(lambda: json_format.decode(column), len(column))
    report("JSON, one core", f"{rate:,.0f} records/s", "-", True)
    bad = pa.array([b'{"id":"x"}' if n % 100 == 0 else value.as_py() for n, value in enumerate(column)], pa.binary())
    rate = best(lambda: json_format.decode(bad), len(bad))
    report("JSON, one core, 1 % of it bad", f"{rate:,.0f} records/s", "-", True)


def compare_avro() -> None:
    """Beside it what fastavro and Arrow need for the same bodies, one at a time."""
    import fastavro

    with SchemaRegistry() as registry:
        number = registry.register("orders-value", json.dumps(AVRO))
        schema = fastavro.parse_schema(AVRO)
        bodies = []
        for n in range(200_000):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, {**row(n), "at": 1_700_000_000_000_000 + n})
            bodies.append(out.getvalue())
        header = b"\0" + number.to_bytes(4, "big")
        parts = [pa.array([header + body for body in bodies[at : at + 10_000]]) for at in range(0, len(bodies), 10_000)]
        avro_format = AvroFormat(KIND, FormatSettings(registry_url=registry.url))
        rate = best(lambda: [avro_format.decode(part) for part in parts], len(bodies))
    few = bodies[:20_000]
    slow = best(lambda: pa.array([fastavro.schemaless_reader(io.BytesIO(body), schema) for body in few], KIND), len(few))
    text = f"{rate:,.0f} records/s ({rate / slow:.0f} x fastavro)"
    report("Avro in registry frames, one core", text, ">= 500,000", rate >= 500_000)


def best(work: Callable[[], object], records: int) -> float:
    """Records a second of the fastest round: others on the machine only ever slow it down."""
    return records / min(timed(work) for _ in range(ROUNDS + 1))


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def report(what: str, measured: str, goal: str, reached: bool) -> None:
    print(f"{what:<60} {measured:<44} goal {goal:<12} {'reached' if reached else 'MISSED'}", flush=True)


if __name__ == "__main__":
    main()
