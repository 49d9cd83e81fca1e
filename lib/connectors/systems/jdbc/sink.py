"""The sink of ``connectors.jdbc``: its options, and how the tasks of a batch write."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ...core import (
    REQUIRED,
    Batch,
    Choice,
    Duration,
    Flag,
    FrameSink,
    Guarantee,
    Int,
    Options,
    Problem,
    SinkWriter,
    Text,
)
from ...core.datasets import Dataset
from ...core.folder import SinkFolder
from ...core.ledger import LedgerContent
from ...core.sink import RETENTION
from ...ground.columns import BOOLEAN, Column, Columns, Template, template_columns
from ...ground.options import Values
from ...storage.location import Location, storage_of
from .committer import JdbcCommitter
from .connection import Connection, pooled_connection
from .dialects import DIALECTS, DatabaseAddress, Dialect, OwnDialects, dialect_of, parse, url_of_file
from .direct import DirectWriter, check_order
from .ledger import LEDGER, TableLedger
from .prepared import Markers
from .routing import Routing, routing_problems, target_of
from .statement import StatementText, statement_problems
from .target import Target, WritePlan, datasets_of, refuse, unloadable_columns
from .writers import FileWriter, PreparedWriter, TableWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_READS = "is an option of the source; this sink writes."
_KERBEROS = "is not supported: give user and password, or sslcert and sslkey in the url."
_REFUSED = {
    **dict.fromkeys(
        (
            "query", "partitionColumn", "lowerBound", "upperBound", "fetchsize", "customSchema", "pushDownPredicate",
            "pushDownAggregate", "pushDownLimit", "pushDownOffset", "pushDownTableSample", "preferTimestampNTZ", "prepareQuery",
            "hint", "predicates",
        ),
        _READS,
    ),
    **dict.fromkeys(("keytab", "principal", "refreshKrb5Config", "connectionProvider"), _KERBEROS),
    "numPartitions": "is not supported: repartition the rows before they are written.",
    "isolationLevel": "is not needed: a batch is one transaction, whose ledger row keeps others out.",
    "sessionInitStatement": "is not supported: give the database's user these settings.",
    "createTableOptions": "is not supported: make the table yourself, or take createTable=true without options.",
    "createTableColumnTypes": "is not supported: make the table yourself, or cast in the query.",
    "cascadeTruncate": "is not supported: an overwrite deletes rows and keeps the table.",
}  # fmt: skip


_LONGEST_NAME: Final = 190
"""The most characters of a name; :attr:`Dialect.identifier` has room for the prefix of a query's name."""


