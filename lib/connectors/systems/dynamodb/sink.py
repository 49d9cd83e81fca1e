"""Rows as items: many to a request, or each under a condition on its version."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as types

from ...batching import BatchingSink, Failure, FlowLimits, Throttled, batching_options
from ...core import (
    REQUIRED,
    Batch,
    Fatal,
    Guarantee,
    Misconfigured,
    Options,
    Poison,
    Problem,
    SinkWriter,
    Text,
    Transient,
    Values,
)
from ...core.datasets import Dataset
from ...core.ledger import LedgerContent
from ...core.sink import RETENTION
from ...ground.columns import BOOLEAN, Column, Columns, ColumnType
from ...storage.location import Location
from ..aws import AWS_OPTIONS, AwsClient, AwsWriter, aws_client, aws_dataset
from .items import MOST_DEPTH, depth_of, size_of, supported
from .ledger import ItemLedger, contents
from .transactions import MOST_ROWS, StagingWriter, TransactionCommitter
from .writes import MOST_ITEM_BYTES, NAME, RowWriter, TableKey, Write

_MOST = 25
"""Items of a request, as the service has it."""
_EXACTLY_ONCE: Final = "guarantee=exactly-once"
_ORDER: Final = ColumnType(
    "a column of numbers, times or text", lambda kind: not (types.is_nested(kind) or types.is_boolean(kind))
)
SCHEME: Final = "dynamodb://"
"""The beginning of an address of the service, where a command takes several kinds of addresses."""


class DynamoDbSink(BatchingSink):
    """Puts each row as an item in the place of the one with its key; a null is an attribute that is left out.

    With ``orderColumn`` each row is a request of its own, and one that is not newer than the item it would replace changes
    nothing. A deleted item has no version any more: a late older row makes it again.

    Numbers keep their digits. Times are text in ISO 8601, arrays lists, structs and maps maps.

    Guarantee: idempotent by the table's key: a replay writes the same items again. A request that was given up after
    ``request.timeout`` may still arrive, and put an older row over a newer one; ``orderColumn`` prevents that.

    With ``guarantee=exactly-once`` tasks stage
    rows in ``stagingLocation``, and the driver writes those of a batch by transactions of 99 rows and an item of the ledger:
    a replay writes nothing that is written, whoever has changed it since. Readers see a batch transaction by transaction. It is
    three times as slow, ten times with small batches, and the service charges a transaction twice.
    """

    name = "dynamodb"
    options = (
        AWS_OPTIONS
        | batching_options(max_records=_MOST, max_bytes="16MB", max_time="100ms", most_records=_MOST, most_bytes=16 << 20)
        | Options(
            alias={"versionColumn": "orderColumn"},
            table=Text(REQUIRED, meaning="the table"),
            keyColumns=Columns((), meaning="the columns of the table's key; default: the table is asked"),
            orderColumn=Column(None, _ORDER, meaning="a number or text that grows: an older row never replaces a newer one"),
            deleteColumn=Column(
                None, BOOLEAN, meaning="a boolean column, not written: true deletes the item of the row's key, null does not"
            ),
            ledgerTable=Text(
                "connectors_ledger", only_with=_EXACTLY_ONCE, meaning="the table of the ledger, made if there is none"
            ),
            stagingLocation=Location(
                None, only_with=_EXACTLY_ONCE,
                meaning="a folder that driver and tasks share; a stream by format has one in its checkpoint",
            ),
            stagingRetention=RETENTION,
        )
    )
    promise = Guarantee.EXACTLY_ONCE
    conditions = (
        "guarantee=exactly-once; else idempotent by the table's key; with orderColumn an older row never replaces a newer "
        "item"
    )

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        if values["orderColumn"] is not None and values.is_set("batch.maxRecords") and values["batch.maxRecords"] > 1:
            yield Problem("batch.maxRecords", "has no use with orderColumn, which makes a request of each row.")
        if values["guarantee"] == Guarantee.EXACTLY_ONCE.value and values.is_set("batch.maxRecords"):
            yield Problem("batch.maxRecords", f"has no use with guarantee=exactly-once: a transaction has {MOST_ROWS} rows.")
        if len(values["keyColumns"]) > 2:
            yield Problem("keyColumns", f"must be one or two, as a table's key has; got {', '.join(values['keyColumns'])}.")

    def guarantee(self) -> Guarantee:
        return Guarantee(self.values["guarantee"] or Guarantee.IDEMPOTENT)

    def target(self) -> str:
        return f"{self.values['endpoint'] or self.values['region'] or ''}/{self.values['table']}"

    def datasets(self) -> Sequence[Dataset]:
        return [aws_dataset("dynamodb", self.values, self.values["table"])]

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        for field in schema:
            if field.name != self.values["deleteColumn"] and not supported(field.type):
                yield Problem("table", f'takes no column of {field.type}, which "{field.name}" is; cast it.')
            elif (depth := depth_of(field.type)) > MOST_DEPTH:
                text = f'takes {MOST_DEPTH} levels of lists and maps, and the column "{field.name}" has {depth}'
                yield Problem("table", f"{text}; write it as a text.")

        if self.guarantee() is Guarantee.EXACTLY_ONCE and not self.staging_location():
            text = "missing; give a folder that driver and tasks share. Only a stream by format has one in its checkpoint."
            yield Problem("stagingLocation", text)

    def check_target(self, schema: pa.Schema) -> None:
        """Raises ``Misconfigured`` where ``keyColumns`` are not the table's key: rows of one item would not be known as such.

        Who names them because the table's description is not for him to read is taken at his word.
        """
        columns = self.values["keyColumns"]
        if not columns:
            return
        try:
            with self.client() as client:
                key = TableKey.of(client, self.values["table"], schema)
        except Transient:  # the writers wait for the service
            return
        except Fatal as refused:
            if "AWS refuses access" in refused.message:
                return
            raise
        if set(key.names) != set(columns):
            text = f"must be the table's key, {', '.join(key.names)}; got {', '.join(columns)}."
            raise Misconfigured(NAME, [Problem("keyColumns", text)])

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        if self.guarantee() is Guarantee.EXACTLY_ONCE:
            return StagingWriter(self, batch, schema)
        return ItemWriter(self, batch, schema)

    @classmethod
    def ledgers_in(cls, target: str, options: Mapping[str, str]) -> Sequence[LedgerContent] | None:
        """``target`` is ``dynamodb://`` and a region; ``ledgerTable`` and ``endpoint`` say where, if they are not the usual."""
        if not target.startswith(SCHEME):
            return None
        region = target.removeprefix(SCHEME).strip("/")
        address = {"region": region} if region else {}
        needed = {"table": "any", "guarantee": Guarantee.EXACTLY_ONCE.value, **address}
        values = cls.known_options().parse(NAME, {**needed, **options})
        with aws_client(NAME, "dynamodb", values) as client:
            return contents(client, values["ledgerTable"])

    def ledger(self) -> ItemLedger | None:
        return self.item_ledger() if self.guarantee() is Guarantee.EXACTLY_ONCE else None

    def committer(self) -> TransactionCommitter | None:
        return TransactionCommitter(self) if self.guarantee() is Guarantee.EXACTLY_ONCE else None

    def item_ledger(self) -> ItemLedger:
        """The ledger of exactly-once."""
        return ItemLedger(self.sink_id(), self.values["ledgerTable"], self.client)

    def client(self) -> AbstractContextManager[AwsClient]:
        """A client of the service."""
        return aws_client(NAME, "dynamodb", self.values)


