"""An outage is waited for, a little longer each time, and not for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate

import pytest

from connectors.core import Fatal, Misconfigured, Transient
from connectors.ground.retry import (
    RETRY_OPTIONS,
    Backoff,
    Contact,
    RetryObserver,
    RetrySettings,
    observed_retries,
    seconds_of,
)

QUICK = RetrySettings(max_retries=3, initial_backoff=0.001, max_backoff=0.004)


def test_pauses_grow_to_the_maximum_and_jitter_only_shortens_them() -> None:
    retry = RetrySettings(initial_backoff=1.0, max_backoff=60.0, multiplier=2.0)
    for failures, full in enumerate([1, 2, 4, 8, 16, 32, 60, 60], start=1):
        assert all(full / 2 <= retry.pause(failures) <= full for _ in range(50))


def test_pauses_stay_at_the_maximum_after_thousands_of_failures() -> None:
    assert RetrySettings(max_retries=10**6, max_backoff=60.0).pause(5000) <= 60.0


def test_the_system_says_how_long_to_wait() -> None:
    assert RetrySettings().pause(1, Transient("away", retry_after=7.0)) == 7.0
    assert RetrySettings(max_backoff=5.0).pause(1, Transient("away", retry_after=7.0)) == 5.0


@pytest.mark.parametrize("seconds", [0.0, -3.0])
def test_a_system_that_wants_no_pause_gets_that_of_retries(seconds: float) -> None:
    """All tries would be over in a moment, and an outage would be a loop without a pause."""
    assert 2.0 <= RetrySettings().pause(3, Transient("away", retry_after=seconds)) <= 4.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (" 7 ", 7.0),
        ("0", 0.0),
        ("9" * 400, float("inf")),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("soon", None),
        ("\N{SUPERSCRIPT TWO}", None),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999999", None),
        ("", None),
        (None, None),
    ],
)
def test_a_header_says_how_long_to_wait_or_nothing(header: str | None, seconds: float | None) -> None:
    assert seconds_of(header) == seconds


def test_a_header_with_a_date_says_how_long_to_wait() -> None:
    seconds = seconds_of(formatdate(time.time() + 100, usegmt=True))
    assert seconds is not None
    assert 90 < seconds <= 100


def test_a_call_is_tried_again_while_the_system_is_away() -> None:
    answers = iter([Transient("away"), Transient("away"), "here"])

    def work() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert QUICK.call(work) == "here"


def test_a_call_gives_up_with_the_last_outage() -> None:
    tries = []

    def work() -> None:
        tries.append(1)
        raise Transient(f"away {len(tries)}")

    with pytest.raises(Transient, match="away 4"):
        QUICK.call(work)
    assert len(tries) == 4


def test_what_is_no_outage_is_not_tried_again() -> None:
    tries = []

    def work() -> None:
        tries.append(1)
        raise Fatal("over")

    with pytest.raises(Fatal):
        QUICK.call(work)
    assert len(tries) == 1


def test_a_loop_gives_up_when_the_tries_are_used_up_and_begins_anew_on_progress() -> None:
    backoff, outage = Backoff(QUICK), Transient("away")
    for _ in range(3):
        backoff.wait(outage, threading.Event())
    with pytest.raises(Transient):
        backoff.wait(outage, threading.Event())
    backoff.reset()
    backoff.wait(outage, threading.Event())


def test_a_wait_ends_at_once_when_nobody_waits_any_more() -> None:
    awake = threading.Event()
    threading.Timer(0.05, awake.set).start()
    start = time.monotonic()
    with pytest.raises(Transient):
        Backoff(RetrySettings(initial_backoff=60.0)).wait(Transient("away"), awake)
    assert time.monotonic() - start < 20


class Events(RetryObserver):
    def __init__(self) -> None:
        self.names: list[str] = []

    def retried(self) -> None:
        self.names.append("retried")

    def waits(self, outage: Transient, since: float, next_try: float) -> None:
        assert since <= min(time.time(), next_try)
        self.names.append(f"waits for {outage.message}")

    def resumed(self) -> None:
        self.names.append("resumed")


def failing(times: int) -> Callable[[], str]:
    outages = iter(range(times))

    def work() -> str:
        if next(outages, None) is not None:
            raise Transient("away")
        return "here"

    return work


PATIENT = replace(QUICK, max_retries=1, outage_timeout=60.0)


def test_an_outage_that_outlasts_the_tries_is_waited_for_and_observed() -> None:
    events = Events()
    with observed_retries(events):
        assert PATIENT.call(failing(4)) == "here"
    waits = ["waits for away", "retried"]
    assert events.names == ["retried", *waits, *waits, *waits, "resumed"]


def test_the_error_at_the_end_of_a_long_outage_says_how_long_it_was() -> None:
    with pytest.raises(
        Transient, match=r"away \(\d+ tries since \d\d:\d\d:\d\d UTC, longer than outageTimeout, 0.1 s\)"
    ):
        replace(PATIENT, outage_timeout=0.1).call(failing(10**9))


def test_what_an_inner_layer_has_waited_for_is_not_waited_for_again() -> None:
    calls = []

    def inner() -> None:
        calls.append(1)
        replace(PATIENT, outage_timeout=0.1).call(failing(10**9))

    with pytest.raises(Transient, match="longer than outageTimeout") as raised:
        PATIENT.call(inner)
    assert len(calls) == 1
    assert Transient.of(raised.value.state()).is_waited_for


def test_a_system_that_has_never_answered_is_given_up_with_the_tries() -> None:
    contact, calls = Contact(PATIENT), failing(3)
    with pytest.raises(Transient):
        contact.call(calls)
    assert contact.call(calls) == "here"
    assert contact.call(failing(9)) == "here"
    assert Contact(replace(PATIENT, at_start=True)).call(failing(9)) == "here"


def asking_for(seconds: float, times: int, calls: list[float]) -> Callable[[], str]:
    def work() -> str:
        calls.append(time.monotonic())
        if len(calls) <= times:
            raise Transient("busy", retry_after=seconds)
        return "here"

    return work


@pytest.mark.parametrize("reached", [False, True])
def test_a_system_that_says_when_to_come_again_is_not_asked_before(reached: bool) -> None:
    calls, events = list[float](), Events()
    contact = Contact(replace(QUICK, outage_timeout=5.0, longest_wait=5.0), reached=reached)
    with observed_retries(events):
        assert contact.call(asking_for(0.15, 1, calls)) == "here"
    assert calls[1] - calls[0] >= 0.15, "longer than the longest pause, 0.004"
    assert events.names == ["waits for busy", "retried", "resumed"]


def test_a_system_that_wants_to_be_asked_again_too_late_is_asked_once_more_at_the_end_of_the_wait() -> None:
    calls = list[float]()
    with pytest.raises(Transient, match=r"busy \(2 tries since .* longer than outageTimeout, 0.1 s\)"):
        Contact(replace(QUICK, outage_timeout=0.1, longest_wait=0.1)).call(asking_for(3600.0, 9, calls))
    assert len(calls) == 2


def test_retries_are_options() -> None:
    typed = {
        "retry.maxRetries": "7",
        "retry.initialBackoff": "200ms",
        "retry.maxBackoff": "1 min",
        "retry.multiplier": "3",
        "outageTimeout": "5min",
        "outageTimeout.atStart": "true",
    }
    expected = RetrySettings(7, 0.2, 60.0, 3, 300.0, 300.0, at_start=True)
    assert RetrySettings.of(RETRY_OPTIONS.parse("connectors.toy", typed)) == expected
    of_none = RETRY_OPTIONS.parse("connectors.toy", {})
    assert RetrySettings.of(of_none) == RetrySettings(outage_timeout=600.0, longest_wait=600.0)
    with pytest.raises(Misconfigured, match="0 or more"):
        RETRY_OPTIONS.parse("connectors.toy", {"retry.maxRetries": "-1"})