class JdbcSink(FrameSink):
    """Writes rows into a table of PostgreSQL, MySQL, MariaDB, SQLite, DuckDB, or a database that :func:`register_dialect` adds.

    With a lower ``guarantee``, tasks write directly into the table, in transactions of ``batch.maxRecords`` or
    ``batch.maxTime``, and ``orderColumn`` also compares rows with the table, which must have the column. The server ends a
    session whose client is silent for ``request.timeout``, but not before 10s. ``statement`` is SQL of your own, which runs
    once for each row in place of the generated. With columns in ``dbtable`` (``shop.orders_{region}``) each row goes to the
    table that it names, and all of a batch in one transaction; such a column need not be in the tables.

    Guarantee: exactly-once, also for plain inserts without a key: the table ``connectors_ledger`` is beside the target.
    On request idempotent for upserts and at-least-once for inserts. The target's column decides which text keys are equal; a
    row with the value of another key in a unique column is a bad row. What readers see of a batch, by ``commit``:

    * ``batch``, the default of ``auto``: the whole batch at once. Tasks fill staging tables or files, and the driver moves the
      rows in one transaction. For any database and any rows;
    * ``prepared``: the rows of one task after those of another; a part of the batch for as long as a driver is dead. Tasks load
      the table in transactions that they prepare. Once the driver has decided the batch, it commits one right after the other.
      Faster. For inserts into PostgreSQL, and by XA into MySQL and MariaDB; the table ``connectors_prepared`` is beside the
      target.
    """

    name = "jdbc"
    options = Options(
        {
            "url": Text(REQUIRED, meaning="JDBC's or SQLAlchemy's; it says which database it is"),
            "dbtable": Template(
                REQUIRED, example="shop.orders_{region}", meaning="name or schema.name; or shop.orders_{region}"
            ),
            "maxTables": Int(
                1000, at_least=1, meaning="tables that columns in dbtable may name in a batch; each looks at all of its rows"
            ),
            "user": Text(None, meaning="the login, where the url has none"),
            "password": Text(None, meaning="its password"),
            "driver": Text(None, meaning="accepted from Spark's options, without effect"),
            "truncate": Flag(False, meaning="accepted from Spark's options, without effect"),
            "operation": Choice(
                "insert",
                among=("insert", "upsert", "update"),
                meaning="upsert inserts or replaces the row of a key, update only changes rows that are there",
            ),
            "statement": StatementText(
                None,
                example="INSERT INTO t (id) VALUES ({id})",
                excludes=(
                    "operation=upsert|update", "keyColumns", "updateColumns", "orderColumn", "deleteColumn", "createTable",
                    "evolveSchema",
                    "commit=prepared: tasks whose statements change the same row would wait for each other; take commit=batch",
                    "guarantee=idempotent: nobody knows what it does twice; take exactly-once, or at-least-once",
                ),
                meaning="SQL of your own, in place of the generated: it runs once for each row, in the order of a task's rows. "
                "{column} is bound as a value; a brace of the SQL itself is doubled. dbtable is the table that it changes",
            ),
            "keyColumns": Columns(
                (),
                needed_by=(
                    "operation=upsert|update: the columns that name a row", "deleteColumn: the columns that name a row",
                ),
                meaning="the columns that identify a row; required by upsert, update and deleteColumn",
            ),
            "updateColumns": Columns((), meaning="what upsert and update change; default: all columns but the keys"),
            "orderColumn": Column(
                None, only_with="keyColumns", meaning="of rows with the same key, the one with its largest value is the last"
            ),
            "deleteColumn": Column(None, BOOLEAN, meaning="a boolean column: true deletes the row of the key, null does not"),
            "commit": Choice(
                "auto", among=("auto", "batch", "prepared"),
                excludes="guarantee=idempotent|at-least-once: rows then go straight into the table",
                meaning="batch: readers see a batch whole; prepared: faster, and seen part by part; auto is batch",
            ),
            "batch.maxRecords": Int(
                1000, at_least=1, meaning="rows of a transaction where guarantee is lower than exactly-once"
            ),
            "batch.maxTime": Duration(0.2, unit="ms", meaning="time of such a transaction"),
            "retry.maxRetries": Int(3, at_least=0, meaning="tries after the first one"),
            "createTable": Flag(False, meaning="creates a missing table from the columns of the rows"),
            "evolveSchema": Flag(False, meaning="adds new optional columns to the table"),
            "stagingLocation": Location(
                None, meaning="a folder for staged rows of a database in a file; default: beside that file"
            ),
            "stagingRetention": RETENTION,
            "request.timeout": Duration(
                30.0, meaning="for connecting, for locks, and until a server ends a silent session that holds locks"
            ),
        },
        refused=_REFUSED,
        alias={"batchsize": "batch.maxRecords", "queryTimeout": "request.timeout"},
    )
    conditions = (
        "the ledger is a table beside the target; a batch appears at once, with commit=prepared part by part; "
        "a statement of your own changes only tables with transactions; "
        "PostgreSQL, MySQL, MariaDB, SQLite, DuckDB"
    )
    rejects_rows = True
    replaces = True
    extensions = OwnDialects()
    plan: WritePlan | None = None
    """The plan by which the tasks of a batch write, if the driver has made it for all of them."""

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        try:
            parse(values["url"], values["user"], values["password"])
        except ValueError as wrong:
            yield Problem("url", str(wrong))
        try:
            target_of(values["dbtable"])
        except ValueError as wrong:
            yield Problem("dbtable", f"must be {wrong}.")
        else:
            yield from routing_problems(values) if template_columns(values["dbtable"]) else ()
        yield from _check_keys(values)
        yield from _check_commit(values)
        if values["statement"]:
            yield from statement_problems(values["statement"], _dialect_kind(values))
        yield from _check_errors(values)
        yield from _check_names(values)
        if values["guarantee"] == "idempotent" and values["operation"] == "insert":
            yield Problem("guarantee", "idempotent needs operation=upsert or update with keyColumns; inserts are exactly-once.")

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        return Guarantee.EXACTLY_ONCE, ""

    @classmethod
    def ledgers_in(cls, target: str, options: Mapping[str, str]) -> Sequence[LedgerContent] | None:
        """``target`` is a URL or the file of a database; ``dbtable`` names a table beside a ledger in another schema."""
        try:
            url = url_of_file(target) or target
            parse(url, options.get("user"), options.get("password"))
        except ValueError:
            return None
        values = cls.known_options().parse("connectors.jdbc", {"url": url, "dbtable": LEDGER, **options})
        dialect = dialect_of(parse(url, values["user"], values["password"]), values["request.timeout"])
        ledger = TableLedger(dialect, target_of(values["dbtable"], dialect).beside(LEDGER), "")
        with pooled_connection(dialect) as connection:
            return ledger.contents(connection)

    def address(self) -> DatabaseAddress:
        return parse(self.values["url"], self.values["user"], self.values["password"])

    def dialect(self) -> Dialect:
        return dialect_of(self.address(), self.values["request.timeout"])

    def target(self) -> str:
        address = self.address()
        return f"{address}/{target_of(self.values['dbtable'], DIALECTS[address.dialect](address, 0.0))}"

    def datasets(self) -> Sequence[Dataset]:
        dbtable = self.values["dbtable"]
        return [] if template_columns(dbtable) else datasets_of(self.address(), dbtable.format())

    def routing(self, dialect: Dialect) -> Routing | None:
        """The tables that columns in ``dbtable`` name; ``None`` if it names one."""
        return Routing(self.values, dialect) if template_columns(self.values["dbtable"]) else None

    def folder(self) -> SinkFolder:
        """The staging folder for a database in a file."""
        where = self.values["stagingLocation"] or Path(self.address().database).absolute().parent
        return SinkFolder(storage_of(str(where), self.values["storageOptions"]), self.sink_id())

    @property
    def mode(self) -> str:
        """How tasks write: ``direct``, or the mode of ``commit``."""
        if self.guarantee() is not Guarantee.EXACTLY_ONCE:
            return "direct"
        return "batch" if self.values["commit"] == "auto" else str(self.values["commit"])

    def check_target(self, schema: pa.Schema) -> None:
        dialect = self.dialect()
        if routing := self.routing(dialect):
            return refuse(routing.problems(schema))
        with pooled_connection(dialect) as connection:
            Target(self.values, dialect, target_of(self.values["dbtable"], dialect)).check_columns(connection, schema)

    def placed(self, frame: DataFrame, schema: pa.Schema, batch: Batch) -> tuple[JdbcSink, DataFrame]:
        """The sink for the tasks of ``batch``, with a plan that is made once for all of them."""
        if self.mode == "batch":  # its committer makes the plan when all rows are staged
            return self, frame
        with pooled_connection(self.dialect()) as connection:
            plan = self._task_plan(connection, schema, batch)
        sink = copy.copy(self)
        sink.plan = plan
        return sink, frame

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        writer = self._writer(batch, schema, subtask)
        writer.rejects = self.rejects(batch)
        return writer

    def _writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        values, dialect = self.values, self.dialect()
        if self.mode == "batch":
            if routing := self.routing(dialect):
                refuse(routing.problems(schema))
                if batch.replace:
                    refuse([Problem("dbtable", "names tables by columns, and an overwrite replaces the rows of one.")])
            if dialect.one_writer:
                return FileWriter(dialect, self.folder(), batch, schema, routing)
            target, in_order = target_of(values["dbtable"], dialect), bool(values["statement"])
            return TableWriter(dialect, target, batch, schema, subtask=subtask, in_order=in_order, routing=routing)
        plan = self.plan or self._plan_in_task(dialect, schema, batch)
        if self.mode == "direct":
            return DirectWriter(values, dialect, plan)
        return PreparedWriter(dialect, plan, batch)

    def _plan_in_task(self, dialect: Dialect, schema: pa.Schema, batch: Batch) -> WritePlan:
        """The plan of a task by ``format(…)``: no driver code runs before the tasks that could wait during an outage."""
        with contextlib.closing(dialect.connect()) as connection:
            return self._task_plan(connection, schema, batch)

    def _task_plan(self, connection: Connection, schema: pa.Schema, batch: Batch) -> WritePlan:
        """The plan of tasks that do not stage a batch. Raises :class:`Misconfigured` with the reasons if they cannot."""
        if self.mode == "prepared":
            refuse(self._preparing_problems(connection, batch))
        table = target_of(self.values["dbtable"], connection.dialect)
        plan = Target(self.values, connection.dialect, table).plan(connection, schema)
        if self.mode == "prepared":
            refuse(unloadable_columns(connection.dialect, plan.columns))
            Markers(connection.dialect, plan.table).make(connection)
        elif self.mode == "direct":
            check_order(plan)
        return plan

    def _preparing_problems(self, connection: Connection, batch: Batch) -> Iterator[Problem]:
        values, dialect = self.values, connection.dialect
        if values["operation"] != "insert" or values["deleteColumn"]:
            yield Problem("commit", "prepared takes inserts only: tasks that change the same row would wait for each other.")
        if values["errors"] != "fail":
            yield Problem("commit", f"prepared cannot look for bad rows; take commit=batch with errors={values['errors']}.")
        if batch.replace:
            yield Problem("commit", "prepared cannot replace what is in the table; take commit=batch with overwrite.")
        if not dialect.most_prepared(connection):
            yield Problem("commit", f"prepared needs {dialect.prepared_needs}.")

    def committer(self) -> JdbcCommitter | None:
        return None if self.mode == "direct" else JdbcCommitter(self)


