"""What sinks of many Delta tables share: where the tables are, the ledger beside them, and how they are written side by side.

Each batch is one transaction in each table that has rows in it, under a ``txnAppId`` and ``txnVersion``: Delta skips a
transaction that an interrupted batch has already written. The ledger is a table ``_batches`` beside them; it records a batch
after all of its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ...core import (
    Batch,
    CommitRefused,
    Committable,
    ConnectorError,
    Fatal,
    Options,
    Text,
)
from ...core.ledger import Entry, ReplayPolicy, decide
from ...formats.base import quoted
from ...ground.retry import is_stopped
from .sink import DeltaCommitter, RecordingCommitter, TablePlace, TableSink, TransactionMark, known_columns, log_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LEDGER: Final = "_batches"
CHANGES: Final = "_changes"
_SIDE_BY_SIDE: Final = 4
"""The number of tables that are written at a time: most of the time goes by between the jobs of Spark, not in them."""
_MISSING_BATCHES: Final = ReplayPolicy(on_missing_batches="continue")
"""Not every batch has rows of every table."""
TABLES: Final = Options(
    path=Text(None, alternatives=("schema",), meaning="the folder of all tables"),
    schema=Text(None, meaning="the schema of all tables, such as main.shop"),
)
"""The place of all tables, by one of two options."""


def place_of(schema: str) -> dict[str, str]:
    """The option of :data:`TABLES` that has ``schema``: a folder, if it has a slash."""
    return {"path" if "/" in schema else "schema": schema}


class TablesSink(TableSink):
    """The base of sinks that write many Delta tables, by ``foreach_batch`` alone."""

    name_option = "schema"


class TablesCommitter(RecordingCommitter):
    """Writes the tables of a batch side by side, and then the ledger."""

    columns: str
    """The columns of the ledger, of which ``table`` is the first."""
    needs_rows = True
    """False where a batch has all rows of its tables."""

    def __init__(self, sink: TablesSink) -> None:
        self.sink = sink
        self.ledger = log_at(self.in_target(LEDGER), sink.sink_id())
        self._asked = set[str]()
        """The tables of which Delta skips no batch that it ought to write, by their history."""
        self._written = set[str]()
        """The tables of earlier batches."""

    def write_tables(
        self,
        spark: SparkSession,
        batch: Batch,
        writes: Mapping[str, Callable[[Batch], None]],
        record: Sequence[tuple[Any, ...]],
    ) -> None:
        """Writes each table by its call of ``writes``, and then the ledger, with the rows of ``record``."""
        batch = self.begin(spark, batch, writes.keys())
        self.finish(spark, batch, writes, record)

    def begin(self, spark: SparkSession, batch: Batch, tables: Set[str]) -> Batch:
        """``batch`` without its claim, which the ledger then has, and checks of the ``tables`` that it is to write."""
        if batch.claim is not None:  # before the tables, as what comes before the first batch
            self._record(spark, [], replace(batch, number=batch.number - 1))
        batch = replace(batch, claim=None)
        if new := tables - self._asked:
            self._written |= self.recorded_tables(spark)
            self._check_names(self._asked | tables)
        checks = {name: partial(self._check_history, spark, batch, name) for name in new}
        side_by_side(spark, checks, f"connectors.{self.sink.name}")
        self._asked |= tables
        return batch

    def finish(
        self,
        spark: SparkSession,
        batch: Batch,
        writes: Mapping[str, Callable[[Batch], None]],
        record: Sequence[tuple[Any, ...]],
    ) -> None:
        """Writes the tables of a ``batch`` that has begun, and then the ledger."""
        calls = {name: partial(write, batch) for name, write in writes.items()}
        side_by_side(spark, calls, f"connectors.{self.sink.name}")
        self._written |= writes.keys()
        self._record(spark, record, batch)

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        """Records only. The ledger may be gone."""
        from pyspark.sql import SparkSession

        self._record(SparkSession.active(), [], Batch(self.sink.sink_id(), entry.query, entry.batch, claim=entry.claim))

    def logs_of(self, spark: SparkSession, table: str) -> Sequence[DeltaCommitter]:
        """The histories of ``table`` that tell which batches it has."""
        return [log_at(self.place(table), self.sink.sink_id(), spark)]

    def place(self, table: str) -> TablePlace:
        """The place of ``table``, by its name in the stream."""
        is_path = bool(self.sink.values["path"])
        name = quote(table, safe=" $.-") if is_path else table
        # A schema does not tell upper from lower case.
        is_own = (name if is_path else name.lower()) in (".", "..", LEDGER, CHANGES)
        return self.in_target(f"%{ord(name[0]):02X}{name[1:]}" if is_own else name)

    def in_target(self, name: str) -> TablePlace:
        """The place of the table that is called ``name`` there."""
        if path := self.sink.values["path"]:
            return TablePlace(f"{str(path).rstrip('/')}/{name}", is_path=True)
        return TablePlace(f"{self.sink.values['schema']}.{quoted(name)}", is_path=False)

    def columns_of(self, spark: SparkSession, table: str, batch: Batch) -> StructType | None:
        """The columns of ``table``; ``None`` if it is new.

        Raises :class:`CommitRefused` for a table of earlier batches that is gone: another in its place would lack their rows.
        """
        columns = known_columns(spark, self.place(table))
        if columns is None and table in self._written and self.needs_rows:
            raise CommitRefused(
                f"the table {table} is gone from {self.sink.target()}, and batch {batch.number} has only what came since",
                way_out="restore the table, or begin in another place, where all of it is read",
            )
        return columns

    def recorded_tables(self, spark: SparkSession) -> Set[str]:
        """The tables that the ledger knows."""
        return {table for (table,) in self.entries(spark, "table")}

    def entries(self, spark: SparkSession, *columns: str) -> list[tuple[Any, ...]]:
        """The values of ``columns`` in the ledger, each once."""
        place = self.in_target(LEDGER)
        if known_columns(spark, place) is None:
            return []
        rows = spark.sql(f"SELECT DISTINCT {', '.join(map(quoted, columns))} FROM {place.sql}")
        return [tuple(row) for row in rows.collect()]

    def _check_names(self, tables: Set[str]) -> None:
        """Raises :class:`Fatal` for two tables that would be one in a schema, which does not tell upper from lower case."""
        if self.sink.values["path"]:
            return
        seen: dict[str, str] = {}
        for table in sorted(tables | self._written):
            if (other := seen.setdefault(table.lower(), table)) != table:
                text = f"the tables {other} and {table} would be one in the schema {self.sink.values['schema']}"
                raise Fatal(text, connector=f"connectors.{self.sink.name}", way_out="leave one out of tables, or give a path")

    def _record(self, spark: SparkSession, rows: Sequence[tuple[Any, ...]], batch: Batch) -> None:
        self.ledger.commit_frame(spark.createDataFrame(rows, self.columns), batch)

    def _check_history(self, spark: SparkSession, batch: Batch, table: str) -> None:
        """Raises :class:`CommitRefused` where Delta would skip ``batch`` for another that the table has, or has had.

        It does so, too, for a table that is gone.
        """
        if table in self._written:
            self.columns_of(spark, table, batch)
        for log in self.logs_of(spark, table):
            if last := log.last(batch.query):
                decide(batch.sink_id, batch.query, batch.number, last, frozenset(), _MISSING_BATCHES)


def create(rows: DataFrame, place: TablePlace, **options: str) -> None:
    """Makes the table at ``place`` with the columns of ``rows`` and no row, unless it exists."""
    writer = rows.sparkSession.createDataFrame([], rows.schema).write.format("delta").mode("ignore").options(**options)
    writer.save(place.location) if place.is_path else writer.saveAsTable(place.location)


def append(
    rows: DataFrame, place: TablePlace, mark: TransactionMark, *, is_new: bool, mode: str = "append", **options: str
) -> None:
    """Writes ``rows`` to the table at ``place``, in the transaction that ``mark`` tells from others."""
    if is_new and not place.is_path:  # a transaction that creates takes no metadata
        create(rows, place, **options)
    writer = rows.write.format("delta").mode(mode).options(**options)
    writer = writer.option("txnAppId", mark.app).option("txnVersion", str(mark.version))
    writer = writer.option("userMetadata", mark.metadata)
    writer.save(place.location) if place.is_path else writer.saveAsTable(place.location)


def side_by_side(spark: SparkSession, writes: Mapping[str, Callable[[], None]], connector: str) -> None:
    """Runs all of ``writes``, also when some of them fail: those are named then."""
    from pyspark import inheritable_thread_target

    inherit: Any = inheritable_thread_target
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
        # They belong to the query, and end with it. Each has properties of its own, where Spark notes what a thread is doing.
        running = {name: threads.submit(inherit(spark)(write)) for name, write in writes.items()}
    failed = {name: error for name, future in running.items() if (error := future.exception()) is not None}
    for error in failed.values():
        alone = len(writes) == 1 and isinstance(error, ConnectorError)
        if alone or isinstance(error, CommitRefused) or not isinstance(error, Exception):  # a refusal is of the whole batch
            raise error
        if is_stopped():  # Spark knows the errors of a query that is stopped by their own texts
            raise error
        details = "; ".join(f"{table}: {_text(wrong)}" for table, wrong in failed.items())
        raise Fatal(f"{len(failed)} of {len(writes)} tables are not written, {details}", connector=connector) from error


def _text(error: BaseException) -> str:
    """All of an error of the library, and the first line of any other; of Java's, the second says what was wrong."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    if not isinstance(error, ConnectorError):
        lines = lines[1:2] if len(lines) > 1 and lines[1].startswith(":") else lines[:1]
    return " ".join(lines).lstrip(": ") or type(error).__name__
