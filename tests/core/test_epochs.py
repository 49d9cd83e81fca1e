"""The epoch log: a queue that delivers again, out of order and twice gives Spark each message once."""

from __future__ import annotations

import gc
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Misconfigured, metrics
from connectors.core.epoch_reader import EpochReader, EpochSplit
from connectors.core.epochs import HISTORY, ID, EpochLog, Header, record_content
from connectors.core.errors import StateError, Transient
from connectors.core.leases import EpochLeases, LeaseKeeper
from connectors.core.planning import INITIAL, Planner, reader_share, source_id
from connectors.storage import storage_of
from connectors.testing import QueueSuite
from connectors.testing.contexts import open_context
from connectors.testing.epoch_suite import EpochSourceSuite
from connectors.testing.queue_double import DoubleReceiver, QueueDoubleSource
from connectors.testing.source_suite import SourceQuery
from connectors.testing.sqlite_file import transaction

from ..systems.reference_contexts import MisbehavingQueueContext, QueueContext
from .epoch_race import two_attempts

SCHEMA = pa.schema([("value", pa.int64())])


class TestQueue(QueueSuite):
    context = QueueContext


class TestMisbehavingQueue(EpochSourceSuite):
    context = MisbehavingQueueContext


@pytest.fixture
def system(tmp_path: Path) -> Iterator[QueueContext]:
    with open_context(QueueContext, tmp_path / "system") as context:
        yield context
        for planner in context.planners:
            planner.close()


def values(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["value"] for row in rows)


def log_of(system: QueueContext) -> EpochLog:
    return EpochLog(storage_of(system.options()["stateLocation"]), "queue_double")


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
    split = EpochSplit(position["log"], 1, 0, 1)
    slower, faster = two_attempts(lambda: EpochReader(source, SCHEMA), split)
    assert pa.Table.from_batches(slower) == pa.Table.from_batches(faster)
    assert system.queue.waiting() == 3


def test_a_message_that_came_to_two_readers_of_an_epoch_counts_once(system: QueueContext) -> None:
    system.write(4)
    source = QueueDoubleSource.of({**system.options(), "numPartitions": "2"}, streaming=True)
    log_id = Planner(source).latest({"v": 1, "phase": "initial"})["at"]["log"]
    first = pa.Table.from_batches(EpochReader(source, SCHEMA).read(EpochSplit(log_id, 1, 0, 2)), SCHEMA)
    system.queue.end_leases()
    system.write(1)
    second = pa.Table.from_batches(EpochReader(source, SCHEMA).read(EpochSplit(log_id, 1, 1, 2)), SCHEMA)
    assert first["value"].to_pylist() == [0, 1, 2, 3]
    assert second["value"].to_pylist() == [4]


def test_a_running_query_receives_what_came_too_late_for_the_one_that_ended(system: QueueContext) -> None:
    system.write(2)
    ending, log = SourceQuery(system), []
    ending.planner.freeze()
    system.write(3)
    assert values(ending.rest(log)) == [0, 1]
    assert values(SourceQuery(system).rest(log)) == [2, 3, 4]


def to_the_end(query: SourceQuery, log: list[Any]) -> list[int]:
    """What a run of ``availableNow`` reads, which does not end with an epoch that is empty."""
    rows: list[dict[str, Any]] = []
    while (batch := query.next(log)) is not None:
        rows += batch
    return values(rows)


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
    _hide(system)
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


def test_an_epoch_must_not_receive_for_longer_than_the_lease_of_its_messages(system: QueueContext) -> None:
    system.write(3)
    query = SourceQuery(system, lease="2s", maxEpochTime="3s")
    for _ in range(2):
        with pytest.raises(Misconfigured, match=r"maxEpochTime +is 3s, but messages are leased for 2s") as error:
            query.next([])
    assert "Give 2s or less" in str(error.value)


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


def test_an_older_checkpoint_gives_all_that_was_recorded_also_to_fewer_readers(system: QueueContext) -> None:
    system.write(16)
    two, log = SourceQuery(system, numPartitions="2", maxRowsPerTrigger="8"), []
    batches = [two.next(log), two.next(log)]
    assert two.next(log) is None  # acknowledges both
    two.planner.close()
    restored = log[:1]
    one = SourceQuery(system, numPartitions="1", maxRowsPerTrigger="8")
    assert values(one.next(restored) or []) == values(batches[1] or [])
    assert one.next(restored) is None


