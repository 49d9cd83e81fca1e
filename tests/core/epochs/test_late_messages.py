"""Messages that are too late for a run, and how long an epoch receives."""

from __future__ import annotations

import time
from typing import Any

import pytest

from connectors.core import Misconfigured
from connectors.core.leases import LeaseKeeper
from connectors.testing.source_suite import SourceQuery
from connectors.testing.sqlite_file import transaction
from tests.core.epochs.queries import hide, to_the_end, values
from tests.queue_source import DoubleReceiver, QueueDoubleSource
from tests.systems.reference_contexts import QueueContext


def test_a_queue_stops_at_a_time_only_in_a_run_that_ends(system: QueueContext) -> None:
    with pytest.raises(Misconfigured, match="availableNow"):
        SourceQuery(system, stopAt="2026-11-28T10:00:00Z").next([])


def test_a_running_query_receives_what_came_too_late_for_the_one_that_ended(system: QueueContext) -> None:
    system.write(2)
    ending, log = SourceQuery(system), []
    ending.planner.freeze()
    system.write(3)
    assert values(ending.rest(log)) == [0, 1]
    assert values(SourceQuery(system).rest(log)) == [2, 3, 4]


def test_messages_that_are_too_late_for_a_run_are_held_beyond_their_leases_and_given_back_at_its_end(
    system: QueueContext,
) -> None:
    system.write(40)
    query, log = SourceQuery(system, lease="1s", maxEpochTime="100ms", maxRowsPerTrigger="10"), []
    query.planner.freeze()
    system.write(3)
    with transaction(system.queue.path) as file:  # the newest come first
        file.execute("UPDATE messages SET rowid = -rowid")
    rows = []
    for _ in range(4):
        rows += query.next(log) or []
        time.sleep(0.35)
    rows += query.next(log) or []
    assert query.next(log) is None
    assert values(rows) == list(range(40))
    assert system.queue.waiting() == 0
    query.planner.close()
    assert system.queue.waiting() == 3
    with transaction(system.queue.path) as file:
        assert file.execute("SELECT max(deliveries) FROM messages").fetchone() == (1,)


def test_of_very_many_messages_that_are_too_late_a_run_holds_the_newest(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.core.leases._MOST_LATE", 3)
    keeper = LeaseKeeper(QueueDoubleSource.of(system.options(), streaming=True), 60.0)
    keeper.hold(["1", "2"])
    keeper.hold(["3", "4", "5"])
    assert keeper.stop() == ["3", "4", "5"]


def test_a_run_whose_newer_messages_come_first_waits_for_the_others_as_long_as_for_any(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DoubleReceiver, "pending", lambda _: None)
    system.write(3)
    hide(system)
    query = SourceQuery(system, drainTimeout="1s")
    query.planner.freeze()
    system.write(1)
    receive = DoubleReceiver.receive

    def receive_newer_first(receiver: DoubleReceiver, *arguments: Any) -> Any:
        messages = receive(receiver, *arguments)
        if messages is not None and 3 in messages.rows["value"].to_pylist():
            with transaction(system.queue.path) as file:
                file.execute("UPDATE messages SET visible = ? WHERE body < 3", (time.time() + 0.3,))
        return messages

    monkeypatch.setattr(DoubleReceiver, "receive", receive_newer_first)
    assert to_the_end(query, []) == [0, 1, 2]


def test_a_reader_that_holds_many_messages_that_are_too_late_looks_no_further(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.core.epoch_reader._LATE", 3)
    receive = DoubleReceiver.receive
    monkeypatch.setattr(DoubleReceiver, "receive", lambda receiver, rows, seconds: receive(receiver, 1, seconds))
    query, log = SourceQuery(system, maxRowsPerTrigger="3"), []
    query.planner.freeze()
    system.write(10)
    assert to_the_end(query, log) == []
    assert len(log) == 1
    assert system.queue.waiting() == 7
    query.planner.close()
    assert system.queue.waiting() == 10


@pytest.mark.parametrize("most", [7, 100])
def test_a_run_that_stops_at_a_time_looks_behind_the_backlog_of_later_messages(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    """The messages of a run that died come again behind those that were published since."""
    monkeypatch.setattr("connectors.core.epoch_reader._LATE", 3)
    monkeypatch.setattr("connectors.core.leases._MOST_LATE", most)
    receive = DoubleReceiver.receive
    monkeypatch.setattr(DoubleReceiver, "receive", lambda receiver, rows, seconds: receive(receiver, 1, seconds))
    system.write(2)
    time.sleep(0.01)
    stop = str(time.time_ns() // 1_000_000 + 1)
    time.sleep(0.01)
    system.write(20)
    with transaction(system.queue.path) as file:
        file.execute("UPDATE messages SET rowid = 1000 + body WHERE body < 2")
    query, log = SourceQuery(system, stopAt=stop), []
    query.planner.freeze()
    assert to_the_end(query, log) == ([0, 1] if most == 100 else [])
    assert ("earlier ones behind them are left" in caplog.text) is (most == 7)
    query.planner.close()
    system.settle()
    assert len(to_the_end(SourceQuery(system), log)) == (20 if most == 100 else 22)


def test_an_epoch_must_not_receive_for_longer_than_the_lease_of_its_messages(system: QueueContext) -> None:
    system.write(3)
    query = SourceQuery(system, lease="2s", maxEpochTime="3s")
    for _ in range(2):
        with pytest.raises(Misconfigured, match=r"maxEpochTime +is 3s, but messages are leased for 2s") as error:
            query.next([])
    assert "Give 2s or less, or a longer lease." in str(error.value)


@pytest.mark.parametrize("trigger", ["availableNow", "processingTime"])
def test_an_epoch_that_must_not_wait_for_messages_receives_those_that_are_there(system: QueueContext, trigger: str) -> None:
    system.write(3)
    query = SourceQuery(system, pollInterval="0s", drainTimeout="0s")
    if trigger == "availableNow":
        query.planner.freeze()
    assert values(query.next([]) or []) == [0, 1, 2]


def test_an_epoch_ends_in_time_however_long_it_waits_for_its_first_message(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = DoubleReceiver.receive

    def receive_slowly(receiver: DoubleReceiver, rows: int, seconds: float) -> Any:
        time.sleep(0.02)
        return receive(receiver, 1, seconds)

    monkeypatch.setattr(DoubleReceiver, "receive", receive_slowly)
    system.write(100)
    query = SourceQuery(system, lease="1s", maxEpochTime="200ms", drainTimeout="5s")
    query.planner.freeze()
    assert 1 <= len(query.next([]) or []) <= 10


def test_what_was_too_late_for_a_dead_run_is_not_held_from_a_run_without_an_end(system: QueueContext) -> None:
    options = {"lease": "600ms", "maxEpochTime": "100ms", "maxRowsPerTrigger": "2"}
    system.write(2)
    dead, log = SourceQuery(system, **options), []
    dead.planner.freeze()
    dead.next(log)
    system.write(3)
    assert dead.next(log) == []
    enumerator: Any = dead.planner.enumerator
    enumerator._keeper.end()
    query, restored = SourceQuery(system, **options), log[:1]
    end, rows = time.monotonic() + 1.5, []
    while len(rows) < 3 and time.monotonic() < end:
        rows += query.next(restored) or []
        time.sleep(0.02)
    assert values(rows) == [2, 3, 4]
