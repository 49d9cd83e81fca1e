"""What tests of epochs share."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from connectors.core.epochs import EpochLog
from connectors.storage import storage_of
from connectors.testing.source_suite import SourceQuery
from connectors.testing.sqlite_file import transaction
from tests.systems.reference_contexts import QueueContext

SCHEMA = pa.schema([("value", pa.int64())])


def values(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["value"] for row in rows)


def log_of(system: QueueContext) -> EpochLog:
    return EpochLog(storage_of(system.options()["stateLocation"]), "queue_double")


def to_the_end(query: SourceQuery, log: list[Any]) -> list[int]:
    """What a run of ``availableNow`` reads, which does not end with an epoch that is empty."""
    rows: list[dict[str, Any]] = []
    while (batch := query.next(log)) is not None:
        rows += batch
    return values(rows)


def hide(system: QueueContext) -> None:
    """Ends the leases of all messages, which come again only behind a long backlog."""
    with transaction(system.queue.path) as file:
        file.execute("UPDATE messages SET visible = ?, lease = 'of nobody'", (time.time() + 1000,))
