"""Rows through a task: order, several results, back pressure, counters."""

from __future__ import annotations

import asyncio
import threading

import pytest

from connectors.async_io import AsyncFunction
from connectors.async_io.calls import Retry
from connectors.async_io.task import run
from connectors.ground.errors import Transient

from .tasks import Guarded, batch, batch_of_numbers, plan, rows_of


async def name_of(row):
    return {"name": f"n{row['id']}"}


@pytest.mark.parametrize("ordered", [True, False])
def test_kept_columns_stand_beside_the_results(ordered):
    assert rows_of(name_of, batch(1, 2), batch(3), ordered=ordered) == [
        {"id": 1, "name": "n1"},
        {"id": 2, "name": "n2"},
        {"id": 3, "name": "n3"},
    ]


def test_a_row_may_have_no_result_one_or_several():
    async def some(row):
        return [None, [], {"name": "one"}, [{"name": "a"}, {"name": "b"}], {}][row["id"]]

    assert rows_of(some, batch(0, 1, 2, 3, 4), ordered=True) == [
        {"id": 2, "name": "one"},
        {"id": 3, "name": "a"},
        {"id": 3, "name": "b"},
        {"id": 4, "name": None},
    ]


def test_a_function_that_blocks_runs_on_threads_and_never_more_than_capacity():
    together = threading.Barrier(4, timeout=20)
    most, now, lock = [0], [0], threading.Lock()

    def blocking(row):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        together.wait()
        with lock:
            now[0] -= 1
        together.wait()
        return {"name": threading.current_thread().name}

    rows = rows_of(blocking, batch(*range(8)), capacity=4)
    assert len(rows) == 8
    assert most == [4]
    assert all(row["name"].startswith("async_io-call") for row in rows)


def test_functions_that_hang_take_no_thread_from_the_rows_that_follow():
    over, called = threading.Event(), []

    def blocking(row):
        called.append(row["id"])
        if row["id"] < 6:
            over.wait(60)
        return {"name": "answer"}

    class Hanging(AsyncFunction):
        def async_invoke(self, row):
            return blocking(row)

        def timeout(self, row):
            return {"name": "fallback"}

    try:
        rows = rows_of(Hanging(), batch(*range(20)), capacity=2, timeout=0.3)
    finally:
        over.set()
    assert sorted(called) == list(range(20))
    assert sorted(row["id"] for row in rows if row["name"] == "answer") == list(range(6, 20))


def test_a_plain_function_may_return_a_coroutine():
    assert rows_of(lambda row: name_of(row), batch(1)) == [{"id": 1, "name": "n1"}]


def test_several_rows_per_call():
    async def names(rows):
        assert isinstance(rows, list)
        return [{"name": f"{len(rows)}"} for _ in rows]

    assert [row["name"] for row in rows_of(names, batch(1, 2), batch(3), batch_size=2, ordered=True)] == ["2", "2", "1"]


def test_results_leave_while_the_input_waits():
    more = threading.Event()

    def batches():
        yield batch(1, 2)
        assert more.wait(20)
        yield batch(3)

    out = run(plan(name_of), batches())
    assert next(out).num_rows == 2
    more.set()
    assert next(out).num_rows == 1


def test_an_error_of_the_input_is_the_tasks():
    def batches():
        yield batch(1)
        raise OSError("the input broke")

    with pytest.raises(OSError, match="the input broke"):
        list(run(plan(name_of), batches()))


def test_the_input_is_read_no_further_than_there_is_room():
    read = []
    go = asyncio.Event()

    async def stuck(row):
        await go.wait()

    def batches():
        for n in range(1000):
            read.append(n)
            yield batch(*range(10))

    out = run(plan(stuck, capacity=5, timeout=0.5, ordered=True), batches())
    with pytest.raises(Transient):
        next(out)
    assert len(read) < 10


def test_results_that_nobody_takes_hold_back_the_input():
    read = []

    def batches():
        for n in range(1000):
            read.append(n)
            yield batch(*range(100))

    out = run(plan(name_of, capacity=5), batches())
    next(out)
    threading.Event().wait(0.3)
    assert len(read) < 100
    assert sum(each.num_rows for each in out) >= 99_000


def test_retry_and_rate_limit_are_wired():
    tries = []

    async def ask(row):
        tries.append(row["id"])
        if len(tries) == 1:
            raise ConnectionError
        return {"name": "fine"}

    assert len(rows_of(ask, batch(1, 2), retry=Retry(1, "1ms"), rate_limit=1000.0)) == 2
    assert len(tries) == 3


def test_the_counters_are_reported_at_the_end():
    reports = []
    rows_of(Guarded({}), batch(1, 2), report=reports.append)
    assert reports[0]["rows"] == 2
    assert reports[0]["fallbacks"] == 2
    assert "latency_p99" in reports[0]


def test_a_report_that_fails_does_not_fail_the_task(caplog):
    def report(counters):
        raise ValueError

    assert len(rows_of(name_of, batch(1), report=report)) == 1
    assert "report" in caplog.text


@pytest.mark.soak
@pytest.mark.parametrize("ordered", [True, False])
def test_memory_stays_flat_over_ten_million_rows(ordered):
    """Calls that finish at once, some a little later and in another order: what the engine keeps shows in the memory."""
    import psutil

    total, size = 10_000_000, 10_000

    async def call(row):
        if row["id"] % 1000 == 0:
            await asyncio.sleep(0.001)
        return {"name": "x"}

    batches = (batch_of_numbers(first, size) for first in range(0, total, size))
    resident, rows = [], 0
    for out in run(plan(call, ordered=ordered), batches):
        before, rows = rows, rows + out.num_rows
        if rows // 1_000_000 > before // 1_000_000:
            resident.append(psutil.Process().memory_info().rss)
    assert rows == total
    assert max(resident[5:]) < 1.05 * max(resident[1:5]), [n >> 20 for n in resident]
