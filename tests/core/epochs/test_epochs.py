"""The epoch log: a queue that delivers again, out of order and twice gives Spark each message once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.epoch_reader import EpochReader, EpochSplit
from connectors.core.epochs import HISTORY, EpochLog
from connectors.core.planning import INITIAL, Planner, reader_share
from connectors.ground.errors import StateError, Transient
from connectors.testing import QueueSuite
from connectors.testing.epoch_suite import EpochSourceSuite
from connectors.testing.source_suite import SourceQuery
from tests.core.epoch_race import two_attempts
from tests.core.epochs.queries import SCHEMA, to_the_end, values
from tests.queue_source import DoubleReceiver, QueueDoubleSource
from tests.systems.reference_contexts import MisbehavingQueueContext, QueueContext


class TestQueue(QueueSuite):
    context = QueueContext


class TestMisbehavingQueue(EpochSourceSuite):
    context = MisbehavingQueueContext


def test_a_message_is_acknowledged_after_its_batch_and_not_before(system: QueueContext) -> None:
    system.write(5)
    query, log = SourceQuery(system), []
    query.next(log)
    assert system.queue.unacknowledged() == 5
    query.planner.latest(log[-1])
    assert system.queue.unacknowledged() == 0


def test_the_last_epoch_is_acknowledged_by_the_next_start(system: QueueContext) -> None:
    system.write(5)
    log: list[Any] = []
    SourceQuery(system).next(log)
    SourceQuery(system).rest(log)
    assert system.queue.unacknowledged() == 0


def test_a_replay_does_not_ask_the_system(system: QueueContext) -> None:
    system.write(5)
    log: list[Any] = []
    rows = SourceQuery(system).next(log)
    system.queue.path.unlink()
    contacts = DoubleReceiver.contacts
    assert SourceQuery(system).batch(log, 0) == rows
    assert DoubleReceiver.contacts == contacts


def test_the_double_neither_extends_nor_hides_what_its_lease_has_given_to_others(system: QueueContext) -> None:
    system.write(1)
    ((_, _, _, lease),) = system.queue.receive(1, 0.0)
    system.queue.set_visible([lease], 10.0)
    assert system.queue.waiting() == 1


def test_what_is_delivered_again_after_its_acknowledgement_was_lost_is_left_out(system: QueueContext) -> None:
    system.write(5)
    log: list[Any] = []
    system.misbehaviour = '{"forget": 1.0}'
    assert values(SourceQuery(system).rest(log)) == [0, 1, 2, 3, 4]
    assert system.queue.unacknowledged() == 5
    system.misbehaviour = "{}"
    system.queue.end_leases()
    assert SourceQuery(system).rest(log) == []
    assert system.queue.unacknowledged() == 0


def test_a_run_goes_on_behind_an_epoch_that_had_time_for_nothing_but_duplicates(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DoubleReceiver, "pending", lambda _: None)
    system.write(20)
    log: list[Any] = []
    system.misbehaviour = '{"forget": 1.0}'
    assert values(SourceQuery(system).rest(log)) == list(range(20))
    system.misbehaviour = "{}"
    system.queue.end_leases()
    system.write(3)
    receive = DoubleReceiver.receive

    def receive_slowly(receiver: DoubleReceiver, rows: int, seconds: float) -> Any:
        time.sleep(0.02)
        return receive(receiver, 1, seconds)

    monkeypatch.setattr(DoubleReceiver, "receive", receive_slowly)
    query = SourceQuery(system, maxEpochTime="200ms")
    query.planner.freeze()
    assert to_the_end(query, log) == [20, 21, 22]


def test_what_is_delivered_again_long_after_is_a_message_of_its_own(system: QueueContext) -> None:
    system.write(1)
    log: list[Any] = []
    system.misbehaviour = '{"forget": 1.0}'
    for _ in range(HISTORY + 2):
        SourceQuery(system, deduplicationWindow="0s").rest(log)
        system.write(1)
    system.queue.end_leases()
    assert 0 in values(SourceQuery(system, deduplicationWindow="0s").rest(log))


def test_of_two_attempts_at_an_epoch_one_counts_and_the_other_gives_its_messages_back(system: QueueContext) -> None:
    system.write(6)
    source = QueueDoubleSource.of({**system.options(), "maxRowsPerTrigger": "3"}, streaming=True)
    planner = Planner(source)
    position = planner.latest({"v": 1, "phase": "initial"})["at"]
    source.log().claim(position["log"])
    split = EpochSplit(position["log"], 1, 0, 1)
    slower, faster = two_attempts(lambda: EpochReader(source, SCHEMA), split)
    assert pa.Table.from_batches(slower) == pa.Table.from_batches(faster)
    assert system.queue.waiting() == 3


def test_a_message_that_came_to_two_readers_of_an_epoch_counts_once(system: QueueContext) -> None:
    system.write(4)
    source = QueueDoubleSource.of({**system.options(), "numPartitions": "2"}, streaming=True)
    log_id = Planner(source).latest({"v": 1, "phase": "initial"})["at"]["log"]
    source.log().claim(log_id)
    first = pa.Table.from_batches(EpochReader(source, SCHEMA).read(EpochSplit(log_id, 1, 0, 2)), SCHEMA)
    system.queue.end_leases()
    system.write(1)
    second = pa.Table.from_batches(EpochReader(source, SCHEMA).read(EpochSplit(log_id, 1, 1, 2)), SCHEMA)
    assert first["value"].to_pylist() == [0, 1, 2, 3]
    assert second["value"].to_pylist() == [4]


def test_each_reader_has_a_share_of_the_smallest_limit() -> None:
    assert [reader_share(1, reader, 3) for reader in range(3)] == [1, 1, 1]
    assert [reader_share(8, reader, 3) for reader in range(3)] == [2, 3, 3]


@pytest.mark.parametrize("step", ["check", "check_retained"], ids=["the look behind it", "the answer to it"])
def test_an_outage_of_the_storage_behind_a_record_gives_nothing_back(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    system.write(4)
    query, log = SourceQuery(system), []
    assert query.plan(log) == 0
    reader, looks = EpochReader(query.source, SCHEMA), []

    def fails(epochs: EpochLog, about: Any) -> None:
        looks.append(about)
        if len(looks) == 2:
            raise Transient("the storage is away")

    monkeypatch.setattr(EpochLog, step, fails)
    split = EpochSplit(log[0]["at"]["log"], 1, 0, 1)
    with pytest.raises(Transient):
        list(reader.read(split))
    assert EpochLog(reader.log.storage, "queue_double").readers(1) == [0]
    assert system.queue.waiting() == 0
    assert pa.Table.from_batches(reader.read(split))["value"].to_pylist() == [0, 1, 2, 3]
    assert system.queue.waiting() == 0


def fail_once(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object] = lambda: None, *, counts: bool = False
) -> None:
    """The storage is away when a record is put first; or where it ``counts``, only its answer is lost."""
    put = EpochLog.put

    def fails(log: EpochLog, epoch: int, reader: int, content: bytes) -> bool:
        monkeypatch.setattr(EpochLog, "put", put)
        meanwhile()
        if counts:
            put(log, epoch, reader, content)
        raise Transient("the storage is away")

    monkeypatch.setattr(EpochLog, "put", fails)


def test_what_was_received_for_a_record_that_an_outage_stopped_goes_back_when_another_one_counts(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DoubleReceiver, "pending", lambda _: None)
    system.write(6)
    query, log = SourceQuery(system, maxRowsPerTrigger="3", drainTimeout="500ms"), []
    query.planner.freeze()
    assert query.plan(log) == 0
    split = EpochSplit(log[0]["at"]["log"], 1, 0, 1, log[0]["at"]["until"])
    slower, faster = EpochReader(query.source, SCHEMA), EpochReader(query.source, SCHEMA)
    fail_once(monkeypatch, lambda: list(faster.read(split)))
    with pytest.raises(Transient):
        list(slower.read(split))
    list(slower.read(split))
    assert values(query.batch(log, 0)) + to_the_end(query, log) == [3, 4, 5, 0, 1, 2]


@pytest.fixture
def without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases last until they are given back."""
    receiver = QueueDoubleSource.receiver

    def opened(source: QueueDoubleSource, schema: pa.Schema | None) -> Any:
        double = receiver(source, schema)
        double.lease_seconds = None
        return double

    monkeypatch.setattr(QueueDoubleSource, "receiver", opened)


