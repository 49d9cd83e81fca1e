"""DynamoDB on this machine, as the suites see it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from connectors.core import Guarantee
from connectors.systems.dynamodb import DynamoDbSink
from connectors.testing import SinkContext
from connectors.testing.servers import MotoServer
from tests.servers import required

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

    extra: ClassVar[Mapping[str, str]] = {"versionColumn": "id"}


def plain(attribute: Mapping[str, Any]) -> Any:
    ((kind, value),) = attribute.items()
    if kind == "N":
        number = Decimal(value)
        return int(number) if number == number.to_integral_value() else number
    return value
