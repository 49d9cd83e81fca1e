"""The commit of a batch: its records and its ledger entry in one transaction, sent by the driver or by one task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ...core.arrow_stage import ArrowStage
from ...core.errors import CommitRefused
from ...core.ledger import Entry
from ...core.rejects import Rejects
from ...core.sink import Batch, Committable, GlobalCommitter
from .book import Book
from .client_errors import Fenced, Stuck
from .producing import Feeder
from .records import last_of_each_key
from .session import BOOK, SEEN, Session, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from .sink import KafkaSink


class KafkaCommitter(GlobalCommitter):
    """Sends what the tasks have staged. The ledger is read where nobody else can change it unseen."""

    def __init__(self, sink: KafkaSink) -> None:
        self.sink = sink
        self._address = sink.address()

    def last(self, query: str) -> Entry | None:
        book, seen = self._session().books(BOOK, SEEN)
        return book.entries.get(query) or seen.entries.get(query)

    def queries(self) -> frozenset[str]:
        book, seen = self._session().books(BOOK, SEEN)
        return book.streams() | seen.streams()

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        staged = [one.data["file"] for one in committables if one.data.get("file")]
        if not staged and not entry.rows:
            self.remember(entry)
        else:
            rejects = self.rejects or self.sink.rejects(Batch(self.sink.sink_id(), entry.query, entry.batch))
            publish(self.sink, entry.query, entry.batch, self._records(staged), rejects, lambda _: entry)
        for one in committables:
            self.discard(one)

    def remember(self, entry: Entry) -> None:
        """An empty batch needs no transaction; the first one of a query leaves a note, so that a later one is not its first."""
        book, seen = self._session().books(BOOK, SEEN)
        if entry.query not in book.entries and entry.query not in seen.entries:
            self._session().note(seen.with_entry(entry))

    def discard(self, committable: Committable) -> None:
        if committable.data.get("file"):
            self.sink.folder().remove(committable.data["file"])

    def sweep(self, live: frozenset[str]) -> None:
        if self.sink.values["stagingLocation"]:
            self.sink.folder().sweep(self.sink.values["stagingRetention"], live)

    def _session(self) -> Session:
        return session(self._address)

    def _records(self, staged: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for name in staged:
            with pa.memory_map(str(ArrowStage.file(self.sink.folder(), name))) as file:
                reader = pa.ipc.open_file(file)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)


def publish(
    sink: KafkaSink,
    query: str,
    number: int,
    records: Iterable[pa.RecordBatch],
    rejects: Rejects,
    entry: Callable[[int], Entry],
) -> bool:
    """One transaction with ``records`` and ``entry`` (which is told their number). False if the batch was there already."""
    begun = _begun(sink, query, number)
    if begun is None:
        return False
    ours, book = begun
    with ours.guarded(f"batch {number} cannot be written"):
        sent = send(sink, ours, records, rejects)
        if rejects.count:
            rejects.decide()
        ours.commit(book.with_entry(entry(sent)))
    return True


def _begun(sink: KafkaSink, query: str, number: int) -> tuple[Session, Book] | None:
    """A session with an open transaction, and the book; ``None`` if the batch is there already.

    Spark gives batches to its workers in turns, and each of them keeps a session: the last one that wrote has the id. And
    brokers may have been restarted since.
    """
    ours = session(sink.address())
    try:
        with ours.guarded(f"batch {number} cannot be begun"):
            book = ours.books(BOOK)[0]
            if _is_there(book, query, number):
                return None
            ours.begin(book)
        return ours, book
    except (Fenced, Stuck):
        if ours.fresh:
            raise
        return _begun(sink, query, number)


def send(sink: KafkaSink, ours: Session, records: Iterable[pa.RecordBatch], rejects: Rejects) -> int:
    """Puts ``records`` into the open transaction; how many."""
    feeder = Feeder(ours.producer, ours.config, ours.topics, sink.values["topic"], sink.patience())
    if sink.values["operation"] == "upsert":
        whole = list(records)
        records = last_of_each_key(pa.Table.from_batches(whole)).to_batches() if whole else []
    return sum(feeder.feed(batch, rejects) for batch in records)


def _is_there(book: Book, query: str, number: int) -> bool:
    last = book.entries.get(query)
    if last is not None and last.batch > number:
        raise CommitRefused(
            f"batch {number} is older than batch {last.batch}, which is committed: another run has taken over"
        )
    return last is not None and last.batch == number


class FrameCommitter(KafkaCommitter):
    """Lets one task send the whole batch: nothing is staged, and the driver handles no rows. For ``foreach_batch``."""

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        """Writes and records ``batch``, all of it or nothing."""
        from .tasks import funnel

        rows = self.sink.retry().call(lambda: funnel(self.sink, frame, batch))
        if rows == 0:
            self.remember(Entry(batch.query, batch.number, 0))
        if letters := self.sink.letters():
            letters.publish(batch)
