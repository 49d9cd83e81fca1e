"""Transactions that carry records and the book in which they are entered, whoever sends them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ...core.errors import CommitRefused
from ...core.ledger import Entry
from ...core.rejects import Rejects
from ...core.sink import Batch
from .book import Book
from .client_errors import Fenced, Stuck
from .ledger import BOOK, Address
from .producing import Feeder
from .records import Serializer, last_of_each_key
from .session import Session, is_kept, session

if TYPE_CHECKING:
    from .sink import KafkaSink


class Incoming:
    """The rows of one task, serialized on their way. ``count`` is how many have come, bad ones too."""

    def __init__(self, sink: KafkaSink, batch: Batch, batches: Iterator[pa.RecordBatch]) -> None:
        self._values = sink.values
        self._batches = (one for one in batches if one.num_rows)
        self._first = next(self._batches, None)
        self.rejects: Rejects = sink.rejects(batch)
        self.count = 0

    def __bool__(self) -> bool:
        """False when there are no rows."""
        return self._first is not None

    def counted(self) -> int:
        """Takes in what is left, and returns how many rows there are."""
        self.count += sum(one.num_rows for one in self._all())
        return self.count

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        serializer: Serializer | None = None
        for one in self._all():
            serializer = serializer or Serializer(self._values, one.schema)
            self.count += one.num_rows
            yield serializer.records(one, self.rejects)

    def _all(self) -> Iterator[pa.RecordBatch]:
        return self._batches if self._first is None else itertools.chain([self._first], self._batches)


def publish(
    sink: KafkaSink,
    query: str,
    number: int,
    records: Iterable[pa.RecordBatch],
    rejects: Rejects,
    entry: Callable[[int], Entry],
) -> float | None:
    """One transaction with ``records`` and ``entry`` (which is told their number).

    Returns the seconds that it was open; ``None`` if the batch was there already.
    """
    begun = begin(sink.address(), query, number, lambda ours: _in_one(ours.books(BOOK)[0], query, number))
    if begun is None:
        return None
    return transact(sink, *begun, number, records, rejects, lambda book, sent: book.with_entry(entry(sent)))


def transact(
    sink: KafkaSink,
    ours: Session,
    book: Book,
    number: int,
    records: Iterable[pa.RecordBatch],
    rejects: Rejects,
    written: Callable[[Book, int], Book],
) -> float:
    """Sends ``records`` in the open transaction of ``ours``, and commits it with the book that ``written`` makes.

    Returns the seconds that the transaction was open.
    """
    with ours.guarded(f"batch {number} cannot be written"):
        sent = send(sink, ours, records, rejects)
        if rejects.count:
            rejects.decide()
        return ours.commit(written(book, sent))


def begin(address: Address, query: str, number: int, read: Callable[[Session], Book]) -> tuple[Session, Book] | None:
    """A session with an open transaction, and the book that ``read`` gave; ``None`` if the batch is there already.

    Spark gives batches to its workers in turns, and each of them keeps a session: the last one that wrote has the id. And
    brokers may have been restarted since.
    """
    was_kept = is_kept(address)
    ours = session(address)
    try:
        with ours.guarded(f"batch {number} cannot be begun"):
            book = read(ours)
            if is_there(book, query, number):
                return None
            ours.begin(book)
        return ours, book
    except (Fenced, Stuck):
        if not was_kept:
            raise
        return begin(address, query, number, read)


def _in_one(book: Book, query: str, number: int) -> Book:
    """``book``, unless the batch may be there in parts. Raises ``CommitRefused`` then."""
    if book.layout is not None and book.layout.query == query and not is_there(book, query, number):
        raise CommitRefused(
            f"batch {number} may be written in part, by a run with slots={book.layout.slots}: it cannot be one transaction",
            way_out="let foreach_batch, without stagingLocation, write it; the batches after it are written as you say",
        )
    return book


def send(sink: KafkaSink, ours: Session, records: Iterable[pa.RecordBatch], rejects: Rejects) -> int:
    """Puts ``records`` into the open transaction; how many."""
    feeder = Feeder(ours.producer, ours.config, ours.topics, sink.values["topic"], sink.patience())
    if sink.values["operation"] == "upsert":
        whole = list(records)
        records = last_of_each_key(pa.Table.from_batches(whole)).to_batches() if whole else []
    return sum(feeder.feed(batch, rejects) for batch in records)


def is_there(book: Book, query: str, number: int) -> bool:
    last = book.entries.get(query)
    if last is not None and last.batch > number:
        raise CommitRefused(
            f"batch {number} is older than batch {last.batch}, which is committed: another run has taken over"
        )
    return last is not None and last.batch == number
