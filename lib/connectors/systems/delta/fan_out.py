"""A stream of many tables becomes one Delta table for each.

Each batch is one transaction in each table that has rows in it, under ``txnAppId`` and ``txnVersion``: Delta skips a
transaction that an interrupted batch has already written. The ledger is a table ``_batches`` beside them; it records a batch
after all of its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa

from ...core import (
    Batch,
    Choice,
    CommitRefused,
    Committable,
    ConnectorError,
    Fatal,
    Json,
    Misconfigured,
    Options,
    Problem,
    Sink,
    SinkWriter,
    Text,
)
from ...core.datasets import Dataset, of_location
from ...core.ledger import Entry, ReplayPolicy, decide
from ...formats.base import quoted
from ...ground.options import Values
from ...ground.state import digest
from .column_types import fitted, united_types, widen
from .sink import DeltaCommitter, DeltaSink, RecordingCommitter, TransactionMark, known_columns, same_key
from .transaction import MergeTransaction, own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "delta_tables"
LEDGER: Final = "_batches"
_TAKEN: Final = (".", "..", LEDGER)
"""Names that tables cannot have."""
_SIDE_BY_SIDE: Final = 4
"""The number of tables that are written at a time: most of the time goes by between the jobs of Spark, not in them."""
_COLUMNS: Final = ("table", "row", "schema")
_MISSING_BATCHES: Final = ReplayPolicy(on_missing_batches="continue")
"""Not every batch has rows of every table."""


def fan_out(
    path: str | None = None, keys: Mapping[str, Sequence[str]] | None = None, *, schema: str | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch`` that keeps one Delta table for each table of a stream.

    The tables are folders below ``path``, or tables of a ``schema`` such as ``main.shop``. The stream is ``connectors.jdbc``
    with ``tables`` and ``includeSchema=true``. ``keys`` names the columns that identify a row, by table, with ``"*"`` for all
    tables that it does not name: a changed row then replaces the one before it. Without keys each version is a row of its own.
    ``operation="replace"`` is for ``incremental=bulk``: a batch replaces all rows of its tables.

    Exactly-once. New columns are added; a column becomes wider where one type holds all its values, and a value that would be
    altered is an error. A row that is deleted in the database stays, unless tables are replaced. On Spark Connect and
    serverless compute a MERGE takes no version: a driver that stood still and goes on later puts its older rows back.
    """
    from ... import foreach_batch

    arguments = {"path": path, "schema": schema}
    by_table = {"keyColumns": {name: list(columns) for name, columns in keys.items()}} if keys else {}
    return foreach_batch(DeltaTables, {**{name: value for name, value in arguments.items() if value}, **by_table, **options})


class TablePlace(NamedTuple):
    """The place of a Delta table: the ``location`` is a folder, or a name as SQL writes it."""

    location: str
    is_path: bool

    @property
    def sql(self) -> str:
        """The table, as SQL names it."""
        return f"delta.{quoted(self.location)}" if self.is_path else self.location


class DeltaTables(Sink):
    """The sink behind :func:`fan_out`."""

    name = NAME
    options = Options(
        path=Text(None, alternatives=("schema",), meaning="the folder of all tables"),
        schema=Text(None, meaning="the schema of all tables, such as main.shop"),
        operation=Choice(
            None, among=("append", "upsert", "replace"), meaning="upsert where there are keys, else append"
        ),
        keyColumns=Json(
            None, dict, needed_by='operation=upsert: them by table: {"orders": ["id"]}', excludes="operation=append|replace",
            meaning='lists of columns by table: {"orders": ["id"], "*": ["uuid"]}; * is for all others',
        ),
    )
    conditions = (
        "foreach_batch only; rows of a stream of tables with includeSchema; with keys, on Spark Connect or serverless compute, "
        "no driver that stood still goes on behind the next batches"
    )

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        if not all(_is_names(columns) for columns in (values["keyColumns"] or {}).values()):
            yield Problem("keyColumns", 'must be lists of columns by table: {"orders": ["id"]}.')

    def target(self) -> str:
        return str(self.values["path"] or self.values["schema"])

    def datasets(self) -> Sequence[Dataset]:
        return [of_location(self.values["path"]) if self.values["path"] else Dataset("delta", self.values["schema"])]

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        raise Misconfigured(f"connectors.{NAME}", [Problem("format", "takes foreach_batch only.")])

    def committer(self) -> DeltaTablesCommitter:
        return DeltaTablesCommitter(self)