def test_an_older_checkpoint_gives_what_was_recorded_and_no_more_to_more_readers(system: QueueContext) -> None:
    """The sink may have the epoch already: what one more reader adds to it would be acknowledged, and written nowhere."""
    system.write(8)
    one, log = SourceQuery(system, maxRowsPerTrigger="4"), []
    batches = [one.next(log), one.next(log)]
    one.planner.close()
    system.write(8)
    more, restored = SourceQuery(system, numPartitions="3", maxRowsPerTrigger="4"), log[:1]
    assert values(more.next(restored) or []) == values(batches[1] or [])
    assert values(more.rest(restored)) == list(range(8, 16))


@pytest.mark.parametrize(("reader", "readers", "late_reader", "late_readers"), [(0, 1, 1, 2), (0, 3, 1, 2)])
def test_a_reader_of_an_epoch_that_others_have_recorded_by_another_plan_gives_its_messages_back(
    system: QueueContext, reader: int, readers: int, late_reader: int, late_readers: int
) -> None:
    system.write(6)
    source = QueueDoubleSource.of({**system.options(), "maxRowsPerTrigger": "3"}, streaming=True)
    log_id = Planner(source).latest(INITIAL)["at"]["log"]
    list(EpochReader(source, SCHEMA).read(EpochSplit(log_id, 1, reader, readers)))
    waiting = system.queue.waiting()
    late = EpochReader(source, SCHEMA).read(EpochSplit(log_id, 1, late_reader, late_readers))
    assert [batch for batch in late if batch.num_rows] == []
    assert log_of(system).readers(1) == [reader]
    assert system.queue.waiting() == waiting > 0


def test_each_reader_has_a_share_of_the_smallest_limit() -> None:
    assert [reader_share(1, reader, 3) for reader in range(3)] == [1, 1, 1]
    assert [reader_share(8, reader, 3) for reader in range(3)] == [2, 3, 3]


def test_a_damaged_record_of_an_epoch_is_named(system: QueueContext) -> None:
    system.write(3)
    query, log = SourceQuery(system), []
    query.next(log)
    (record,) = Path(system.options()["stateLocation"]).glob("epochs/*1/*.arrow")
    record.write_bytes(record.read_bytes()[:100])
    with pytest.raises(StateError, match=r"epochs/0*1/.*\.arrow"):
        query.batch(log, 0)


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


def test_a_log_that_was_deleted_stops_the_query_with_the_way_out(system: QueueContext) -> None:
    system.write(3)
    log: list[Any] = []
    SourceQuery(system).rest(log)
    shutil.rmtree(system.options()["stateLocation"])
    with pytest.raises(StateError, match=r"stateLocation.*no epoch log: it was deleted") as error:
        SourceQuery(system).rest(log)
    assert "a new checkpoint and a stateLocation of its own" in str(error.value)


def test_an_epoch_that_the_driver_recorded_before_it_died_is_that_of_the_same_query(tmp_path: Path) -> None:
    """The engine knows no offset then; from its first offset on, a query without one is another query."""
    log = EpochLog(storage_of(str(tmp_path)), "double")
    log.begin(of_driver=True)
    log.put_rows(1, "half.rows", pa.table({"a": [1]}))
    log.begin(of_driver=True)
    log.put_plan(1, {"rows": 1})
    log.check(log.begin(of_driver=True))
    log.mark_known()
    with pytest.raises(Misconfigured, match="another query"):
        log.begin(of_driver=True)


def test_the_log_of_another_query_is_refused(system: QueueContext) -> None:
    system.write(3)
    SourceQuery(system).rest([])
    with pytest.raises(Misconfigured, match="holds the epoch log of another query"):
        SourceQuery(system).rest([])


def test_a_start_that_died_before_its_first_epoch_is_no_other_query(system: QueueContext) -> None:
    log_of(system).begin()
    system.write(3)
    assert values(SourceQuery(system).rest([])) == [0, 1, 2]


