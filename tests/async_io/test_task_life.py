"""The life of a task and of its worker: open, close, ends of all kinds, and what outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time

import pytest

from connectors.async_io.calls import Cache, CircuitBreaker
from connectors.async_io.function import AsyncFunction
from connectors.async_io.task import event_loop, run
from connectors.ground.errors import Transient

from .tasks import Guarded, batch, batch_of_numbers, plan, rows_of


def test_open_comes_first_and_close_last_once_each_also_after_a_failure():
    for function in (Guarded({"name": ""}), Guarded()):
        with contextlib.suppress(Transient):
            rows_of(function, batch(1))
        assert function.events == ["open", "close"]


def test_an_error_of_open_fails_the_task_and_close_still_comes():
    class Broken(Guarded):
        async def open(self, context):
            raise ConnectionError("no server")

    function = Broken()
    with pytest.raises(ConnectionError, match="no server"):
        rows_of(function, batch(1))
    assert function.events == ["close"]


def test_blocking_open_and_close_do_as_well():
    class Blocking(AsyncFunction):
        def open(self, context):
            self.thread = threading.current_thread().name

        def async_invoke(self, row):
            return {"name": self.thread}

        def close(self):
            closed.append(True)

    closed = []
    assert rows_of(Blocking(), batch(1))[0]["name"] != "async_io"
    assert closed == [True]


def test_an_error_of_close_fails_a_task_that_was_fine():
    class Flushing(Guarded):
        async def close(self):
            raise ConnectionError("not flushed")

    with pytest.raises(ConnectionError, match="not flushed"):
        rows_of(Flushing({}), batch(1))


def test_a_close_that_hangs_is_given_up_after_its_time(caplog):
    class Hanging(Guarded):
        async def close(self):
            await asyncio.Event().wait()

    assert len(rows_of(Hanging({}), batch(1), close_timeout=0.05)) == 1
    assert "close() did not end within 0.05 s" in caplog.text


def test_a_failed_task_waits_no_longer_than_close_timeout_for_calls_in_flight():
    class Stubborn(Guarded):
        async def async_invoke(self, row):
            if row["id"] == 2:
                raise ConnectionError("down")
            while not end.is_set():
                try:
                    await asyncio.wait_for(end.wait(), 20)
                except asyncio.CancelledError:
                    continue

    end = asyncio.Event()
    function = Stubborn()
    began = time.monotonic()
    with pytest.raises(Transient, match="down"):
        rows_of(function, batch(1, 2), close_timeout=0.05)
    assert time.monotonic() - began < 10
    assert function.events == ["open", "close"]


def test_a_consumer_that_wants_no_more_ends_everything():
    function = Guarded({"name": ""})
    out = run(plan(function), iter([batch(n) for n in range(10_000)]))
    next(out)
    out.close()
    assert function.events == ["open", "close"]


def test_a_shared_client_is_made_once_per_worker():
    calls = []

    class Sharing(AsyncFunction):
        async def open(self, context):
            async def make():
                calls.append(1)
                return asyncio.get_running_loop()

            self.client = await context.shared("test_a_shared_client", make)
            self.plain = context.shared("test_a_plain_client", lambda: calls.append(2) or "plain")

        async def async_invoke(self, row):
            return {"name": f"{self.client is asyncio.get_running_loop()} {self.plain}"}

    for _ in range(3):
        assert rows_of(Sharing(), batch(1)) == [{"id": 1, "name": "True plain"}]
    assert calls == [1, 2]


def test_a_client_that_could_not_be_made_is_made_again_by_the_next_task():
    tries = []

    class Sharing(AsyncFunction):
        async def open(self, context):
            async def make():
                tries.append(1)
                if len(tries) == 1:
                    raise ConnectionError("not yet")
                return "client"

            self.client = await context.shared("test_a_client_that_could_not_be_made", make)

        async def async_invoke(self, row):
            return {"name": self.client}

    with pytest.raises(ConnectionError):
        rows_of(Sharing(), batch(1))
    assert rows_of(Sharing(), batch(1)) == [{"id": 1, "name": "client"}]


def test_a_cache_serves_the_tasks_that_follow():
    calls = []

    async def ask(row):
        calls.append(row["id"])
        return {"name": f"n{row['id']}"}

    for _ in range(3):
        rows = rows_of(ask, batch(1, 2, 1), cache=Cache(["id"]), operator_id="test_a_cache", ordered=True)
        assert [row["name"] for row in rows] == ["n1", "n2", "n1"]
    assert sorted(calls) == [1, 2]


def test_an_open_circuit_stays_open_for_the_tasks_that_follow():
    calls = []

    class Down(Guarded):
        async def async_invoke(self, row):
            calls.append(row)
            raise ConnectionError

    for _ in range(3):
        breaker = CircuitBreaker(2, "1 hour")
        rows_of(Down({}), batch(1, 2, 3), circuit_breaker=breaker, operator_id="test_an_open_circuit", capacity=1)
    assert len(calls) == 2


def test_calls_that_a_failing_task_takes_down_do_not_open_the_circuit():
    class Failing(Guarded):
        async def async_invoke(self, row):
            if row["id"] == 0:
                raise ConnectionError("down")
            if waiting:
                await asyncio.sleep(30)
            return {"name": "fine"}

    waiting = [True]
    breaker = CircuitBreaker(3, "1 hour")
    with pytest.raises(Transient, match="down"):
        rows_of(Failing(), batch(1, 2, 3, 4, 5, 0), circuit_breaker=breaker, operator_id="test_taken_down")
    waiting.clear()
    rows = rows_of(Failing({}), batch(1, 2), circuit_breaker=breaker, operator_id="test_taken_down")
    assert [row["name"] for row in rows] == ["fine", "fine"]


def test_many_calls_in_flight_do_not_keep_the_garbage_collector_busy():
    async def call(row):
        await asyncio.sleep(0.001)
        return {"name": "x"}

    event_loop()
    before = gc.get_stats()[0]["collections"]
    assert len(rows_of(call, *(batch_of_numbers(first, 2000) for first in range(0, 20_000, 2000)), capacity=1000)) == 20_000
    assert gc.get_stats()[0]["collections"] - before < 50
