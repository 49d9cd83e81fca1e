"""Tasks of asynchronous calls, run without Spark."""

from __future__ import annotations

import pyarrow as pa

from connectors.async_io.batches import EngineSettings
from connectors.async_io.function import AsyncFunction, Plain
from connectors.async_io.task import Plan, run

NAME = pa.schema([("name", pa.string())])


def batch(*ids):
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "extra": [f"x{n}" for n in ids]})


def plan(function, *, results=NAME, keep=("id",), operator_id=None, **more):
    policies = {key: more.pop(key) for key in list(more) if key in Plan.__dataclass_fields__}
    if not isinstance(function, AsyncFunction):
        function = Plain(function)
    settings = EngineSettings(**{"close_timeout": 1.0, "flush_interval": 0.01, **more})
    return Plan("async_io.test", operator_id or f"{id(function)}", function, settings, tuple(keep), results, **policies)


def rows_of(function, *batches, **more):
    out = run(plan(function, **more), iter(batches))
    return [row for each in out for row in each.to_pylist()]


class Guarded(AsyncFunction):
    def __init__(self, fallback=None):
        self.fallback, self.events = fallback, []

    async def open(self, context):
        self.events.append("open")

    async def async_invoke(self, row):
        raise ConnectionError("down")

    def timeout(self, row):
        if self.fallback is None:
            return super().timeout(row)
        return self.fallback

    async def close(self):
        self.events.append("close")


def batch_of_numbers(first, size):
    return pa.RecordBatch.from_pydict({"id": pa.array(range(first, first + size), pa.int64())})
