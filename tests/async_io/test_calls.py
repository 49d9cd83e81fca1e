"""Retries, rate limit, circuit breaker and cache, in virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from aiolimiter import AsyncLimiter
from cachetools import TTLCache

from connectors.async_io.calls import Attempts, Cached, as_list, one_at_a_time
from connectors.async_io.policies import Cache, CircuitBreaker, Retry
from connectors.core.breaker import Breaker, CircuitOpen
from connectors.core.errors import Misconfigured, Transient


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


# -- retries


def test_a_call_is_tried_again_after_pauses_that_grow(served):
    service = Service(*[ConnectionError()] * 3)
    ran = served(None, [[1]], make_call=attempts(service, retry=Retry(3, "1s", "100s", 4)))
    assert ran.outcomes == [(1, "answer 1")]
    pauses = [later - earlier - 1 for earlier, later in pairwise(service.times)]
    assert all(full / 2 <= pause <= full for pause, full in zip(pauses, [1, 4, 16], strict=True))
    assert ran.counters.retries == 3


def test_pauses_have_a_cap_and_multiplier_one_is_a_fixed_delay(served):
    service = Service(*[ConnectionError()] * 4)
    served(None, [[1]], make_call=attempts(service, retry=Retry(4, "2s", "3s", 10)))
    assert max(b - a for a, b in pairwise(service.times)) <= 4
    service = Service(*[ConnectionError()] * 4)
    served(None, [[1]], make_call=attempts(service, retry=Retry(4, "2s", "30s", 1)))
    assert max(b - a for a, b in pairwise(service.times)) <= 3


def test_after_the_last_try_the_error_stands(served):
    service = Service(*[ConnectionError("down")] * 9)
    ran = served(None, [[1]], make_call=attempts(service, retry=Retry(2)), fallback=fall_back)
    assert repr(ran.outcomes[0][1]) == "ConnectionError('down')"
    assert len(service.calls) == 3


def test_only_the_named_exceptions_are_worth_another_try(served):
    service = Service(ValueError(), KeyError())
    ran = served(None, [[1]], make_call=attempts(service, retry=Retry(on=ValueError)), fallback=fall_back)
    assert isinstance(ran.outcomes[0][1], KeyError)
    assert len(service.calls) == 2


def test_our_own_transient_errors_are_retried_and_their_wish_is_heeded(served):
    service = Service(Transient("busy", retry_after=7))
    served(None, [[1]], make_call=attempts(service, retry=Retry(max_backoff="10s")))
    assert service.times == pytest.approx([0, 8], abs=0.01)


def test_a_result_may_be_worth_another_try_and_the_last_one_counts(served):
    service = Service("pending", "pending", "done")
    retry = Retry(1, when=lambda result: result == "pending")
    assert served(None, [[1]], make_call=attempts(service, retry=retry)).outcomes == [(1, "pending")]
    service = Service("pending", "pending", "done")
    retry = Retry(5, when=lambda result: result == "pending")
    assert served(None, [[1]], make_call=attempts(service, retry=retry)).outcomes == [(1, "done")]


def test_the_timeout_covers_all_tries(served):
    service = Service(*[ConnectionError()] * 100, seconds=3)
    ran = served(None, [[1]], make_call=attempts(service, retry=Retry(50, "1s", "1s")), fallback=fall_back, timeout=10)
    assert isinstance(ran.outcomes[0][1], TimeoutError)
    assert ran.left_at[0] == pytest.approx(10, abs=0.3)
    assert len(service.calls) <= 4


def test_a_call_that_turns_its_cancel_into_an_error_is_not_tried_again(served):
    calls = []

    async def service(row):
        calls.append(row)
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise ConnectionError from None

    ran = served(None, [[1]], make_call=attempts(service, retry=Retry(5)), fallback=fall_back, timeout=10, linger=50)
    assert len(ran.outcomes) == 1
    assert calls == [1]


# -- rate limit


def test_calls_keep_to_the_rate(served):
    service = Service(seconds=0.01)
    served(None, [list(range(100))], make_call=attempts(service, limiter=(2, 0.1)))
    for start in range(100):
        in_a_second = [at for at in service.times if service.times[start] <= at < service.times[start] + 1]
        assert len(in_a_second) <= 22
    assert service.times[-1] == pytest.approx(4.9, abs=0.2)


def test_waiting_for_the_rate_is_not_the_rows_time(served):
    service = Service(seconds=1)
    ran = served(None, [list(range(50))], make_call=attempts(service, limiter=(1, 1)), timeout=5)
    assert ran.error is None
    assert ran.counters.timeouts == 0


def test_the_rows_time_goes_on_after_waiting_for_the_rate(served):
    service = Service(seconds=100)
    ran = served(None, [[1, 2]], make_call=attempts(service, limiter=(1, 20)), timeout=5, fallback=fall_back)
    assert ran.left_at == [pytest.approx(25, abs=0.5)] or ran.left_at == [
        pytest.approx(5, abs=0.5),
        pytest.approx(25, abs=0.5),
    ]


# -- circuit breaker


def test_an_open_circuit_makes_no_calls(served):
    service = Service(*[ConnectionError()] * 100, seconds=0.1)
    ran = served(
        None,
        [list(range(20))],
        make_call=attempts(service, breaker=CircuitBreaker(3, "30s"), retry=Retry(0)),
        capacity=1,
        fallback=fall_back,
    )
    assert len(service.calls) == 3
    assert [type(cause) for _, cause in ran.outcomes] == [ConnectionError] * 3 + [CircuitOpen] * 17
    assert ran.counters.rejected == 17


def test_an_open_circuit_is_not_worth_a_retry(served):
    service = Service(*[ConnectionError()] * 100, seconds=0.1)
    breaker = CircuitBreaker(2, "30s")
    ran = served(None, [[1]], make_call=attempts(service, breaker=breaker, retry=Retry(9)), fallback=fall_back)
    assert isinstance(ran.outcomes[0][1], CircuitOpen)
    assert len(service.calls) == 2


def test_after_its_time_one_call_is_on_trial_and_its_success_closes_the_circuit(served):
    service = Service(*[ConnectionError()] * 2, seconds=0.1)
    ran = served(
        None,
        [[1], [2], [3, 4, 5], [6, 7]],
        make_call=attempts(service, breaker=CircuitBreaker(2, "30s")),
        gap=31,
        fallback=lambda row, cause: "none",
    )
    assert [(row, result) for row, result in ran.outcomes if result != "none"][-2:] == [
        (6, "answer 6"),
        (7, "answer 7"),
    ]
    assert len([row for row, _ in service.calls if row in (3, 4, 5)]) == 1


def test_rows_that_come_after_a_successful_trial_are_asked_for_even_in_the_same_batch(served):
    service = Service(*[ConnectionError()] * 2, seconds=0)
    ran = served(
        None,
        [[-1], [-2], list(range(100))],
        make_call=attempts(service, breaker=CircuitBreaker(2, "30s")),
        gap=31,
        capacity=5,
        fallback=lambda row, cause: "none",
    )
    assert len([row for row, result in ran.outcomes if result == f"answer {row}"]) > 80


def test_a_failed_trial_keeps_the_circuit_open(served):
    service = Service(*[ConnectionError()] * 3, seconds=0.1)
    served(
        None,
        [[1, 2], [3], [4], [5]],
        make_call=attempts(service, breaker=CircuitBreaker(2, "30s")),
        gap=20,
        fallback=lambda row, cause: "none",
    )
    assert [row for row, _ in service.calls] == [
        1,
        2,
        4,
    ]  # 3 at 20 s is too early; 4 on trial at 40 s fails; 5 at 60 s waits


def test_timeouts_open_the_circuit(served):
    service = Service(seconds=100)
    ran = served(
        None,
        [list(range(5))],
        make_call=attempts(service, breaker=CircuitBreaker(2, "1 hour")),
        timeout=5,
        capacity=1,
        fallback=fall_back,
    )
    assert len(service.calls) == 2
    assert len(ran.outcomes) == 5


def test_successes_between_failures_keep_the_circuit_closed(served):
    service = Service(ConnectionError(), "ok", ConnectionError(), "ok", ConnectionError())
    ran = served(
        None, [list(range(6))], make_call=attempts(service, breaker=CircuitBreaker(2)), capacity=1, fallback=fall_back
    )
    assert ran.counters.rejected == 0


# -- cache


def cached(service, store=None, several=False):
    store = {} if store is None else store

    def make(counters):
        async def one(row, slot):
            return await service(row["id"])

        async def many(rows, slot):
            return list(await service(tuple(row["id"] for row in rows)))

        layer = Cached(many if several else as_list(one), ["id"], store, counters)
        return layer if several else one_at_a_time(layer)

    return make


def rows(*ids):
    return [{"id": n, "other": position} for position, n in enumerate(ids)]


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


def test_a_failure_is_shared_by_those_that_wait_for_it(served):
    service = Service(ConnectionError())
    ran = served(None, [rows(1, 1, 1)], make_call=cached(service), fallback=lambda row, cause: "none")
    assert len(service.calls) == 1
    assert [result for _, result in ran.outcomes] == ["none"] * 3


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


# -- descriptions


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Retry(-1, "soon"), ["2 problems", "max_retries", "initial_backoff", "a duration such as"]),
        (lambda: Retry(on=("ValueError",)), ["on", "exception classes"]),
        (lambda: Cache([], 0, "x"), ["3 problems", "key", "size", "ttl"]),
        (lambda: CircuitBreaker(0, "later"), ["2 problems", "failures", "reset_timeout"]),
    ],
)
def test_a_description_that_cannot_work_lists_all_its_problems(make, told):
    with pytest.raises(Misconfigured) as caught:
        make()
    assert all(part in str(caught.value) for part in told)
