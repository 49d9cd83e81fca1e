"""Asynchronous I/O against its bounds: ``python tests/benchmarks/bench_async_io.py [--rounds 3] [--only capacity,http]``.

Every goal but that of CPU is a ratio within a round; cases are interleaved over the rounds, so that what else the machine
does falls on all of them. A simulated call is ``asyncio.sleep(10 ms)`` in 2 tasks, so Little's
bound is ``2 x capacity / 10 ms``. ``steady`` is the rate between 20 % and 90 % of the completions, ``whole`` that of the
whole Spark action. CPU is that of the whole process tree, per row beyond the fixed part of a job.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import figure

LIBRARY = Path(__file__).parents[2] / "lib"
sys.path.insert(0, str(LIBRARY))
os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), os.environ.get("PYTHONPATH", "")])

from connectors import async_io  # noqa: E402
from connectors.testing.servers import ApiService  # noqa: E402

LATENCY = 0.01
TASKS = 2


class Stamped(async_io.AsyncFunction):
    """Notes when its calls complete, every few hundred, and leaves the notes in a file."""

    def __init__(self, folder: str, every: int = 500) -> None:
        self.folder, self.every = folder, every

    async def open(self, context: async_io.Context) -> None:
        self.done, self.stamps = 0, [(time.time(), 0)]

    def completed(self, count: int = 1) -> None:
        self.done += count
        if self.done % self.every < count:
            self.stamps.append((time.time(), self.done))

    async def close(self) -> None:
        self.stamps.append((time.time(), self.done))
        Path(tempfile.mkstemp(dir=self.folder, suffix=".json")[1]).write_text(json.dumps(self.stamps))


class Simulated(Stamped):
    async def async_invoke(self, row: Any) -> Any:
        await asyncio.sleep(LATENCY)
        self.completed()
        return {"r": row["id"] * 2}


class SimulatedBulk(Stamped):
    async def async_invoke(self, rows: Any) -> Any:
        await asyncio.sleep(LATENCY)
        self.completed(len(rows))
        return [{"r": row["id"] * 2} for row in rows]


class Http(Stamped):
    def __init__(self, folder: str, url: str) -> None:
        super().__init__(folder, 100)
        self.url = url

    async def open(self, context: async_io.Context) -> None:
        import aiohttp

        await super().open(context)
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def async_invoke(self, row: Any) -> Any:
        async with self.session.get(f"{self.url}/users/{row['id']}") as response:
            answer = await response.json()
        self.completed()
        return {"r": answer["id"] * 2}

    async def close(self) -> None:
        await self.session.close()
        await super().close()


def steady(notes: list[list[tuple[float, int]]]) -> float:
    """Rows per second between 20 % and 90 % of all completions, over all tasks."""
    steps = sorted((at, task, done) for task, stamps in enumerate(notes) for at, done in stamps)
    total = sum(stamps[-1][1] for stamps in notes)
    so_far: dict[int, int] = {}
    curve = []
    for at, task, done in steps:
        so_far[task] = done
        curve.append((at, sum(so_far.values())))
    first = next(point for point in curve if point[1] >= 0.2 * total)
    last = next(point for point in curve if point[1] >= 0.9 * total)
    return (last[1] - first[1]) / (last[0] - first[0])


def tree_cpu() -> float:
    """CPU seconds of this process and all its children, also of those that have ended."""
    import psutil

    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += (
            times.user + times.system + (0.0 if process.pid == me.pid else times.children_user + times.children_system)
        )
    return total


def on_spark(
    spark: Any, make: Callable[[str], Any], rows: int, tasks: int = TASKS, ordered: bool = True, **tuning: Any
) -> dict[str, float]:
    """Runs one case, checks its result, and tells its rates and its CPU seconds."""
    wait = async_io.ordered_wait if ordered else async_io.unordered_wait
    with tempfile.TemporaryDirectory() as folder:
        out = spark.range(0, rows, numPartitions=tasks).transform(wait, make(folder), schema="r long", **tuning)
        cpu, began = tree_cpu(), time.perf_counter()
        count, wrong = out.selectExpr("count(*)", "sum(abs(r - 2 * id))").collect()[0]
        seconds, cpu = time.perf_counter() - began, tree_cpu() - cpu
        if (count, wrong) != (rows, 0):
            raise SystemExit(f"{count} rows with an error of {wrong}, not {rows} with 0")
        notes = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return {"steady": steady(notes), "whole": rows / seconds, "cpu": cpu}


def plain_asyncio(url: str, rows: int, capacity: int) -> dict[str, float]:
    """What one writes without Spark: so many workers over one iterator, the same client, the same event loop."""
    from connectors.async_io.task import event_loop

    function = Http("", url)

    async def work(ids: Any) -> None:
        for number in ids:
            await function.async_invoke({"id": number})

    async def program() -> None:
        await function.open(None)  # type: ignore[arg-type]
        ids = iter(range(rows))
        await asyncio.gather(*(work(ids) for _ in range(capacity)))
        await function.session.close()

    asyncio.run_coroutine_threadsafe(program(), event_loop()).result()
    return {"steady": steady([[*function.stamps, (time.time(), function.done)]])}


def blocking_udf(spark: Any, rows: int) -> dict[str, float]:
    """For contrast: what people do without an asynchronous operator."""
    from pyspark.sql.functions import udf

    def call(value: int) -> int:
        time.sleep(0.01)
        return value * 2

    began = time.perf_counter()
    spark.range(0, rows, numPartitions=TASKS).select(udf(call, "long")("id").alias("r")).selectExpr("sum(r)").collect()
    return {"whole": rows / (time.perf_counter() - began)}


def cases(spark: Any, service: ApiService) -> dict[str, dict[str, Callable[[], dict[str, float]]]]:
    """The cases by group; a group's cases follow each other in each round."""
    run = lambda rows, make=Simulated, **more: lambda: on_spark(spark, make, rows, **more)  # noqa: E731
    return {
        "capacity": {
            "100 ordered": run(200_000, capacity=100),
            "100 unordered": run(200_000, capacity=100, ordered=False),
            "100 no timeout": run(200_000, capacity=100, timeout=None),
            "1000 unordered": run(600_000, capacity=1000, ordered=False),
            "20k rows": run(20_000, capacity=1000, ordered=False),
        },
        "batch_size": {
            "bulk 1": run(100_000, capacity=100),
            "bulk 100": run(4_000_000, SimulatedBulk, capacity=100, batch_size=100),
        },
        "http": {
            "plain asyncio": lambda: plain_asyncio(service.url, 6_000, 20),
            "http": lambda: on_spark(spark, lambda folder: Http(folder, service.url), 6_000, tasks=1, capacity=20),
        },
        "contrast": {"blocking udf": lambda: blocking_udf(spark, 600)},
    }


