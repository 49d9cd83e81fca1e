"""Batches as transactions: turns rows into records, sends them in a transaction, and records it in the ledger.

A batch is one transaction, which one task sends, or several: one for each *slot*, which as many tasks send in parallel.
A row belongs to a slot by its hash, never by its position. So a replayed batch has the same rows in each slot, and a
committed slot is skipped. The sink's ledger entry names the *layout*: the number of slots of the pending batches, and the
*run* of the query whose tasks may write them. The layout changes in a transaction, which fences every older driver.
A task first opens the session of its slot, which ends the open transaction of an earlier attempt. Only then does it read the
layout, and it stops if that names another run. A batch that may be partly written keeps its number of slots, whatever the
option says now.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ...core.batch import Batch
from ...core.dead_letters import Rejects
from ...core.ledger import OWNER, Entry, ReplayPolicy, check_claim, compare_replay
from ...ground import machine
from ...ground.errors import CommitRefused
from .errors import Fenced, Stuck
from .ledger import NOTE_PARTITION, SINK_PARTITION, LedgerState, SlotLayout
from .records import Serializer, last_of_each_key
from .session import KafkaSession, is_cached, open_session

if TYPE_CHECKING:
    from .sink import KafkaSink


class TaskRecords:
    """The rows of one task as records. It is false if there are no rows.

    ``count`` is the number of rows so far, including rejected ones.
    """

    def __init__(self, sink: KafkaSink, batch: Batch, rows: Iterator[pa.RecordBatch]) -> None:
        self.rejects: Rejects = sink.rejects(batch)
        self.count = 0
        self._values = sink.values
        self._rows = (batch_rows for batch_rows in rows if batch_rows.num_rows)
        self._first = next(self._rows, None)

    def __bool__(self) -> bool:
        return self._first is not None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        serializer: Serializer | None = None
        for rows in self._all():
            serializer = serializer or Serializer(self._values, rows.schema)
            self.count += rows.num_rows
            yield serializer.records(rows, self.rejects)

    def count_all(self) -> int:
        """Reads all rows without serializing them, and returns their number."""
        self.count += sum(rows.num_rows for rows in self._all())
        return self.count

    def _all(self) -> Iterator[pa.RecordBatch]:
        return self._rows if self._first is None else itertools.chain([self._first], self._rows)


class Delivery(NamedTuple):
    """The number of rows, the seconds that the longest of their transactions was open, and the number of rejected rows."""

    rows: int = 0
    seconds: float = 0.0
    rejected: int = 0


class Transaction:
    """A transaction of batch ``number``: begun, fed with records, and committed with its ledger entry.

    After :meth:`begin`, ``ledger`` is the ledger's state before the batch. ``entry`` is the entry to record.
    """

    failure = "batch {} cannot be written"

    def __init__(self, sink: KafkaSink, entry: Entry, slot: int = 0) -> None:
        self.entry = entry
        self.query, self.number = entry.query, entry.batch
        self._sink_id = sink.sink_id()
        self._settings = replace(sink.transaction_settings().of_query(self.query), slot=slot)
        self._keeps_last = sink.values["operation"] == "upsert"
        self._failure = self.failure.format(self.number)
        self.session: KafkaSession
        self.ledger: LedgerState

    def begin(self) -> bool:
        """Opens the transaction; false if the batch is already committed. Raises ``CommitRefused`` for a late claim.

        Spark gives batches to its workers in turn. Each worker keeps its session, and the last writer has fenced the others;
        brokers may also have restarted since. So if a cached session fails, a new session is tried.
        """
        was_cached = is_cached(self._settings)
        self.session = open_session(self._settings)
        try:
            with self.session.guarded(f"batch {self.number} cannot be begun"):
                self.ledger = self.read_ledger()
                if self.ledger.has(self.query, self.number):
                    return False
                check_claim(self._sink_id, self.entry, self.ledger.entries.get(OWNER))
                self.session.begin(self.ledger)
            return True
        except (Fenced, Stuck):
            if not was_cached:
                raise
        return self.begin()

    def read_ledger(self) -> LedgerState:
        """The ledger entry that this transaction changes. Raises an error if it must not change it."""
        return self.session.read_ledger(SINK_PARTITION)[0]

    def send(self, records: Iterable[pa.RecordBatch], rejects: Rejects) -> int:
        """Sends ``records``, and decides ``rejects``. Returns the number of records."""
        with self.session.guarded(self._failure):
            feeder = self.session.feeder()
            if self._keeps_last:
                batches = list(records)
                records = last_of_each_key(pa.Table.from_batches(batches)).to_batches() if batches else []
            count = sum(feeder.feed(batch, rejects) for batch in records)
            rejects.decide()  # also without rejects: an earlier attempt may have left some
            return count

    def write(self, records: TaskRecords, layout: SlotLayout | None = None) -> Delivery:
        """Sends the rows of a task and commits them with their number."""
        self.send(records, records.rejects)
        seconds = self.commit(records.count, layout=layout)
        return Delivery(records.count, seconds, records.rejects.count)

    def commit(self, rows: int | None = None, layout: SlotLayout | None = None) -> float:
        """Commits the records with the entry, which gets ``rows``. Returns the seconds that the transaction was open."""
        entry = self.entry if rows is None else replace(self.entry, rows=rows)
        with self.session.guarded(self._failure):
            return self.session.commit(self.ledger.with_entry(entry, layout))


class BatchTransaction(Transaction):
    """A whole batch."""

    def read_ledger(self) -> LedgerState:
        ledger = super().read_ledger()
        layout = ledger.layout
        if layout is not None and layout.query == self.query and not ledger.has(self.query, self.number):
            raise CommitRefused(
                f"batch {self.number} may be written in part, by a run with slots={layout.slots}: "
                "it cannot be one transaction",
                way_out="let foreach_batch, without stagingLocation, write it; the batches after it are written as you say",
            )
        return ledger


class NoteTransaction(Transaction):
    """Records a batch without rows in the note."""

    failure = "batch {} cannot be recorded"

    def __init__(self, sink: KafkaSink, entry: Entry) -> None:
        super().__init__(sink, entry)
        self._settings = replace(self._settings, is_note=True)

    def read_ledger(self) -> LedgerState:
        return self.session.read_ledger(NOTE_PARTITION)[0]


class SlotTransaction(Transaction):
    """The rows of ``slot`` in ``batch``. ``ledger`` is the slot's."""

    def __init__(self, sink: KafkaSink, batch: Batch, slot: int, layout: SlotLayout) -> None:
        super().__init__(sink, Entry(batch.query, batch.number), slot + 1)
        self._batch, self._layout = batch, layout

    def read_ledger(self) -> LedgerState:
        own, sink = self.session.read_ledger(self._settings.offset_partition, SINK_PARTITION)
        if sink.layout != self._layout:
            raise Fenced(f"{self._batch}: another run has taken over")
        if own.has(self.query, self.number) and own.layout and own.layout.slots != self._layout.slots:
            raise CommitRefused(
                f"{self._batch} is written in part in {own.layout.slots} slots, and cannot be finished in "
                f"{self._layout.slots}",
                way_out=f"set slots={own.layout.slots} until it is committed",
            )
        return own


