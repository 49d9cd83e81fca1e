"""The operators on real executors and on Spark Connect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connectors import async_io
from connectors.ground.errors import Misconfigured
from connectors.testing.environments import Environment

pytestmark = [pytest.mark.essential, pytest.mark.environments("cluster", "connect")]


class Lookup(async_io.AsyncFunction):
    async def async_invoke(self, row: Any) -> Any:
        await asyncio.sleep(0.001)
        return None if row["id"] % 10 == 9 else {"twice": 2 * row["id"]}


@pytest.mark.parametrize("wait", [pytest.param(async_io.ordered_wait, marks=pytest.mark.soak), async_io.unordered_wait])
def test_rows_are_enriched(environment: Environment, wait: Any) -> None:
    ids = environment.spark.range(0, 200, numPartitions=2)
    rows = ids.transform(wait, Lookup(), schema="twice long", cache=async_io.Cache(["id"])).collect()
    assert sorted((row.id, row.twice) for row in rows) == [(n, 2 * n) for n in range(200) if n % 10 != 9]


def test_a_table_is_preloaded(environment: Environment) -> None:
    names = environment.spark.createDataFrame([(n, f"n{n}") for n in range(5)], "id long, name string")
    rows = async_io.preload(environment.spark.range(0, 200, numPartitions=2), names, on="id")
    assert rows.where("name is not null").count() == 5


def test_all_wrong_options_are_named(environment: Environment) -> None:
    with pytest.raises(Misconfigured) as error:
        async_io.unordered_wait(environment.spark.range(5), Lookup(), schema="no such", capacity=0)
    assert len(error.value.problems) == 2
