"""The ledger of exactly-once: items of a table of their own, beside the tables that sinks write to.

The table has the key ``sink`` and ``entry``. ``query#…`` is the newest batch of a query, ``pending#…`` says that it may not be
published yet, and ``rows#…`` how many of the rows that an attempt of a task has staged are written. That stays for a while when
all are: a note of its beginning and a transaction that were given up may come after the batch, and would write its rows again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from ...core import Entry, Fatal
from ...core.ledger import OWNER, Ledger, LedgerContent, is_once, is_stream
from ...ground import machine
from ...ground.state import dumps, loads
from ..aws import AwsClient

OpenClient = Callable[[], AbstractContextManager[AwsClient]]
_QUERY, _PENDING, _ROWS = "query#", "pending#", "rows#"
_KEY: Final = ("sink", "HASH"), ("entry", "RANGE")
_MOST_WRITES: Final = 25
_MOST_TEXT: Final = 100_000
_POLL_SECONDS: Final = 0.2
_CREATE_SECONDS: Final = 60.0


class ItemLedger(Ledger):
    """The entries of the sink ``sink_id`` in ``table``, which is made if there is none."""

    def __init__(self, sink_id: str, table: str, open_client: OpenClient) -> None:
        self.table = table
        self._sink_id = sink_id
        self._open_client = open_client

    def last(self, query: str) -> Entry | None:
        item = self._item(_QUERY + query)
        return None if item is None else _entry(item)

    def queries(self) -> frozenset[str]:
        return frozenset(query for item in self._items(_QUERY) if is_stream(query := _name(item)))

    def record(self, entry: Entry) -> bool:
        """Records ``entry`` unless its batch, or a later one, is recorded."""
        number = {"N": str(entry.batch)}
        if entry.query != OWNER:  # a mark that comes late, and goes late, must not take away that of a newer batch
            mark = {**self._key(_PENDING + entry.query), "batchNumber": number}
            self._call_if("put_item", "attribute_not_exists(entry) OR batchNumber <= :batch", {":batch": number}, Item=mark)
        return self._call_if(
            "put_item",
            "attribute_not_exists(entry) OR batchNumber < :batch",
            {":batch": number},
            Item={
                **self._key(_QUERY + entry.query),
                "batchNumber": number,
                "content": _content(entry),
                "isPublished": {"BOOL": False},
            },
        )

    def unpublished(self) -> list[Entry]:
        items = [self._item(_QUERY + _name(mark)) for mark in self._items(_PENDING)]
        entries = [_entry(item) for item in items if item is not None and not item["isPublished"]["BOOL"]]
        return sorted(entries, key=lambda entry: (entry.at, entry.batch))

    def mark_published(self, entry: Entry) -> None:
        key, batch = self._key(_QUERY + entry.query), {":batch": {"N": str(entry.batch)}}
        if is_once(entry.query):
            self._call_if("delete_item", "batchNumber = :batch", batch, Key=key)
        else:
            update = {"UpdateExpression": "SET isPublished = :yes"}
            self._call_if("update_item", "batchNumber = :batch", {**batch, ":yes": {"BOOL": True}}, Key=key, **update)
        self._call_if("delete_item", "batchNumber = :batch", batch, Key=self._key(_PENDING + entry.query))

    def check(self) -> None:
        self.last(OWNER)

    # progress

    def begin(self, attempts: Sequence[str]) -> None:
        """Notes that nothing of what these attempts have staged is written."""
        now = {"N": str(int(machine.time()))}
        for attempt in attempts:  # a request that comes late, after its second try, must not take progress back
            item = {**self._key(_ROWS + attempt), "rowsWritten": {"N": "0"}, "startedAt": now}
            self._call_if("put_item", "attribute_not_exists(entry)", {}, Item=item)

    def written(self, attempt: str) -> int | None:
        """The number of rows of an attempt that are written; ``None`` where the ledger knows nothing of it."""
        item = self._item(_ROWS + attempt)
        return None if item is None else int(item["rowsWritten"]["N"])

    def step(self, attempt: str, before: int, after: int) -> dict[str, Any]:
        """The part of a transaction by which the rows of an attempt from ``before`` to ``after`` are written, once."""
        return {
            "Update": {
                "TableName": self.table,
                "Key": self._key(_ROWS + attempt),
                "UpdateExpression": "SET rowsWritten = :after",
                "ConditionExpression": "rowsWritten = :before",
                "ExpressionAttributeValues": {":before": {"N": str(before)}, ":after": {"N": str(after)}},
            }
        }

    def attempts(self, prefix: str = "") -> dict[str, float]:
        """The attempts that the ledger knows, and when they began."""
        return {_name(item): float(item["startedAt"]["N"]) for item in self._items(_ROWS + prefix)}

    def forget(self, attempts: Sequence[str]) -> None:
        """Removes what is noted of attempts."""
        requests = [{"DeleteRequest": {"Key": self._key(_ROWS + attempt)}} for attempt in attempts]
        for first in range(0, len(requests), _MOST_WRITES):
            left = {self.table: requests[first : first + _MOST_WRITES]}
            while left:
                left = self._call("batch_write_item", RequestItems=left).get("UnprocessedItems")
                machine.sleep(_POLL_SECONDS if left else 0.0)

    # calls

    def _key(self, entry: str) -> dict[str, Any]:
        return {"sink": {"S": self._sink_id}, "entry": {"S": entry}}

    def _item(self, entry: str) -> Mapping[str, Any] | None:
        item: Mapping[str, Any] | None = self._call("get_item", Key=self._key(entry), ConsistentRead=True).get("Item")
        return item

    def _items(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        start: dict[str, Any] = {}
        while True:
            answer = self._call(
                "query",
                KeyConditionExpression="sink = :sink AND begins_with(entry, :prefix)",
                ExpressionAttributeValues={":sink": {"S": self._sink_id}, ":prefix": {"S": prefix}},
                ConsistentRead=True,
                **start,
            )
            yield from answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def _call_if(self, method: str, condition: str, values: Mapping[str, Any], **request: Any) -> bool:
        """Calls under a condition; false where it does not hold."""
        try:
            named = {"ExpressionAttributeValues": values} if values else {}
            self._call(method, ConditionExpression=condition, **named, **request)
        except Fatal as refused:
            if "ConditionalCheckFailed" not in refused.message:
                raise
            return False
        return True

    def _call(self, method: str, **request: Any) -> Any:
        request |= {} if method == "batch_write_item" else {"TableName": self.table}
        with self._open_client() as client:
            try:
                return self._answer(client, method, request)
            except Fatal as refused:
                if "ResourceNotFound" not in refused.message:
                    raise
            self._create(client)
            return self._answer(client, method, request)

    def _answer(self, client: AwsClient, method: str, request: Mapping[str, Any]) -> Any:
        with client.errors(f"the table {self.table} (ledgerTable)"):
            return getattr(client.client, method)(**request)

    def _create(self, client: AwsClient) -> None:
        definition = {
            "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in _KEY],
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name, _ in _KEY],
            "BillingMode": "PAY_PER_REQUEST",
            "TableName": self.table,
        }
        try:
            self._answer(client, "create_table", definition)
        except Fatal as refused:
            if "ResourceInUse" not in refused.message:  # another task makes it at this moment
                raise
        until, table = machine.monotonic() + _CREATE_SECONDS, {"TableName": self.table}
        while self._answer(client, "describe_table", table)["Table"]["TableStatus"] != "ACTIVE" and machine.monotonic() < until:
            machine.sleep(_POLL_SECONDS)


def contents(client: AwsClient, table: str) -> list[LedgerContent]:
    """The content of every sink's ledger in ``table``; empty where there is no such table."""
    with client.errors(f"the table {table} (ledgerTable)"):
        if table not in [name for page in client.client.get_paginator("list_tables").paginate() for name in page["TableNames"]]:
            return []
        pages = client.client.get_paginator("scan").paginate(
            TableName=table,
            ConsistentRead=True,
            FilterExpression="begins_with(entry, :query)",
            ExpressionAttributeValues={":query": {"S": _QUERY}},
        )
        items = [item for page in pages for item in page["Items"]]
    by_sink: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        if _name(item) == OWNER:
            continue
        by_sink.setdefault(item["sink"]["S"], []).append(item)
    return [
        LedgerContent(
            sink_id,
            tuple(sorted(map(_entry, own), key=lambda entry: -entry.at)),
            frozenset((_name(item), int(item["batchNumber"]["N"])) for item in own if not item["isPublished"]["BOOL"]),
        )
        for sink_id, own in sorted(by_sink.items())
    ]


def _name(item: Mapping[str, Any]) -> str:
    return str(item["entry"]["S"]).partition("#")[2]


def _content(entry: Entry) -> dict[str, Any]:
    """The state of an entry. That of thousands of tasks is compressed, since an item has 400 KB."""
    text = dumps(entry.state())
    return {"S": text} if len(text) <= _MOST_TEXT else {"B": zlib.compress(text.encode())}


def _entry(item: Mapping[str, Any]) -> Entry:
    content = item["content"]
    text = content["S"] if "S" in content else zlib.decompress(content["B"]).decode()
    return Entry.of(loads(text, "an entry of the ledger in DynamoDB"))
