"""Batches in several transactions, one for each *slot*, for what one task alone cannot send fast enough.

A row belongs to a slot by its hash, never by its place, so a batch that Spark runs again has the same rows in each slot, and
a slot that is written is passed over. Who may write is told in the sink's own book, in a transaction that shuts out every
older driver: how many slots the batches of a query have from now on, and the *run* whose tasks they are. A task first takes
over its slot's transactional id, which ends what an earlier attempt has open; only then it reads that book, and leaves if
another run is named there. A batch that may be written in part keeps its number of slots, whatever the option says now.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ...core.errors import CommitRefused
from ...core.ledger import Entry, Policy, compare_replay
from ...core.sink import Batch
from .book import Book, Layout
from .client_errors import Fenced
from .ledger import BOOK
from .session import Session, session
from .transacting import Incoming, begin, is_there, transact

if TYPE_CHECKING:
    from .sink import KafkaSink


class Slots:
    """The slots of one sink. :meth:`layout` and :meth:`finish` are the driver's, :meth:`write` is a task's."""

    def __init__(self, sink: KafkaSink) -> None:
        self.sink = sink
        self.wanted: int = sink.values["slots"]
        self._run = uuid.uuid4().hex[:8]
        self._one = False
        self.seconds = 0.0
        """How long the newest transaction of :meth:`write` was open, in its task."""

    def layout(self, query: str, number: int) -> Layout | Entry | None:
        """How batch ``number`` is to be written; its entry if it is there; ``None`` if it is to be one transaction."""
        if self._one:
            return None
        book = self._book(number)
        if is_there(book, query, number):
            return book.entries[query]
        layout = self._of(book, query)
        self._one = layout is None  # nobody but us makes slots from now on
        if layout is None or layout == book.layout:
            return layout
        begun = begin(self.sink.address(), query, number, _own_book)
        if begun is None:
            return self.layout(query, number)
        ours, book = begun
        layout = self._of(book, query) or layout
        with ours.guarded(f"the slots of batch {number} cannot be told"):
            ours.commit(book.with_layout(layout))
        return layout

    def write(self, layout: Layout, batch: Batch, slot: int, batches: Iterator[pa.RecordBatch]) -> int:
        """Writes the rows of ``slot`` and returns how many they are; a slot without rows opens no transaction."""
        incoming = Incoming(self.sink, batch, batches)
        if not incoming:
            return 0
        address = replace(self.sink.address(), slot=slot + 1)
        begun = begin(address, batch.query, batch.number, lambda ours: self._book_of_slot(ours, layout, batch))
        if begun is None:
            return self._written(session(address), batch, incoming.counted())
        self.seconds = transact(
            self.sink, *begun, batch.number, incoming, incoming.rejects,
            lambda book, _: book.with_entry(Entry(batch.query, batch.number, incoming.count), layout),
        )  # fmt: skip
        return incoming.count

    def finish(self, entry: Entry, layout: Layout) -> None:
        """All slots are written: enters the batch, and how the next one is written."""
        begun = begin(
            self.sink.address(), entry.query, entry.batch, lambda ours: _still(_own_book(ours), entry, layout)
        )
        if begun is None:
            return
        ours, book = begun
        after = replace(layout, slots=self.wanted) if self.wanted > 1 else None
        with ours.guarded(f"batch {entry.batch} cannot be finished"):
            ours.commit(book.with_entry(entry, after))

    def _of(self, book: Book, query: str) -> Layout | None:
        """What an earlier run has begun keeps its number of slots."""
        known = book.layout.slots if book.layout is not None and book.layout.query == query else self.wanted
        return Layout(query, known, self._run) if known > 1 else None

    def _book(self, number: int) -> Book:
        ours = session(self.sink.address())
        with ours.guarded(f"batch {number} cannot be begun"):
            return _own_book(ours)

    def _book_of_slot(self, ours: Session, layout: Layout, batch: Batch) -> Book:
        """The slot's book, if this run may write. Read after the slot was taken over."""
        mine, sinks = ours.books(ours.address.place, BOOK)
        if sinks.layout != layout:
            raise Fenced(f"{batch}: another run has taken over")
        if is_there(mine, batch.query, batch.number) and mine.layout and mine.layout.slots != layout.slots:
            raise CommitRefused(
                f"{batch} is written in part in {mine.layout.slots} slots, and cannot be finished in {layout.slots}",
                way_out=f"set slots={mine.layout.slots} until it is committed",
            )
        return mine

    def _written(self, ours: Session, batch: Batch, rows: int) -> int:
        """The rows of a slot that is there; they must be as many as those that have come now."""
        with ours.guarded("the ledger cannot be read"):
            entry = ours.books(ours.address.place)[0].entries[batch.query]
        compare_replay(entry, rows, None, Policy.of(self.sink.values))
        return entry.rows or 0


def _own_book(ours: Session) -> Book:
    return ours.books(BOOK)[0]


def _still(book: Book, entry: Entry, layout: Layout) -> Book:
    if book.layout != layout and not is_there(book, entry.query, entry.batch):
        raise Fenced(f"batch {entry.batch} cannot be finished: another run has taken over")
    return book
