"""``connectors.delta``: rows go to one table, or to those that columns name: ``table="main.shop.orders_{region}"``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from ...core import Batch, CommitRefused, Fatal, FrameCommitter, Misconfigured, Options, Problem
from ...core.datasets import Dataset
from ...core.ledger import Entry, is_stream
from ...formats.base import quoted
from ...ground.columns import PLAIN_TYPES, Template, template_columns
from ...ground.options import Int, Values
from .sink import AppendSink, known_columns
from .tables import LEDGER, TABLES, TablesCommitter, TablesSink, append, create, side_by_side

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLE: Final = "__connectors_table"
_NO_ROWS: Final[Mapping[str, int]] = {"": 0}
"""The plan of a batch without rows: a batch without a plan may have had some."""


class DeltaSink(AppendSink):
    """Appends each micro-batch to a Delta table in one transaction, or to several tables.

    With columns in the last part of ``path`` or ``table`` (``main.shop.orders_{region}``) each row goes to the table that it
    names. All of them are made before one is written, so a name that the catalog does not allow stops the query. Tables are
    written side by side, each at once; the table ``_batches`` beside them records which rows are to come, and then the batch.
    One that died between two tables is finished, and refused where it comes again with other rows.

    Guarantee: exactly-once, by ``foreach_batch``. For other ways to write, Spark's own format ``delta`` is there.
    """

    options = AppendSink.options | Options(
        path=Template(
            None, alternatives=("table",), example="/lake/orders/{region}",
            meaning="the folder of the table, or /lake/orders/{region}; the first batch creates it",
        ),
        table=Template(
            None, example="main.shop.orders_{region}", meaning="the name of the table, or main.shop.orders_{region}"
        ),
        maxTables=Int(1000, at_least=1, meaning="tables that columns in path or table may name"),
    )

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        for option, separator, example in (("path", "/", "/lake/orders/{region}"), ("table", ".", "main.shop.orders_{region}")):
            parent, _, name = (values[option] or "").rstrip("/").rpartition(separator)
            if template_columns(parent) or (template_columns(name) and not parent):
                yield Problem(option, f"must have columns in its last part only, such as {example}; got {values[option]!r}.")

    def datasets(self) -> Sequence[Dataset]:
        return [] if template_columns(self.target()) else super().datasets()

    def committer(self) -> FrameCommitter:
        return RoutingCommitter(self) if template_columns(self.target()) else super().committer()


class RoutingTables(TablesSink):
    """The folder or schema of the tables."""

    name = "delta"
    options = TABLES


class RoutingCommitter(TablesCommitter):
    """Appends the rows of a batch to their tables, side by side.

    The ledger has the number of rows of each table before one is written, since a replay may bring others.
    """

    columns = "table string, rows bigint, batch bigint, query string, sink string"

    def __init__(self, sink: DeltaSink) -> None:
        option, separator = ("path", "/") if sink.values["path"] else ("table", ".")
        parent, _, self._template = sink.values[option].rstrip("/").rpartition(separator)
        target = {"path" if option == "path" else "schema": parent, "sinkId": sink.sink_id()}
        super().__init__(RoutingTables.of(target))  # type: ignore[arg-type]
        self._most: int = sink.values["maxTables"]
        self._options = {"mergeSchema": str(sink.values["mergeSchema"]).lower()}
        self._keeps = sink.values["onReplayMismatch"] == "skip"
        self._newest: dict[str, Entry] = {}
        """By query, the batch that this run has recorded, with its number of rows."""

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        from pyspark.sql import functions as F

        columns = template_columns(self._template)
        self._check(frame, columns)
        spark = frame.sparkSession
        parts = [(F.lit(text), name) for text, name, _, _ in Formatter().parse(self._template)]
        values = {name: F.nullif(F.col(quoted(name)).cast("string"), F.lit("")) for name in columns}
        texts = [cell for text, name in parts for cell in (text, *([values[name]] if name else []))]
        rows = frame.withColumn(_TABLE, F.concat(*texts)).persist()
        try:
            counts = {row[_TABLE]: row["count"] for row in rows.groupBy(_TABLE).count().collect()}
            if nameless := counts.get(None):
                text = f"{nameless} rows have no {' or '.join(columns)}, so that {self._template} names no table"
                raise Fatal(text, connector="connectors.delta", way_out="give them a value by coalesce, or leave them out")
            self._check_number(spark, counts.keys())
            batch = self.begin(spark, batch, counts.keys())
            makes = {table: partial(self._create, frame, table, batch) for table in counts}
            side_by_side(spark, makes, "connectors.delta")
            self._plan(spark, batch, counts)
            self.finish(spark, batch, {table: partial(self._write, rows, table) for table in counts}, [])
            self._newest[batch.query] = Entry(batch.query, batch.number, sum(counts.values()))
        finally:
            rows.unpersist()

    def last(self, query: str) -> Entry | None:
        """With the number of rows."""
        from pyspark.sql import SparkSession

        entry, newest = super().last(query), self._newest.get(query)
        if entry is None or not is_stream(query):
            return entry
        if newest is not None and newest.batch == entry.batch:
            return replace(entry, rows=newest.rows)
        counts = self._planned(SparkSession.active(), query, entry.batch)
        return replace(entry, rows=sum(counts.values())) if counts else entry

    def recorded_tables(self, spark: SparkSession) -> Set[str]:
        return {table for table, sink in self.entries(spark, "table", "sink") if table and sink == self.sink.sink_id()}

    def _check(self, frame: DataFrame, columns: list[str]) -> None:
        kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
        for name in columns:
            if kinds.get(name) not in PLAIN_TYPES:
                option, types = "path" if self.sink.values["path"] else "table", ", ".join(PLAIN_TYPES)
                text = f"{name} in {self._template} must be a column of {types}; it is {kinds.get(name)}. Cast it."
                raise Misconfigured("connectors.delta", [Problem(option, text)])

    def _check_number(self, spark: SparkSession, tables: Set[str]) -> None:
        if tables <= self._written:
            return
        self._written |= self.recorded_tables(spark)
        if (count := len(self._written | tables)) > self._most:
            text = f"{self._template} names {count} tables, and maxTables is {self._most}; one is {max(tables)}"
            raise Fatal(text, connector="connectors.delta", way_out="give another column, or more maxTables")

    def _create(self, frame: DataFrame, table: str, batch: Batch) -> None:
        if self.columns_of(frame.sparkSession, table, batch) is None:
            create(frame, self.place(table), **self._options)

    def _plan(self, spark: SparkSession, batch: Batch, counts: Mapping[str, int]) -> None:
        """Records the rows of each table. Raises :class:`CommitRefused` if ``batch`` has begun before, with others."""
        counts = counts or _NO_ROWS
        rows = [(*count, batch.number, batch.query, batch.sink_id) for count in counts.items()]
        place, mark = self.in_target(LEDGER), self.ledger.transaction(batch)
        mark = mark._replace(app=f"{mark.app}:plan", metadata=f"the plan of {batch}")
        append(spark.createDataFrame(rows, self.columns), place, mark, is_new=known_columns(spark, place) is None)
        planned = self._planned(spark, batch.query, batch.number)
        if planned == counts or self._keeps:
            return
        changes = {table: (planned.get(table, 0), counts.get(table, 0)) for table in sorted(planned.keys() | counts.keys())}
        texts = [f"{before} rows of {table}, now {now}" for table, (before, now) in changes.items() if before != now]
        raise CommitRefused(
            f"batch {batch.number} comes again with other rows: {'; '.join(texts)}: the query is not deterministic",
            way_out="make the query deterministic; with onReplayMismatch=skip, tables that have the batch keep it, and the "
            "others get the rows that come now",
        )

    def _planned(self, spark: SparkSession, query: str, number: int) -> dict[str, int]:
        """The rows of each table in a batch, by the ledger."""
        from pyspark.sql import functions as F

        rows = spark.sql(f"SELECT * FROM {self.in_target(LEDGER).sql}").where(F.col("batch") == number)
        own = rows.where((F.col("query") == query) & (F.col("sink") == self.sink.sink_id()))
        return {row["table"]: row["rows"] for row in own.collect()}

    def _write(self, rows: DataFrame, table: str, batch: Batch) -> None:
        from pyspark.sql import functions as F

        own: Any = rows.where(F.col(_TABLE) == table).drop(_TABLE)
        append(own, self.place(table), self.ledger.transaction(batch), is_new=False, **self._options)