def _check_keys(values: Values) -> Iterator[Problem]:
    keys = values["keyColumns"]
    if values["guarantee"] in ("idempotent", "at-least-once"):
        yield from _check_direct_order(values)
    if both := sorted(set(keys) & set(values["updateColumns"])):
        yield Problem("updateColumns", f"has {', '.join(both)}, which is a key.")


def _check_direct_order(values: Values) -> Iterator[Problem]:
    """The problems of ``orderColumn`` in direct writes, which compare rows with those in the table."""
    order, guarantee = values["orderColumn"], values["guarantee"]
    if order and values["deleteColumn"]:
        text = f"and deleteColumn need guarantee=exactly-once; with {guarantee}, an older row could come after its deletion."
        yield Problem("orderColumn", text)
    if order and values["updateColumns"] and order not in (*values["updateColumns"], *values["keyColumns"]):
        text = f"must have {order}, the orderColumn: with guarantee={guarantee}, later rows are compared with it in the table."
        yield Problem("updateColumns", text)


def _check_commit(values: Values) -> Iterator[Problem]:
    if values["commit"] == "prepared" and values["onNewQuery"] == "replace":
        yield Problem("commit", "prepared cannot replace what is in the table; take commit=batch with onNewQuery=replace.")
    if values["operation"] == "update" and values["onNewQuery"] == "replace":
        yield Problem("operation", "update only changes rows that are there, and onNewQuery=replace leaves none; take upsert.")
    if values["commit"] == "prepared" and _dialect_kind(values).one_writer:
        text = "prepared is there for PostgreSQL, MySQL and MariaDB: a file has one writer at a time; take batch."
        yield Problem("commit", text)


def _check_errors(values: Values) -> Iterator[Problem]:
    is_direct = values["guarantee"] in ("idempotent", "at-least-once")
    if is_direct and values["errors"] != "fail" and not _dialect_kind(values).savepoints:
        text = f"cannot be {values['errors']} with guarantee={values['guarantee']}: this database has no savepoints"
        yield Problem("errors", f"{text}, by which bad rows are found in small transactions. Take guarantee=exactly-once.")


def _check_names(values: Values) -> Iterator[Problem]:
    """The problems of long names, which a server refuses like a row that is in the ledger. Files have no limit."""
    for option in () if _dialect_kind(values).one_writer else ("sinkId", "txnAppId"):
        if (length := len(values[option] or "")) > _LONGEST_NAME:
            yield Problem(option, f"has {length} letters; the ledger has room for {_LONGEST_NAME}. Take a shorter one.")


def _dialect_kind(values: Values) -> type[Dialect]:
    """The dialect of a ``url``; for a wrong one, which is a problem of its own, a dialect that has everything."""
    try:
        return DIALECTS[parse(values["url"]).dialect]
    except ValueError:
        return Dialect
