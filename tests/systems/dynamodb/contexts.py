"""DynamoDB on this machine, as the suites see it."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from connectors.core import Guarantee
from connectors.systems.dynamodb import DynamoDbSink
from connectors.testing import SinkContext
from connectors.testing.servers import DynamoDbServer, MotoServer
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Seen
from tests.servers import optional, required

ACCOUNT = {"region": "us-east-1", "accessKeyId": "test", "secretAccessKey": "test"}


class ItemsContext(SinkContext):
    """A table of its own. ``keys`` are the types of its key's attributes."""

    sink = DynamoDbSink
    guarantee = Guarantee.IDEMPOTENT
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    keys: ClassVar[Mapping[str, str]] = {"id": "N"}
    extra: ClassVar[Mapping[str, str]] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(MotoServer)

    @cached_property
    def client(self) -> Any:
        return self.server.client("dynamodb")

    @cached_property
    def table(self) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        parts = [{"AttributeName": key, "KeyType": kind} for key, kind in zip(self.keys, ("HASH", "RANGE"), strict=False)]
        types = [{"AttributeName": key, "AttributeType": kind} for key, kind in self.keys.items()]
        self.client.create_table(TableName=name, KeySchema=parts, AttributeDefinitions=types, BillingMode="PAY_PER_REQUEST")
        return name

    def options(self) -> dict[str, str]:
        return {
            **ACCOUNT,
            "endpoint": self.server.url,
            "table": self.table,
            "keyColumns": ",".join(self.keys),
            "retry.initialBackoff": "10ms",
            **self.extra,
        }

    def items(self) -> list[dict[str, Any]]:
        """The items as DynamoDB has them."""
        pages = self.client.get_paginator("scan").paginate(TableName=self.table)
        return [item for page in pages for item in page["Items"]]

    def rows(self) -> list[dict[str, Any]]:
        return [{name: plain(value) for name, value in item.items()} for item in self.items()]


class VersionsContext(ItemsContext):
    """Each row under a condition."""

    extra: ClassVar[Mapping[str, str]] = {"orderColumn": "id"}


class TransactionsContext(ItemsContext):
    """A table of which a proxy knows what was written to it: each row of each transaction that was done.

    A row that is written twice is in the table once, as it was; here it shows.
    """

    guarantee = Guarantee.EXACTLY_ONCE
    extra: ClassVar[Mapping[str, str]] = {"guarantee": "exactly-once"}

    def __init__(self, folder: Path) -> None:
        SinkContext.__init__(self, folder)
        self.server = optional(DynamoDbServer)
        self.proxy = FaultProxy(self.server.url).__enter__()
        self.proxy.rule = self._answer
        self.written: list[dict[str, Any]] = []
        self.stage = folder.parent / "stage"

    @cached_property
    def ledger_table(self) -> str:
        return f"ledger-{self.table}"

    def options(self) -> dict[str, str]:
        own = {"endpoint": self.proxy.url, "stagingLocation": str(self.stage), "ledgerTable": self.ledger_table}
        return {**super().options(), **own}

    def rows(self) -> list[dict[str, Any]]:
        ids = {row["id"] for row in super().rows()}
        assert ids == {row["id"] for row in self.written}
        return self.written

    def disks(self) -> Sequence[Path]:
        return [self.stage]

    def leftovers(self) -> list[str]:
        return sorted(stage.name for stage in self._stages())

    def lose_stage(self) -> bool:
        for stage in self._stages():
            shutil.rmtree(stage)
        return True

    def close(self) -> None:
        self.proxy.__exit__()

    def _answer(self, request: Seen, forward: Callable[..., Reply]) -> Reply:
        reply = forward()
        if request.headers["X-Amz-Target"].endswith("TransactWriteItems") and reply.status == 200:
            puts = [part["Put"]["Item"] for part in json.loads(request.body)["TransactItems"] if "Put" in part]
            self.written += [{name: plain(value) for name, value in item.items()} for item in puts]
        return reply

    def _stages(self) -> list[Path]:
        return list(self.stage.glob(".connectors/*/stage/*"))

    def _progress(self) -> list[str]:
        if self.ledger_table not in self.client.list_tables()["TableNames"]:
            return []
        items = self.client.scan(TableName=self.ledger_table, ConsistentRead=True)["Items"]
        return [name for item in items if (name := item["entry"]["S"].removeprefix("rows#")) != item["entry"]["S"]]


def plain(attribute: Mapping[str, Any]) -> Any:
    ((kind, value),) = attribute.items()
    if kind == "N":
        number = Decimal(value)
        return int(number) if number == number.to_integral_value() else number
    return value
