"""The special needs of Debezium's connectors: how they go on after a restart, and settings that lose nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from ...ground.errors import Fatal, Transient
from ...ground.state import digest
from ..common_settings import names
from ..host import HEADERS, Groups, Offsets
from .failures import failure_of
from .jvm import Jvm
from .steps import converter_class

SNAPSHOT_HEADER: Final = "__connectors.snapshot"
"""The header of the first row after a start that has begun a snapshot anew; its value is ``again``."""

LOSS_WAY_OUT: Final = (
    "bring slot and database back to their former state; or begin with a new snapshot: a new checkpoint, stateLocation and "
    "target table, and a slot of a new name"
)

_SLOT_WAY_OUT: Final = (
    "give the query a slot.name of its own; or drop it if nobody needs it (SELECT pg_drop_replication_slot('<slot.name>')); "
    "snapshot.mode=no_data takes no snapshot and reads a slot from where it stands"
)
_REFUSAL: Final = "org.apache.kafka.connect.errors.ConnectException"
_PACKAGE: Final = "io.debezium.connector."
_TRANSACTIONS: Final = {
    "postgresql": ("lsn_commit", "txId"),
    "mysql": ("file", "pos"),
    "mariadb": ("file", "pos"),
    "sqlserver": ("commit_lsn", "change_lsn"),
    "db2": ("commit_lsn", "change_lsn"),
}
"""By connector, the fields of an offset that name a transaction, or, for those with ``change_lsn``, a change inside one."""

_FLATTENING: Final = "io.debezium.transforms.ExtractNewRecordState"
_SNAPSHOTS: Final = ("initial", "when_needed")
"""The values of ``snapshot.mode`` with one snapshot that the log follows on."""
_PARTS: Final = ("snapshot.mode.configuration.based.snapshot.data", "snapshot.mode.configuration.based.start.stream")
_DECISIVE: Final = (
    "column.",
    "database.exclude",
    "database.include",
    "event.",
    "include.",
    "message.",
    "provide.",
    "publication.",
    "schema.",
    "signal.",
    "skip",
    "table.",
    "tombstones.",
    "topic.",
)
_TIMEOUTS: Final = {"driver.connectTimeout": "3", "driver.socketTimeout": "3"}
"""The driver's timeouts for a look at the slot, in seconds."""
_log = logging.getLogger("connectors.connect")


def is_debezium(properties: Mapping[str, str]) -> bool:
    return properties.get("connector.class", "").startswith(_PACKAGE)


