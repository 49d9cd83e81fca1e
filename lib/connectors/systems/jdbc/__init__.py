"""``connectors.jdbc``: tables of a database, read in balanced ranges, and written exactly once.

Spark's own JDBC writer appends, in batches, at least once, and does not stream. This one stages the rows of a micro-batch and
moves them in one transaction, whose first statement is the ledger row that says that the batch is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ...core import (
    REQUIRED,
    Batch,
    Choice,
    Duration,
    Flag,
    Guarantee,
    Int,
    Names,
    Options,
    Problem,
    Sink,
    SinkWriter,
    Text,
)
from ...core.folder import TargetFolder
from ...core.options import Values
from .committer import JdbcCommitter
from .dialects import DIALECTS, Dialect, dialect_of
from .dialects.postgresql import PostgreSql
from .direct import DirectWriter
from .incremental import fan_out
from .loading import PreparedWriter, plan_for
from .source import JdbcSource
from .staging import FileWriter, TableWriter
from .target import table_of
from .url import Address, parse

__all__ = ["JdbcSink", "JdbcSource", "fan_out"]

_READS = "is an option of the source; this sink writes."
_KERBEROS = "is not supported: give user and password, or sslcert and sslkey in the url."
_REFUSED = {
    **dict.fromkeys(
        (
            "query", "partitionColumn", "lowerBound", "upperBound", "fetchsize", "customSchema", "pushDownPredicate",
            "pushDownAggregate", "pushDownLimit", "pushDownOffset", "pushDownTableSample", "preferTimestampNTZ", "prepareQuery",
            "hint",
        ),
        _READS,
    ),
    **dict.fromkeys(("keytab", "principal", "refreshKrb5Config", "connectionProvider"), _KERBEROS),
    "isolationLevel": "is not needed: a batch is one transaction, whose ledger row keeps others out.",
    "numPartitions": "is not supported: repartition the rows before they are written.",
    "sessionInitStatement": "is not supported: give the database's user these settings.",
    "createTableOptions": "is not supported: make the table yourself, or take createTable=true without options.",
    "createTableColumnTypes": "is not supported: make the table yourself, or cast in the query.",
    "cascadeTruncate": "is not supported: an overwrite deletes rows and keeps the table.",
}  # fmt: skip


class JdbcSink(Sink):
    """Writes rows into a table of PostgreSQL, SQLite, DuckDB or MariaDB.

    Options: ``url`` (JDBC's or SQLAlchemy's), ``dbtable`` (``name`` or ``schema.name``), ``user``, ``password``,
    ``operation`` insert|upsert|update (insert), ``keyColumns`` (required by upsert, update and ``deleteColumn``),
    ``updateColumns`` (all but the keys), ``orderColumn`` (of rows with one key, the one with its largest value is the last),
    ``deleteColumn`` (a column of booleans; true deletes the row of that key), ``createTable`` (false), ``evolveSchema``
    (false: adds new optional columns), ``commit`` auto|batch|prepared (auto), ``stagingRetention`` (7 days),
    ``stagingLocation`` (beside the file, for databases in one), ``request.timeout`` (30s, for connecting and for locks), and
    those of every sink. With a lower ``guarantee``, rows go straight into the table, in transactions of
    ``batch.maxRecords`` (1000, also ``batchsize``) or ``batch.maxTime`` (200ms). Spark's ``driver`` and ``truncate`` are
    accepted and mean nothing here.

    Guarantee: exactly-once, also for plain inserts without a key: the table ``connectors_ledger`` is beside the target.
    Idempotent for upserts and at-least-once for inserts where that is asked for.
    """

    name = "jdbc"
    options = Options(
        {
            "url": Text(REQUIRED),
            "dbtable": Text(REQUIRED),
            "user": Text(None),
            "password": Text(None),
            "driver": Text(None),
            "truncate": Flag(False),
            "operation": Choice("insert", among=("insert", "upsert", "update")),
            "keyColumns": Names(()),
            "updateColumns": Names(()),
            "orderColumn": Text(None),
            "deleteColumn": Text(None),
            "commit": Choice("auto", among=("auto", "batch", "prepared", "task")),
            "batch.maxRecords": Int(1000, at_least=1),
            "batch.maxTime": Duration(0.2, unit="ms"),
            "retry.maxRetries": Int(3, at_least=0),
            "createTable": Flag(False),
            "evolveSchema": Flag(False),
            "stagingLocation": Text(None),
            "stagingRetention": Duration(7 * 86400.0),
            "request.timeout": Duration(30.0),
        },
        refused=_REFUSED,
        alias={"batchsize": "batch.maxRecords", "queryTimeout": "request.timeout"},
    )
    conditions = "the ledger is a table beside the target; PostgreSQL, SQLite, DuckDB, MariaDB"
    rejects_rows = True
    replaces = True

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        try:
            parse(values["url"], values["user"], values["password"])
        except ValueError as wrong:
            yield Problem("url", str(wrong))
        try:
            table_of(values["dbtable"])
        except ValueError as wrong:
            yield Problem("dbtable", f"must be {wrong}.")
        yield from _check_keys(values)
        if values["commit"] == "task":
            yield Problem("commit", "task is not supported; batch and prepared need no rows placed by hash, and are atomic.")
        if values["guarantee"] == "idempotent" and values["operation"] == "insert":
            yield Problem("guarantee", "idempotent needs operation=upsert or update with keyColumns; inserts are exactly-once.")
        if values["commit"] == "prepared" and values["url"].find("postgres") < 0:
            yield Problem("commit", "prepared is there for PostgreSQL only; take auto or batch.")
        if values["guarantee"] not in (None, "exactly-once") and values["commit"] != "auto":
            yield Problem("commit", f"has no use with guarantee={values['guarantee']}: rows then go straight into the table.")

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        return Guarantee.EXACTLY_ONCE, ""

    def address(self) -> Address:
        return parse(self.values["url"], self.values["user"], self.values["password"])

    def dialect(self) -> Dialect:
        return dialect_of(self.address(), self.values["request.timeout"])

    def target(self) -> str:
        address = self.address()
        return f"{address}/{table_of(self.values['dbtable'], DIALECTS[address.dialect](address, 0.0))}"

    def folder(self) -> TargetFolder:
        """Where rows are staged for a database in a file."""
        where = self.values["stagingLocation"] or Path(self.address().database).absolute().parent
        return TargetFolder(str(where), self.sink_id())

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        writer = self._writer(batch, schema, subtask)
        writer.rejects = self.rejects(batch)
        return writer

    def _writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        values, dialect = self.values, self.dialect()
        if self._direct:
            return DirectWriter(values, dialect, schema)
        plan = plan_for(values, dialect, schema, batch, subtask)
        if plan is not None and isinstance(dialect, PostgreSql):
            return PreparedWriter(dialect, plan, batch)
        if dialect.one_writer:
            return FileWriter(dialect, self.folder(), batch, schema)
        return TableWriter(dialect, table_of(values["dbtable"], dialect), batch, schema)

    def committer(self) -> JdbcCommitter | None:
        return None if self._direct else JdbcCommitter(self)

    @property
    def _direct(self) -> bool:
        return self.guarantee() is not Guarantee.EXACTLY_ONCE


def _check_keys(values: Values) -> Iterator[Problem]:
    keys = values["keyColumns"]
    if values["operation"] != "insert" and not keys:
        yield Problem("keyColumns", f"missing; operation={values['operation']} needs the columns that name a row.")
    if values["deleteColumn"] and not keys:
        yield Problem("keyColumns", "missing; deleteColumn needs the columns that name a row.")
    if values["orderColumn"] and not keys:
        yield Problem("orderColumn", "has no use without keyColumns.")
    if both := sorted(set(keys) & set(values["updateColumns"])):
        yield Problem("updateColumns", f"has {', '.join(both)}, which is a key.")
