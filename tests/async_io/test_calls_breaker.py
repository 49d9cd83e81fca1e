"""The circuit breaker around calls."""

from __future__ import annotations

from connectors.async_io.calls import CircuitBreaker, Retry
from connectors.ground.retry import CircuitOpen

from .services import Service, attempts, fall_back


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
