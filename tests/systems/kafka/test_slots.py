"""Batches in several transactions: rows once, whoever dies when, however many slots the next run has."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from connectors.core import Batch, CommitRefused, Misconfigured, Transient
from connectors.core.commit import Commit
from connectors.core.ledger import Entry, once_query
from connectors.systems.kafka.ledger import SINK_PARTITION, SlotLayout
from connectors.systems.kafka.session import open_session
from connectors.systems.kafka.transactions import TransactionSlots
from connectors.testing import SinkSuite
from connectors.testing.engine import in_a_child

from .sink_target import TEXT, Target, forget_offsets, forget_sessions, rows
from .slot_contexts import InSlots, SlotCommitter, StagedSlotsContext, of_slot


@pytest.mark.soak
class TestStagedSlots(SinkSuite):
    context = StagedSlotsContext


class Slotted(Target):
    """A target whose batches are written in slots."""

    kind = InSlots

    def slots(self, **options: Any) -> TransactionSlots:
        return TransactionSlots(self.sink(**{"slots": 3, **options}))

    def slot(self, slots: TransactionSlots, layout: Any, slot: int, *numbers: int, batch: int = 0) -> int:
        """What a task does with the rows of its slot."""
        parts = (of_slot(records(*numbers), slot, layout.slots) for _ in range(1))
        return slots.write(layout, Batch(self.topic, "query", batch), slot, parts).rows


@pytest.fixture
def target(tmp_path: Path) -> Slotted:
    return Slotted(tmp_path)


def records(*numbers: int) -> Any:
    columns = {"key": [str(number) for number in numbers], "value": [f"v{number}" for number in numbers]}
    return pa.RecordBatch.from_pydict(columns, pa.schema(TEXT))


def values(*numbers: int) -> list[str]:
    return sorted(f"v{number}" for number in numbers)


def test_slots_have_all_rows_between_them_and_each_batch_is_seen_whole_in_the_ledger(target: Slotted) -> None:
    for number in range(3):
        target.write(keyed(*range(number * 20, number * 20 + 20)), TEXT, slots=3)
    assert target.values() == values(*range(60))
    last = Commit(target.sink(slots=3)).last("query")
    assert last is not None
    assert (last.batch, last.rows) == (2, 20)


def test_a_run_that_outlives_the_offsets_of_its_own_batches_goes_on_in_slots(target: Slotted) -> None:
    slots = target.slots()
    for number in range(2):
        batch = Batch(target.topic, "query", number)
        layout = slots.layout(batch)
        assert isinstance(layout, SlotLayout)
        count = sum(target.slot(slots, layout, slot, number, number + 10, batch=number) for slot in range(3))
        slots.finish(Entry("query", number, count), layout)
        forget_offsets(target)
    assert target.values() == values(0, 1, 10, 11)


def dies(work: Callable[[], None]) -> bool:
    """True if ``work`` was killed. The child must not collect what the parent has dropped: a client does not live in it."""
    gc.collect()
    gc.freeze()
    try:
        code = in_a_child(work)
    finally:
        gc.unfreeze()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def keyed(*numbers: int) -> list[dict[str, Any]]:
    return records(*numbers).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("dies_after", "then"), [(0, 1), (1, 5), (2, 2)])
def test_a_run_that_dies_between_slots_is_finished_though_the_next_has_others(
    target: Slotted, monkeypatch: pytest.MonkeyPatch, dies_after: int, then: int
) -> None:
    target.write(keyed(*range(20)), TEXT, slots=3)

    def run() -> None:
        def kill(slot: int) -> None:
            if slot == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(SlotCommitter, "after", staticmethod(kill))
        target.write(keyed(*range(20, 40)), TEXT, number=1, slots=3)

    assert dies(run)
    forget_sessions()
    target.write(keyed(*range(20, 40)), TEXT, number=1, slots=then)
    target.write(keyed(*range(40, 60)), TEXT, number=2, slots=then)
    assert target.values() == values(*range(60))


def test_a_run_that_is_killed_again_and_again_while_it_is_scaled_loses_and_doubles_nothing(
    target: Slotted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, slots in enumerate((1, 2, 3, 5, 2, 1)):
        expected = keyed(*range(number * 20, number * 20 + 20))

        def run(number: int = number, slots: int = slots, expected: Any = expected) -> None:
            monkeypatch.setattr(SlotCommitter, "after", staticmethod(lambda slot: os.kill(os.getpid(), signal.SIGKILL)))
            target.write(expected, TEXT, number=number, slots=slots)

        assert dies(run) is (number > 0)
        target.write(expected, TEXT, number=number, slots=slots + 1)
    assert target.values() == values(*range(120))


def test_a_task_of_a_replaced_run_that_comes_late_writes_nothing(target: Slotted) -> None:
    old, new = target.slots(), target.slots()
    stale = old.layout(Batch("sink", "query", 0))
    layout = new.layout(Batch("sink", "query", 0))
    forget_sessions()
    with pytest.raises(Transient, match="another run has taken over"):
        target.slot(old, stale, 0, *range(20))
    forget_sessions()
    assert sum(target.slot(new, layout, slot, *range(20)) for slot in range(3)) == 20
    assert target.values() == values(*range(20))


def test_of_two_attempts_at_a_slot_the_one_that_began_last_writes(target: Slotted) -> None:
    slots = target.slots()
    layout: Any = slots.layout(Batch("sink", "query", 0))
    early = open_session(replace(slots.sink.transaction_settings(), slot=1))
    early.begin(early.read_ledger(early.settings.offset_partition)[0])
    early.producer.produce(target.topic, b"from a zombie")
    early.producer.flush()
    forget_sessions()
    for slot in range(3):
        target.slot(slots, layout, slot, *range(20))
    with pytest.raises(Transient, match="taken over"), early.guarded("x"):
        early.commit(early.read_ledger(early.settings.offset_partition)[0])
    assert target.values() == values(*range(20))


def test_a_slot_that_is_there_is_passed_over_and_tells_its_rows(target: Slotted) -> None:
    slots = target.slots()
    layout = slots.layout(Batch("sink", "query", 0))
    first = target.slot(slots, layout, 0, *range(20))
    assert first > 0
    forget_sessions()
    again = target.slots()
    taken = again.layout(Batch("sink", "query", 0))
    assert target.slot(again, taken, 0, *range(20)) == first
    assert len(target.values()) == first


def test_a_slot_that_is_there_with_other_rows_stops_the_query(target: Slotted) -> None:
    slots = target.slots()
    layout = slots.layout(Batch("sink", "query", 0))
    target.slot(slots, layout, 0, *range(20))
    with pytest.raises(CommitRefused, match="not deterministic"):
        target.slot(slots, layout, 0, *range(40))


def test_a_pending_batch_keeps_its_number_of_slots_until_it_is_committed(target: Slotted) -> None:
    first: Any = target.slots(slots=3).layout(Batch("sink", "query", 0))
    later = target.slots(slots=2)
    later_layout: Any = later.layout(Batch("sink", "query", 0))
    assert (first.slots, later_layout.slots) == (3, 3)
    later.finish(Entry("query", 0, 20), later_layout)
    following: Any = later.layout(Batch("sink", "query", 1))
    assert following.slots == 2


def test_another_number_of_slots_in_a_pending_batch_is_refused(target: Slotted) -> None:
    slots = target.slots()
    layout: Any = slots.layout(Batch("sink", "query", 0))
    target.slot(slots, layout, 0, *range(20))
    other, session = SlotLayout("query", 2, layout.run), open_session(slots.sink.transaction_settings())
    (ledger,) = session.read_ledger(SINK_PARTITION)
    session.begin(ledger)
    session.commit(ledger.with_layout(other))
    with pytest.raises(
        CommitRefused, match=r"(?s)written in part in 3 slots, and cannot be finished in 2.*set slots=3"
    ):
        target.slot(slots, other, 0, *range(20))


def test_one_transaction_is_refused_for_a_batch_that_may_be_there_in_parts(target: Slotted) -> None:
    slots = target.slots()
    target.slot(slots, slots.layout(Batch("sink", "query", 0)), 0, *range(20))
    plain = Target(target.folder)
    plain.topic = target.topic
    with pytest.raises(
        CommitRefused, match=r"(?s)in part, by a run with slots=3.*foreach_batch, without stagingLocation"
    ):
        plain.write(rows(1), TEXT, number=0)


def test_a_batch_write_between_a_batch_in_parts_and_its_replay_does_not_double_them(target: Slotted) -> None:
    slots = target.slots()
    assert target.slot(slots, slots.layout(Batch("sink", "query", 0)), 0, *range(20)) > 0
    forget_sessions()
    plain = Target(target.folder)
    plain.topic = target.topic
    plain.write(rows(20), TEXT, 0, once_query())
    target.write(keyed(*range(20)), TEXT, 0, slots=1)
    assert target.values() == values(*range(21))


def test_slots_that_the_broker_forgot_are_read_from_the_ledger_topic(target: Slotted) -> None:
    target.write(keyed(*range(20)), TEXT, slots=3)
    slots = target.slots()
    target.slot(slots, slots.layout(Batch("sink", "query", 1)), 0, *range(20, 40), batch=1)
    forget_sessions()
    admin = AdminClient({"bootstrap.servers": target.server.bootstrap})
    for future in admin.delete_consumer_groups([slots.sink.transaction_settings().group]).values():
        future.result(30)
    target.write(keyed(*range(20, 40)), TEXT, number=1, slots=3)
    assert target.values() == values(*range(40))


def test_a_slot_without_rows_opens_no_transaction(target: Slotted) -> None:
    slots = target.slots()
    assert target.slot(slots, slots.layout(Batch("sink", "query", 0)), 0) == 0
    slot = replace(slots.sink.transaction_settings(), slot=1)
    listing = target.server.tool(
        "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", target.server.bootstrap, "list"
    )
    assert slots.sink.transaction_settings().transactional_id in listing
    assert slot.transactional_id not in listing


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"slots": 2}, "no use with stagingLocation"),
        ({"slots": 2, "stagingLocation": None, "errors": "deadLetter", "deadLetterPath": "x"}, "dead letters belong"),
        ({"slots": 31}, "must be 30 or less"),
        ({"slots": 2, "stagingLocation": None, "transactionalIdPrefix": None}, "without transactionalIdPrefix"),
    ],
)
def test_slots_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(Misconfigured, match=f"slots +.*{reason}"):
        Target(tmp_path).sink(**options)


def test_slots_elsewhere_than_in_foreach_batch_are_refused_by_name(tmp_path: Path) -> None:
    sink = Target(tmp_path).sink(slots=2, stagingLocation=None)
    with pytest.raises(Misconfigured, match=r"slots +above 1 is for foreach_batch alone"):
        sink.refuse_frame(pa.schema(TEXT), placed=False)
