"""Leases of messages: how long they are extended, and how long the ids of those are known whose leases may have ended."""

from __future__ import annotations

import gc
import json
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import metrics
from connectors.core.epochs import HISTORY, EpochLog
from connectors.core.leases import EpochLeases
from connectors.core.planning import source_id
from connectors.ground.errors import Transient
from connectors.testing.source_suite import SourceQuery
from tests.core.epochs.queries import hide, log_of, values
from tests.queue_source import DoubleReceiver
from tests.systems.reference_contexts import QueueContext


def test_leases_are_extended_and_counted_while_the_batch_runs(
    system: QueueContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path / "metrics"))
    system.write(3)
    query, log = SourceQuery(system, lease="300ms", maxEpochTime="100ms"), []
    query.next(log)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert system.queue.waiting() == 0
        time.sleep(0.02)
    query.planner.close()
    source = query.source
    (file,) = metrics.planned([(source.name, source_id(source))])
    assert file["events"][""]["extended"] >= 6
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "connectors"]
    assert "epoch 1 takes longer than the lease of its messages (0.3 s), which is extended until the batch ends" in warning


def test_an_epoch_that_waits_for_its_first_message_is_not_told_as_a_batch_that_takes_long(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(DoubleReceiver, "pending", lambda _: None)
    assert SourceQuery(system, lease="300ms", maxEpochTime="100ms", pollInterval="700ms").next([]) == []
    assert [record.getMessage() for record in caplog.records if record.name == "connectors"] == []


def test_leases_are_extended_no_more_after_the_acknowledgement(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, log = SourceQuery(system, lease="300ms", maxEpochTime="100ms"), []
    for _ in range(3):
        system.write(3)
        query.next(log)
    assert query.next(log) is None
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, EpochLeases)], "those of earlier epochs are freed"
    (keeper,) = [thread for thread in threading.enumerate() if thread.name == "connectors.leases"]
    extended: list[Any] = []
    monkeypatch.setattr(DoubleReceiver, "extend", lambda _, leases: extended.append(leases))
    time.sleep(0.3)
    assert not extended
    query.planner.close()
    assert not keeper.is_alive()


def test_leases_are_extended_no_more_when_the_driver_drops_its_plan_unclosed(system: QueueContext) -> None:
    system.write(3)
    query, log = SourceQuery(system), []
    number = query.plan(log)
    assert number is not None
    query.tasks(log, number)
    (keeper,) = [thread for thread in threading.enumerate() if thread.name == "connectors.leases"]
    system.planners.clear()
    del query
    gc.collect()
    keeper.join(5)
    assert not keeper.is_alive()


def _rows_behind_a_backlog(system: QueueContext, query: SourceQuery, log: list[Any]) -> list[int]:
    """What the query reads of the messages that were hidden, when the epoch that had them is deleted."""
    for _ in range(HISTORY + 3):
        system.write(1)
        query.next(log)
    time.sleep(0.05)
    system.queue.end_leases()
    return values(query.next(log) or [])


def test_messages_whose_leases_ended_before_they_were_acknowledged_are_known_for_as_long_as_the_system_keeps_them(
    system: QueueContext,
) -> None:
    options = {"lease": "200ms", "maxEpochTime": "100ms", "deduplicationWindow": "10ms"}
    system.write(3)
    log: list[Any] = []
    killed = SourceQuery(system, **options)
    killed.next(log)
    killed.planner.close()
    time.sleep(0.25)
    hide(system)
    query = SourceQuery(system, **options)
    assert _rows_behind_a_backlog(system, query, log) == []
    query.planner.latest(log[-1])
    assert system.queue.unacknowledged() == 0


