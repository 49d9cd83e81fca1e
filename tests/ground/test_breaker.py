"""The circuit breaker: closed, open, half-open."""

from __future__ import annotations

import pytest

from connectors.core import Poison, Transient
from connectors.ground.retry import Breaker, BreakerPolicy, CircuitOpen


class Service:
    """Fails while it is down; counts its calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = 0
        self.down = True
        self.breaker = Breaker(BreakerPolicy(3, 30.0), lambda: self.now)

    def call(self) -> str:
        return self.breaker.call(self._answer)

    def _answer(self) -> str:
        self.calls += 1
        if self.down:
            raise Transient("away")
        return "here"

    def break_down(self) -> None:
        for _ in range(3):
            with pytest.raises(Transient):
                self.call()


@pytest.fixture
def service() -> Service:
    return Service()


def test_it_opens_after_failures_in_a_row_and_then_makes_no_call(service: Service) -> None:
    service.break_down()
    with pytest.raises(CircuitOpen, match="3 failures in a row") as refused:
        service.call()
    assert (service.calls, refused.value.retry_after) == (3, 30.0)


def test_a_success_in_between_starts_the_count_again(service: Service) -> None:
    for _ in range(4):
        for down in (True, True, False):
            service.down = down
            if down:
                with pytest.raises(Transient):
                    service.call()
            else:
                assert service.call() == "here"
    assert service.calls == 12


def test_after_the_reset_timeout_one_call_decides(service: Service) -> None:
    service.break_down()
    service.now = 30.0
    with pytest.raises(Transient, match="away"):
        service.call()
    with pytest.raises(CircuitOpen):
        service.call()
    service.now, service.down = 60.0, False
    assert service.call() == "here"
    assert service.call() == "here"
    assert service.calls == 6


def test_only_one_call_is_on_trial(service: Service) -> None:
    service.break_down()
    service.now = 31.0
    service.breaker.begin()
    with pytest.raises(CircuitOpen):
        service.call()


def test_a_bad_record_is_no_failure_of_the_service(service: Service) -> None:
    def refuse() -> None:
        raise Poison("bad")

    for _ in range(10):
        with pytest.raises(Poison):
            service.breaker.call(refuse)
    service.down = False
    assert service.call() == "here"
