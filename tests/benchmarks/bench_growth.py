"""What grows as the work grows: ``python tests/benchmarks/bench_growth.py [--long]``.

Rows, tasks, files, partitions, shards, tables and batches, each ten times as many (tasks twice) as in the run before it.
Goals: ten times the work takes at most fifteen times as long, the last batches as long as the first ones, and no more memory
or calls; two tasks on two cores do 1.5 times as much as one.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from figures import figure
from tests.shard_double import SCHEMA as RECORDS
from tests.shard_double import ShardCursor, ShardDouble, ShardDoubleSource

import connectors
from connectors import connect, workbench
from connectors.core import Batch
from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.systems.files.source import FilesSource
from connectors.systems.kafka.source import KafkaSource
from connectors.testing.servers import KafkaServer

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.systems.change_logs import COLUMNS, Database

ROUNDS, FILE, TASKS = 3, 50_000, 20_000_000
SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("cents", pa.int64())])


def write(folder: Path, files: int, rows: int) -> None:
    folder.mkdir(parents=True)
    ids = pa.array(range(rows), pa.int64())
    table = pa.table([ids, pa.array([f"city {number % 500}" for number in range(rows)]), ids], schema=SCHEMA)
    pq.write_table(table, folder / "0.parquet")
    for number in range(1, files):
        shutil.copyfile(folder / "0.parquet", folder / f"{number}.parquet")


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def read(spark: Any, path: Path, tasks: int = 2) -> None:
    frame = spark.read.format("connectors.files").option("path", f"{path}/*.parquet").schema("id long, city string, cents long")
    frame.load().coalesce(tasks).write.format("noop").mode("overwrite").save()


def rows(spark: Any, folder: Path, most: int) -> None:
    counts = [count for count in (10**5, 10**6, 10**7) if count <= most]
    for count in counts:
        write(folder / f"rows{count}", count // FILE, FILE)
    read(spark, folder / f"rows{counts[0]}")  # the first one warms up
    compare("files → Spark: {:,} rows", by_turns(counts, lambda count: read(spark, folder / f"rows{count}")))
    write(folder / "tasks", TASKS // FILE, FILE)
    tasks = by_turns([1, 2], lambda count: read(spark, folder / "tasks", count))
    figure(f"files → Spark: {TASKS:,} rows, in two tasks", "s", tasks[2], "in one", tasks[1], least=1.5)


def files(folder: Path, most: int) -> None:
    counts = [count for count in (100, 1000, 10_000, 100_000) if count <= most]
    for count in counts:
        write(folder / f"files{count}", count, 1)

    def plan(path: Path) -> None:
        planner = Planner(FilesSource.of({"path": f"{path}/*.parquet"}, streaming=True))
        planner.slices(INITIAL, planner.latest(INITIAL))
        planner.close()

    compare("files: a plan of {:,}", by_turns(counts, lambda count: plan(folder / f"files{count}")))


def partitions(most: int) -> None:
    """Plans of Kafka topics, with a new record in each of their partitions."""
    counts = [count for count in (100, 1000, 10_000) if count <= most]
    with KafkaServer() as server:
        producer, topics = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0}), dict[int, list[str]]()
        for count in counts:  # a broker makes less than 10,000 partitions at once
            each = min(count, 5000)
            topics[count] = [server.create_topic(f"t{count}_{number}", each) for number in range(count // each)]
            for topic, partition in product(topics[count], range(each)):
                producer.produce(topic, b"record", partition=partition)
        producer.flush()
        del producer

        def plan(count: int) -> None:
            names = ",".join(topics[count])
            values = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": names, "startingOffsets": "earliest"}
            planner = Planner(KafkaSource.of(values, streaming=True))
            planner.slices(INITIAL, planner.latest(INITIAL))
            planner.close()

        compare("Kafka: a plan of {:,} partitions", by_turns(counts, plan))


def shards(folder: Path, most: int) -> None:
    """Epochs of shards that count their calls, each of which has one new record."""
    times, calls = {}, {}
    for count in (count for count in (100, 1000, 10_000, 100_000) if count <= most):
        double = ShardDouble(folder / f"shards{count}", [f"{number:06}" for number in range(count)])
        options = {"path": str(double.path), "stateLocation": str(folder / f"epochs{count}")}
        source, ShardCursor.reads = ShardDoubleSource.of(options, streaming=True), 0
        planner, start, times[count] = Planner(source), INITIAL, list[float]()
        for _ in range(ROUNDS):
            double.write(range(count))
            begin, end = time.perf_counter(), planner.latest(start)
            rows = sum(batch.num_rows for part in planner.slices(start, end) for batch in read_slice(source, part, RECORDS))
            times[count].append(time.perf_counter() - begin)
            start = end
            assert rows == count
        planner.close()
        calls[count] = ShardCursor.reads / ROUNDS / count
    compare("shards: an epoch of {:,}", times)
    figure(f"calls for each of {count:,} shards", "", [calls[count]], most=calls[100])


def tables(spark: Any, folder: Path, most: int) -> None:
    """Batches with a change in each table of a database."""
    counts = [count for count in (2, 20, 200) if count <= most]
    databases = {count: [Database(topic=f"server.shop.t{number}") for number in range(count)] for count in counts}
    merges: dict[int, Any] = {count: connect.merge_all(f"{folder}/tables{count}/") for count in counts}
    numbers = {size: iter(range(1000)) for size in counts}

    def batch(count: int) -> None:
        records = [database.upsert(id=database.lsn, name="a", amount=1) for database in databases[count]]
        rows = [(record["topic"], record["key"], record["value"], None) for record in records]
        sink_id = merges[count].sink.sink_id()
        merges[count].write(spark.createDataFrame(rows, COLUMNS).coalesce(1), Batch(sink_id, "q", next(numbers[count])))

    for count in counts:
        batch(count)  # makes the tables
    compare("changes → Delta: a batch with a change in each of {:,} tables", by_turns(counts, batch))


def by_turns(amounts: Sequence[int], work: Callable[[int], Any]) -> dict[int, list[float]]:
    """The seconds of some rounds for each amount of work."""
    rounds = [{amount: seconds(lambda amount=amount: work(amount)) for amount in amounts} for _ in range(ROUNDS)]
    return {amount: [times[amount] for times in rounds] for amount in amounts}


def compare(what: str, times: dict[int, Sequence[float]]) -> None:
    """A figure for each amount of work, but for the smallest, beside ten times the time of a tenth."""
    counts = list(times)
    for less, more in pairwise(counts):
        tenfold = [10 * time for time in times[less]]
        figure(what.format(more), "s", times[more], f"ten times the time of {less:,}", tenfold, least=0.67)


def batches(spark: Any, folder: Path, count: int) -> None:
    frame = spark.readStream.format("connectors.sequence").option("end", 100 * count).option("maxRowsPerTrigger", 100).load()
    sink: Any = connectors.foreach_batch("delta", path=str(folder / "table"))
    heaps = {}

    def write(rows: Any, number: int) -> None:
        sink(rows, number)
        if number + 1 in (count // 5, count):
            heaps[number + 1] = heap(spark)

    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(count + 10))
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spent = [json.loads(batch.json)["durationMs"]["triggerExecution"] for batch in query.recentProgress][:count]
    tenth = count // 10
    first, last = sorted(spent[tenth : 2 * tenth]), sorted(spent[-tenth:])
    what = f"sequence → Delta, exactly-once: the last tenth of {count} batches"
    figure(what, "ms", last, "the second tenth", first, least=0.67)
    growth = 100 * heaps[count] / heaps[count // 5] - 100
    figure(f"sequence → Delta: growth of the driver's heap from {count // 5} to {count} batches", "%", [growth], most=15)


def heap(spark: Any) -> int:
    """The bytes of the driver that are in use."""
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.System.gc()
    return int(jvm.java.lang.Runtime.getRuntime().totalMemory() - jvm.java.lang.Runtime.getRuntime().freeMemory())


def memory(folder: Path, most: int) -> None:
    sizes = most // 10, most
    commands = {size: [sys.executable, __file__, "child", str(folder / f"rows{size}")] for size in sizes}
    peaks = [{size: int(subprocess.check_output(command)) for size, command in commands.items()} for _ in range(ROUNDS)]
    growth = [100 * peak[most] / peak[sizes[0]] - 100 for peak in peaks]
    figure(f"files: growth of a task's memory from {sizes[0]:,} to {most:,} rows", "%", growth, most=15)


def child(path: str) -> None:
    source = FilesSource.of({"path": f"{path}/*.parquet"}, streaming=True)
    planner = Planner(source)
    for part in planner.slices(INITIAL, planner.latest(INITIAL)):
        for _ in read_slice(source, part, SCHEMA):
            pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--long", action="store_true")
    is_long = parser.parse_args().long
    folder, spark = Path(tempfile.mkdtemp()), workbench.session(master="local[2]")
    most = 10**7 if is_long else 10**6
    rows(spark, folder, most)
    files(folder, 100_000 if is_long else 10_000)
    partitions(10_000 if is_long else 1000)
    shards(folder, 100_000 if is_long else 10_000)
    tables(spark, folder, 200 if is_long else 20)
    batches(spark, folder, 1000 if is_long else 100)
    memory(folder, most)
    shutil.rmtree(folder)


if __name__ == "__main__":
    child(sys.argv[2]) if sys.argv[1:2] == ["child"] else main()
