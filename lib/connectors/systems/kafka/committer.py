"""Batches in several transactions, one for each *slot*, for what one task alone cannot send fast enough.

A row belongs to a slot by its hash, never by its place, so a batch that Spark runs again has the same rows in each slot, and
a slot that is written is passed over. Who may write is told in the sink's own book, in a transaction that shuts out every
older driver: how many slots the batches of a query have from now on, and the *run* whose tasks they are. A task first takes
over its slot's transactional id, which ends what an earlier attempt has open; only then it reads that book, and leaves if
another run is named there. A batch that may be written in part keeps its number of slots, whatever the option says now.
"""

from __future__ import annotations

import base64
import json
import logging
import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from ...core.errors import CommitRefused, ConnectorError, Fatal, Misconfigured, Problem
from ...core.ledger import Entry, Policy, compare_replay
from ...core.metrics import active_meter
from ...core.sink import Batch, Committable, FrameCommitter, GlobalCommitter
from ...core.writing import ArrowStage
from .config import Fenced
from .ledger import BOOK, SEEN, Book, Layout
from .transactions import Incoming, Session, begin, is_there, publish, session, transact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


# MERGED Batches that tasks send themselves, without a stage: one task in one transaction, or several in one each.

Told = dict[str, Any]


class Delivery(NamedTuple):
    """The rows of a batch, and the seconds that the longest of its transactions was open."""

    rows: int
    seconds: float

    @classmethod
    def of(cls, reports: Sequence[Told]) -> Delivery:
        return cls(sum(report["rows"] for report in reports), max((report["seconds"] for report in reports), default=0.0))


def funnel(sink: KafkaSink, frame: DataFrame, batch: Batch) -> Delivery:
    """Sends ``frame`` in one task and one transaction."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield reported(lambda: _send_all(sink, batch, batches)._asdict())

    return Delivery.of(run(frame.repartition(1), task))


def _send_all(sink: KafkaSink, batch: Batch, batches: Iterator[pa.RecordBatch]) -> Delivery:
    incoming = Incoming(sink, batch, batches)
    if not incoming:  # an empty batch opens no transaction
        return Delivery(0, 0.0)
    query, number = batch.query, batch.number
    seconds = publish(sink, query, number, incoming, incoming.rejects, lambda _: Entry(query, number, incoming.count))
    return Delivery(incoming.count or 1, seconds or 0.0)  # a batch that is there already had rows


def spread(slots: Slots, frame: DataFrame, batch: Batch, layout: Layout) -> Delivery:
    """Sends ``frame`` in a task and a transaction for each slot."""
    from pyspark.sql import functions as F

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        slot = context.partitionId()
        yield reported(
            lambda: {"slot": slot, "rows": slots.write(layout, batch, slot, batches), "seconds": slots.seconds}
        )

    placed = frame.repartitionById(layout.slots, F.expr(f"CAST(pmod({_hash(frame)}, {layout.slots}) AS INT)"))
    reports = run(placed, task)
    if sorted(report["slot"] for report in reports) != list(range(layout.slots)):
        raise Fatal(f"{batch}: Spark ran other tasks than the {layout.slots} slots")
    return Delivery.of(reports)


def _hash(frame: DataFrame) -> str:
    """Of the key, so that the order of its records stays; of the value where there is none."""
    sides = [name for name in ("key", "value") if name in frame.columns]
    for name in sides:
        if any(kind in frame.schema[name].dataType.simpleString() for kind in ("map<", "variant")):
            text = (
                f"above 1 places rows by their {name}, and a {frame.schema[name].dataType.simpleString()} has no hash."
            )
            raise Misconfigured("connectors.kafka", [Problem("slots", text)])
    if len(sides) == 2:
        return "IF(key IS NULL, xxhash64(value), xxhash64(key))"
    return f"xxhash64({', '.join(sides)})"


def reported(work: Callable[[], Told]) -> pa.RecordBatch:
    """What ``work`` tells, or the error that it raises: Spark would try the task again at once, and hide the error's kind."""
    try:
        told = work()
    except ConnectorError as error:
        told = {"error": base64.b64encode(pickle.dumps(error)).decode()}
    return pa.RecordBatch.from_pydict({"told": [json.dumps(told)]})


def run(frame: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> list[Told]:
    """What the tasks tell. Raises the error that one of them reports."""
    reports: list[Told] = [json.loads(row.told) for row in frame.mapInArrow(task, "told string").collect()]
    for report in reports:
        if "error" in report:
            raise pickle.loads(base64.b64decode(report["error"]))
    return reports


# MERGED The commit of a batch, sent by the driver or by tasks.

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


class KafkaFrameCommitter(KafkaCommitter, FrameCommitter):
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
