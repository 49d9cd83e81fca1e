"""What reading bytes costs, as ratios taken in one run: python tests/benchmarks/bench_formats.py

Goals: 1 M records of JSON of 200 bytes through ``connectors.file_stream`` with a schema are read at least as fast as by
Spark's text source and ``from_json``; one core reads at least 500,000 Avro records a second in the frame of a registry.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from figures import figure
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

    def read(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    ours, spark_rates = by_turns((lambda: read(our_frame), RECORDS), (lambda: read(parsed), RECORDS))
    shutil.rmtree(folder)
    size = len(lines) // RECORDS
    figure(f"lines of JSON of {size} bytes → Spark", "rows/s", ours, "Spark's text and from_json", spark_rates, least=1)


def json_alone() -> None:
    column = pa.array([json.dumps(row(number)).encode() for number in range(50_000)], pa.binary())
    json_format = JsonFormat(KIND)
    bad = pa.array([b'{"id":"x"}' if n % 100 == 0 else value.as_py() for n, value in enumerate(column)], pa.binary())
    good_rates, bad_rates = by_turns(*((lambda part=part: json_format.decode(part), len(part)) for part in (column, bad)))
    figure("JSON → Arrow, one core", "rows/s", good_rates)
    figure("JSON → Arrow, one core, 1 % of it bad", "rows/s", bad_rates, "all of it good", good_rates)


def compare_avro() -> None:
    """Beside it fastavro and Arrow with some of the same bodies, one at a time."""
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
        few = bodies[:20_000]
        ours, plain = by_turns(
            (lambda: [avro_format.decode(part) for part in parts], len(bodies)),
            (lambda: pa.array([fastavro.schemaless_reader(io.BytesIO(body), schema) for body in few], KIND), len(few)),
        )
    figure("Avro with a registry → Arrow, one core", "rows/s", ours, least=500_000)
    figure("Avro with a registry → Arrow, one core, beside fastavro", "rows/s", ours, "fastavro", plain)


def by_turns(*contestants: tuple[Callable[[], object], int]) -> list[list[float]]:
    """Records a second by round, of each that does some work with so many records; a round before the first one warms up."""
    rounds = [[records / timed(work) for work, records in contestants] for _ in range(ROUNDS + 1)][1:]
    return [list(rates) for rates in zip(*rounds, strict=True)]


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
