"""What a task does when it sends a batch again: its transaction is replaced by a list of records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Batch, CommitRefused, Transient
from connectors.core.dead_letters import Rejects
from connectors.core.ledger import Entry
from connectors.core.metrics import Meter
from connectors.systems.kafka import KafkaSink, committer, transactions
from connectors.systems.kafka.committer import KafkaFrameCommitter
from connectors.systems.kafka.ledger import LedgerState, SlotLayout
from connectors.systems.kafka.transactions import Delivery, TransactionSlots, send_batch

ROWS = pa.RecordBatch.from_pydict({"value": ["ok", "x" * 50]})


class ListSession:
    """A session that refuses values above ``largest`` bytes; its commit fails while ``is_away``."""

    in_transaction = False

    def __init__(self) -> None:
        self.largest, self.is_away = 10, False
        self.ledger = LedgerState()
        self.pending: list[bytes] = []
        self.committed: list[bytes] = []

    @contextlib.contextmanager
    def guarded(self, failure: str) -> Iterator[None]:
        yield

    def read_ledger(self, *partitions: int) -> list[LedgerState]:
        return [self.ledger for _ in partitions]

    def begin(self, ledger: LedgerState) -> None:
        self.pending = []

    def feeder(self) -> ListSession:
        return self

    def feed(self, records: pa.RecordBatch, rejects: Rejects) -> int:
        for record in records.to_pylist():
            if len(record["value"]) > self.largest:
                rejects.add({"value": record["value"].decode()}, "too large")
            else:
                self.pending.append(record["value"])
        return len(self.pending)

    def commit(self, ledger: LedgerState) -> float:
        if self.is_away:
            raise Transient("the broker is away")
        self.committed += self.pending
        return 0.1


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> ListSession:
    session = ListSession()
    monkeypatch.setattr(transactions, "open_session", lambda settings: session)
    monkeypatch.setattr(transactions, "is_cached", lambda settings: False)
    return session


def sink(**options: Any) -> KafkaSink:
    broker = {"kafka.bootstrap.servers": "h:1", "topic": "t", "transactionalIdPrefix": "p"}
    return KafkaSink.of({**broker, **options})


def test_a_row_that_the_second_attempt_delivers_is_no_dead_letter(session: ListSession, tmp_path: Path) -> None:
    kafka = sink(errors="deadLetter", deadLetterPath=str(tmp_path))
    batch = Batch(kafka.sink_id(), "q", 3)
    session.is_away = True
    with pytest.raises(Transient):
        send_batch(kafka, batch, iter([ROWS]))
    session.is_away, session.largest = False, 100  # the operator has raised max.message.bytes
    send_batch(kafka, batch, iter([ROWS]))
    letters = kafka.letters()
    assert letters is not None
    letters.publish(batch)
    assert len(session.committed) == 2
    assert [letter for file in tmp_path.glob("*.parquet") for letter in pq.read_table(file).to_pylist()] == []


@pytest.mark.parametrize("errors", ["skip", "deadLetter"])
def test_rows_that_a_task_rejects_are_counted_as_errors(
    errors: str, session: ListSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"deadLetterPath": str(tmp_path)} if errors == "deadLetter" else {}
    kafka = sink(errors=errors, **options)
    batch = Batch(kafka.sink_id(), "q", 3)
    delivery = send_batch(kafka, batch, iter([ROWS]))
    assert (delivery.rows, delivery.rejected) == (2, 1)
    frame: Any = SimpleNamespace(repartition=lambda count: None)
    for answer in (delivery, ([ROWS], False)):  # of a task that has sent the rows, or leaves that to the driver
        monkeypatch.setattr(committer, "_run", lambda *_, answer=answer: [answer])
        with Meter().counting() as meter:
            KafkaFrameCommitter(kafka).commit_frame(frame, batch)
        assert meter.rows == {"": {"rows": 1, "errors": 1, "dead_letters": int(errors == "deadLetter")}}
    assert Delivery().rejected == 0


def test_a_batch_that_is_committed_already_counts_with_its_rows(session: ListSession) -> None:
    batch = Batch("sink", "q", 3)
    session.ledger = LedgerState().with_entry(Entry("q", 3, 17))
    assert send_batch(sink(errors="skip"), batch, iter([ROWS])) == Delivery(17)
    assert session.committed == []


def test_rows_of_many_tasks_are_brought_to_one(session: ListSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query with state has 200 tasks by default: in Python they take ten times as long as the stage that they save."""
    frames = KafkaFrameCommitter(sink(errors="skip"))
    frame: Any = SimpleNamespace(repartition=lambda count: "one")
    runs = []

    def run(tasks: Any, send: Any) -> Any:
        runs.append("one" if tasks == "one" else "own")
        return [([ROWS], False)] * (1 if tasks == "one" else 200)

    monkeypatch.setattr(committer, "_run", run)
    for number in range(4):
        frames.commit_frame(frame, Batch("sink", "q", number))
    assert runs == ["one", "own", "one", "one"]


def test_rows_are_counted_once_when_the_end_of_slots_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = sink(slots="2")
    frames, outages = KafkaFrameCommitter(kafka), [Transient("away")]

    def finish(*_: Any) -> None:
        if outages:
            raise outages.pop()

    layout = SlotLayout("q", 2, "run")
    monkeypatch.setattr(frames, "slots", SimpleNamespace(layout=lambda batch: layout, finish=finish))
    monkeypatch.setattr(committer, "_send_in_slots", lambda *_: Delivery(20, 0.1))
    frame: Any = None
    with Meter().counting() as meter:
        frames.commit_frame(frame, Batch(kafka.sink_id(), "q", 3))
    assert (outages, meter.rows[""]["rows"]) == ([], 20)


def test_a_query_is_forgotten_when_others_came_and_it_was_quiet_for_a_week() -> None:
    """The replay of a query that died a moment ago must find its batch, however many others have begun since."""
    now, ledger = time.time(), LedgerState()
    for number in range(20):
        ledger = ledger.with_entry(Entry(f"new {number}", 0, at=now))
    assert len(ledger.streams()) == 20
    old = {f"old {number}": Entry(f"old {number}", 0, at=now - (8 + number) * 86400) for number in range(4)}
    assert ledger.streams() == LedgerState({**ledger.entries, **old}).with_entry(Entry("new 0", 1)).streams()
    assert LedgerState(old).with_entry(Entry("new 0", 1)).streams() == {*old, "new 0"}


def test_slots_of_an_earlier_run_are_not_finished_with_dead_letters(session: ListSession, tmp_path: Path) -> None:
    """Each slot would replace the letters of the others."""
    session.ledger = LedgerState(layout=SlotLayout("q", 3, "earlier"))
    kafka = sink(errors="deadLetter", deadLetterPath=str(tmp_path))
    with pytest.raises(CommitRefused, match="slots=3"):
        TransactionSlots(kafka).layout(Batch("sink", "q", 4))
