"""Tries, time and rate of calls; and descriptions that cannot work."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from connectors.async_io.calls import Cache, CircuitBreaker, Retry
from connectors.ground.errors import Misconfigured, Transient

from .services import Service, attempts, cached, fall_back, rows


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
    served(None, [[1]], make_call=attempts(service, retry=Retry(max_backoff="1s")))
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


def test_a_failure_is_shared_by_those_that_wait_for_it(served):
    service = Service(ConnectionError())
    ran = served(None, [rows(1, 1, 1)], make_call=cached(service), fallback=lambda row, cause: "none")
    assert len(service.calls) == 1
    assert [result for _, result in ran.outcomes] == ["none"] * 3


@pytest.mark.parametrize(
    ("make", "texts"),
    [
        (lambda: Retry(-1, "soon"), ["2 problems", "max_retries", "initial_backoff", "a duration such as"]),
        (lambda: Retry(on=("ValueError",)), ["on", "exception classes"]),
        (lambda: Cache([], 0, "x"), ["3 problems", "key", "size", "ttl"]),
        (lambda: CircuitBreaker(0, "later"), ["2 problems", "failures", "reset_timeout"]),
    ],
)
def test_a_description_that_cannot_work_lists_all_its_problems(make, texts):
    with pytest.raises(Misconfigured) as caught:
        make()
    assert all(part in str(caught.value) for part in texts)
