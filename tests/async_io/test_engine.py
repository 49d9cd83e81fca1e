"""The engine in virtual time: nothing here sleeps."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import weakref

import pytest

from connectors.async_io.batches import EngineSettings, RowBatch
from connectors.async_io.engine import AsyncEngine


async def double(row, slot):
    await asyncio.sleep(0.01)
    return row * 2


def sleeping(seconds):
    async def call(row, slot):
        await asyncio.sleep(seconds(row))
        return row

    return call


class InFlight:
    """A call that counts how many of it run at once."""

    def __init__(self, seconds=lambda row: 1.0):
        self.seconds, self.now, self.most = seconds, 0, 0

    async def __call__(self, row, slot):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.seconds(row))
        finally:
            self.now -= 1
        return row


def fall_back(row, cause):
    return ("fallback", row)


@pytest.mark.parametrize("ordered", [True, False])
def test_each_row_gets_its_own_result(served, ordered):
    ran = served(double, [[1, 2, 3], [4, 5]], ordered=ordered)
    assert sorted(ran.outcomes) == [(n, 2 * n) for n in range(1, 6)]
    assert ran.counters.rows == 5


def test_ordered_rows_leave_in_their_order_whatever_their_calls_take(served):
    rows = list(range(40))
    ran = served(sleeping(lambda n: (n * 7919) % 13), [rows[:15], rows[15:]], ordered=True, capacity=7)
    assert [row for row, _ in ran.outcomes] == rows


def test_unordered_rows_are_not_held_back_by_a_slow_one(served):
    ran = served(sleeping(lambda n: 20 if n == 0 else 1), [[0, 1, 2], [3, 4]], capacity=5)
    assert [row for row, _ in ran.outcomes][-1] == 0
    assert ran.left_at[0] < 2


def test_no_more_than_capacity_calls_run_at_once_and_as_many_do(served):
    call = InFlight()
    served(call, [list(range(30))] * 4, capacity=8)
    assert call.most == 8


@pytest.mark.parametrize("ordered", [True, False])
def test_capacity_spans_batches_even_tiny_ones(served, ordered):
    call = InFlight()
    ran = served(call, [[n] for n in range(3000)], capacity=100, ordered=ordered)
    assert call.most == 100
    assert ran.ended_at == pytest.approx(30, abs=2)


def test_there_is_no_drain_between_batches(served):
    ran = served(
        sleeping(lambda n: 10 if n % 10 == 0 else 1), [list(range(k, k + 10)) for k in range(0, 100, 10)], capacity=20
    )
    assert ran.ended_at < 25  # a drain after each batch would take 100 seconds


def test_stragglers_in_every_batch_do_not_stall_an_unordered_run(served):
    batches = [list(range(k, k + 50)) for k in range(0, 1000, 50)]
    ran = served(sleeping(lambda n: 25 if n % 50 == 0 else 0.1), batches, capacity=40)
    assert ran.ended_at < 32


def test_a_slow_row_holds_back_reading_further_when_order_is_kept(served):
    calls = []

    async def call(row, slot):
        calls.append(row)
        await asyncio.sleep(20 if row == 0 else 0.001)
        if row == 0:
            assert len(calls) < 200
        return row

    ran = served(call, [[n] for n in range(1000)], capacity=10, ordered=True)
    assert ran.error is None
    assert len(ran.outcomes) == 1000


def test_an_empty_batch_and_an_empty_input_end(served):
    assert served(double, [[], [1], []]).outcomes == [(1, 2)]
    assert served(double, []).outcomes == []


def test_finished_rows_leave_while_the_input_is_idle(served):
    ran = served(sleeping(lambda n: 500 if n == 2 else 1), [[1, 2, 3]], linger=1000, timeout=3000)
    assert ran.outcomes == [(1, 1), (3, 3), (2, 2)]
    assert ran.left_at[0] < 2


def test_the_finished_front_of_an_ordered_batch_leaves_while_the_rest_works(served):
    ran = served(sleeping(lambda n: 500 if n == 2 else 1), [[1, 2, 3]], linger=1000, timeout=3000, ordered=True)
    assert ran.outcomes == [(1, 1), (2, 2), (3, 3)]
    assert ran.left_at[0] < 2


def test_a_row_without_fallback_ends_the_run_with_its_error(served):
    async def call(row, slot):
        if row == 3:
            raise ValueError("three")
        await asyncio.sleep(100)

    ran = served(call, [[1, 2, 3]], timeout=1000)
    assert repr(ran.error) == "ValueError('three')"
    assert ran.ended_at < 10


def test_a_failure_gets_the_fallback(served):
    async def call(row, slot):
        raise ConnectionError

    assert served(call, [[1, 2]], fallback=fall_back).outcomes == [(1, ("fallback", 1)), (2, ("fallback", 2))]


@pytest.mark.parametrize("leaving", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_call_that_leaves_in_an_unusual_way_is_a_failure_of_its_row(served, leaving):
    async def call(row, slot):
        raise leaving

    ran = served(call, [[1, 2]], fallback=fall_back)
    assert ran.outcomes == [(1, ("fallback", 1)), (2, ("fallback", 2))]
    assert ran.ended_at < 1  # at once, not by the timeout


# -- timeouts


def test_a_timeout_comes_on_time_and_only_to_the_late_row(served):
    ran = served(sleeping(lambda n: 100 if n == 2 else 1), [[1, 2, 3]], fallback=fall_back, timeout=5)
    assert sorted(ran.outcomes) == [(1, 1), (2, ("fallback", 2)), (3, 3)]
    assert ran.counters.timeouts == 1
    assert ran.ended_at == pytest.approx(5, abs=0.3)


def test_the_cause_of_a_timeout_says_how_long_it_waited(served):
    ran = served(sleeping(lambda n: 100), [[1]], timeout=5)
    assert repr(ran.error) == "TimeoutError('no answer within 5 s')"


def test_a_cancel_never_hits_the_row_that_the_slot_serves_next(served):
    async def call(row, slot):
        await asyncio.sleep(5 if row % 2 else 4.999)  # every second one ends just as its time does
        await asyncio.sleep(0)
        return row

    ran = served(call, [list(range(100))], fallback=fall_back, timeout=5, capacity=1)
    assert sorted(row for row, _ in ran.outcomes) == list(range(100))
    assert all(result == row for row, result in ran.outcomes if row % 2 == 0)


def test_a_call_that_swallows_its_cancel_neither_answers_late_nor_disturbs_its_neighbours(served):
    async def call(row, slot):
        try:
            await asyncio.sleep(100 if row == 1 else 1)
        except asyncio.CancelledError:
            await asyncio.sleep(2)
        return row

    call = InFlightOf(call)
    ran = served(call, [[1, 2, 3]], fallback=fall_back, timeout=5, capacity=1)
    assert ran.outcomes == [(1, ("fallback", 1)), (2, 2), (3, 3)]
    assert ran.left_at[0] == pytest.approx(5, abs=0.5)
    assert call.most == 1


def test_a_swallowed_cancel_leaves_no_trace_for_timeouts_inside_later_calls(served):
    async def call(row, slot):
        if row == 1:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                return None
        try:
            await asyncio.wait_for(asyncio.sleep(50), 1)
        except (asyncio.TimeoutError, TimeoutError):
            return "inner"

    ran = served(call, [[1, 2]], fallback=fall_back, timeout=5, capacity=1)
    assert ran.outcomes == [(1, ("fallback", 1)), (2, "inner")]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older tasks do not count their cancels")
def test_a_swallowed_cancel_is_forgotten_by_the_slot(served):
    async def call(row, slot):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100 if row == 1 else 1)
        return asyncio.current_task().cancelling()  # a TaskGroup in a later call would take it for its own

    ran = served(call, [[1, 2]], fallback=fall_back, timeout=5, capacity=1)
    assert ran.outcomes == [(1, ("fallback", 1)), (2, 0)]


def test_a_call_that_never_ends_does_not_stop_the_task(served):
    async def call(row, slot):
        while row == 1 and asyncio.get_running_loop().time() < 500:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
        return row

    ran = served(call, [[1, 2, 3]], fallback=fall_back, timeout=5, capacity=1, close_timeout=2)
    assert ran.outcomes == [(1, ("fallback", 1)), (2, 2), (3, 3)]
    assert ran.counters.abandoned == 1
    assert ran.ended_at < 15


def test_a_call_is_not_abandoned_before_its_grace_is_over(served):
    async def call(row, slot):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        await asyncio.sleep(2)

    call = InFlightOf(call)
    ran = served(call, [[1], [2], [3], [4]], gap=1, fallback=fall_back, timeout=5, capacity=2, close_timeout=3)
    assert len(ran.outcomes) == 4
    assert (ran.counters.abandoned, call.most) == (0, 2)


def test_no_timeout_means_none(served):
    ran = served(sleeping(lambda n: 10_000), [[1]], timeout=float("inf"))
    assert ran.outcomes == [(1, 1)]


class InFlightOf(InFlight):
    def __init__(self, call):
        super().__init__()
        self.call = call

    async def __call__(self, row, slot):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self.call(row, slot)
        finally:
            self.now -= 1


# -- several rows per call


def batched(calls, seconds=1.0):
    async def call(rows, slot):
        calls.append(list(rows))
        await asyncio.sleep(seconds)
        return [row * 2 for row in rows]

    return call


@pytest.mark.parametrize("ordered", [True, False])
def test_a_call_takes_rows_across_batches(served, ordered):
    calls = []
    ran = served(
        batched(calls), [list(range(7)), list(range(7, 14)), list(range(14, 20))], batch_size=10, ordered=ordered
    )
    assert [len(rows) for rows in calls] == [10, 10]
    assert sorted(ran.outcomes) == [(n, 2 * n) for n in range(20)]


def test_a_call_waits_no_longer_than_batch_time_for_its_list_to_fill(served):
    calls = []
    ran = served(batched(calls), [[1, 2, 3]], batch_size=10, batch_time=4, linger=100)
    assert calls == [[1, 2, 3]]
    assert ran.left_at == [pytest.approx(5, abs=0.1)]


def test_what_is_left_after_a_full_call_has_its_own_batch_time(served):
    calls = []

    async def call(rows, slot):
        calls.append((rows, round(asyncio.get_running_loop().time(), 1)))
        await asyncio.sleep(50)
        return rows

    served(call, [[1, 2], [3, 4]], batch_size=3, batch_time=2, gap=1, linger=100, timeout=900)
    assert calls == [([1, 2, 3], 1), ([4], 3)]


def test_the_end_of_the_input_waits_for_nothing(served):
    calls = []
    ran = served(batched(calls), [[1, 2, 3]], batch_size=10, batch_time=400)
    assert ran.ended_at < 3


def test_a_call_of_several_rows_that_fails_or_times_out_gives_each_its_fallback(served):
    async def call(rows, slot):
        if 0 in rows:
            raise ConnectionError
        await asyncio.sleep(100)

    ran = served(call, [[0, 1, 2, 3]], batch_size=2, fallback=fall_back, timeout=5)
    assert sorted(ran.outcomes) == [(n, ("fallback", n)) for n in range(4)]
    assert ran.counters.timeouts == 2


@pytest.mark.parametrize(("answer", "text"), [([1], "got 1 entries"), (None, "got NoneType"), ({"a": 1}, "got dict")])
def test_a_call_of_several_rows_must_answer_for_each(served, answer, text):
    async def call(rows, slot):
        return answer

    ran = served(call, [[1, 2]], batch_size=2)
    assert text in str(ran.error)
    assert "one entry for each" in str(ran.error)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_parked_slot_keeps_no_batch_alive(virtually, batch_size):
    class Source:
        pass

    async def call(rows, slot):
        await asyncio.sleep(1)
        return rows

    async def work():
        settings = EngineSettings(capacity=10, batch_size=batch_size, batch_time=0)
        engine = AsyncEngine(call, fall_back, emit=lambda output: None, settings=settings)
        running = asyncio.ensure_future(engine.run())
        source = Source()
        alive = weakref.ref(source)
        engine.add(RowBatch(list(range(20)), source))
        del source
        await asyncio.sleep(10)
        gc.collect()
        running.cancel()
        return alive()

    assert virtually(work) is None


def test_latencies_and_load_are_counted(served):
    ran = served(sleeping(lambda n: 3 if n >= 90 else 1), [list(range(100))], capacity=50)
    snapshot = ran.counters.snapshot()
    assert snapshot["latency_p50"] == pytest.approx(1)
    assert snapshot["latency_p95"] == pytest.approx(3)
    assert (snapshot["in_flight_max"], snapshot["in_flight"]) == (50, 0)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_call_that_swallows_the_cancel_at_the_end_leaves_no_slot_behind(virtually, batch_size):
    async def call(row, slot):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        return row

    async def scenario():
        settings = EngineSettings(capacity=3, timeout=1000.0, batch_size=batch_size, close_timeout=1.0)
        engine = AsyncEngine(call, lambda row, cause: row, emit=lambda output: None, settings=settings)
        running = asyncio.ensure_future(engine.run())
        await asyncio.sleep(0)
        engine.add(RowBatch(list(range(6))))
        await asyncio.sleep(1)
        running.cancel()
        started = asyncio.get_running_loop().time()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert asyncio.get_running_loop().time() - started < 1.0
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert virtually(scenario) == set()
