"""A program of its own, for environments that one test process cannot have beside each other: ``elsewhere.py connect``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from connectors import async_io
from connectors.core.errors import Misconfigured
from connectors.testing.servers import HOST, ConnectServer


class Lookup(async_io.AsyncFunction):
    async def async_invoke(self, row):
        await asyncio.sleep(0.001)
        return (
            None if row["id"] % 10 == 9 else {"twice": 2 * row["id"], "executor": os.environ.get("SPARK_EXECUTOR_DIRS")}
        )


def session(environment, resources):
    from pyspark.sql import SparkSession

    if environment == "connect":
        return SparkSession.builder.remote(resources.enter_context(ConnectServer()).url).getOrCreate()
    settings = {"spark.ui.enabled": "false", "spark.driver.host": HOST, "spark.driver.bindAddress": HOST}
    settings |= {"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"], "spark.executor.memory": "512m"}
    builder = SparkSession.builder.master("local-cluster[2,1,512]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main(environment, resources):
    spark = session(environment, resources)
    df = spark.range(0, 200, numPartitions=2)
    for wait in (async_io.ordered_wait, async_io.unordered_wait):
        rows = df.transform(
            wait, Lookup(), schema="twice long, executor string", cache=async_io.Cache(["id"])
        ).collect()
        assert sorted((row.id, row.twice) for row in rows) == [(n, 2 * n) for n in range(200) if n % 10 != 9]
    names = spark.createDataFrame([(n, f"n{n}") for n in range(5)], "id long, name string")
    known = async_io.preload(df, names, on="id").where("name is not null").count()
    assert known == 5
    with contextlib.suppress(Misconfigured):
        async_io.unordered_wait(df, Lookup(), schema="no such", capacity=0)
        raise AssertionError("two problems went unnoticed")
    print("all as it should be", type(df).__module__)
    spark.stop()


if __name__ == "__main__":
    with contextlib.ExitStack() as resources:
        main(sys.argv[1], resources)
