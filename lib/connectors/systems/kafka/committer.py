"""The committers of a Kafka sink: the driver sends the staged records of tasks, or lets tasks send a whole DataFrame."""

from __future__ import annotations

import itertools
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ...core.batch import Batch, Committable
from ...core.ledger import OWNER, Entry
from ...core.metrics import active_meter
from ...core.sink import FrameCommitter, GlobalCommitter
from ...core.writing import ArrowStage
from ...ground.errors import ConnectorError, Fatal, Misconfigured, Problem
from ...ground.retry import RetrySettings
from .ledger import NOTE_PARTITION, SINK_PARTITION, LedgerState, SlotLayout
from .session import open_session
from .transactions import BatchTransaction, Delivery, NoteTransaction, TransactionSlots, send_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from .sink import KafkaSink

_log: Final = logging.getLogger("connectors.kafka")
_FEW_TASKS: Final = 8
"""The most tasks whose rows the driver takes. Each runs in Python: 32 on two cores take four times as long as the stage."""


class KafkaCommitter(GlobalCommitter):
    """Sends the staged records of the tasks in one transaction."""

    records_claims = True

    def __init__(self, sink: KafkaSink) -> None:
        self.sink = sink
        self._settings = sink.transaction_settings()

    def last(self, query: str) -> Entry | None:
        ledger, note = self._ledger(query), self._note(query).entries.get(query)
        if note is not None and ledger.may_lack(note):
            return None  # the dropped entry may have been newer than the note
        return max(filter(None, (ledger.entries.get(query), note)), key=lambda entry: entry.batch, default=None)

    def queries(self) -> frozenset[str]:
        return self._ledger().streams() | self._note().streams()

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        staged = [committable.data["file"] for committable in committables if committable.data.get("file")]
        if staged or entry.rows:
            rejects = self.rejects or self.sink.rejects(Batch(self.sink.sink_id(), entry.query, entry.batch))
            transaction = BatchTransaction(self.sink, entry)
            if transaction.begin():
                transaction.send(self._records(staged), rejects)
                self._show_time(transaction.commit())
        else:
            self.remember(entry)
        for committable in committables:
            self.discard(committable)

    def remember(self, entry: Entry) -> None:
        """Records an empty batch, in the note unless it claims the sink, so that the next batch follows without a gap."""
        owner = self._ledger(entry.query).entries.get(OWNER) if entry.claim is not None else None
        claims = entry.claim is not None and (owner is None or owner.owner != entry.query)  # its slots may have done so
        last = None if claims else self.last(entry.query)
        if last is None or last.batch < entry.batch:
            transaction = BatchTransaction(self.sink, entry) if claims else NoteTransaction(self.sink, entry)
            if transaction.begin():
                transaction.commit()

    def discard(self, committable: Committable) -> None:
        if committable.data.get("file"):
            self.sink.folder().remove(committable.data["file"])

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        if self.sink.staging_location():
            self.sink.folder().drop_attempts(batch, failed=failed)

    def sweep(self, live: frozenset[str]) -> None:
        if self.sink.staging_location():
            self.sink.folder().sweep(self.sink.values["stagingRetention"], live)

    def _ledger(self, query: str = "") -> LedgerState:
        return open_session(self._settings.of_query(query)).read_ledger(SINK_PARTITION)[0]

    def _note(self, query: str = "") -> LedgerState:
        """The note: batches without rows. Its own session ends a transaction that a dead driver has left open."""
        return open_session(replace(self._settings.of_query(query), is_note=True)).read_ledger(NOTE_PARTITION)[0]

    def _records(self, staged: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for name in staged:
            with ArrowStage.reader(self.sink.folder(), name) as reader:
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)

    def _show_time(self, seconds: float) -> None:
        """Writes the duration of a transaction into the query's table, beside the limit."""
        if seconds:
            timeout = self.sink.values["transactionTimeout"]
            active_meter().now(transaction_ms=round(seconds * 1000), timeout_ms=round(timeout * 1000))