class ItemWriter(AwsWriter):
    """Writes the rows of one task."""

    def __init__(self, sink: DynamoDbSink, batch: Batch, schema: pa.Schema) -> None:
        values = sink.values
        self._table, self._version = values["table"], values["orderColumn"]
        self._stale = 0
        super().__init__(sink, batch, "dynamodb")
        self._key = values["keyColumns"] or TableKey.of(self._client, self._table, schema).names
        self._rows = RowWriter(values, self._key)

    def limits_of(self, values: Values) -> FlowLimits:
        limits = super().limits_of(values)
        limits = replace(limits, record_bytes=values["batch.maxRecordBytes"] or min(MOST_ITEM_BYTES, limits.bytes))
        return limits if self._version is None else replace(limits, records=1, buffered=4 * limits.in_flight)

    def entries(self, rows: pa.RecordBatch) -> Sequence[Write | Poison]:
        return self._rows.writes(rows)

    def sizes(self, entries: Sequence[Write]) -> list[int]:
        return [size_of(entry.item) for entry in entries]

    def keys(self, entries: Sequence[Write]) -> Sequence[Hashable]:
        return [entry.name for entry in entries]

    def send(self, entries: list[Write]) -> Iterator[Failure]:
        if self._version is not None:
            self._put_if_newer(entries[0])
            return
        last = {entry.name: place for place, entry in enumerate(entries)}  # a request has each key once
        requests = [_request(entries[place]) for place in last.values()]
        answer = self._called("batch_write_item", RequestItems={self._table: requests})
        for request in answer.get("UnprocessedItems", {}).get(self._table, ()):
            attributes = request["DeleteRequest"]["Key"] if "DeleteRequest" in request else request["PutRequest"]["Item"]
            place = last[self._rows.name(attributes)]
            yield place, Throttled(f"DynamoDB has not processed an item of {self._table}: the table is busy")

    def report(self) -> dict[str, Any]:
        return {"stale": self._stale} if self._stale else {}

    def _put_if_newer(self, entry: Write) -> None:
        """Writes a row unless the table has one of its key that is as new."""
        request = {"TableName": self._table, **self._rows.condition(entry)}
        if entry.is_deleted:
            answer = self._called("delete_item", Key=entry.key, **request)
        else:
            answer = self._called("put_item", Item=entry.item, **request)
        if "Error" in answer:
            if problem := self._rows.version_problem(entry, answer.get("Item", {})):
                raise Poison(problem)
            self._stale += 1

    def _called(self, method: str, **request: Any) -> Any:
        """The answer to a call, with ``Error`` where its condition does not hold.

        An item that breaks a rule of the service is a bad row.
        """
        try:
            with self._client.errors(f"the table {self._table}"):
                try:
                    return getattr(self._client.client, method)(**request)
                except self._client.client.exceptions.ConditionalCheckFailedException as refused:
                    return refused.response
        except Fatal as refused:
            if "ValidationException" in refused.message or "(413)" in refused.message:  # more than 16 MB as JSON
                raise Poison(refused.message) from None
            raise


def _request(entry: Write) -> dict[str, Any]:
    return {"DeleteRequest": {"Key": entry.key}} if entry.is_deleted else {"PutRequest": {"Item": entry.item}}