def test_old_epochs_are_deleted_and_their_ids_stay_for_a_time(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[Any] = []
    for _ in range(HISTORY + 5):
        system.write(1)
        SourceQuery(system).rest(log)
    folder = Path(system.options()["stateLocation"])
    assert len(log_of(system).epochs()) <= HISTORY + 1
    assert list((folder / "ids").iterdir())
    later = time.time() + 700
    monkeypatch.setattr("connectors.core.epochs.time.time", lambda: later)
    system.write(1)
    SourceQuery(system).rest(log)
    assert not list((folder / "ids").iterdir())


def test_a_late_copy_of_a_task_receives_nothing_for_an_epoch_that_is_deleted(system: QueueContext) -> None:
    log: list[Any] = []
    query = SourceQuery(system)
    for _ in range(HISTORY + 2):
        system.write(1)
        query.next(log)
    query.planner.latest(log[-1])
    system.write(5)
    late = EpochSplit(log[0]["at"]["log"], 1, 0, 1)
    contacts = DoubleReceiver.contacts
    with pytest.raises(StateError, match=r"epoch 1 of .* is deleted"):
        list(EpochReader(query.source, SCHEMA).read(late))
    assert DoubleReceiver.contacts == contacts


@pytest.mark.parametrize("moment", ["before it records", "while it records", "when another late one has recorded"])
def test_a_copy_of_a_task_that_wakes_when_its_epoch_is_deleted_gives_its_messages_back(
    system: QueueContext, moment: str
) -> None:
    system.write(6)
    query, log = SourceQuery(system, maxRowsPerTrigger="3"), []
    assert query.plan(log) == 0
    late = EpochReader(query.source, SCHEMA)
    put, put_if_absent = late.log.put, late.log.storage.put_if_absent
    rows: list[int] = []

    def go_on() -> None:
        rows.extend(values(query.batch(log, 0)))
        for _ in range(HISTORY + 2):
            system.write(1)
            rows.extend(values(query.next(log) or []))
        query.planner.latest(log[-1])

    def slow_put(*args: Any) -> bool:
        go_on()
        if moment == "when another late one has recorded":
            with pytest.raises(StateError):
                put(*args)
        return put(*args)

    def slow_put_if_absent(name: str, content: Any) -> bool:
        go_on()
        return put_if_absent(name, content)

    if moment == "while it records":
        late.log.storage.put_if_absent = slow_put_if_absent  # type: ignore[method-assign]
    else:
        late.log.put = slow_put  # type: ignore[method-assign]
    for reader in (late, EpochReader(query.source, SCHEMA)):
        with pytest.raises(StateError, match=r"epoch 1 of .* is deleted"):
            list(reader.read(EpochSplit(log[0]["at"]["log"], 1, 0, 1)))
    query.planner.close()
    rows += values(SourceQuery(system).rest(log))
    assert sorted(rows) == list(range(6 + HISTORY + 2))
    assert system.queue.unacknowledged() == 0


def test_an_older_checkpoint_than_the_log_reaches_back_is_refused(system: QueueContext) -> None:
    log: list[Any] = []
    query = SourceQuery(system)
    for _ in range(HISTORY + 3):
        system.write(2)
        query.next(log)
    query.planner.latest(log[-1])
    query.planner.close()
    system.write(3)
    with pytest.raises(StateError, match=r"epoch 2 of .*\(stateLocation\) is deleted") as error:
        SourceQuery(system).rest(log[:1])
    assert "start from the newest checkpoint" in str(error.value)
    assert system.queue.waiting() == 3


def test_of_two_queries_that_start_at_once_with_one_log_one_is_stopped(system: QueueContext) -> None:
    system.write(8)
    first, second, logs = SourceQuery(system), SourceQuery(system), ([], [])  # type: tuple[SourceQuery, SourceQuery, Any]
    assert first.plan(logs[0]) == second.plan(logs[1]) == 0
    assert values(first.batch(logs[0], 0)) == list(range(8))
    with pytest.raises(StateError, match="another query's epoch log"):
        second.tasks(logs[1], 0)


def test_of_two_queries_that_start_at_once_the_one_goes_on_that_is_the_last_to_begin_its_first_epoch(
    system: QueueContext,
) -> None:
    system.write(8)
    first, second, logs = SourceQuery(system), SourceQuery(system), ([], [])  # type: tuple[SourceQuery, SourceQuery, Any]
    assert first.plan(logs[0]) == second.plan(logs[1]) == 0
    (slow,) = first.planner.slices(INITIAL, logs[0][0])
    (part,) = second.planner.slices(INITIAL, logs[1][0])
    with pytest.raises(StateError, match="another query's epoch log"):
        first.rows(slow)
    assert values(second.rows(part)) == list(range(8))
    with pytest.raises(StateError, match="another query's epoch log"):
        SourceQuery(system).tasks(logs[0], 0)


def test_of_two_queries_that_start_at_once_the_one_that_is_stopped_has_no_rows_of_the_other(system: QueueContext) -> None:
    system.write(8)
    first, second, logs = SourceQuery(system), SourceQuery(system), ([], [])  # type: tuple[SourceQuery, SourceQuery, Any]
    assert first.plan(logs[0]) == second.plan(logs[1]) == 0
    (slow,) = first.planner.slices(INITIAL, logs[0][0])
    assert values(second.batch(logs[1], 0)) == list(range(8))
    with pytest.raises(StateError, match="another query's epoch log"):
        first.rows(slow)


@pytest.mark.parametrize("moment", ["before the first epoch", "while the first epoch is received"])
def test_a_second_driver_that_starts_a_query_at_the_same_time_does_not_stop_it(system: QueueContext, moment: str) -> None:
    """The engine gives the second one up, since the first one has recorded its offset."""
    system.write(8)
    first, log = SourceQuery(system), []
    assert first.plan(log) == 0
    if moment == "before the first epoch":
        assert SourceQuery(system).plan([]) == 0
    (part,) = first.planner.slices(INITIAL, log[0])
    if moment != "before the first epoch":
        assert SourceQuery(system).plan([]) == 0
    assert values(first.rows(part)) == list(range(8))
    system.write(3)
    assert values(SourceQuery(system).rest(log)) == [8, 9, 10]


def test_an_outage_of_the_storage_behind_a_record_gives_nothing_back(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.write(4)
    query, log = SourceQuery(system), []
    assert query.plan(log) == 0
    reader, looks = EpochReader(query.source, SCHEMA), []

    def check(epochs: EpochLog, log_id: str) -> None:
        looks.append(log_id)
        if len(looks) == 2:
            raise Transient("the storage is away")

    monkeypatch.setattr(EpochLog, "check", check)
    split = EpochSplit(log[0]["at"]["log"], 1, 0, 1)
    with pytest.raises(Transient):
        list(reader.read(split))
    assert system.queue.waiting() == 0
    assert pa.Table.from_batches(reader.read(split))["value"].to_pylist() == [0, 1, 2, 3]


def test_a_death_in_the_deletion_of_an_epoch_forgets_no_id(system: QueueContext, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    query = SourceQuery(system, numPartitions="2", maxRowsPerTrigger="4")
    system.write(4 * HISTORY)
    while query.next(log) is not None:
        pass
    storage = log_of(system).storage
    ids = {name for epoch in log_of(system).epochs() for name in _ids(log_of(system), epoch)}

    def die(folder: Any, name: str) -> None:
        folder.delete(f"{name}/00001.arrow")
        raise KeyboardInterrupt

    monkeypatch.setattr(type(storage), "delete_folder", die)
    system.write(4)
    with pytest.raises(KeyboardInterrupt):
        query.rest(log)
    monkeypatch.undo()
    SourceQuery(system).rest(log)
    assert ids <= set(log_of(system).known_ids(1 << 40, "a new process").to_pylist())


@pytest.mark.parametrize("listing", ["ids", "floor"])
def test_ids_are_known_while_another_driver_deletes_their_epochs(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    query, log = SourceQuery(system), []
    for _ in range(HISTORY + 3):
        system.write(1)
        query.next(log)
    epochs, names = log_of(system), type(log_of(system).storage).names
    for epoch in epochs.unacknowledged(HISTORY + 3):
        epochs.mark_acknowledged(epoch, 60.0)
    is_deleted: list[bool] = []

    def names_before_a_deletion(storage: Any, folder: str = "") -> list[str]:
        listed = names(storage, folder)
        if folder == listing and not is_deleted:
            is_deleted.append(True)
            log_of(system).delete_old(HISTORY + 3)
        return listed

    monkeypatch.setattr(type(epochs.storage), "names", names_before_a_deletion)
    assert len(set(epochs.known_ids(1 << 40, f"of {system.folder}").to_pylist())) == HISTORY + 3
    assert is_deleted


def test_two_drivers_delete_the_same_epochs(system: QueueContext, monkeypatch: pytest.MonkeyPatch) -> None:
    query, log = SourceQuery(system), []
    for _ in range(HISTORY + 3):
        system.write(1)
        query.next(log)
    epochs, floor = log_of(system), EpochLog.floor
    for epoch in epochs.unacknowledged(HISTORY + 3):
        epochs.mark_acknowledged(epoch, 60.0)

    def floor_before_the_other_one(log: EpochLog) -> int:
        before = floor(log)
        monkeypatch.undo()
        log_of(system).delete_old(HISTORY + 3)
        return before

    monkeypatch.setattr(EpochLog, "floor", floor_before_the_other_one)
    epochs.delete_old(HISTORY + 3)
    assert len(set(epochs.known_ids(1 << 40, f"of {system.folder}").to_pylist())) == HISTORY + 3


def test_messages_that_a_late_copy_gave_back_are_not_known(system: QueueContext) -> None:
    query, log = SourceQuery(system), []
    for _ in range(HISTORY + 2):
        system.write(1)
        query.next(log)
    query.planner.latest(log[-1])
    record = record_content(pa.table({ID: pa.array(["given back"], pa.large_string())}), Header(1, 0.0))
    log_of(system).storage.put_if_absent(f"epochs/{1:020d}/00000.arrow", record)
    known = log_of(system).known_ids(1 << 40, "a new process").to_pylist()
    assert len(known) > HISTORY
    assert "given back" not in known


def test_an_id_is_forgotten_when_it_is_known_that_all_before_it_is_acknowledged(system: QueueContext) -> None:
    log, name = log_of(system), "a log"
    for epoch in range(1, HISTORY + 3):
        record = record_content(pa.table({ID: pa.array([f"{epoch:03d}"], pa.large_string())}), Header(1, 0.0))
        log.put(epoch, 0, record)
        log.mark_acknowledged(epoch, -10.0, "001")
    log.delete_old(HISTORY + 2)
    assert sorted(log.known_ids(1 << 40, name).to_pylist()) == [f"{epoch:03d}" for epoch in range(2, HISTORY + 3)]
    log.put(HISTORY + 3, 0, record_content(pa.table({ID: pa.array([], pa.large_string())}), Header(0, 0.0)))
    log.mark_acknowledged(HISTORY + 3, -10.0, "900")
    log.delete_old(HISTORY + 3)
    assert log.storage.names("ids") == []
    log.put(HISTORY + 4, 0, record_content(pa.table({ID: pa.array([], pa.large_string())}), Header(0, 0.0)))
    log.mark_acknowledged(HISTORY + 4, -10.0, "500")  # of a system that is back from an older copy
    assert log.settled() == "900"


def _ids(log: EpochLog, epoch: int) -> list[str]:
    tables = (log.table(epoch, reader, (ID,)) for reader in log.readers(epoch))
    return [name for table in tables if table is not None for name in table[1][ID].to_pylist()]


def test_a_list_of_ids_that_cannot_be_read_is_told_and_the_query_goes_on(
    system: QueueContext, caplog: pytest.LogCaptureFixture
) -> None:
    system.write(1)
    log: list[Any] = []
    SourceQuery(system).rest(log)
    log_of(system).storage.put_if_absent(f"ids/{7:020d}-{time.time() + 60:.0f}.arrow", b"torn")
    system.write(2)
    assert values(SourceQuery(system).rest(log)) == [1, 2]
    assert any("may be a second row" in record.getMessage() for record in caplog.records)


def test_an_epoch_asks_the_storage_as_often_however_long_the_window_is(
    system: QueueContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, log, calls = SourceQuery(system), [], Counter[str]()
    kind = type(log_of(system).storage)
    for name in ("open", "read", "items", "item", "put_if_absent", "replace", "delete", "delete_folder"):
        monkeypatch.setattr(kind, name, _counted(getattr(kind, name), name, calls))
    seen = []
    for epoch in range(40):
        system.write(1)
        calls.clear()
        query.next(log)
        if epoch in (HISTORY + 5, 39):
            seen.append(dict(calls))
    assert seen[0] == seen[1]


def _counted(method: Any, name: str, calls: Counter[str]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return method(*args, **kwargs)

    return call


def _hide(system: QueueContext) -> None:
    """Ends the leases of all messages, which come again only behind a long backlog."""
    with transaction(system.queue.path) as file:
        file.execute("UPDATE messages SET visible = ?, lease = 'of nobody'", (time.time() + 1000,))


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
    _hide(system)
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
    _hide(system)
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
        _hide(system)
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
