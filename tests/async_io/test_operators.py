"""The operators on Spark: real sessions, real workers, functions defined here."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from connectors import async_io
from connectors.ground.errors import Misconfigured

pytestmark = pytest.mark.spark

FACTOR = 2


def doubled(n):
    return n * FACTOR


class Lookup(async_io.AsyncFunction):
    """Defined in a test module, with a helper and a constant of it: all travel by value."""

    async def open(self, context):
        self.scale = context.shared("scale", lambda: 10)

    async def async_invoke(self, row):
        await asyncio.sleep(0.001)
        return {"twice": doubled(row["id"]), "scaled": row["id"] * self.scale}


SCHEMA = "twice long, scaled long"


def expected(count):
    return [(n, 2 * n, 10 * n) for n in range(count)]


@pytest.mark.parametrize("wait", [async_io.ordered_wait, async_io.unordered_wait])
def test_rows_are_enriched(spark, wait):
    out = spark.range(500, numPartitions=3).transform(wait, Lookup(), schema=SCHEMA)
    assert out.columns == ["id", "twice", "scaled"]
    assert sorted(map(tuple, out.collect())) == expected(500)


def test_a_lookup_with_a_misspelt_column_is_refused_at_once(spark):
    lookup = async_io.HttpLookup("http://host/users/{user_idd}", failed="null")
    with pytest.raises(Misconfigured, match=r'url .*names the column "user_idd", which the rows do not have: id'):
        spark.range(3).transform(async_io.ordered_wait, lookup, schema="name string")


def test_each_partition_keeps_its_order(spark):
    async def jittery(row):
        await asyncio.sleep((row["id"] * 7919 % 13) / 1000)
        return {"twice": doubled(row["id"])}

    out = spark.range(400, numPartitions=2).transform(async_io.ordered_wait, jittery, schema="twice long")
    assert [row.id for row in out.collect()] == list(range(400))


def test_only_the_kept_columns_stay_and_case_does_not_count(spark):
    df = spark.range(3).selectExpr("id", "id as Other", "'x' as third")
    out = df.transform(async_io.ordered_wait, Lookup(), schema=SCHEMA, keep=["third", "OTHER"])
    assert out.columns == ["third", "Other", "twice", "scaled"]
    assert [tuple(row) for row in out.collect()] == [("x", n, 2 * n, 10 * n) for n in range(3)]


def test_none_of_the_columns_may_be_kept(spark):
    out = spark.range(3).transform(async_io.ordered_wait, Lookup(), schema=SCHEMA, keep=[])
    assert [tuple(row) for row in out.collect()] == [(2 * n, 10 * n) for n in range(3)]


def test_every_type_goes_through(spark):
    async def same(row):
        return {f"out_{name}": value for name, value in row.items()}

    df = spark.sql(
        "select 1Y a, 2S b, 3 c, 4L d, 1.5F e, 2.5D f, 1.25BD g, 'x' h, X'0102' i, true j, date'2024-02-29' k,"
        " timestamp'2024-02-29 12:00:00.123456' l, timestamp_ntz'2024-02-29 12:00:00' m, array(1, 2) n,"
        " map('k', 1) o, named_struct('p', 1, 'q', array('r')) p, cast(null as int) q"
    )
    schema = ", ".join(f"out_{f.name} {f.dataType.simpleString()}" for f in df.schema)
    row = df.transform(async_io.unordered_wait, same, schema=schema).collect()[0].asDict()
    assert {name: row[f"out_{name}"] for name in df.columns} == {name: row[name] for name in df.columns}


def test_empty_partitions_and_an_empty_frame_are_fine(spark):
    assert spark.range(2).repartition(5).transform(async_io.unordered_wait, Lookup(), schema=SCHEMA).count() == 2
    assert spark.range(0).transform(async_io.unordered_wait, Lookup(), schema=SCHEMA).collect() == []


def test_a_function_that_blocks_runs_on_threads(spark):
    def blocking(row):
        time.sleep(0.05)
        return {"twice": doubled(row["id"])}

    began = time.monotonic()
    out = spark.range(0, 200, numPartitions=1).transform(async_io.unordered_wait, blocking, schema="twice long")
    assert out.count() == 200
    assert time.monotonic() - began < 5  # one after the other: 10 seconds


def test_a_limit_ends_calls_early(spark):
    out = spark.range(0, 100_000, numPartitions=1).transform(async_io.unordered_wait, Lookup(), schema=SCHEMA).limit(5)
    assert len(out.collect()) == 5


def test_a_failed_row_is_named_in_sparks_error(spark):
    async def fails(row):
        if row["id"] == 7:
            raise ValueError("seven is odd")
        return {"twice": 1}

    out = spark.range(10).transform(async_io.unordered_wait, fails, schema="twice long")
    with pytest.raises(Exception, match=r"row \{'id': 7\}: the call failed: ValueError: seven is odd"):
        out.collect()


def test_a_crash_with_calls_in_flight_loses_and_doubles_nothing(spark, tmp_path):
    marker = str(tmp_path / "crashed")

    async def crashing(row):
        await asyncio.sleep(0.01)
        if row["id"] == 150 and not os.path.exists(marker):
            os.close(os.open(marker, os.O_CREAT))
            os.kill(os.getpid(), signal.SIGKILL)
        return {"twice": doubled(row["id"])}

    out = spark.range(0, 300, numPartitions=2).transform(async_io.unordered_wait, crashing, schema="twice long")
    assert sorted(map(tuple, out.collect())) == [(n, 2 * n) for n in range(300)]
    assert os.path.exists(marker)


def test_a_stream_is_enriched_and_its_micro_batches_share_the_cache(spark, tmp_path):
    log = str(tmp_path / "asked")

    async def ask(row):
        with open(log, "a") as file:
            file.write(f"{row['key']}\n")
        return {"twice": doubled(row["key"])}

    folder = str(tmp_path / "in")
    for _ in range(3):
        spark.range(30).selectExpr("id", "id % 3 as key").coalesce(1).write.mode("append").parquet(folder)
    stream = spark.readStream.schema("id long, key long").option("maxFilesPerTrigger", 1).parquet(folder)
    out = stream.transform(async_io.unordered_wait, ask, schema="twice long", cache=async_io.Cache(["key"]))
    query = (
        out.writeStream.format("memory").queryName("enriched").trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    query.awaitTermination()
    rows = spark.table("enriched").collect()
    assert len(rows) == 90
    assert all(row.twice == 2 * row.key for row in rows)
    assert (
        Path(log).read_text().count("\n") < 9
    )  # one worker after another could ask for 3 keys 3 times; a kept cache does not


# -- configuration


@pytest.mark.parametrize(
    ("function", "options", "texts"),
    [
        (Lookup, {}, ["function", "give Lookup(…), not the class"]),
        (7, {}, ["function", "an AsyncFunction, an async def, or a def"]),
        (async_io.AsyncFunction(), {}, ["function", "async_invoke"]),
        (
            Lookup(),
            {"capacity": 0, "timeout": "soon", "batch_size": "x"},
            ["3 problems", "capacity", "timeout", "batch_size"],
        ),
        (Lookup(), {"timeout": 0}, ["timeout", "more than 0 seconds"]),
        (Lookup(), {"rate_limit": -1}, ["rate_limit", "calls per second"]),
        (Lookup(), {"capcity": 5}, ["capcity", 'did you mean "capacity"?']),
        (Lookup(), {"retry": 3}, ["retry", "async_io.Retry(…)"]),
        (Lookup(), {"keep": ["idd"]}, ["keep", '"idd" is no column of the input; did you mean "id"?']),
        (Lookup(), {"cache": async_io.Cache(["user"])}, ["cache.key", '"user" is no column']),
        (Lookup(), {"schema": "id long"}, ["schema", 'has "id"']),
        (Lookup(), {"schema": "id what is"}, ["schema", 'must be such as "name string, age int"']),
    ],
)
def test_what_cannot_work_is_told_at_once(spark, function, options, texts):
    with pytest.raises(Misconfigured) as caught:
        async_io.unordered_wait(spark.range(3), function, **{"schema": SCHEMA, **options})
    assert "async_io.unordered_wait cannot start" in str(caught.value)
    assert all(part in str(caught.value) for part in texts), str(caught.value)


def test_a_client_made_too_early_is_told_at_once(spark):
    class Early(Lookup):
        def __init__(self):
            import threading

            self.client = threading.Lock()

    with pytest.raises(Misconfigured, match=r"cannot be sent to the workers.*Make clients in open\(\)"):
        async_io.unordered_wait(spark.range(3), Early(), schema=SCHEMA)


def test_the_public_names_are_sorted_and_there():
    assert list(async_io.__all__) == sorted(async_io.__all__)
    assert all(hasattr(async_io, name) for name in async_io.__all__)
