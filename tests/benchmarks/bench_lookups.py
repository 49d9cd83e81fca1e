"""Lookups in Redis by batch beside Little's law: python tests/benchmarks/bench_lookups.py [rows]

Goal: with a hundred rows in flight and answers after 10 ms, 0.9 of the bound, 10,000 rows a second, however many share a
request. What a hundred requests of a hundred rows reach is a figure without a goal: their bound is the client's own CPU, so the
same requests by redis-py alone stand beside it. The service is a stub in a process of its own. One task, no Spark, by turns
with redis-py. The share of the bound is that of an idle machine only; CPU seconds are the steadier figure.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import redis.asyncio
from figures import figure

from connectors import async_io
from connectors.async_io.batches import EngineSettings
from connectors.async_io.task import Plan, run

ROUNDS, LATENCY, CHUNK, ROWS_IN_FLIGHT = 3, 0.01, 10_000, 100
SCHEMA = pa.schema([("name", pa.string())])
VALUE = b'{"name": "somebody", "city": "Bern"}'
SHAPES = ((100, 1), (10, 10), (1, 100))
"""Requests in flight, and rows of each."""
LARGE = (100, 100)


class Stub(asyncio.Protocol):
    """Answers each command after a while: one value to GET, as many to MGET as it has keys, OK to what a client says first."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.buffer, self.loop = transport, b"", asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self._end()) is not None:
            command, self.buffer = self.buffer[:end], self.buffer[end:]
            parts = int(command[1 : command.index(b"\r")])
            name = command.split(b"\r\n", 3)[2].upper()
            value = b"$%d\r\n%s\r\n" % (len(VALUE), VALUE)
            reply = {b"GET": value, b"MGET": b"*%d\r\n" % (parts - 1) + value * (parts - 1)}.get(name, b"+OK\r\n")
            self.loop.call_later(LATENCY, self.transport.write, reply)

    def _end(self) -> int | None:
        """Where the first command ends; ``None`` while it is not whole."""
        if b"\r\n" not in self.buffer:
            return None
        lines = 1 + 2 * int(self.buffer[1 : self.buffer.index(b"\r\n")])
        place = -2
        for _ in range(lines):
            place = self.buffer.find(b"\r\n", place + 2)
            if place < 0:
                return None
        return place + 2


def serve(port: Any) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def numbers(count: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, CHUNK):
        yield pa.RecordBatch.from_pydict({"id": pa.array(range(first, min(count, first + CHUNK)))})


class Cost(NamedTuple):
    """Rows per second between the first answers and the last, and CPU seconds of a row."""

    rate: float
    cpu: float


def our_lookup(url: str, count: int, capacity: int, batch: int) -> Cost:
    settings = EngineSettings(capacity=capacity, batch_size=batch, ordered=True)
    lookup = async_io.RedisLookup(url, "user:{id}", json=True)
    results = run(Plan("async_io.bench", f"{capacity} {batch}", lookup, settings, ("id",), SCHEMA), numbers(count))
    first: int = next(results).num_rows
    began, cpu = time.perf_counter(), time.process_time()
    rest = sum(result.num_rows for result in results)
    assert first + rest == count
    return Cost(rest / (time.perf_counter() - began), (time.process_time() - cpu) / rest)


def plain(url: str, count: int, capacity: int, batch: int) -> Cost:
    async def main() -> Cost:
        client = redis.asyncio.Redis.from_url(url, decode_responses=True, max_connections=capacity)
        requests = keys_of(count, batch)

        async def slot() -> None:
            for keys in requests:
                for value in await client.mget(keys):
                    orjson.loads(value)

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(slot() for _ in range(capacity)))
        await client.aclose()
        return Cost(count / (time.perf_counter() - began), (time.process_time() - cpu) / count)

    return asyncio.run(main())


def keys_of(count: int, batch: int) -> Iterator[list[str]]:
    for first in range(0, count, batch):
        yield [f"user:{number}" for number in range(first, first + batch)]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    port: Any = multiprocessing.Queue()
    multiprocessing.Process(target=serve, args=(port,), daemon=True).start()
    url = f"redis://127.0.0.1:{port.get()}/0"
    costs: dict[Any, list[Cost]] = {}
    for _ in range(ROUNDS):
        for shape in (*SHAPES, LARGE):
            rows = 10 * count if shape == LARGE else count
            costs.setdefault(("ours", shape), []).append(our_lookup(url, rows, *shape))
            costs.setdefault(("plain", shape), []).append(plain(url, rows, *shape))
    for shape in (*SHAPES, LARGE):
        what = "Redis lookups, {} requests at once, each of {}".format(*shape)
        rates, plain_rates = ([cost.rate for cost in costs[way, shape]] for way in ("ours", "plain"))
        figure(what, "rows/s", rates, "redis-py", plain_rates)
        if shape != LARGE:
            shares = [100 * rate * LATENCY / ROWS_IN_FLIGHT for rate in rates]
            figure(f"{what}: of Little's bound", "%", shares, least=90)
        cpu, plain_cpu = ([cost.cpu * 1e6 for cost in costs[way, shape]] for way in ("ours", "plain"))
        figure(f"{what}: CPU of a row", "µs", cpu, "redis-py", plain_cpu)


if __name__ == "__main__":
    main()
