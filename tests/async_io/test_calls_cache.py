"""Answers that are kept, and shared by who asks at the same time."""

from __future__ import annotations

import asyncio

from aiolimiter import AsyncLimiter
from cachetools import TTLCache

from connectors.async_io.calls import Attempts, Cached, as_list, one_at_a_time

from .services import Service, cached, rows


def test_equal_keys_are_asked_once_also_while_in_flight(served):
    service = Service()
    ran = served(None, [rows(1, 1, 2, 1), rows(2, 1)], make_call=cached(service))
    assert sorted(row for row, _ in service.calls) == [1, 2]
    assert all(result == f"answer {row['id']}" for row, result in ran.outcomes)
    assert (ran.counters.cache_hits, ran.counters.cache_misses) == (4, 2)


def test_missing_keys_are_kept_too(served):
    service = Service(None, None)
    ran = served(None, [rows(1), rows(1)], make_call=cached(service), gap=10)
    assert len(service.calls) == 1
    assert [result for _, result in ran.outcomes] == [None, None]


def test_failures_are_not_kept(served):
    service = Service(ConnectionError())
    ran = served(None, [rows(1), rows(1)], make_call=cached(service), gap=10, fallback=lambda row, cause: "none")
    assert [result for _, result in ran.outcomes] == ["none", "answer 1"]


def test_who_waits_for_a_call_that_ran_out_of_time_asks_again(served):
    calls = []

    async def service(key):
        calls.append(key)
        await asyncio.sleep(1000 if len(calls) == 1 else 1)
        return "answer"

    ran = served(
        None,
        [rows(1), rows(1)],
        make_call=cached(service),
        gap=3,
        timeout=5,
        fallback=lambda row, cause: "none",
        linger=60,
    )
    assert sorted(result for _, result in ran.outcomes) == ["answer", "none"]


def test_who_runs_out_of_time_waiting_for_an_answer_disturbs_nobody_else(served):
    service = Service()

    def make(counters):
        attempt = Attempts(lambda row: service(row["id"]), counters, None, AsyncLimiter(1, 20), None)
        return one_at_a_time(Cached(as_list(attempt), ["id"], {}, counters))

    # the second call waits 20 seconds for the rate, off the clock; those that wait for its answer do not have so long
    ran = served(None, [rows(0, 1, 1, 1)], make_call=make, timeout=5, fallback=lambda row, cause: "none")
    assert sorted(result for _, result in ran.outcomes) == ["answer 0", "answer 1", "none", "none"]


def test_answers_expire_and_the_least_used_go_first(served, virtually):
    service = Service(seconds=0)

    async def timed():
        return TTLCache(2, 10, timer=asyncio.get_running_loop().time)

    store = virtually(timed)
    served(None, [rows(1), rows(1), rows(2), rows(3), rows(1)], make_call=cached(service, store), gap=0.1, capacity=1)
    assert [row for row, _ in service.calls] == [1, 2, 3, 1]


def test_a_call_of_several_rows_asks_only_for_what_is_missing(served):
    calls = []

    async def service(keys):
        calls.append(keys)
        return [f"answer {key}" for key in keys]

    ran = served(None, [rows(1, 2, 1), rows(2, 3, 3)], make_call=cached(service, several=True), batch_size=3, gap=10)
    assert calls == [(1, 2), (3,)]
    assert [result for _, result in ran.outcomes] == [
        "answer 1",
        "answer 2",
        "answer 1",
        "answer 2",
        "answer 3",
        "answer 3",
    ]