def with_defaults(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a source, with values that lose nothing in place of Debezium's defaults.

    Debezium leaves out truncations (``skipped.operations=t``). Converter and flattening transform write the default of a column
    where its value is null.
    """
    if not is_debezium(properties):
        return dict(properties)
    defaults = {"skipped.operations": "none"}
    for part in ("key", "value"):
        if converter_class(properties, part).endswith(".JsonConverter"):
            defaults[f"{part}.converter.replace.null.with.default"] = "false"
    for alias in names(properties.get("transforms")):
        if properties.get(f"transforms.{alias}.type") == _FLATTENING:
            defaults[f"transforms.{alias}.replace.null.with.default"] = "false"
    return {**defaults, **properties}


def offset_store(jvm: Jvm, properties: Mapping[str, str], log: Any = None) -> Any:
    """The ``OffsetStore.java`` of a source with these properties, and the log of :func:`source_log`."""
    if not is_debezium(properties):
        return jvm.compiled("OffsetStore", None, None, False, False, None)
    fields = jvm.java.java.util.ArrayList(list(_TRANSACTIONS.get(_database(properties), ())))
    repairs = _mode(properties) == "when_needed"
    return jvm.compiled("OffsetStore", fields, _settings(properties), _takes_snapshots(properties), repairs, log)


def source_log(jvm: Jvm, properties: Mapping[str, str]) -> Any:
    """The object that looks at the database's log before a start (``PostgresLog.java``); ``None`` where nothing does."""
    if not is_debezium(properties) or _database(properties) != "postgresql":
        return None
    mode = _mode(properties)
    drops_slot = mode in _SNAPSHOTS or _takes_snapshots(properties)
    flushes_itself = properties.get("lsn.flush.mode", "").lower() == "connector_and_driver"
    configurations = [
        getattr(jvm.java.io.debezium.config.Configuration, "from")({**properties, **more}) for more in ({}, _TIMEOUTS)
    ]
    # With read.only=true, Debezium compares the number of the newest transaction, and a message has none.
    marks = properties.get("heartbeat.interval.ms", "0") != "0" and properties.get("read.only", "").lower() != "true"
    return jvm.compiled("PostgresLog", *configurations, drops_slot, mode != "initial_only", flushes_itself, marks)


def slot_facts(log: Any) -> dict[str, Any]:
    """What a look at the slot tells (``PostgresLog.java``); empty where the database does not answer at once."""
    try:
        return {name: fact for name, fact in json.loads(log.look()).items() if fact is not None}
    except Exception as error:  # of the database, or of a JVM that ends meanwhile and cannot tell more
        _log.info("the replication slot is not known for now: %s", type(error).__name__)
        return {}


def snapshot_facts(jvm: Jvm) -> dict[str, Any]:
    """The rows that snapshots have read, and whether one runs; empty where there was none."""
    metrics = jvm.compiled("SnapshotMetrics")
    rows = int(metrics.rows())
    return {} if rows < 0 else {"snapshot_rows": rows, "snapshot_runs": bool(metrics.isRunning())}


def bound_of(slot: str, bound: str) -> tuple[int, str]:
    """The level and the text of what a start logs about ``max_slot_wal_keep_size``, whose value is ``bound``."""
    if bound == "-1":
        return logging.WARNING, (
            f"the database keeps all of its log for the slot {slot} (max_slot_wal_keep_size=-1): while the query is stopped, "
            "the disk of the database may fill. Set max_slot_wal_keep_size there, and drop the slot when nobody needs it"
        )
    return logging.INFO, (
        f"the database keeps up to {bound} of its log for the slot {slot} (max_slot_wal_keep_size): if the query falls further "
        "behind, the slot is lost, and a new snapshot is needed"
    )


def slot_of(properties: Mapping[str, str]) -> str:
    """The database and the replication slot of a source of PostgreSQL; empty for others. A failover changes neither."""
    if not is_debezium(properties) or _database(properties) != "postgresql":
        return ""
    return f"{properties.get('database.dbname', '')}/{properties.get('slot.name', 'debezium')}"


def refuse_slot(jvm: Jvm, properties: Mapping[str, str], name: str) -> None:
    """Raises :class:`Fatal` where the replication slot exists that a query's first start with it would make."""
    log = source_log(jvm, properties)
    try:
        if log is not None:
            log.refuseSlot()
    except Py4JJavaError as error:
        failure = failure_of(error, jvm.masked)
        if failure.kind != _REFUSAL:
            raise Transient(f"the replication slots cannot be read: {failure}", connector=name) from None
        raise Fatal(failure.message, connector=name, way_out=_SLOT_WAY_OUT) from None


def groups_of(properties: Mapping[str, str], offsets: Offsets, groups: Groups) -> Groups:
    """``groups``, without the counts of a transaction whose records other settings have decided: it comes whole again.

    So does the one of an offset to which a user has moved: Debezium goes on behind its position, which many records may have.
    """
    settings = _settings(properties)
    if is_debezium(properties) and _database(properties) in _TRANSACTIONS:
        targets = [partition for partition, group in groups.items() if group and group.get("moved")]
        in_log = [partition for partition in targets if (offsets.get(partition) or {}).get("snapshot") is None]
        groups = {**groups, **{partition: {"records": {}, "settings": settings} for partition in in_log}}
    changed = {
        partition: {**group, "records": {}}
        for partition, group in groups.items()
        if group and group.get("records") and group.get("settings") != settings
    }
    if changed:
        _log.warning("the settings of which records there are have changed: the newest transaction is handed over again")
    return {**groups, **changed}


def is_behind(offset: Mapping[str, Any], end: int) -> bool:
    """True if all that was committed in PostgreSQL before the position ``end`` was read up to ``offset``.

    A snapshot must have ended. Debezium forgets the place of an incremental one when a start ends before its first chunk, so
    runs that ended inside of it might never read all.
    """
    in_snapshot = offset.get("snapshot") is not None and not offset.get("snapshot_completed")
    return not in_snapshot and max(offset.get("lsn") or 0, offset.get("lsn_commit") or 0) >= end


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


def _mode(properties: Mapping[str, str]) -> str:
    return properties.get("snapshot.mode", "initial").lower()


def _takes_snapshots(properties: Mapping[str, str]) -> bool:
    """True if each start takes a snapshot that the log follows on, whatever was recorded."""
    mode = _mode(properties)
    by_parts = mode == "configuration_based" and all(properties.get(part, "").lower() == "true" for part in _PARTS)
    return mode == "always" or by_parts


def _settings(properties: Mapping[str, str]) -> str:
    """A digest of the properties that decide which records a transaction has."""
    return digest(sorted(item for item in properties.items() if item[0].startswith(_DECISIVE)), length=16)
