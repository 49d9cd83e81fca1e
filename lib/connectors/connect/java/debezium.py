"""What only Debezium's connectors need: how they go on after a restart, and settings that lose nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from ..host import HEADERS
from .jvm import Jvm

SNAPSHOT_HEADER: Final = "__connectors.snapshot"
"""The header of the first row after a start that has begun a snapshot anew; its value is ``again``."""

_PACKAGE: Final = "io.debezium.connector."
_TRANSACTIONS: Final = {
    "postgresql": ("lsn_commit", "txId"),
    "mysql": ("file", "pos"),
    "mariadb": ("file", "pos"),
    "sqlserver": ("commit_lsn", "change_lsn"),
    "db2": ("commit_lsn", "change_lsn"),
}
"""By connector, the fields of an offset that name a transaction, or, for those with ``change_lsn``, a change inside one."""


def is_debezium(properties: Mapping[str, str]) -> bool:
    return properties.get("connector.class", "").startswith(_PACKAGE)


def offset_store(jvm: Jvm, properties: Mapping[str, str]) -> Any:
    """The ``OffsetStore.java`` of a source with these properties."""
    if not is_debezium(properties):
        return jvm.compiled("OffsetStore", None, False, None)
    names = list(_TRANSACTIONS.get(_database(properties), ()))
    return jvm.compiled("OffsetStore", jvm.java.java.util.ArrayList(names), _takes_snapshots(properties), None)


def marked_again(rows: pa.Table) -> pa.Table:
    """``rows``, the first with the header that tells that a snapshot begins anew."""
    if not rows.num_rows:
        return rows
    headers = rows["headers"]
    first = [*(headers[0].as_py() or []), {"key": SNAPSHOT_HEADER, "value": b"again"}]
    marked = pa.chunked_array([pa.array([first], HEADERS), *headers.slice(1).chunks], HEADERS)
    return rows.set_column(rows.schema.get_field_index("headers"), "headers", marked)


def _database(properties: Mapping[str, str]) -> str:
    return properties["connector.class"].removeprefix(_PACKAGE).partition(".")[0]


def _takes_snapshots(properties: Mapping[str, str]) -> bool:
    """True if each start takes a snapshot, also behind a recorded offset."""
    return properties.get("snapshot.mode", "initial").lower() == "always"
