"""Rows as items: many to a request, or each under a condition on its version."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.types as types

from ...batching import BatchingSink, Failure, FlowLimits, Throttled, batching_options
from ...core import REQUIRED, Batch, Fatal, Guarantee, Misconfigured, Names, Options, Poison, Problem, Text, Values
from ..aws import AWS_OPTIONS, AwsWriter, check_aws
from .items import Attribute, items_of, size_of, supported, text_of

_NAME: Final = "connectors.dynamodb"
_MOST, _MOST_BYTES, _MOST_ITEM_BYTES = 25, 16 << 20, 400 << 10


class Write(NamedTuple):
    """What becomes of a row: ``item`` is put, or deleted where it ``is_deleted``; ``key`` has the attributes of its key."""

    name: str
    key: dict[str, Attribute]
    item: dict[str, Attribute]
    is_deleted: bool


class DynamoDbSink(BatchingSink):
    """Puts each row as an item in the place of the one with its key; a null is an attribute that is left out.

    With ``versionColumn`` each row is a request of its own, and one that is not newer than the item it would replace changes
    nothing. A deleted item has no version any more: a late older row makes it again.

    Numbers keep their digits. Times are text in ISO 8601, arrays lists, structs and maps maps.

    Guarantee: idempotent by the table's key: a replay writes the same items again.
    """

    name = "dynamodb"
    options = (
        AWS_OPTIONS
        | batching_options(max_records=_MOST, max_bytes="16MB", max_time="100ms")
        | Options(
            table=Text(REQUIRED, meaning="the table"),
            keyColumns=Names((), meaning="the columns of the table's key; default: the table is asked"),
            versionColumn=Text(None, meaning="a number or text that grows: an older row never replaces a newer one"),
            deleteColumn=Text(None, meaning="a boolean column, not written: true deletes the item of the row's key"),
        )
    )
    promise = Guarantee.IDEMPOTENT
    conditions = "rows are written by the table's key; with versionColumn an older row never wins"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from super().check(values)
        yield from check_aws(values)
        if values["versionColumn"] is not None and values.is_set("batch.maxRecords") and values["batch.maxRecords"] > 1:
            yield Problem("batch.maxRecords", "has no use with versionColumn, which makes a request of each row.")
        for option, most in (("batch.maxRecords", _MOST), ("batch.maxBytes", _MOST_BYTES)):
            if values[option] > most:
                yield Problem(option, f"must be {most} or less, as the service has it; got {values[option]}.")
        if len(values["keyColumns"]) > 2:
            yield Problem("keyColumns", f"must be one or two, as a table's key has; got {', '.join(values['keyColumns'])}.")

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        return Guarantee.IDEMPOTENT, "a replay writes the same items again by their keys, which leaves them as they are."

    def target(self) -> str:
        return f"{self.values['endpoint'] or self.values['region'] or ''}/{self.values['table']}"

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        values = self.values
        named = [("keyColumns", column) for column in values["keyColumns"]]
        named += [(option, values[option]) for option in ("versionColumn", "deleteColumn") if values[option] is not None]
        for option, column in named:
            if column not in schema.names:
                yield Problem(option, f'names the column "{column}", which the rows do not have: {", ".join(schema.names)}.')
        delete = values["deleteColumn"]
        if delete in schema.names and not types.is_boolean(kind := schema.field(delete).type):
            yield Problem("deleteColumn", f'must be a boolean column; "{delete}" is {kind}.')
        version = values["versionColumn"]
        if version in schema.names and types.is_nested(kind := schema.field(version).type):
            yield Problem("versionColumn", f'must be a column of numbers, times or text; "{version}" is {kind}.')
        for field in schema:
            if field.name != delete and not supported(field.type):
                yield Problem("table", f'takes no column of {field.type}, which "{field.name}" is; cast it.')

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> ItemWriter:
        self.refuse_frame(schema, placed=False)
        return ItemWriter(self, batch, schema)


class ItemWriter(AwsWriter):
    """Writes the rows of one task."""

    def __init__(self, sink: DynamoDbSink, batch: Batch, schema: pa.Schema) -> None:
        values = sink.values
        self._table, self._version, self._delete = values["table"], values["versionColumn"], values["deleteColumn"]
        self._stale = 0
        super().__init__(sink, batch, "dynamodb")
        self._key = values["keyColumns"] or self._key_of_table(schema)

    def limits_of(self, values: Values) -> FlowLimits:
        limits = super().limits_of(values)
        limits = replace(limits, record_bytes=values["batch.maxRecordBytes"] or min(_MOST_ITEM_BYTES, limits.bytes))
        return limits if self._version is None else replace(limits, records=1, buffered=4 * limits.in_flight)

    def entries(self, rows: pa.RecordBatch) -> Sequence[Write | Poison]:
        deletes = [False] * rows.num_rows
        if self._delete is not None:
            deletes = [bool(value) for value in rows.column(self._delete).to_pylist()]
            rows = rows.select([name for name in rows.schema.names if name != self._delete])
        return [self._write(item, delete) for item, delete in zip(items_of(rows), deletes, strict=True)]

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
            place = last[self._name({name: attributes[name] for name in self._key})]
            yield place, Throttled(f"DynamoDB has not processed an item of {self._table}: the table is busy")

    def report(self) -> dict[str, Any]:
        return {"stale": self._stale} if self._stale else {}

    def _write(self, item: dict[str, Attribute] | Poison, is_deleted: bool) -> Write | Poison:
        if isinstance(item, Poison):
            return item
        needed = self._key if self._version is None else (*self._key, self._version)
        if missing := [name for name in needed if name not in item]:
            return Poison(f'the column "{missing[0]}" is null')
        key = {name: item[name] for name in self._key}
        return Write(self._name(key), key, item, is_deleted)

    def _name(self, key: dict[str, Attribute]) -> str:
        return "\x1f".join(text_of(key[name]) for name in self._key)

    def _put_if_newer(self, entry: Write) -> None:
        """Writes a row unless the table has one of its key that is as new."""
        condition = {
            "TableName": self._table,
            "ConditionExpression": "attribute_not_exists(#key) OR attribute_not_exists(#version) OR #version < :version",
            "ExpressionAttributeNames": {"#key": self._key[0], "#version": self._version},
            "ExpressionAttributeValues": {":version": entry.item[self._version]},
        }
        try:
            if entry.is_deleted:
                self._called("delete_item", Key=entry.key, **condition)
            else:
                self._called("put_item", Item=entry.item, **condition)
        except Fatal as refused:
            if "ConditionalCheckFailed" not in refused.message:
                raise
            self._stale += 1

    def _called(self, method: str, **request: Any) -> Any:
        """The answer to a call. An item that breaks a rule of the service is a bad row."""
        try:
            with self._client.errors(f"the table {self._table}"):
                return getattr(self._client.client, method)(**request)
        except Fatal as refused:
            if "ValidationException" in refused.message:
                raise Poison(refused.message) from None
            raise

    def _key_of_table(self, schema: pa.Schema) -> tuple[str, ...]:
        with self._client.errors(f"the table {self._table}"):
            table = self._client.client.describe_table(TableName=self._table)["Table"]
        key = tuple(part["AttributeName"] for part in table["KeySchema"])
        if missing := [name for name in key if name not in schema.names]:
            text = f"has the key {', '.join(key)}, and the rows have no column {missing[0]}: {', '.join(schema.names)}."
            raise Misconfigured(_NAME, [Problem("table", text)])
        return key


def _request(entry: Write) -> dict[str, Any]:
    return {"DeleteRequest": {"Key": entry.key}} if entry.is_deleted else {"PutRequest": {"Item": entry.item}}