class LayoutTransaction(Transaction):
    """Records which run writes the pending batches, and in how many slots. It has no rows."""

    failure = "the slots of batch {} cannot be recorded"

    def commit_layout(self, layout: SlotLayout) -> None:
        with self.session.guarded(self._failure):
            self.session.commit(self.ledger.with_layout(layout, self.entry.ownership()))


class FinishTransaction(Transaction):
    """Records a batch whose slots are all committed in ``layout``. It has no rows."""

    failure = "batch {} cannot be finished"

    def __init__(self, sink: KafkaSink, entry: Entry, layout: SlotLayout) -> None:
        super().__init__(sink, entry)
        self._layout = layout

    def read_ledger(self) -> LedgerState:
        ledger = super().read_ledger()
        if ledger.layout != self._layout and not ledger.has(self.query, self.number):
            raise Fenced(f"batch {self.number} cannot be finished: another run has taken over")
        return ledger


def send_batch(sink: KafkaSink, batch: Batch, rows: Iterator[pa.RecordBatch]) -> Delivery:
    """Sends a whole batch in one transaction. Called where all rows are, in a task or the driver."""
    records = TaskRecords(sink, batch, rows)
    if not records:  # an empty batch opens no transaction
        return Delivery()
    transaction = BatchTransaction(sink, Entry(batch.query, batch.number, claim=batch.claim))
    if not transaction.begin():
        return Delivery(transaction.ledger.entries[batch.query].rows or 1)  # a batch that is committed has rows
    return transaction.write(records)


class TransactionSlots:
    """The slots of one sink. :meth:`layout` and :meth:`finish` are the driver's, :meth:`write` is a task's."""

    def __init__(self, sink: KafkaSink) -> None:
        self.sink = sink
        self._count: int = sink.values["slots"]
        self._run = machine.token()[:8]
        self._has_none = False

    def layout(self, batch: Batch) -> SlotLayout | Entry | None:
        """The layout of a batch; its entry if it is already committed; ``None`` if it is one transaction."""
        query, number = batch.query, batch.number
        if self._has_none:
            return None
        ledger = open_session(self.sink.transaction_settings()).read_ledger(SINK_PARTITION)[0]
        if ledger.has(query, number):
            return ledger.entries[query]
        layout = self._next_layout(ledger, query)
        self._has_none = layout is None  # only this driver makes slots from now on
        if layout is None or layout == ledger.layout:
            return layout
        transaction = LayoutTransaction(self.sink, Entry(query, number, claim=batch.claim))
        if not transaction.begin():
            return self.layout(batch)
        layout = self._next_layout(transaction.ledger, query) or layout
        transaction.commit_layout(layout)
        return layout

    def write(self, layout: SlotLayout, batch: Batch, slot: int, rows: Iterator[pa.RecordBatch]) -> Delivery:
        """Writes the rows of ``slot``; a slot without rows opens no transaction."""
        records = TaskRecords(self.sink, batch, rows)
        if not records:
            return Delivery()
        transaction = SlotTransaction(self.sink, batch, slot, layout)
        if not transaction.begin():
            entry = transaction.ledger.entries[batch.query]
            compare_replay(entry, records.count_all(), None, ReplayPolicy.of(self.sink.values))
            return Delivery(entry.rows or 0)
        return transaction.write(records, layout)

    def finish(self, entry: Entry, layout: SlotLayout) -> None:
        """Records a batch whose slots are all written, with the layout of the next batch."""
        transaction = FinishTransaction(self.sink, entry, layout)
        if transaction.begin():
            transaction.commit(layout=replace(layout, slots=self._count) if self._count > 1 else None)

    def _next_layout(self, ledger: LedgerState, query: str) -> SlotLayout | None:
        """The layout of the next batch. A batch that an earlier run has begun keeps its number of slots."""
        pending = ledger.layout
        slots = pending.slots if pending is not None and pending.query == query else self._count
        if slots > 1 and self.sink.values["errors"] == "deadLetter":  # only a pending layout: the option is refused
            raise CommitRefused(
                f"a batch may be written in part, by a run with slots={slots}: its slots cannot have dead letters",
                way_out="set errors=fail or errors=skip until it is committed",
            )
        return SlotLayout(query, slots, self._run) if slots > 1 else None
