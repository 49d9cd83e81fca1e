"""One transaction per batch, whatever ends a run and whoever writes beside it."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, CommitRefused, Poison, Transient
from connectors.core.commit import Commit
from connectors.core.ledger import Entry, app_query
from connectors.ground.retry import RetrySettings
from connectors.systems import ledgers_in
from connectors.systems.kafka import ledger
from connectors.systems.kafka import session as sessions
from connectors.systems.kafka.errors import FENCED, Fenced
from connectors.systems.kafka.ledger import SINK_PARTITION, LedgerState
from connectors.systems.kafka.session import KafkaSession, open_session
from connectors.systems.kafka.transactions import BatchTransaction, send_batch
from connectors.testing.engine import in_a_child

from .sink_target import TEXT, Target, forget_offsets, forget_sessions, publish, rows


def test_an_empty_batch_opens_no_transaction_of_the_sink(target: Target) -> None:
    """But for the claim of a query's first batch."""
    versions = []
    for _ in range(3):
        target.write([], TEXT)
        versions.append(open_session(target.sink().transaction_settings()).read_ledger(SINK_PARTITION)[0].version)
    assert versions == [1, 1, 1]
    assert target.messages("read_uncommitted") == []
    target.write(rows(1), TEXT)
    assert target.values() == ["v1"]


def test_the_ledger_has_room_for_any_number_of_queries(target: Target) -> None:
    state = LedgerState()
    for number in range(1000):
        state = state.with_entry(Entry(str(uuid.uuid4()), 10**6, 10**9, "0123456789abcdef", at=float(number + 1)))
    last = max(state.entries.values(), key=lambda entry: entry.at)
    assert (last.at, len(LedgerState.of(state.text()).entries)) == (1000.0, 17)
    settings = target.sink().transaction_settings()
    names = {settings.of_query(app_query(f"load {number}")).transactional_id for number in range(100)}
    assert len(names - {settings.transactional_id}) == 100


def test_a_note_counts_unless_the_ledger_may_have_dropped_an_entry_of_its_stream() -> None:
    """It drops one only beside many streams, and when that has been quiet for long."""
    old, new = (Entry("q", 1, at=at) for at in (1.0, time.time()))
    few = LedgerState().with_entry(Entry("another", 0, at=1.0))
    many = few
    for number in range(20):
        many = many.with_entry(Entry(f"stream-{number}", 0, at=float(number + 1)))
    states = (few, old), (many, new), (many.with_entry(old), old), (many, old)
    assert [state.may_lack(note) for state, note in states] == [False, False, False, True]


def _transactions(target: Target) -> list[str]:
    listing = target.server.tool(
        "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", target.server.bootstrap, "list"
    )
    return [line for line in listing.splitlines() if f"{target.topic}-0" in line]


def test_a_query_that_began_with_empty_batches_is_known(target: Target) -> None:
    target.write([], TEXT)
    target.write([], TEXT)
    target.write(rows(1), TEXT)
    with pytest.raises(CommitRefused, match="onNewQuery"):
        Commit(target.sink()).begin(Batch(target.topic, "another", 0))