@pytest.mark.usefixtures("without_end")
@pytest.mark.parametrize("is_tried_again", [True, False], ids=["tried again", "given up"])
def test_an_outage_of_the_storage_keeps_no_message_whose_lease_does_not_end(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch, *, is_tried_again: bool
) -> None:
    system.write(3)
    query, log = SourceQuery(system), []
    assert query.plan(log) == 0
    fail_once(monkeypatch)
    if not is_tried_again:
        reader = EpochReader(query.source, SCHEMA)
        with contextlib.closing(reader), pytest.raises(Transient):
            list(reader.read(EpochSplit(log[0]["at"]["log"], 1, 0, 1)))
    assert values(query.batch(log, 0)) + to_the_end(query, log) == [0, 1, 2]


@pytest.mark.usefixtures("without_end")
@pytest.mark.parametrize("is_lost", [True, False], ids=["whose answer is lost", "whose answer comes"])
def test_a_record_keeps_no_message_that_is_too_late_for_the_run_where_its_lease_does_not_end(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    query, log = SourceQuery(system), []
    query.planner.freeze()
    system.write(3)
    assert query.plan(log) == 0
    if is_lost:
        fail_once(monkeypatch, counts=True)
    assert query.batch(log, 0) == []
    assert system.queue.waiting() == 3


def test_a_lease_that_has_ended_is_not_given_back_since_it_may_be_of_others(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[str] = []
    monkeypatch.setattr(DoubleReceiver, "release", lambda _, leases: released.extend(leases))
    system.write(3)
    query, log = SourceQuery(system, lease="500ms", maxEpochTime="100ms"), []
    assert query.plan(log) == 0
    fail_once(monkeypatch, lambda: time.sleep(0.6))
    assert values(query.batch(log, 0)) == [0, 1, 2]
    assert released == []


def test_a_reader_whose_neighbour_has_no_slot_fails_once_and_gives_its_messages_back_once(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.core.epoch_reader._NEIGHBOUR_SECONDS", 0.1)
    released: list[int] = []
    monkeypatch.setattr(DoubleReceiver, "release", lambda _, leases: released.append(len(leases)))
    system.write(4)
    query, log = SourceQuery(system, numPartitions="2", outageTimeout="60s", maxEpochTime="10ms"), []
    assert query.plan(log) == 0
    _, second = query.planner.slices(INITIAL, log[0])
    with pytest.raises(StateError, match="reader 0 of epoch 1 has recorded nothing") as error:
        query.rows(second)
    assert released == [4]
    assert "as many free slots" in str(error.value)


@pytest.mark.parametrize("option", ["maxEpochTime", "pollInterval"])
def test_a_reader_waits_for_a_neighbour_that_may_receive_for_longer(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr("connectors.core.epoch_reader._NEIGHBOUR_SECONDS", 0.1)
    system.write(4)
    options = {"numPartitions": "2", "maxEpochTime": "10ms", "maxRowsPerTrigger": "4", option: "10s"}
    query, log = SourceQuery(system, **options), []
    assert query.plan(log) == 0
    first, second = query.planner.slices(INITIAL, log[0])
    rows: list[dict[str, Any]] = []
    thread = threading.Timer(0.5, lambda: rows.extend(query.rows(first)))
    thread.start()
    rows += query.rows(second)
    thread.join()
    assert values(rows) == [0, 1, 2, 3]