class DeltaTablesCommitter(RecordingCommitter):
    """Writes the tables of a batch side by side, and then the ledger."""

    def __init__(self, sink: DeltaTables) -> None:
        self.sink = sink
        self.keys: Mapping[str, Sequence[str]] = sink.values["keyColumns"] or {}
        self.ledger = self._log(self._in_target(LEDGER))
        self._asked = set[str]()
        """The tables of which Delta skips no batch that it ought to write, by their history."""
        self._sessions = SimpleQueue[Any]()
        """The sessions of merges that are over: at most as many as merges go on side by side."""

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        """Writes what ``frame`` has of each table, and records the batch."""
        if missing := [name for name in _COLUMNS if name not in frame.columns]:
            text = f"must be a stream of tables with includeSchema=true; it has no column {', '.join(missing)}."
            raise Misconfigured(f"connectors.{NAME}", [Problem("stream", text)])
        rows = frame.persist()
        try:
            counts = rows.groupBy("table", "schema").count().collect()
            schemas: dict[str, list[str]] = {}
            for row in sorted(counts, key=lambda row: str(row["schema"])):
                schemas.setdefault(row["table"], []).append(row["schema"])
            if batch.claim is not None:  # before the tables, as what comes before the first batch
                self._record(frame.sparkSession, [], replace(batch, number=batch.number - 1))
            batch = replace(batch, claim=None)
            check = partial(self._check_history, frame.sparkSession, batch)
            if new := schemas.keys() - self._asked:
                self._check_names(frame.sparkSession, self._asked | schemas.keys())
            _side_by_side(frame, {name: partial(check, name) for name in new})
            self._asked |= schemas.keys()
            write = partial(self._write, rows, batch)
            _side_by_side(frame, {name: partial(write, name, texts) for name, texts in schemas.items()})
            written = [(row["table"], row["schema"], row["count"], batch.number) for row in counts]
            self._record(frame.sparkSession, written, batch)
        finally:
            rows.unpersist()

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        """Records only. The ledger may be gone."""
        from pyspark.sql import SparkSession

        self._record(SparkSession.active(), [], Batch(self.sink.sink_id(), entry.query, entry.batch, claim=entry.claim))

    def _record(self, spark: SparkSession, rows: Sequence[tuple[str, str, int, int]], batch: Batch) -> None:
        record = spark.createDataFrame(rows, "table string, schema string, rows bigint, batch bigint")
        self.ledger.commit_frame(record, batch)

    def _place(self, table: str) -> TablePlace:
        is_path = bool(self.sink.values["path"])
        name = quote(table, safe=" $.-") if is_path else table
        is_taken = (name if is_path else name.lower()) in _TAKEN  # a schema does not tell upper from lower case
        return self._in_target(f"%{ord(name[0]):02X}{name[1:]}" if is_taken else name)

    def _in_target(self, name: str) -> TablePlace:
        if path := self.sink.values["path"]:
            return TablePlace(f"{str(path).rstrip('/')}/{name}", is_path=True)
        return TablePlace(f"{self.sink.values['schema']}.{quoted(name)}", is_path=False)

    def _log(self, place: TablePlace, spark: SparkSession | None = None) -> DeltaCommitter:
        sink = DeltaSink.of({"path" if place.is_path else "table": place.location, "sinkId": self.sink.sink_id()})
        return DeltaCommitter(sink, spark)  # type: ignore[arg-type]

    def _check_history(self, spark: SparkSession, batch: Batch, table: str) -> None:
        """Raises :class:`CommitRefused` where Delta would skip ``batch`` for another that the table has, or has had."""
        if last := self._log(self._place(table), spark).last(batch.query):
            decide(batch.sink_id, batch.query, batch.number, last, frozenset(), _MISSING_BATCHES)

    def _check_names(self, spark: SparkSession, tables: Set[str]) -> None:
        """Raises :class:`Fatal` for two tables that would be one in a schema, which does not tell upper from lower case."""
        ledger = self._in_target(LEDGER)
        if ledger.is_path:
            return
        recorded = set[str]()
        if spark.catalog.tableExists(ledger.location):
            recorded = {row["table"] for row in spark.table(ledger.location).select("table").distinct().collect()}
        seen: dict[str, str] = {}
        for table in sorted(tables | recorded):
            if (other := seen.setdefault(table.lower(), table)) != table:
                text = f"the tables {other} and {table} would be one in the schema {self.sink.values['schema']}"
                raise Fatal(text, connector=f"connectors.{NAME}", way_out="leave one out of tables, or give a path")

    def _write(self, frame: DataFrame, batch: Batch, table: str, schemas: Sequence[str]) -> None:
        place, mark = self._place(table), self.ledger.transaction(batch)
        known = known_columns(frame.sparkSession, place.location, is_path=place.is_path)
        declared = [_types(schema) for schema in schemas]  # several, when a batch met an ALTER TABLE
        known_types = {} if known is None else {field.name.lower(): field.dataType for field in known}
        types = united_types(declared, known_types)
        by_schema = [_columns(frame, table, schema, kinds, types) for schema, kinds in zip(schemas, declared, strict=True)]
        widen(frame.sparkSession, place.sql, known_types, types)
        rows = by_schema[0]
        for others in by_schema[1:]:
            rows = rows.unionByName(others, allowMissingColumns=True)
        if (keys := self.keys.get(table, self.keys.get("*"))) and known is not None:
            self._merge(rows, place, keys, batch, mark)
            return
        replacing = self.sink.values["operation"] == "replace"
        writer = rows.write.format("delta").mode("overwrite" if replacing else "append").option("mergeSchema", "true")
        writer = writer.option("delta.enableTypeWidening", "true")
        if known is None and not place.is_path:
            nothing = frame.sparkSession.createDataFrame([], rows.schema)  # a transaction that creates takes no metadata
            empty = nothing.write.format("delta").mode("ignore").option("delta.enableTypeWidening", "true")
            empty.saveAsTable(place.location)
        writer = writer.option("txnAppId", mark.app).option("txnVersion", str(mark.version))
        writer = writer.option("userMetadata", mark.metadata)
        writer.save(place.location) if place.is_path else writer.saveAsTable(place.location)

    def _merge(
        self, rows: DataFrame, place: TablePlace, keys: Sequence[str], batch: Batch, mark: TransactionMark
    ) -> None:
        """By key, and so the same when it is done again."""
        view = f"connectors_{digest(batch.prefix(), place.location)}"
        try:
            spark = self._sessions.get_nowait()
        except Empty:
            spark = own_session(rows.sparkSession)
        is_own = spark is not rows.sparkSession
        target = _full_name(rows.sparkSession, place.sql) if is_own and not place.is_path else place.sql
        database = f"{quoted(spark.conf.get('spark.sql.globalTempDatabase'))}." if is_own else ""
        rows.createOrReplaceGlobalTempView(view) if is_own else rows.createOrReplaceTempView(view)
        try:
            with MergeTransaction(spark, mark):
                spark.sql(
                    f"MERGE WITH SCHEMA EVOLUTION INTO {target} AS old "
                    f"USING {database}{view} AS new ON {same_key(keys)} "
                    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                )
        finally:
            catalog = rows.sparkSession.catalog
            catalog.dropGlobalTempView(view) if is_own else catalog.dropTempView(view)
            if is_own:
                self._sessions.put(spark)


