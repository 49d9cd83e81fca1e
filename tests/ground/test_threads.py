"""Calls on threads: a new one for each call that hangs, and none too many."""

from __future__ import annotations

import threading

import pytest

from connectors.ground.threads import DaemonThreads


def test_calls_one_after_the_other_share_a_thread() -> None:
    threads = DaemonThreads("one")
    names = {threads.submit(threading.get_ident).result(10) for _ in range(50)}
    assert len(names) == 1
    threads.shutdown()


def test_a_call_that_hangs_is_replaced_by_a_thread_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    threads, over = DaemonThreads("two", most=3), threading.Event()
    hanging = [threads.submit(over.wait, 60) for _ in range(2)]
    assert threads.submit(lambda: "answer").result(10) == "answer"
    hanging.append(threads.submit(over.wait, 60))
    waiting = [threads.submit(lambda: "late") for _ in range(2)]
    assert caplog.text.count("two: 3 threads are busy with calls that do not return") == 1
    over.set()
    assert [call.result(10) for call in waiting] == ["late", "late"]
    threads.shutdown()


def test_an_error_and_a_cancel_are_the_callers() -> None:
    threads, over = DaemonThreads("three", most=1), threading.Event()
    first = threads.submit(over.wait, 60)
    second, third = threads.submit(lambda: "never"), threads.submit(lambda: 1 / 0)
    assert second.cancel()
    over.set()
    assert first.result(10)
    with pytest.raises(ZeroDivisionError):
        third.result(10)
    threads.shutdown()
