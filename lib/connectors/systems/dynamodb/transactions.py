"""Exactly-once: tasks stage rows in a folder, and the driver writes those of a decided batch by transactions.

A transaction writes up to 99 rows of one attempt of a task, and with them how many of its rows are written by now
(:meth:`~connectors.systems.dynamodb.ledger.ItemLedger.step`). So whoever goes on, after whatever has happened, begins behind
the last row that is written, and of two drivers that publish the same batch each row is written by one.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ...batching import Throttled
from ...core import Batch, Committable, Committer, Fatal, Poison, Transient
from ...core.dead_letters import row_at
from ...core.folder import SinkFolder
from ...core.writing import ArrowStage, StageWriter
from ...ground import machine
from ...ground.retry import RetrySettings
from ..aws import AwsClient
from .items import size_of
from .ledger import ItemLedger
from .writes import MOST_ITEM_BYTES, RowWriter, TableKey, Write, refused_keys

if TYPE_CHECKING:
    from .sink import DynamoDbSink

MOST_ROWS: Final = 99
"""Of a transaction, which has a hundred items with that of the ledger."""
_MOST_BYTES: Final = 2_000_000
"""The service takes 4 MB of items, and a request of 16 MB: lists of booleans are seven times as long there, as JSON."""
_LATEST_REQUEST: Final = 3600.0
"""After so many seconds no request that was given up comes any more: the service takes a signature for 15 minutes."""
_FAILED_CONDITION: Final = "ConditionalCheckFailed"
_CONFLICT: Final = "TransactionConflict"
_MEND: Final = "mend the table, and start the query again: it goes on behind the last row that is written"
_THROTTLED: Final = ("ThrottlingError", "ProvisionedThroughputExceeded")


class StagingWriter(StageWriter):
    """Stages the rows of one task attempt that the table can take."""

    def __init__(self, sink: DynamoDbSink, batch: Batch, schema: pa.Schema) -> None:
        self.rejects = sink.rejects(batch)
        super().__init__(sink.folder(), batch)
        with sink.client() as client:
            find_key = partial(TableKey.of, client, sink.values["table"], schema)
            self._key = RetrySettings.of(sink.values).of_first_contact().call(find_key)
        self._rows = RowWriter(sink.values, self._key.names)
        self._most = min(sink.values["batch.maxRecordBytes"] or MOST_ITEM_BYTES, MOST_ITEM_BYTES)

    def write(self, batch: pa.RecordBatch) -> None:
        assert self.rejects is not None
        good = []
        for place, write in enumerate(self._rows.writes(batch)):
            problem = write if isinstance(write, Poison) else self._problem(write)
            if problem is None:
                good.append(place)
            else:
                self.rejects.add(row_at(batch, place), problem)
        if good:
            self.staged.write(batch if len(good) == batch.num_rows else batch.take(pa.array(good)))

    def prepare(self) -> Committable:
        self.staged.close()
        data: dict[str, Any] = {"attempt": self.staged.attempt}
        if self.staged.rows:
            self.staged.folder.sync([self.staged.file])
            data["size"] = self.staged.folder.size(self.staged.file)
        return Committable(self.staged.rows, data)

    def _problem(self, write: Write) -> Poison | None:
        size = size_of(write.item)
        if size > self._most:
            return Poison(f"the item has {size} bytes, more than the {self._most} that it may have")
        text = self._key.problem(write.item)
        return None if text is None else Poison(text)


class TransactionCommitter(Committer):
    """Writes what tasks have staged, attempts side by side, the rows of each in their order."""

    def __init__(self, sink: DynamoDbSink) -> None:
        self._sink = sink
        self._ledger: ItemLedger = sink.item_ledger()
        self._folder: SinkFolder = sink.folder()
        self._retry = RetrySettings.of(sink.values)

    def check(self, committables: Sequence[Committable], rows: int) -> None:
        staged = [committable.data for committable in committables if committable.rows]
        self._folder.check_staged((ArrowStage(self._folder, data["attempt"]).file, data["size"]) for data in staged)
        self._ledger.begin([data["attempt"] for data in staged])

    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        staged = [committable for committable in committables if committable.rows]
        if staged:
            with ThreadPoolExecutor(min(len(staged), self._sink.values["batch.maxInFlight"]), "connectors.dynamodb") as threads:
                contexts = [contextvars.copy_context() for _ in staged]  # for who hears of retries in this thread
                list(threads.map(lambda context, part: context.run(self._publish, batch, part), contexts, staged))
        for committable in committables:
            self._folder.remove(committable.data["attempt"])

    def discard(self, committable: Committable) -> None:
        self._folder.remove(committable.data["attempt"])
        self._ledger.forget([committable.data["attempt"]])

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        self._folder.drop_attempts(batch, failed=failed)
        self._forget_unstaged(self._ledger.attempts(f"{batch.prefix()}-"))

    def sweep(self, live: frozenset[str]) -> None:
        self._folder.sweep(self._sink.values["stagingRetention"], live)
        old = [name for name, at in self._ledger.attempts().items() if machine.time() - at > _LATEST_REQUEST]
        self._forget_unstaged(name for name in old if name.partition("-")[0] not in live)

    def _forget_unstaged(self, attempts: Iterable[str]) -> None:
        """Removes from the ledger the attempts whose staged rows are gone: none of a batch that is not published."""
        staged = self._folder.attempts()
        self._ledger.forget([name for name in attempts if name not in staged])

    def _publish(self, batch: Batch, staged: Committable) -> None:
        attempt = staged.data["attempt"]
        written = self._written(batch, attempt)
        if written is None or written >= staged.rows:
            return
        with ArrowStage.reader(self._folder, attempt) as reader, self._sink.client() as client:
            key = self._sink.values["keyColumns"] or TableKey.of(client, self._sink.values["table"], reader.schema).names
            rows = RowWriter(self._sink.values, key)
            end = 0
            for number in range(reader.num_record_batches):
                part = reader.get_batch(number)
                end += part.num_rows
                while written < end:
                    writes = rows.writes(part.slice(part.num_rows - (end - written), MOST_ROWS))
                    after = self._retry.call(partial(self._transact, client, rows, attempt, written, writes))
                    written = self._written(batch, attempt) if after is None else after
                    if written is None:
                        return

    def _written(self, batch: Batch, attempt: str) -> int | None:
        """The rows of ``attempt`` that are written; ``None`` where another driver has published the batch."""
        written = self._ledger.written(attempt)
        pending = [(entry.query, entry.batch) for entry in self._ledger.unpublished()] if written is None else []
        if (batch.query, batch.number) in pending:
            raise Fatal(
                f"{self._ledger.table} (ledgerTable) does not say how much of {batch} is written",
                way_out="restore the table from a copy; or give the query a sinkId of its own, and say by onLostLedger whether "
                "the batch is written",
            )
        return written

    def _transact(
        self, client: AwsClient, rows: RowWriter, attempt: str, written: int, writes: Sequence[Write | Poison]
    ) -> int | None:
        """Writes the first of ``writes`` in one transaction, and says how many rows are written by then.

        ``None`` where another driver has gone on from ``written``, or an earlier try whose answer was lost.
        """
        count, chosen = self._chosen(writes)
        while True:
            step = self._ledger.step(attempt, written, written + count)
            refusals = self._refusals(client, [step, *(self._request(rows, write) for write in chosen)])
            if not refusals:
                return written + count
            reasons = [refusal["Code"] for refusal in refusals]
            if reasons[0] == _FAILED_CONDITION:
                return None
            self._raise(chosen, reasons)
            for write, refusal in zip(chosen, refusals[1:], strict=True):
                if "Item" in refusal and (problem := rows.version_problem(write, refusal["Item"])):
                    raise Fatal(f"the table {self._sink.values['table']}: {problem}", way_out=_MEND)
            chosen = [write for write, reason in zip(chosen, reasons[1:], strict=True) if reason != _FAILED_CONDITION]

    def _chosen(self, writes: Sequence[Write | Poison]) -> tuple[int, list[Write]]:
        """The first of ``writes`` that one transaction takes: their number, and the last write of each key among them."""
        chosen: dict[tuple[str, ...], Write] = {}
        size = count = 0
        for write in writes:
            assert isinstance(write, Write), "a row that was good is not good any more"
            size += size_of(write.item)
            is_second = self._sink.values["orderColumn"] is not None and write.name in chosen
            if count and (size > min(self._sink.values["batch.maxBytes"], _MOST_BYTES) or is_second):
                break
            chosen.pop(write.name, None)
            chosen[write.name] = write
            count += 1
        return count, list(chosen.values())

    def _request(self, rows: RowWriter, write: Write) -> dict[str, Any]:
        kind, content = ("Delete", {"Key": write.key}) if write.is_deleted else ("Put", {"Item": write.item})
        return {kind: {"TableName": self._sink.values["table"], **content, **rows.condition(write)}}

    def _refusals(self, client: AwsClient, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Why each part of a transaction was refused: ``Code`` is ``None`` for those that were not; empty if it was done."""
        with client.errors(f"the table {self._sink.values['table']}"):
            try:
                client.client.transact_write_items(TransactItems=requests)
            except client.client.exceptions.TransactionCanceledException as cancelled:
                if not (refusals := cancelled.response.get("CancellationReasons")):
                    raise
                return list(refusals)
        return []

    def _raise(self, writes: Sequence[Write], reasons: Sequence[str]) -> None:
        """Raises why a transaction was refused, unless only because rows are not newer than the table's."""
        table = f"the table {self._sink.values['table']}"
        others = set(reasons) - {"None", _FAILED_CONDITION}
        if not (others or _FAILED_CONDITION in reasons) or _CONFLICT in others:
            raise Transient(f"another request writes to {table} at the same time")
        if others.intersection(_THROTTLED):
            raise Throttled(f"AWS throttles {table}: {', '.join(sorted(others))}")
        if others:
            bad = [write for write, reason in zip(writes, reasons[1:], strict=True) if reason in others]
            raise Fatal(
                f"{table} refuses rows ({', '.join(sorted(others))}): {'; '.join(refused_keys(bad[:5]))}",
                way_out=_MEND,
            )
