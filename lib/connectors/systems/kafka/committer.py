"""The commit of a batch, sent by the driver or by tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ...core.arrow_stage import ArrowStage
from ...core.ledger import Entry
from ...core.metrics import active_meter
from ...core.sink import Batch, Committable, GlobalCommitter
from .book import Book
from .ledger import BOOK, SEEN
from .session import Session, session
from .slots import Slots
from .transacting import publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from .sink import KafkaSink


_log: Final = logging.getLogger("connectors.kafka")


class KafkaCommitter(GlobalCommitter):
    """Sends what the tasks have staged. The ledger is read where nobody else can change it unseen."""

    def __init__(self, sink: KafkaSink) -> None:
        self.sink = sink
        self._address = sink.address()

    def last(self, query: str) -> Entry | None:
        (book,) = self._session().books(BOOK)
        return book.entries.get(query) or self._note().entries.get(query)

    def queries(self) -> frozenset[str]:
        (book,) = self._session().books(BOOK)
        return book.streams() | self._note().streams()

    def _note(self) -> Book:
        """Queries that had no rows yet. Read by itself: its offset expires while that of the book is fresh."""
        return self._session().books(SEEN)[0]

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        staged = [one.data["file"] for one in committables if one.data.get("file")]
        if not staged and not entry.rows:
            self.remember(entry)
        else:
            rejects = self.rejects or self.sink.rejects(Batch(self.sink.sink_id(), entry.query, entry.batch))
            seconds = publish(self.sink, entry.query, entry.batch, self._records(staged), rejects, lambda _: entry)
            self._show_time(seconds or 0.0)
        for one in committables:
            self.discard(one)

    def _show_time(self, seconds: float) -> None:
        """Puts the duration of a transaction into the query's table, beside the limit."""
        if seconds:
            timeout = self.sink.values["transactionTimeout"]
            active_meter().now(transaction_ms=round(seconds * 1000), timeout_ms=round(timeout * 1000))

    def remember(self, entry: Entry) -> None:
        """An empty batch needs no transaction; the first one of a query leaves a note, so that a later one is not its first."""
        (book,) = self._session().books(BOOK)
        if entry.query not in book.entries:
            note = self._note()
            self._session().note(note if entry.query in note.entries else note.with_entry(entry))

    def discard(self, committable: Committable) -> None:
        if committable.data.get("file"):
            self.sink.folder().remove(committable.data["file"])

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        if self.sink.staging_location():
            self.sink.folder().drop_attempts(batch, failed=failed)

    def sweep(self, live: frozenset[str]) -> None:
        if self.sink.staging_location():
            self.sink.folder().sweep(self.sink.values["stagingRetention"], live)

    def _session(self) -> Session:
        return session(self._address)

    def _records(self, staged: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for name in staged:
            with ArrowStage.reader(self.sink.folder(), name) as reader:
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)


class FrameCommitter(KafkaCommitter):
    """Lets tasks send the whole batch: nothing is staged, and the driver handles no rows. For ``foreach_batch``."""

    def __init__(self, sink: KafkaSink) -> None:
        super().__init__(sink)
        self.slots = Slots(sink)

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        """Writes and records ``batch``, all of it or nothing; with several slots, as much as is missing of it."""
        rows = self.sink.retry().call(lambda: self._send(frame, batch))
        if rows == 0:
            self.remember(Entry(batch.query, batch.number, 0))
        if letters := self.sink.letters():
            letters.publish(batch)

    def _send(self, frame: DataFrame, batch: Batch) -> int:
        from .tasks import funnel, spread

        layout = self.slots.layout(batch.query, batch.number)
        if layout is None:
            delivery = funnel(self.sink, frame, batch)
            self._show_time(delivery.seconds)
            return delivery.rows
        if isinstance(layout, Entry):
            return layout.rows or 0
        delivery = spread(self.slots, frame, batch, layout)
        self._show_time(delivery.seconds)
        if delivery.rows:
            self.slots.finish(Entry(batch.query, batch.number, delivery.rows), layout)
        return delivery.rows

    def _show_time(self, seconds: float) -> None:
        """Also warns here: what a task has logged stays with its executor."""
        super()._show_time(seconds)
        timeout = self.sink.values["transactionTimeout"]
        if seconds > timeout / 2:
            text = "a transaction of %s took %.0f s, more than half of transactionTimeout (%g s); the broker ends longer ones"
            _log.warning(text, self.sink.sink_id(), seconds, timeout)
