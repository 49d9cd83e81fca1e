"""Samples over time, and conditions that are waited for."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from connectors.testing import Sampler, wait_until


def test_samples_have_their_times_in_order_and_the_last_is_taken_at_the_stop() -> None:
    values = itertools.count()
    sampler = Sampler(lambda: next(values), pause=0.001)
    wait_until(lambda: len(sampler.samples) > 3)
    before = len(sampler.samples)
    samples = sampler.stop()
    assert [value for _, value in samples] == list(range(len(samples)))
    assert [second for second, _ in samples] == sorted(second for second, _ in samples)
    assert len(samples) > before
    assert next(values) == len(samples)


def test_a_sample_that_fails_is_raised_at_the_stop() -> None:
    values = iter([1])
    sampler = Sampler(lambda: next(values))
    with pytest.raises(StopIteration):
        sampler.stop()
    assert [value for _, value in sampler.samples] == [1]


def test_a_condition_that_never_holds_is_an_error() -> None:
    values = iter([False, True])
    wait_until(lambda: next(values))
    with pytest.raises(TimeoutError, match=r"not true within 0\.01 s: .*never_holds"):
        wait_until(lambda: False, seconds=0.01)


def test_a_condition_that_takes_its_time_is_asked_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = itertools.count(step=3), list[float]()
    clock = SimpleNamespace(monotonic=lambda: next(now), sleep=pauses.append)
    monkeypatch.setattr("connectors.testing.sampling.time", clock)
    wait_until(lambda: len(pauses) == 2)
    assert pauses == [3, 3]
