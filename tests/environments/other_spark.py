"""A program for a Python with another PySpark: it tries each feature and prints what came of it, as one line of JSON.

``python other_spark.py FOLDER_OF_THE_LIBRARY FOLDER [connect]``: on a classic session, or on a Spark Connect server. No test
module: the Python that runs it has no pytest.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

import connectors
from connectors import async_io, metrics, quality, workbench
from connectors.ground.errors import ConnectorError

FOLDER = Path(sys.argv[2])
ROWS = 100
TRIALS: dict[str, Callable[[Any], Any]] = {}


def trial(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    TRIALS[function.__name__] = function
    return function


def path(name: str) -> str:
    return str(FOLDER / name)


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def summary(numbers: list[int]) -> list[int]:
    """How many numbers, how many different ones, and their sum."""
    return [len(numbers), len(set(numbers)), sum(numbers)]


def stream(spark: Any) -> Any:
    """A stream of two files, one in each batch."""
    if not (FOLDER / "input").exists():
        spark.range(2 * ROWS).repartition(2).write.parquet(path("input"))
    reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    return reader.parquet(path("input"))


def run(frame: Any, sink: Any, name: str) -> Any:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", path(f"checkpoint-{name}"))
    query = writer.trigger(availableNow=True).start()
    workbench.wait(query)
    return query


def repeat_last_batch(name: str) -> None:
    """What a driver leaves that dies between the sink's commit and Spark's."""
    commits = FOLDER / f"checkpoint-{name}" / "commits"
    newest = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)


@trial
def session(spark: Any) -> Any:
    return spark.version


@trial
def foreach_batch_to_files(spark: Any) -> Any:
    frame, sink = stream(spark), connectors.foreach_batch("files", {"path": path("files")})
    run(frame, sink, "files")
    repeat_last_batch("files")
    run(frame, connectors.foreach_batch("files", {"path": path("files")}), "files")
    return summary(ids(spark.read.parquet(path("files"))))


@trial
def foreach_batch_in_no_clone(spark: Any) -> Any:
    """Spark 4.3 calls it with frames of a cloned session, on Spark Connect and unless told otherwise."""
    spark.conf.set("spark.sql.connect.streaming.foreachBatch.useClonedSession", "false")
    try:
        run(stream(spark), connectors.foreach_batch("files", {"path": path("no-clone")}), "no-clone")
    finally:
        spark.conf.unset("spark.sql.connect.streaming.foreachBatch.useClonedSession")
    return summary(ids(spark.read.parquet(path("no-clone"))))


@trial
def foreach_batch_to_a_database(spark: Any) -> Any:
    with sqlite3.connect(path("db")) as database:
        database.execute("create table target (id integer)")
    frame, options = stream(spark), {"url": f"sqlite:///{path('db')}", "dbtable": "target"}
    run(frame, connectors.foreach_batch("jdbc", options), "jdbc")
    repeat_last_batch("jdbc")
    run(frame, connectors.foreach_batch("jdbc", options), "jdbc")
    with sqlite3.connect(path("db")) as database:
        return summary([row[0] for row in database.execute("select id from target")])


@trial
def df_write(spark: Any) -> Any:
    for start in (0, ROWS):
        rows = spark.range(start, start + ROWS)
        rows.write.format("connectors.files").mode("append").save(path("written"))
    return summary(ids(spark.read.parquet(path("written"))))


@trial
def batch_read_of_files(spark: Any) -> Any:
    spark.range(ROWS).write.parquet(path("parquet"))
    return summary(ids(spark.read.format("connectors.files").schema("id long").load(path("parquet"))))


@trial
def batch_read_of_a_database(spark: Any) -> Any:
    with sqlite3.connect(path("source")) as database:
        database.execute("create table numbers (id integer, name text)")
        database.executemany("insert into numbers values (?, ?)", [(n, f"n{n}") for n in range(ROWS)])
    reader = spark.read.format("connectors.jdbc").option("url", f"sqlite:///{path('source')}")
    return summary(ids(reader.option("dbtable", "numbers").load()))


@trial
def async_call(spark: Any) -> Any:
    async def square(row: Any) -> Any:
        return {"square": row["id"] ** 2}

    frame = spark.range(ROWS).transform(async_io.unordered_wait, square, schema="square long")
    return sorted(row.square for row in frame.collect()) == [n * n for n in range(ROWS)]


@trial
def quality_split_and_metrics(spark: Any) -> Any:
    checks = quality.Checks([quality.between("id", 0, 2 * ROWS - 11)])
    query = run(
        stream(spark),
        checks.foreach_batch(
            good=connectors.foreach_batch("files", {"path": path("good")}),
            quarantined=connectors.foreach_batch("files", {"path": path("bad")}),
        ),
        "quality",
    )
    table = metrics.table(query)
    counts = table[table.component.str.startswith("sink files (")].rows.tolist()  # two sinks of one system
    return [len(ids(spark.read.parquet(path(part)))) for part in ("good", "bad")] + sorted(counts)


@trial
def stream_source(spark: Any) -> Any:
    frame = spark.readStream.format("connectors.sequence").option("end", 10).load().selectExpr("value AS id")
    run(frame, connectors.foreach_batch("files", {"path": path("sequence")}), "source")
    return summary(ids(spark.read.parquet(path("sequence"))))


@trial
def stream_sink(spark: Any) -> Any:
    writer = stream(spark).writeStream.format("connectors.files").option("path", path("sink"))
    query = writer.option("checkpointLocation", path("checkpoint-sink")).trigger(availableNow=True).start()
    query.awaitTermination()
    return summary(ids(spark.read.parquet(path("sink"))))


@trial
def placed_rows(spark: Any) -> Any:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "transactionalIdPrefix": "p", "slots": "2"}
    return type(connectors.foreach_batch("kafka", options)).__name__


def outcome(function: Callable[[Any], Any], spark: Any) -> Any:
    try:
        return function(spark)
    except ConnectorError as refused:
        return str(refused)
    except Exception as error:
        traceback.print_exc()
        return str(error)


def start() -> Any:
    if sys.argv[3:] == ["connect"]:  # the server is on this machine; the session then is the active one
        from pyspark.sql import SparkSession

        here = {"spark.driver.host": "127.0.0.1", "spark.connect.grpc.binding.address": "127.0.0.1"}
        SparkSession.builder.remote("local[2]").config(map={**here, "spark.ui.enabled": "false"}).getOrCreate()
    return workbench.session({"spark.sql.shuffle.partitions": 2}, master="local[2]")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    spark = start()
    print("OUTCOMES" + json.dumps({name: outcome(function, spark) for name, function in TRIALS.items()}))
