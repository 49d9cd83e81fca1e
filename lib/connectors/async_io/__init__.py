"""Asynchronous I/O: a DataFrame in, a DataFrame out, many requests in flight.

::

    class Lookup(async_io.AsyncFunction):
        async def open(self, context):
            self.session = context.shared("users", aiohttp.ClientSession)
        async def async_invoke(self, row):
            async with self.session.get(f"{USERS}/{row['user_id']}") as answer:
                return await answer.json()
        def timeout(self, row):
            return {}

    df.transform(async_io.unordered_wait, Lookup(), schema="name string, city string", capacity=200)

The function is called at least once per row; each input row has exactly one outcome. ``engine`` knows nothing of Spark,
``calls`` holds the layers between a row and its service, ``task`` joins both to a Spark task.
"""

from __future__ import annotations

from .calls import Cache, CircuitBreaker, Retry
from .clients import DynamoDbLookup, HttpLookup, RedisLookup, SqlLookup
from .function import AsyncFunction, Context
from .operators import ordered_wait, preload, unordered_wait

__all__ = [
    "AsyncFunction",
    "Cache",
    "CircuitBreaker",
    "Context",
    "DynamoDbLookup",
    "HttpLookup",
    "RedisLookup",
    "Retry",
    "SqlLookup",
    "ordered_wait",
    "preload",
    "unordered_wait",
]
