"""The folder of an epoch log: whose it is, what is deleted of it and when, and what older checkpoints find."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Misconfigured
from connectors.core.epoch_reader import EpochReader, EpochSplit
from connectors.core.epochs import HISTORY, ID, EpochLog, Header, record_content
from connectors.core.planning import INITIAL, Planner
from connectors.ground.errors import StateError
from connectors.storage import storage_of
from connectors.testing import SourceContext
from connectors.testing.source_suite import SourceQuery
from tests.core.epochs.queries import SCHEMA, log_of, values
from tests.dying_disk import DyingDisk
from tests.queue_source import DoubleReceiver, QueueDoubleSource
from tests.systems.reference_contexts import QueueContext, ShardContext


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
    source.log().claim(log_id)
    list(EpochReader(source, SCHEMA).read(EpochSplit(log_id, 1, reader, readers)))
    waiting = system.queue.waiting()
    late = EpochReader(source, SCHEMA).read(EpochSplit(log_id, 1, late_reader, late_readers))
    assert [batch for batch in late if batch.num_rows] == []
    assert log_of(system).readers(1) == [reader]
    assert system.queue.waiting() == waiting > 0


def test_a_damaged_record_of_an_epoch_is_named(system: QueueContext) -> None:
    system.write(3)
    query, log = SourceQuery(system), []
    query.next(log)
    (record,) = Path(system.options()["stateLocation"]).glob("epochs/*1/*.arrow")
    record.write_bytes(record.read_bytes()[:100])
    with pytest.raises(StateError, match=r"epochs/0*1/.*\.arrow"):
        query.batch(log, 0)


def test_a_log_that_was_deleted_stops_the_query_with_the_way_out(system: QueueContext) -> None:
    system.write(3)
    log: list[Any] = []
    SourceQuery(system).rest(log)
    shutil.rmtree(system.options()["stateLocation"])
    with pytest.raises(StateError, match=r"stateLocation.*no epoch log: it was deleted") as error:
        SourceQuery(system).rest(log)
    assert "a new checkpoint and a stateLocation of its own" in str(error.value)


def test_a_log_that_was_deleted_stops_also_a_replay_of_the_first_batch(system: QueueContext) -> None:
    system.write(3)
    log: list[Any] = []
    query = SourceQuery(system)
    assert values(query.next(log) or []) == [0, 1, 2]
    query.planner.close()
    shutil.rmtree(system.options()["stateLocation"])
    with pytest.raises(StateError, match=r"stateLocation.*no epoch log: it was deleted"):
        SourceQuery(system).batch(log, 0)


def test_an_epoch_that_the_driver_recorded_before_it_died_is_that_of_the_same_query(tmp_path: Path) -> None:
    """The engine knows no offset then; from its first offset on, a query without one is another query."""
    log = EpochLog(storage_of(str(tmp_path)), "double")
    log.begin(of_driver=True)
    log.put_rows(1, "half.rows", pa.table({"a": [1]}))
    log.begin(of_driver=True)
    log.put_plan(1, {"rows": 1})
    log.claim(log.begin(of_driver=True))
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
    monkeypatch.setattr("time.time", lambda: later)
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
    query.source.log().claim(log[0]["at"]["log"])  # type: ignore[attr-defined]
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


def test_of_two_queries_that_start_at_once_the_first_to_begin_its_first_epoch_goes_on(system: QueueContext) -> None:
    system.write(8)
    first, second, logs = SourceQuery(system), SourceQuery(system), ([], [])  # type: tuple[SourceQuery, SourceQuery, Any]
    assert first.plan(logs[0]) == second.plan(logs[1]) == 0
    (slow,) = second.planner.slices(INITIAL, logs[1][0])
    with pytest.raises(StateError, match="another query's epoch log"):
        first.tasks(logs[0], 0)
    with pytest.raises(StateError, match="another query's epoch log"):
        SourceQuery(system).tasks(logs[0], 0)
    assert values(second.rows(slow)) == list(range(8))


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
        with pytest.raises(Misconfigured, match="holds the epoch log of another query"):
            SourceQuery(system).plan([])
    assert values(first.rows(part)) == list(range(8))
    system.write(3)
    assert values(SourceQuery(system).rest(log)) == [8, 9, 10]


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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [QueueContext, ShardContext])
def test_a_record_of_a_dead_attempt_is_durable_before_its_rows_go_on(
    tmp_path: Path, kind: type[SourceContext], seed: int
) -> None:
    (tmp_path / "system").mkdir()
    system, log = kind(tmp_path / "system"), list[Any]()
    system.write(3)
    disk = DyingDisk(Path(system.options()["stateLocation"]), tmp_path / "journal")
    disk.dies_before = "*.arrow"
    query = SourceQuery(system, numPartitions="1")

    def work() -> None:
        assert query.plan(log) == 0
        (part,) = query.planner.slices(INITIAL, log[0])
        with pytest.raises(KeyboardInterrupt):
            query.rows(part)
        assert len(query.rows(part)) == 3

    disk.folder.mkdir()
    disk.start()
    disk.run(work)
    disk.fail(random.Random(seed))
    assert EpochLog(storage_of(str(disk.folder)), "double").table(1, 0) is not None


@pytest.mark.parametrize("seed", range(4))
def test_epochs_are_deleted_only_below_a_floor_that_is_durable(tmp_path: Path, seed: int) -> None:
    (tmp_path / "system").mkdir()
    system, log = QueueContext(tmp_path / "system"), list[Any]()
    for _ in range(HISTORY + 3):
        system.write(1)
        SourceQuery(system).next(log)
    disk = DyingDisk(Path(system.options()["stateLocation"]), tmp_path / "journal")
    newest = log_of(system).floor() + 1
    disk.start()

    def work() -> None:
        disk.dies_before = f"../floor/{newest:020d}"
        with pytest.raises(KeyboardInterrupt):
            SourceQuery(system).planner.latest(log[-1])
        SourceQuery(system).planner.latest(log[-1])

    disk.run(work)
    disk.fail(random.Random(seed))
    assert log_of(system).floor() >= min(log_of(system).epochs()) - 1