class KafkaFrameCommitter(KafkaCommitter, FrameCommitter):
    """Sends a whole DataFrame from tasks, or few rows from the driver, without staging. For ``foreach_batch``."""

    counts_rows = True

    def __init__(self, sink: KafkaSink) -> None:
        super().__init__(sink)
        self.slots = TransactionSlots(sink)
        self._was_small = self._has_many_tasks = False

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        """Writes and records ``batch``, all of it or nothing; with several slots, the slots that are missing."""
        RetrySettings.of(self.sink.values).call(lambda: self._send(frame, batch))
        if letters := self.sink.letters():
            letters.publish(batch)

    def _send(self, frame: DataFrame, batch: Batch) -> None:
        layout = self.slots.layout(batch)
        if isinstance(layout, Entry):
            return
        if layout is None:
            delivery = self._send_in_one_transaction(frame, batch)
        else:
            delivery = _send_in_slots(self.slots, frame, batch, layout)
        self._show_time(delivery.seconds)
        if not delivery.rows:
            self.remember(Entry(batch.query, batch.number, 0, claim=batch.claim))
        elif layout is not None:
            self.slots.finish(Entry(batch.query, batch.number, delivery.rows), layout)
        letters = delivery.rejected if self.sink.values["errors"] == "deadLetter" else 0
        active_meter().count(rows=delivery.rows - delivery.rejected, errors=delivery.rejected, dead_letters=letters)

    def _send_in_one_transaction(self, frame: DataFrame, batch: Batch) -> Delivery:
        """Sends ``frame`` from one task, or few rows from the driver, which keeps its session from batch to batch.

        Spark gives each batch to another worker, and to move a session costs more than a small batch. So does the stage that
        brings all rows to one task: after a small batch the tasks return their rows to the driver without it. If there are too
        many rows, the tasks stop, and Spark computes the batch again. If an observation would count it twice, this is not done.
        """
        sink, small = self.sink, self.sink.driver_bytes // 4  # per task; before the first batch there may be many
        is_small = self._was_small and not self._has_many_tasks and not batch.is_observed
        answers = _run(frame, lambda _, rows: _all_rows(rows, small)) if is_small else []
        self._has_many_tasks |= len(answers) > _FEW_TASKS
        if not is_small or any(has_more for _, has_more in answers):

            def send(_: int, rows: Iterator[pa.RecordBatch]) -> Delivery | tuple[list[pa.RecordBatch], bool]:
                first, has_more = _first_rows(rows, sink.driver_bytes)
                return send_batch(sink, batch, itertools.chain(first, rows)) if has_more else (first, False)

            answers = _run(frame.repartition(1), send)
        if answers and isinstance(answers[0], Delivery):
            self._was_small = False
            return answers[0]
        rows = [records for first, _ in answers for records in first]
        self._was_small = sum(records.nbytes for records in rows) <= small
        return send_batch(sink, batch, iter(rows))

    def _show_time(self, seconds: float) -> None:
        """Also warns on the driver, since a task's log stays with its executor."""
        super()._show_time(seconds)
        timeout = self.sink.values["transactionTimeout"]
        if seconds > timeout / 2:
            text = "a transaction of %s took %.0f s, more than half of transactionTimeout (%g s); the broker ends longer ones"
            _log.warning(text, self.sink.sink_id(), seconds, timeout)


def _all_rows(rows: Iterator[pa.RecordBatch], size: int) -> tuple[list[pa.RecordBatch], bool]:
    """As :func:`_first_rows`, but no rows if there are more than ``size`` bytes: a single Arrow batch may be large."""
    first, has_more = _first_rows(rows, size)
    return ([] if has_more else first), has_more


def _first_rows(rows: Iterator[pa.RecordBatch], size: int) -> tuple[list[pa.RecordBatch], bool]:
    """The first of ``rows`` until they exceed ``size`` bytes, and whether they do."""
    first = []
    for records in rows:
        first.append(records)
        size -= records.nbytes
        if size < 0:
            return first, True
    return first, False


def _send_in_slots(slots: TransactionSlots, frame: DataFrame, batch: Batch, layout: SlotLayout) -> Delivery:
    """Sends ``frame`` in a task and a transaction for each slot."""
    from pyspark.sql import functions as F

    slot = F.expr(f"CAST(pmod({_row_hash(frame)}, {layout.slots}) AS INT)")
    sent = _run(frame.repartitionById(layout.slots, slot), partial(slots.write, layout, batch))
    if len(sent) != layout.slots:
        raise Fatal(f"{batch}: Spark ran other tasks than the {layout.slots} slots")
    rows, seconds, rejected = zip(*sent, strict=True)
    return Delivery(sum(rows), max(seconds), sum(rejected))


def _row_hash(frame: DataFrame) -> str:
    """The hash of the key, to keep the order of its records; of the value if there is no key."""
    sides = [name for name in ("key", "value") if name in frame.columns]
    for name in sides:
        kind = frame.schema[name].dataType.simpleString()
        if "map<" in kind or "variant" in kind:
            text = f"above 1 places rows by their {name}, and a {kind} has no hash."
            raise Misconfigured("connectors.kafka", [Problem("slots", text)])
    if len(sides) == 2:
        return "IF(key IS NULL, xxhash64(value), xxhash64(key))"
    return f"xxhash64({', '.join(sides)})"


def _run(frame: DataFrame, send: Callable[[int, Iterator[pa.RecordBatch]], Any]) -> list[Any]:
    """Calls ``send`` in a task for each partition of ``frame``, with its number and rows. Returns the answers by number.

    A task returns its error instead of raising it: Spark would retry the task at once, and hide the error's class.
    """

    def task(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        number = context.partitionId()
        try:
            answer = send(number, rows)
        except ConnectorError as error:
            answer = error
        yield pa.RecordBatch.from_pydict({"number": [number], "answer": [pickle.dumps(answer)]})

    collected = frame.mapInArrow(task, "number bigint, answer binary").collect()
    answers = {row.number: pickle.loads(row.answer) for row in collected}
    for answer in answers.values():
        if isinstance(answer, ConnectorError):
            raise answer
    return [answers[number] for number in sorted(answers)]
