"""A service that calls go to, and the calls."""

from __future__ import annotations

import asyncio

from aiolimiter import AsyncLimiter

from connectors.async_io.calls import Attempts, Cached, as_list, one_at_a_time
from connectors.ground.retry import Breaker


def fall_back(row, cause):
    return cause


class Service:
    """Answers after ``seconds``, but does first what ``script`` says: raises an exception, or returns a value."""

    def __init__(self, *script, seconds=1.0):
        self.script, self.seconds, self.calls = list(script), seconds, []

    async def __call__(self, row):
        self.calls.append((row, asyncio.get_running_loop().time()))
        await asyncio.sleep(self.seconds)
        step = self.script.pop(0) if self.script else f"answer {row}"
        if isinstance(step, Exception):
            raise step
        return step

    @property
    def times(self):
        return [at for _, at in self.calls]


def attempts(service, *, retry=None, limiter=None, breaker=None):
    def make(counters):
        now = asyncio.get_running_loop().time
        limit = AsyncLimiter(*limiter) if limiter else None
        return Attempts(service, counters, retry, limit, Breaker(breaker, now) if breaker else None)

    return make


def cached(service, store=None, several=False):
    store = {} if store is None else store

    def make(counters):
        async def call(row, slot):
            return await service(row["id"])

        async def many(rows, slot):
            return list(await service(tuple(row["id"] for row in rows)))

        layer = Cached(many if several else as_list(call), ["id"], store, counters)
        return layer if several else one_at_a_time(layer)

    return make


def rows(*ids):
    return [{"id": n, "other": position} for position, n in enumerate(ids)]