def test_a_stream_of_which_only_an_old_note_is_left_does_not_go_on_behind_it(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_STREAMS", 1)
    for number, written in enumerate([rows(1), [], rows(2)]):
        target.write(written, TEXT, number)
    monkeypatch.setattr(ledger, "_REMEMBERED_SECONDS", 0.0)
    for number in (3, 4):
        target.write(rows(number), TEXT, 0, f"another-{number}", onNewQuery="continue")
    with pytest.raises(CommitRefused, match="onNewQuery"):
        target.write(rows(2), TEXT, 2)
    assert target.values() == ["v1", "v2", "v3", "v4"]


def test_a_driver_that_stood_still_before_it_recorded_an_empty_batch_takes_no_ledger_back(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.write([], TEXT)
    with_entry, own = LedgerState.with_entry, []

    def with_entry_of_the_past(state: LedgerState, *arguments: Any) -> LedgerState:
        if not own:
            own.append(dict(sessions._sessions))
            forget_sessions()
            for number, written in enumerate([[], rows(1), []], 1):
                target.write(written, TEXT, number)
            sessions._sessions.clear()
            sessions._sessions.update(own[0])
        return with_entry(state, *arguments)

    monkeypatch.setattr(LedgerState, "with_entry", with_entry_of_the_past)
    with pytest.raises(Transient, match="another"):
        target.write([], TEXT, 1)
    forget_sessions()
    target.write(rows(2), TEXT, 4)
    assert target.values() == ["v1", "v2"]


def test_two_attempts_at_one_batch_write_it_once(target: Target) -> None:
    """The first has its records in the transaction when the second begins; only one of them can commit."""
    sink = target.sink()
    batch, schema = Batch(sink.sink_id(), "query", 0), pa.schema(TEXT)
    early = open_session(sink.transaction_settings())
    early.begin(early.read_ledger(0)[0])
    early.producer.produce(target.topic, b"from a zombie")
    early.producer.flush()
    forget_sessions()
    target.write(rows(1), TEXT)
    with pytest.raises(Transient, match="taken over"), early.guarded("x"):
        early.commit(early_book(batch))
    assert target.values() == ["v1"]
    assert "from a zombie" in target.values("read_uncommitted")
    assert schema.names == ["key", "value"]


def early_book(batch: Batch) -> Any:
    return LedgerState().with_entry(Entry(batch.query, batch.number, 1))


@pytest.mark.parametrize("moment", ["write", "flush", "close"])
def test_a_producer_that_was_fenced_says_so_wherever_it_finds_out_and_the_batch_is_written_once(
    target: Target, moment: str
) -> None:
    sink = target.sink()
    batch, schema = Batch(sink.sink_id(), "query", 0), pa.schema(TEXT)
    records = [pa.RecordBatch.from_pylist(rows(*range(1000)), schema)]
    late = BatchTransaction(sink, Entry(batch.query, batch.number, 1000))
    assert late.begin()
    if moment != "write":
        late.send(records, sink.rejects(batch))
    forget_sessions()
    open_session(sink.transaction_settings())

    def find_out() -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if moment == "write":
                late.send(records, sink.rejects(batch))
            else:
                late.commit()

    if moment == "close":
        assert late.session.abort() in FENCED
    else:
        with pytest.raises(Fenced, match="taken over"):
            find_out()
        assert not hasattr(late.session, "producer")
    target.write(rows(1), TEXT)
    target.write(rows(2), TEXT)
    assert target.values() == ["v1", "v2"]


def test_of_two_threads_that_have_read_the_ledger_at_the_same_time_one_writes(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two queries of one driver, say. Each would follow what it has read, in one session also after the other's commit."""
    sink = target.sink(stagingLocation=None)
    begin, have_read, is_over, order = KafkaSession.begin, threading.Barrier(2), threading.Event(), count()
    open_session(sink.transaction_settings())

    def begin_in_turn(session: KafkaSession, ledger: LedgerState) -> None:
        have_read.wait(30)
        if next(order):
            is_over.wait(30)
        begin(session, ledger)

    def send(query: str) -> str:
        records: Any = pa.RecordBatch.from_pylist(rows(1), pa.schema(TEXT))
        try:
            return str(send_batch(sink, Batch(sink.sink_id(), query, 0, claim=0), iter([records])).rows)
        except Transient as fence:
            return str(fence)
        finally:
            is_over.set()

    monkeypatch.setattr(KafkaSession, "begin", begin_in_turn)
    with ThreadPoolExecutor(2) as threads:
        answers = sorted(threads.map(send, ("left", "right")))
    assert answers[0] == "1"
    assert "taken over" in answers[1]
    assert target.values() == ["v1"]


def test_workers_that_write_in_turns_take_over_from_each_other_without_an_error(target: Target) -> None:
    """Each keeps its session; the target's retries are off."""
    target.write(rows(1), TEXT)
    first = dict(sessions._sessions)
    forget_sessions()
    target.write(rows(2), TEXT)
    second = dict(sessions._sessions)
    for number, cached in ((3, first), (4, second)):
        sessions._sessions.update(cached)
        target.write(rows(number), TEXT)
    target.write(rows(5), TEXT)
    assert target.values() == ["v1", "v2", "v3", "v4", "v5"]


def test_sessions_that_nobody_has_used_for_longest_are_closed(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that writes for many queries has room for so many clients; one with an open transaction stays."""
    monkeypatch.setattr(sessions, "_MAX_IDLE", 2)
    forget_sessions()
    settings = [target.sink(transactionalIdPrefix=f"{target.topic}-{number}").transaction_settings() for number in range(5)]
    writing = open_session(settings[0])
    writing.begin(writing.read_ledger(0)[0])
    unused = open_session(settings[1])
    for entry in (*settings[2:4], settings[2], settings[4]):
        open_session(entry)
    assert [entry for _, entry in sessions._sessions] == [settings[0], settings[2], settings[4]]
    assert not hasattr(unused, "producer")
    writing.commit(LedgerState().with_entry(Entry("query", 0, 0)))


def test_a_batch_that_is_there_is_not_sent_again_by_who_comes_late(target: Target) -> None:
    """The late one has passed the check before its batch, and opens its session after the other has committed."""
    target.write(rows(1), TEXT)
    forget_sessions()
    sink = target.sink()
    late: Any = pa.RecordBatch.from_pylist([{"value": b"late"}], pa.schema({"value": pa.binary()}))
    batch = Batch(sink.sink_id(), "query", 0)
    assert not publish(sink, "query", 0, [late], sink.rejects(batch), lambda sent: Entry("query", 0, sent))
    assert target.values("read_uncommitted") == ["v1"]


class Deadly:
    """A producer whose process dies when it would commit: just ``before``, or just after."""

    def __init__(self, inner: Any, *, before: bool) -> None:
        self.inner = inner
        self.before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def commit_transaction(self, seconds: float) -> None:
        if not self.before:
            self.inner.commit_transaction(seconds)
        self.inner.flush()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("before", [True, False])
def test_a_process_that_dies_at_its_commit_leaves_rows_and_entry_or_neither(target: Target, before: bool) -> None:
    target.write(rows(1), TEXT)

    def dies() -> None:
        settings = target.sink().transaction_settings()
        session = RetrySettings(3, 0.5).call(lambda: open_session(settings))  # a busy broker may refuse a connection
        session.producer = Deadly(session.producer, before=before)
        target.write(rows(2), TEXT, number=1)

    assert in_a_child(dies) == -signal.SIGKILL
    forget_sessions()
    last = Commit(target.sink()).last("query")
    assert last is not None
    assert last.batch == (0 if before else 1)
    assert target.values() == (["v1"] if before else ["v1", "v2"])


def test_a_batch_that_fails_does_not_keep_readers_waiting(tmp_path: Path) -> None:
    target = Target(tmp_path, partitions=1, max_message_bytes="3000")
    sink = target.sink()
    batch = Batch(sink.sink_id(), "query", 0)
    good, bad = ({"value": pa.array([text], pa.binary())} for text in (b"good", b"x" * 3000))
    records: list[Any] = [pa.RecordBatch.from_pydict(columns) for columns in (good, bad)]
    session = open_session(sink.transaction_settings())

    def sent() -> Any:
        yield records[0]
        session.producer.flush()  # it is in the topic, and not committed
        yield records[1]

    with pytest.raises(Poison):
        publish(sink, "query", 0, sent(), sink.rejects(batch), lambda _: Entry("query", 0, 2))
    target.write(rows(1), TEXT, transactionalIdPrefix=None, stagingLocation=None)
    assert target.values() == ["v1"]


def test_a_run_that_was_replaced_cannot_write_an_older_batch(target: Target) -> None:
    target.write(rows(1), TEXT)
    target.write(rows(2), TEXT)
    with pytest.raises(CommitRefused):
        target.write(rows(1), TEXT, number=0)
    assert target.values() == ["v1", "v2"]


def test_an_entry_whose_offset_the_broker_forgot_is_read_from_the_ledger_topic(target: Target) -> None:
    target.write(rows(1), TEXT)
    target.write(rows(2), TEXT)
    forget_sessions()
    forget_offsets(target)
    last = Commit(target.sink()).last("query")
    assert last is not None
    assert last.batch == 1
    target.write(rows(2), TEXT, number=1)
    assert target.values() == ["v1", "v2"]


@pytest.mark.parametrize("restarted", [True, False])
def test_a_query_of_empty_batches_is_known_though_the_broker_forgot_its_offsets(target: Target, restarted: bool) -> None:
    """Also to a run that has read the ledger before the note was there."""
    for _ in range(3):
        target.write([], TEXT)
    if restarted:
        forget_sessions()
    forget_offsets(target)
    target.write([], TEXT)
    target.write(rows(1), TEXT)
    assert target.values() == ["v1"]
    assert not [line for line in _transactions(target) if "Ongoing" in line]


def test_a_run_that_outlives_the_offsets_of_its_own_batches_goes_on(target: Target) -> None:
    target.write(rows(1), TEXT)
    target.write([], TEXT)
    forget_offsets(target)
    target.write(rows(2), TEXT)
    assert target.values() == ["v1", "v2"]


@pytest.mark.parametrize("is_empty", [True, False])
def test_the_newest_batch_is_known_though_the_broker_forgot_the_offsets_before_and_behind_it(
    target: Target, is_empty: bool
) -> None:
    """What a session has read of the ledger's records is older than the batch."""
    target.write(rows(1), TEXT)
    forget_sessions()
    forget_offsets(target)
    target.write([] if is_empty else rows(2), TEXT)
    forget_offsets(target)
    if not is_empty:
        target.write(rows(2), TEXT, number=1)
    target.write(rows(3), TEXT, number=2)
    assert target.values() == (["v1", "v3"] if is_empty else ["v1", "v2", "v3"])


def test_the_ledgers_of_a_cluster_are_found_by_its_brokers(target: Target) -> None:
    target.write(rows(1, 2, 3), TEXT)
    target.write(rows(4), TEXT)
    address = f"kafka://{target.server.bootstrap}"
    contents = {content.sink_id: content.entries for content in ledgers_in(address) or ()}
    [entry] = contents[target.sink().sink_id()]
    assert (entry.query, entry.batch, entry.rows) == ("query", 1, 1)
