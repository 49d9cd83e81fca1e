"""The sink without transactions: producers that outlive a task, each one task's alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connectors.core import Guarantee, Transient
from connectors.systems.kafka import producer

from .sink_target import TEXT, Target, rows

WITHOUT: dict[str, Any] = {"transactionalIdPrefix": None, "stagingLocation": None}


@pytest.fixture(autouse=True)
def empty_pool() -> Iterator[None]:
    producer.PRODUCERS.close_all()
    yield
    producer.PRODUCERS.close_all()


def test_a_sink_without_a_prefix_is_at_least_once(target: Target) -> None:
    assert target.sink(**WITHOUT).guarantee() is Guarantee.AT_LEAST_ONCE
    target.write(rows(1, 2), TEXT, **WITHOUT)
    assert target.values() == ["v1", "v2"]


def test_the_next_task_has_the_producer_of_the_last_one(target: Target) -> None:
    target.write(rows(1), TEXT, **WITHOUT)
    (pooled,) = producer.PRODUCERS.clients()
    target.write(rows(2), TEXT, **WITHOUT)
    assert producer.PRODUCERS.clients() == [pooled]
    assert target.values() == ["v1", "v2"]


def test_two_tasks_at_once_have_two_producers_and_few_are_kept(target: Target) -> None:
    producers = [producer.take_producer(target.sink(**WITHOUT)) for _ in range(10)]
    assert len(set(producers)) == 10
    for pooled in producers:
        pooled.give_back()
    assert producer.PRODUCERS.clients() == producers[2:]
    assert [pooled.producer is None for pooled in producers] == [True] * 2 + [False] * 8


def test_a_producer_whose_records_did_not_arrive_is_not_used_again(target: Target) -> None:
    producer.take_producer(target.sink(**WITHOUT)).give_back()
    (pooled,) = producer.PRODUCERS.clients()
    pooled.reports.delivered(Refused(), None)
    with pytest.raises(Transient, match="did not arrive: the broker is away"):
        target.write(rows(1), TEXT, **WITHOUT)
    assert producer.PRODUCERS.clients() == []
    target.write(rows(2), TEXT, **WITHOUT)
    assert target.values()[-1] == "v2"


class Refused:
    """What the client tells of a record that did not arrive."""

    def name(self) -> str:
        return "_MSG_TIMED_OUT"

    def str(self) -> str:
        return "the broker is away"