def show(results: dict[str, list[dict[str, float]]]) -> None:
    def compare(what: str, case: str, rate: str, peer: str, peer_case: str, least: float | None = None) -> None:
        if {case, peer_case} <= results.keys():
            figure(what, "rows/s", rates(case, rate), peer, rates(peer_case, rate), least=least)

    def rates(case: str, rate: str) -> list[float]:
        return [values[rate] for values in results[case]]

    for capacity, case, least in ((100, "100 ordered", 0.95), (1000, "1000 unordered", 0.85)):
        if case in results:
            steady_rates, bound = rates(case, "steady"), capacity * TASKS / LATENCY
            what = f"asynchronous calls, capacity {capacity}"
            figure(what, "rows/s", steady_rates, "Little's bound", [bound] * len(steady_rates), least=least)
    compare("asynchronous calls in order", "100 ordered", "steady", "unordered_wait", "100 unordered", 0.95)
    compare("asynchronous calls with a timeout", "100 ordered", "steady", "those without", "100 no timeout", 0.95)
    if "20k rows" in results:
        pairs = zip(rates("1000 unordered", "cpu"), rates("20k rows", "cpu"), strict=True)
        figure("CPU of an asynchronous call", "µs", [(many - few) / 0.58 for many, few in pairs], most=12)
    compare("asynchronous calls, batch_size=100, whole action", "bulk 100", "whole", "batch_size=1", "bulk 1", 60)
    compare("HTTP calls by async_io", "http", "steady", "a plain asyncio program", "plain asyncio", 0.9)
    compare("asynchronous calls, whole action", "100 ordered", "whole", "a blocking UDF", "blocking udf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="capacity,batch_size,http,contrast")
    options = parser.parse_args()
    from connectors.testing.session import session

    spark = session(f"local[{TASKS}]", {"spark.ui.showConsoleProgress": "false"})
    results: dict[str, list[dict[str, float]]] = defaultdict(list)
    with ApiService(LATENCY) as service:
        groups = cases(spark, service)
        on_spark(spark, Simulated, 20_000)  # warm
        for _ in range(options.rounds):
            for group in options.only.split(","):
                for name, case in groups[group].items():
                    results[name].append(case())
    show(results)
    spark.stop()


if __name__ == "__main__":
    main()