@pytest.mark.parametrize("ends", ["while the driver stands still", "at last"])
def test_messages_whose_leases_were_not_extended_in_time_are_known_for_as_long_as_the_system_keeps_them(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    options = {"lease": "300ms", "maxEpochTime": "100ms", "deduplicationWindow": "10ms"}
    system.write(3)
    log: list[Any] = []
    query = SourceQuery(system, **options)
    extend, is_away = DoubleReceiver.extend, threading.Event()

    def away(receiver: DoubleReceiver, leases: Any) -> None:
        if is_away.is_set():
            raise Transient("the queue is away")
        extend(receiver, leases)

    monkeypatch.setattr(DoubleReceiver, "extend", away)
    is_away.set()
    query.next(log)
    time.sleep(0.5)
    hide(system)
    if ends == "while the driver stands still":
        is_away.clear()
        time.sleep(0.25)
    is_away.clear()
    assert _rows_behind_a_backlog(system, query, log) == []


def test_messages_whose_leases_ended_while_they_were_acknowledged_are_known_for_as_long_as_the_system_keeps_them(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"lease": "300ms", "maxEpochTime": "100ms", "deduplicationWindow": "10ms"}
    system.write(3)
    query, log = SourceQuery(system, **options), []
    query.next(log)
    acknowledge = DoubleReceiver.acknowledge

    def acknowledge_late(receiver: DoubleReceiver, leases: Any) -> None:
        monkeypatch.undo()
        time.sleep(0.5)
        hide(system)
        acknowledge(receiver, leases)

    monkeypatch.setattr(DoubleReceiver, "acknowledge", acknowledge_late)
    query.planner.latest(log[-1])
    assert _rows_behind_a_backlog(system, query, log) == []


def test_messages_whose_leases_ended_before_they_were_recorded_are_known_for_as_long_as_the_system_keeps_them(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, log = SourceQuery(system, lease="400ms", maxEpochTime="100ms", deduplicationWindow="10ms"), []
    known_ids = EpochLog.known_ids

    def known_ids_late(log: EpochLog, *arguments: Any) -> pa.ChunkedArray:
        time.sleep(0.5)
        return known_ids(log, *arguments)

    monkeypatch.setattr(EpochLog, "known_ids", known_ids_late)
    system.write(3)
    query.next(log)
    monkeypatch.undo()
    for _ in range(HISTORY + 3):
        system.write(1)
        query.next(log)
    ends = {int(name[:20]): float(name.removesuffix(".arrow")[21:]) for name in log_of(system).storage.names("ids")}
    assert [epoch for epoch, end in ends.items() if end > time.time() + 3600] == [1]


def test_the_lease_of_a_message_is_not_taken_for_as_old_as_the_wait_for_it(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of messages whose leases may have ended are known for as long as the system keeps messages."""
    monkeypatch.setattr(DoubleReceiver, "pending", lambda _: None)
    query = SourceQuery(system, lease="600ms", maxEpochTime="100ms", pollInterval="3s")
    publication = threading.Timer(0.9, system.write, [1])
    publication.start()
    assert values(query.next([]) or []) == [0]
    publication.join()
    (header,) = log_of(system).headers(1)
    assert header.age < 0.6


def test_messages_that_were_recorded_and_extended_late_are_known_for_as_long_as_the_system_keeps_them(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the age of the leases nor the pause after it is longer than a lease, but both together are."""
    query, log = SourceQuery(system, lease="800ms", maxEpochTime="100ms", deduplicationWindow="10ms"), []
    known_ids, extend, begin = EpochLog.known_ids, DoubleReceiver.extend, time.monotonic()

    def known_ids_late(log: EpochLog, *arguments: Any) -> pa.ChunkedArray:
        time.sleep(0.5)
        return known_ids(log, *arguments)

    def extend_late(receiver: DoubleReceiver, leases: Any) -> None:
        if time.monotonic() < begin + 1.0:
            raise Transient("the queue is away")
        extend(receiver, leases)

    monkeypatch.setattr(EpochLog, "known_ids", known_ids_late)
    monkeypatch.setattr(DoubleReceiver, "extend", extend_late)
    system.write(3)
    query.next(log)
    monkeypatch.setattr(EpochLog, "known_ids", known_ids)
    time.sleep(max(0.0, begin + 0.9 - time.monotonic()))
    query.planner.latest(log[-1])
    (mark,) = Path(system.options()["stateLocation"]).glob("epochs/*1/acknowledged.json")
    assert json.loads(mark.read_text())["end"] > time.time() + 3600