def _full_name(spark: SparkSession, table: str) -> str:
    """The name of ``table`` for a session with another current catalog."""
    known = spark.catalog.getTable(table)
    return ".".join(quoted(part) for part in (known.catalog, *(known.namespace or ()), known.name) if part)


def _side_by_side(frame: DataFrame, writes: Mapping[str, Callable[[], None]]) -> None:
    """Runs all of ``writes``, also when some of them fail: those are named then."""
    from pyspark import inheritable_thread_target

    inherit: Any = inheritable_thread_target
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
        # They belong to the query, and end with it. Each has properties of its own, where Spark notes what a thread is doing.
        running = {name: threads.submit(inherit(frame.sparkSession)(write)) for name, write in writes.items()}
    failed = {name: error for name, future in running.items() if (error := future.exception()) is not None}
    for error in failed.values():
        alone = len(writes) == 1 and isinstance(error, ConnectorError)
        if alone or isinstance(error, CommitRefused) or not isinstance(error, Exception):  # a refusal is of the whole batch
            raise error
        details = "; ".join(f"{table}: {_first_line(wrong)}" for table, wrong in failed.items())
        text = f"{len(failed)} of {len(writes)} tables are not written, {details}"
        raise Fatal(text, connector=f"connectors.{NAME}") from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _is_names(columns: object) -> bool:
    return isinstance(columns, list) and bool(columns) and all(isinstance(name, str) for name in columns)


def _types(schema: str) -> dict[str, Any]:
    from pyspark.sql.types import StructType

    fields: Any = StructType.fromDDL(schema)
    return {field.name: field.dataType for field in fields}


def _columns(
    frame: DataFrame, table: str, schema: str, declared: Mapping[str, Any], types: Mapping[str, Any]
) -> DataFrame:
    """The rows of one table and schema, their JSON as columns of ``types``."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    read = StructType()
    for name, kind in declared.items():
        read.add(name, kind)
    some = frame.where((F.col("table") == table) & (F.col("schema") == schema))
    parsed = some.select(F.from_json("row", read, {"mode": "FAILFAST"}).alias("row"))
    cells = (
        fitted(F.col("row").getField(name), kind, types[name], f"{table}.{name}").alias(name)
        for name, kind in declared.items()
    )
    return parsed.select(*cells)
