"""What tasks and drivers had received that died."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from connectors.core.planning import INITIAL
from connectors.ground.errors import Fatal, Transient
from connectors.testing.source_suite import SourceQuery
from connectors.testing.sqlite_file import transaction
from tests.core.epochs.queries import to_the_end
from tests.queue_source import DoubleReceiver
from tests.systems.reference_contexts import QueueContext


def test_a_run_waits_for_what_a_dead_attempt_at_a_task_had_received(
    system: QueueContext, caplog: pytest.LogCaptureFixture
) -> None:
    system.write(20)
    query, log = SourceQuery(system, lease="1s", maxEpochTime="500ms"), []
    query.planner.freeze()
    assert query.plan(log) == 0
    (part,) = query.planner.slices(INITIAL, log[0])
    assert len(system.queue.receive(20, 1.0)) == 20
    assert query.rows(replace(part, retried=True)) == []
    assert to_the_end(query, log) == list(range(20))
    assert len(log) < 8
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "connectors"]
    assert "a task or a driver died" in warning
    assert "the query waits up to 1.02 s" in warning


def test_a_run_waits_for_what_came_before_an_outage_of_the_queue(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.write(20)
    query, log = SourceQuery(system, lease="1s", maxEpochTime="500ms", **{"retry.initialBackoff": "10ms"}), []
    query.planner.freeze()
    receive, calls = DoubleReceiver.receive, []

    def receive_before_an_outage(receiver: DoubleReceiver, *arguments: Any) -> Any:
        calls.append(arguments)
        messages = receive(receiver, *arguments)
        if len(calls) == 1:
            raise Transient("the queue is away")
        return messages

    monkeypatch.setattr(DoubleReceiver, "receive", receive_before_an_outage)
    assert to_the_end(query, log) == list(range(20))


def test_a_run_waits_for_what_a_dead_driver_has_held_for_a_later_run(system: QueueContext) -> None:
    options = {"lease": "1s", "maxEpochTime": "500ms", "maxRowsPerTrigger": "4"}
    system.write(8)
    dead, log = SourceQuery(system, **options), []
    dead.planner.freeze()
    system.write(3)
    with transaction(system.queue.path) as file:  # the newest come first
        file.execute("UPDATE messages SET rowid = -rowid")
    rows = [dead.next(log), dead.next(log)]
    enumerator: Any = dead.planner.enumerator
    enumerator._keeper.end()
    query = SourceQuery(system, **options)
    query.planner.freeze()
    assert query.batch(log, 1) == rows[1]
    assert to_the_end(query, log) == [8, 9, 10]


def test_a_batch_that_is_planned_for_each_action_on_it_makes_the_wait_for_the_dead_no_longer(system: QueueContext) -> None:
    system.write(8)
    query, log = SourceQuery(system, lease="1s", maxEpochTime="500ms", maxRowsPerTrigger="1"), []
    query.planner.freeze()
    for is_first in [True] + 3 * [False]:
        number = query.plan(log)
        assert number is not None
        for _ in range(2):
            (part,) = query.planner.slices(log[number - 1] if number else INITIAL, log[number])
            assert len(query.rows(replace(part, retried=is_first))) == 1
            time.sleep(0.1)
    enumerator: Any = query.planner.enumerator
    assert enumerator._orphans_until < time.monotonic() + 0.6


def test_a_run_whose_attempts_die_in_each_epoch_ends_with_an_error_unless_messages_come(system: QueueContext) -> None:
    """Each first attempt takes what there is, and dies with it."""
    options = {"lease": "400ms", "maxEpochTime": "100ms", "maxRowsPerTrigger": "1", "pollInterval": "10ms"}
    system.write(20)
    query, log = SourceQuery(system, **options), []
    query.planner.freeze()

    def batch(is_stolen: bool) -> int:
        number = query.plan(log)
        assert number is not None
        (part,) = query.planner.slices(log[number - 1] if number else INITIAL, log[number])
        if is_stolen:
            system.queue.receive(20, 60.0)
        return len(query.rows(replace(part, retried=True)))

    assert sum(batch(is_stolen=False) for _ in range(12)) >= 10
    assert [batch(is_stolen=True) for _ in range(8)] == [0] * 8
    with pytest.raises(Fatal, match=r"(?s)last 9 epochs an attempt at a task has died.*had received is left.*within 0\.42 s"):
        [batch(is_stolen=True) for _ in range(2)]
    with transaction(system.queue.path) as file:
        file.execute("UPDATE messages SET visible = 0")
    again = SourceQuery(system, **options)
    again.planner.freeze()
    assert len(to_the_end(again, log)) >= 8
